#include "runtime/engram.h"

#include <stdlib.h>

/* ---- numpy's default_rng, as far as the multipliers need it */

__extension__ typedef unsigned __int128 wide;

typedef struct pcg64 {
    wide state, inc;
} pcg64;

/* SeedSequence(entropy).generate_state(4, uint64) for one 32-bit word of entropy. */
static void seed_sequence(uint32_t entropy, uint64_t out[4])
{
    uint32_t pool[4], hash = 0x43b0d7e5u, word[8];
    for (int i = 0; i < 4; i++) {
        uint32_t v = (i == 0 ? entropy : 0) ^ hash;
        hash *= 0x931e8875u;
        v *= hash;
        pool[i] = v ^ v >> 16;
    }
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            if (from == to)
                continue;
            uint32_t v = pool[from] ^ hash;
            hash *= 0x931e8875u;
            v *= hash;
            v ^= v >> 16;
            v = 0xca01f9ddu * pool[to] - 0x4973f715u * v;
            pool[to] = v ^ v >> 16;
        }
    hash = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t v = pool[i & 3] ^ hash;
        hash *= 0x58f38dedu;
        v *= hash;
        word[i] = v ^ v >> 16;
    }
    for (int i = 0; i < 4; i++)
        out[i] = (uint64_t)word[2 * i + 1] << 32 | word[2 * i];
}

static void pcg64_step(pcg64 *r)
{
    const wide multiplier = (wide)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    r->state = r->state * multiplier + r->inc;
}

static uint64_t pcg64_next(pcg64 *r)
{
    pcg64_step(r);
    uint64_t x = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
    unsigned turn = (unsigned)(r->state >> 122);
    return x >> turn | x << (-turn & 63);
}

static void pcg64_seed(pcg64 *r, uint32_t entropy)
{
    uint64_t s[4];
    seed_sequence(entropy, s);
    r->inc = ((wide)s[2] << 64 | s[3]) << 1 | 1;
    r->state = 0;
    pcg64_step(r);
    r->state += (wide)s[0] << 64 | s[1];
    pcg64_step(r);
}

/* Uniform below bound (above 2^32: smaller ones take another path in numpy): Lemire's multiplication, the uneven rest rejected. */
static uint64_t pcg64_below(pcg64 *r, uint64_t bound)
{
    wide m = (wide)pcg64_next(r) * bound;
    if ((uint64_t)m < bound) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)m < threshold)
            m = (wide)pcg64_next(r) * bound;
    }
    return (uint64_t)(m >> 64);
}

void bl_engram_multipliers(int64_t *out, int n, int layer, int classes)
{
    int64_t bound = INT64_MAX / classes / 2;
    pcg64 r;
    pcg64_seed(&r, 10007u * (uint32_t)layer);
    for (int i = 0; i < n; i++)
        out[i] = (int64_t)pcg64_below(&r, (uint64_t)bound) * 2 + 1;
}

