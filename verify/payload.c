#include "verify/payload.h"

#include "verify/arrival.h"
#include "verify/flaw.h"
#include "verify/stream.h"

#include <stdatomic.h>
#include <stdlib.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

typedef struct source {
    const bl_payload *p;
    bl_reader *reader;
    bl_sha256 *sha256;
    bl_data_hashes hashes;
    uint64_t *starts; /* [tensors] in the file */
    _Atomic uint64_t *read; /* [tensors + 1] bytes of each part of the lane, where they come in the order of an archive; else NULL */
} source;

typedef struct prover {
    bl_finder *f;
    source *sources;
    bl_lane *lanes;
    size_t count;
    bl_cast_kernels kernels;
    bl_payload_proof *out;
    pthread_mutex_t lock;
} prover;

/* Part 0 of a lane is what comes before the data. */
static const bl_payload_tensor *tensor_of(const source *s, const bl_segment *g)
{
    return g->part ? &s->p->tensors[g->part - 1] : NULL;
}

static uint64_t start_of(const source *s, size_t part)
{
    return part ? s->starts[part - 1] : 0;
}

/* Bytes of a part were read: whoever keeps them hears of the last ones. */
static void count(const source *s, const bl_part *part, const bl_segment *g)
{
    if (s->read && atomic_fetch_add(&s->read[g->part], g->nbytes) + g->nbytes == part->nbytes) {
        bl_arrival_done(s->p->file, start_of(s, g->part), part->nbytes);
    }
}

static bl_status work(void *arg, const bl_tile *t, bl_error *err)
{
    prover *x = arg;
    const source *s = &x->sources[t->lane];
    const uint8_t *data;
    BL_TRY(bl_reader_read(s->reader, t->data - t->offset % BL_IO_ALIGN, t->nbytes, t->offset, &data, err));
    for (size_t i = 0; i < t->segment_count; data += t->segments[i++].nbytes) {
        const bl_segment *g = &t->segments[i];
        const bl_payload_tensor *p = tensor_of(s, g);
        bl_flaw flaw = p && p->name ? bl_flaw_find(&x->kernels, p->dtype, NULL, data, g->nbytes) : (bl_flaw){0};
        if (flaw.count) {
            uint64_t at = s->starts[g->part - 1] + g->offset;
            bl_find(x->f, 2, s->p->path, p->name, (int64_t)(at + flaw.first * flaw.size), (int64_t)(at + (flaw.last + 1) * flaw.size),
                    "%llu %s", (unsigned long long)flaw.count, flaw.what);
        }
        count(s, &x->lanes[t->lane].parts[g->part], g);
    }
    return BL_OK;
}

/* The tensor's last byte has been hashed. */
static void compare_tensor(prover *x, source *s, size_t index)
{
    const bl_payload_tensor *p = &s->p->tensors[index];
    bl_digest d = bl_hasher_final(s->hashes.tensor);
    if (bl_digest_equal(&d, p->digest)) {
        pthread_mutex_lock(&x->lock);
        x->out->digests++;
        pthread_mutex_unlock(&x->lock);
    } else {
        bl_find(x->f, 3, s->p->path, p->name, (int64_t)s->starts[index], (int64_t)(s->starts[index] + p->nbytes),
                "its bytes differ from the recorded XXH3-128");
    }
}

static bl_status compare_file(prover *x, source *s, bl_error *err)
{
    uint8_t sha256[32];
    uint64_t size = bl_file_size(s->p->file);
    bl_digest d = bl_hasher_final(s->hashes.data);
    if (s->p->data && !bl_digest_equal(&d, s->p->data)) {
        bl_find(x->f, 3, s->p->path, NULL, (int64_t)s->p->data_offset, (int64_t)size, "its data differ from the recorded XXH3-128");
    }
    if (!s->sha256) {
        return BL_OK;
    }
    BL_TRY(bl_sha256_final(s->sha256, sha256, err));
    bl_witness_judge(x->f, s->p->witness, sha256, size);
    return BL_OK;
}

static bl_status in_order(void *arg, const bl_tile *t, bl_error *err)
{
    prover *x = arg;
    source *s = &x->sources[t->lane];
    const uint8_t *data = t->data;
    for (size_t i = 0; i < t->segment_count; data += t->segments[i++].nbytes) {
        const bl_segment *g = &t->segments[i];
        const bl_payload_tensor *p = tensor_of(s, g);
        if (s->sha256) {
            bl_sha256_update(s->sha256, data, g->nbytes);
        }
        if (p) {
            bl_data_hash(&s->hashes, data, g->nbytes, p->name != NULL);
        }
        if (p && p->name && g->offset + g->nbytes == p->nbytes) {
            compare_tensor(x, s, g->part - 1);
        }
    }
    return t->last ? compare_file(x, s, err) : BL_OK;
}

