/* Compressor of a KV source: the latents and index keys that the pass's tokens complete. */
#include "runtime/cpu/cpu.h"

#include "runtime/rope.h"

#include <string.h>

enum { TOKENS = 16 };

typedef struct compress_job {
    const bl_pass *p;
    const bl_layer *l;
} compress_job;

static float *open_pair(const bl_cpu *c, const bl_pass_span *s, int slot)
{
    return s->cache->open + (int64_t)slot * 2 * c->config.head_dim;
}

/* Entries that the pass completes, in span order. */
static int64_t list_entries(bl_cpu *c, const bl_pass *p, int ratio)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->span_count; i++) {
        const bl_pass_span *s = &p->spans[i];
        for (int64_t e = s->start / ratio; e < (s->start + s->count) / ratio; e++, n++) {
            c->new_entries[2 * n] = i;
            c->new_entries[2 * n + 1] = e;
        }
    }
    return n;
}

/* Ratio 2: pool each pair. The even token may have come with an earlier pass. */
static void pool_entries(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const compress_job *j = arg;
    const int64_t d = c->config.head_dim;
    (void)worker;
    for (int64_t i = from; i < to; i++) {
        const bl_pass_span *s = &j->p->spans[c->new_entries[2 * i]];
        const int64_t even = 2 * c->new_entries[2 * i + 1] - s->start, t = s->first + even;
        const float *open = open_pair(c, s, j->l->kv_slot);
        const float *kv0 = even < 0 ? open : c->pair_kv + t * d, *z0 = even < 0 ? open + d : c->pair_z + t * d;
        c->ops.pool_pair(c->pooled + i * d, kv0, z0, c->pair_kv + (t + 1) * d, c->pair_z + (t + 1) * d, d);
    }
}

static void keep_open(bl_cpu *c, const compress_job *j)
{
    const int64_t d = c->config.head_dim;
    const size_t bytes = (size_t)d * sizeof(float);
    for (int64_t i = 0; i < j->p->span_count; i++) {
        const bl_pass_span *s = &j->p->spans[i];
        if ((s->start + s->count) % 2 == 0) continue;
        const int64_t last = s->first + s->count - 1;
        float *open = open_pair(c, s, j->l->kv_slot);
        memcpy(open, c->pair_kv + last * d, bytes);
        memcpy(open + d, c->pair_z + last * d, bytes);
    }
}

static void norm_entries(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const compress_job *j = arg;
    const int64_t d = c->config.head_dim;
    uint16_t *x = c->pooled + from * d;
    (void)worker;
    c->ops.rmsnorm(x, x, j->l->compressor.norm.codes, to - from, d, c->config.rms_norm_eps);
}

/* Both rows are rotated at the position of the group's first token, rounded and stored. */
static void store_entries(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const compress_job *j = arg;
    const bl_config *f = &c->config;
    const int64_t d = f->head_dim, width = f->index_head_dim, R = f->qk_rope_head_dim;
    float *cs = cpu_worker(c, worker);
    for (int64_t i = from; i < to; i++) {
        const bl_pass_span *s = &j->p->spans[c->new_entries[2 * i]];
        const int64_t entry = c->new_entries[2 * i + 1];
        uint16_t *latent = c->pooled + i * d, *key = c->key + i * width;
        bl_rope_rotation(cs, c->frequency[1], (int)(R / 2), entry * j->l->ratio);
        c->ops.rmsnorm(key, key, j->l->compressor.k_norm.codes, 1, width, f->rms_norm_eps);
        c->ops.rope(key, 1, width, R, cs, 0);
        c->ops.pack_index(bl_cache_key(s->cache, j->l->kv_slot, entry), key, width);
        c->ops.rope(latent, 1, d, R, cs, 0);
        c->ops.pack_latent(bl_cache_latent(s->cache, j->l->kv_slot, entry), latent, d);
    }
}

void bl_cpu_compress(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x)
{
    bl_cpu *c = cpu_of(b);
    compress_job j = {p, l};
    const int64_t T = p->tokens, D = c->config.hidden_size, d = c->config.head_dim, n = list_entries(c, p, l->ratio);
    const cpu_packed input = bl_cpu_pack(c, x, D, T, D, false);
    if (l->ratio == 1) {
        cpu_product kv = cpu_whole(&l->compressor.wkv, &input, c->pooled, NULL);
        bl_cpu_products(c, &kv, 1);
    } else {
        cpu_product pair[2] = {cpu_whole(&l->compressor.wkv, &input, NULL, c->pair_kv),
                               cpu_whole(&l->compressor.wgate, &input, NULL, c->pair_z)};
        bl_cpu_products(c, pair, 2);
        bl_cpu_tokens(c, n, TOKENS, pool_entries, &j);
        keep_open(c, &j);
    }
    if (n == 0) return;
    bl_cpu_tokens(c, n, TOKENS, norm_entries, &j);
    const cpu_packed latents = bl_cpu_pack(c, c->pooled, d, n, d, false);
    cpu_product keys = cpu_whole(&l->compressor.wk, &latents, c->key, NULL);
    bl_cpu_products(c, &keys, 1);
    bl_cpu_tokens(c, n, TOKENS, store_entries, &j);
}