/* ---- the table layout */
static bool is_prime(int64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return false;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

/* Sizes of the tables' column ranges. The definition draws, for each layer and order, primes from floor upwards that were not
 * used before: that is every prime from floor on, in order. */
static void lay_out(bl_engram *e, int64_t floor)
{
    int64_t p = floor - 1;
    for (int l = 0; l < e->layers; l++) {
        int64_t row = 0;
        for (int c = 0; c < e->columns; c++) {
            do
                p++;
            while (!is_prime(p));
            e->primes[l * e->columns + c] = p;
            e->offsets[l * e->columns + c] = row;
            row += p;
        }
        e->table_rows[l] = row;
    }
}

/* Above any table that fits a disk; keeps the sums and the search for primes small. */
#define MAX_FLOOR (INT64_C(1) << 36)
#define MAX_COLUMNS 4096
#define MAX_ORDER 64

static bl_status allocate(bl_engram *e, bl_error *err)
{
    size_t cells = (size_t)e->layers * (size_t)e->columns;
    e->multipliers = calloc((size_t)e->layers * (size_t)e->order, sizeof *e->multipliers);
    e->primes = calloc(cells, sizeof *e->primes);
    e->offsets = calloc(cells, sizeof *e->offsets);
    e->table_rows = calloc((size_t)e->layers, sizeof *e->table_rows);
    if (!e->multipliers || !e->primes || !e->offsets || !e->table_rows)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the Engram constants");
    return BL_OK;
}

static bl_status fill(bl_engram *e, const bl_config *c, const bl_tokenizer *t, bl_error *err)
{
    BL_TRY(bl_engram_token_map(t, &e->map, &e->classes, err));
    e->map_size = bl_tokenizer_size(t);
    if (e->classes != c->engram_compressed_vocab_size)
        return bl_fail(err, BL_E_INPUT, NULL, "engram_compressed_vocab_size", -1,
                       "the tokenizer gives %d Engram classes, the config says %d", e->classes, c->engram_compressed_vocab_size);
    if (c->engram_pad_token_id < 0 || c->engram_pad_token_id >= e->map_size)
        return bl_fail(err, BL_E_INPUT, NULL, "engram_pad_token_id", -1, "%d is no token", c->engram_pad_token_id);
    e->pad = e->map[c->engram_pad_token_id];
    BL_TRY(allocate(e, err));
    lay_out(e, c->engram_vocab_size);
    for (int l = 0; l < e->layers; l++) {
        bl_engram_multipliers(e->multipliers + (size_t)l * (size_t)e->order, e->order, c->engram_layer_ids[l], e->classes);
        if (e->table_rows[l] != c->engram_num_embeddings[l])
            return bl_fail(err, BL_E_INPUT, NULL, "engram_num_embeddings", -1,
                           "layer %d has a table of %lld rows, its addressing needs %lld", c->engram_layer_ids[l],
                           (long long)c->engram_num_embeddings[l], (long long)e->table_rows[l]);
    }
    return BL_OK;
}

bl_status bl_engram_create(bl_engram **out, const bl_config *c, const bl_tokenizer *t, bl_error *err)
{
    *out = NULL;
    int64_t columns = bl_config_engram_columns(c);
    if (c->engram_max_ngram_size < 2 || c->engram_max_ngram_size > MAX_ORDER || c->engram_n_heads < 1 || columns > MAX_COLUMNS)
        return bl_fail(err, BL_E_INPUT, NULL, "engram_max_ngram_size", -1, "orders and heads give %lld columns", (long long)columns);
    if (c->engram_vocab_size < 2 || c->engram_vocab_size > MAX_FLOOR)
        return bl_fail(err, BL_E_INPUT, NULL, "engram_vocab_size", -1, "%lld is out of range", (long long)c->engram_vocab_size);
    bl_engram *e = calloc(1, sizeof *e);
    if (!e)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the Engram constants");
    e->layers = c->engram_count;
    e->order = c->engram_max_ngram_size;
    e->heads = c->engram_n_heads;
    e->columns = (int)columns;
    bl_status s = fill(e, c, t, err);
    if (s != BL_OK)
        bl_engram_destroy(&e);
    *out = e;
    return s;
}

void bl_engram_destroy(bl_engram **e)
{
    if (!*e)
        return;
    free((*e)->map);
    free((*e)->multipliers);
    free((*e)->primes);
    free((*e)->offsets);
    free((*e)->table_rows);
    free(*e);
    *e = NULL;
}

void bl_engram_rows(const bl_engram *e, int layer_index, const int32_t *history, int64_t *rows)
{
    const int64_t *multiplier = e->multipliers + (size_t)layer_index * (size_t)e->order;
    const int64_t *prime = e->primes + (size_t)layer_index * (size_t)e->columns;
    const int64_t *offset = e->offsets + (size_t)layer_index * (size_t)e->columns;
    int64_t hash = 0;
    bool blocked = false;
    int column = 0;
    for (int back = 0; back < e->order; back++) {
        blocked = blocked || history[back] == BL_ENGRAM_DEAD;
        /* Below 2^63: class < classes and multiplier <= 2^63 / classes. */
        hash ^= (blocked ? e->pad : history[back]) * multiplier[back];
        for (int h = 0; back > 0 && h < e->heads; h++, column++)
            rows[column] = hash % prime[column] + offset[column];
    }
}