/* Tell what will be read, of a file that comes out of an archive. */
static bl_status expect(source *s, const bl_lane *lane, bl_arena *arena, bl_error *err)
{
    if (!bl_file_arrives(s->p->file)) {
        return BL_OK;
    }
    s->read = bl_arena_array(arena, lane->count, sizeof *s->read);
    for (size_t i = 0; s->read && i < lane->count; i++) {
        BL_TRY(lane->parts[i].nbytes ? bl_arrival_expect(s->p->file, start_of(s, i), lane->parts[i].nbytes, err) : BL_OK);
    }
    return s->read ? BL_OK : nomem(err);
}

static bl_status add(prover *x, const bl_payload *p, bl_arena *arena, bl_error *err)
{
    source *s = &x->sources[x->count];
    bl_part *parts = bl_arena_array(arena, p->count + 1, sizeof *parts);
    s->p = p;
    s->starts = bl_arena_array(arena, p->count, sizeof *s->starts);
    if (!parts || !s->starts) {
        return nomem(err);
    }
    parts[0] = (bl_part){.nbytes = p->data_offset, .granule = BL_IO_ALIGN};
    uint64_t at = p->data_offset;
    for (size_t i = 0; i < p->count; i++) {
        s->starts[i] = at;
        parts[i + 1] = (bl_part){.nbytes = p->tensors[i].nbytes, .granule = BL_IO_ALIGN};
        at += p->tensors[i].nbytes;
    }
    x->lanes[x->count++] = (bl_lane){.parts = parts, .count = p->count + 1};
    x->out->bytes += at;
    BL_TRY(bl_reader_open(&s->reader, p->file, err));
    BL_TRY(expect(s, &x->lanes[x->count - 1], arena, err));
    if (x->f->o->level < 3) {
        return BL_OK;
    }
    BL_TRY(bl_data_hashes_open(&s->hashes, err));
    return p->witness && bl_witness_hashes(p->witness) ? bl_sha256_create(&s->sha256, err) : BL_OK;
}

static int by_arrival(const void *a, const void *b)
{
    uint64_t x = bl_arrival_place((*(const bl_payload *const *)a)->file, 0), y = bl_arrival_place((*(const bl_payload *const *)b)->file, 0);
    return (x > y) - (x < y);
}

/* The files in the order in which they come, if they do; then all that will be read of them has been told. */
static bl_status add_all(prover *x, const bl_payload *files, size_t count, bl_arena *arena, bool *arrive, bl_error *err)
{
    const bl_payload **order = bl_arena_array(arena, count, sizeof *order);
    const bl_file *some = NULL; /* that arrives: members that are stored do not */
    if (!order) {
        return nomem(err);
    }
    for (size_t i = 0; i < count; i++) {
        order[i] = &files[i];
        some = bl_file_arrives(files[i].file) ? files[i].file : some;
    }
    *arrive = some != NULL;
    if (*arrive) {
        qsort(order, count, sizeof *order, by_arrival);
    }
    for (size_t i = 0; i < count; i++) {
        BL_TRY(add(x, order[i], arena, err));
    }
    if (*arrive) {
        bl_arrival_seal_file(some);
    }
    return BL_OK;
}

static bl_status run(prover *x, const bl_payload *files, size_t count, bl_arena *arena, bl_error *err)
{
    const bl_verify_options *o = x->f->o;
    bool arrive = false;
    BL_TRY(add_all(x, files, count, arena, &arrive, err));
    bl_stream stream = {.lanes = x->lanes,
                        .lane_count = x->count,
                        .sequence = arrive,
                        .jobs = o->jobs,
                        .work = work,
                        .in_order = o->level >= 3 ? in_order : NULL,
                        .arg = x,
                        .cancelled = o->cancelled,
                        .progress = o->progress,
                        .progress_arg = o->progress_arg};
    return x->count ? bl_stream_run(&stream, err) : BL_OK;
}

bl_status bl_payload_prove(bl_finder *f, const bl_payload *files, size_t count, bl_arena *arena, bl_payload_proof *out, bl_error *err)
{
    prover x = {.f = f, .out = out};
    *out = (bl_payload_proof){0};
    x.sources = bl_arena_array(arena, count, sizeof *x.sources);
    x.lanes = bl_arena_array(arena, count, sizeof *x.lanes);
    if (!x.sources || !x.lanes) {
        return nomem(err);
    }
    bl_cast_init(&x.kernels, f->o->cpu);
    pthread_mutex_init(&x.lock, NULL);
    bl_status s = run(&x, files, count, arena, err);
    for (size_t i = 0; i < count; i++) {
        bl_reader_close(&x.sources[i].reader);
        bl_sha256_destroy(&x.sources[i].sha256);
        bl_data_hashes_close(&x.sources[i].hashes);
    }
    pthread_mutex_destroy(&x.lock);
    return s;
}
