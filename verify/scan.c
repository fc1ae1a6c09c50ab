#include "verify/scan_impl.h"

#include "verify/arrival.h"
#include "verify/both.h"
#include "verify/compare.h"
#include "verify/flaw.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

/* Is the file known to have the SHA-256 that is recorded, and to be sound? Members of archives have no times of their own. */
static bool from_cache(bl_scanner *x, bl_scan_source *src)
{
    uint8_t sha256[32];
    bl_witness *w = src->witness;
    if (!x->s->proven || !w || !bl_witness_hashes(w) || bl_file_base(src->file) || fstat(bl_file_fd(src->file), &src->state) != 0 ||
        !bl_proven_find(x->s->proven, &src->state, sha256) || bl_witness_denies(w, sha256)) {
        return false;
    }
    bl_witness_judge(x->f, w, sha256, bl_file_size(src->file));
    x->s->files_cached++;
    x->s->bytes_cached += bl_file_size(src->file);
    return true;
}

/* Put src, the next of the sources, among those to read, unless the cache knows it. */
static bl_status add_source(bl_scanner *x, bl_scan_source *src, bl_error *err)
{
    src->witness = x->s->witnesses ? bl_witness_of(x->s->witnesses, src->path) : NULL;
    if (from_cache(x, src)) {
        if (src->index != SIZE_MAX) {
            x->cached[src->index] = true;
        }
        if (src->owned) {
            bl_file_close(&src->file);
        }
        return BL_OK;
    }
    x->count++;
    if (src->witness && bl_witness_hashes(src->witness)) {
        BL_TRY(bl_sha256_create(&src->hash, err));
    }
    if (x->s->chunks) {
        BL_TRY(bl_chunker_create(&src->chunker, err));
    }
    src->has_crc = !src->hash && x->s->witnesses && bl_file_crc32(src->file, &src->crc_wanted); /* SHA-256 says more */
    return bl_reader_open(&src->reader, src->file, err);
}

static int by_place(const void *a, const void *b)
{
    return bl_tensor_by_place(*(const bl_tensor *const *)a, *(const bl_tensor *const *)b);
}

/* The checkpoint's files. */
static bl_status add_files(bl_scanner *x, bl_error *err)
{
    const bl_checkpoint *c = x->s->c;
    const bl_tensor **order = bl_arena_array(x->arena, c->tensor_count, sizeof *order);
    size_t *files = bl_arrival_order(c, x->arena), *starts = bl_arena_array(x->arena, c->file_count + 1, sizeof *starts);
    if (!order || !files || !starts) {
        return nomem(err);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        order[i] = &c->tensors[i];
    }
    qsort(order, c->tensor_count, sizeof *order, by_place);
    for (size_t i = 0, t = 0; i < c->file_count; i++) {
        while (t < c->tensor_count && order[t]->file == i) {
            t++;
        }
        starts[i + 1] = t;
    }
    for (size_t k = 0; k < c->file_count; k++) {
        size_t i = files[k];
        bl_scan_source *src = &x->sources[x->count];
        *src = (bl_scan_source){.path = c->files[i].path, .file = c->files[i].file, .index = i};
        BL_TRY(bl_scan_file_parts(x, order + starts[i], starts[i + 1] - starts[i], src, &x->lanes[x->count], err));
        BL_TRY(bl_scan_expect(x, x->count, err));
        BL_TRY(add_source(x, src, err));
    }
    return BL_OK;
}

static bool is_file(const bl_checkpoint *c, const char *path)
{
    for (size_t i = 0; i < c->file_count; i++) {
        if (!strcmp(c->files[i].path, path)) {
            return true;
        }
    }
    return false;
}

static bl_status add_other(bl_scanner *x, const bl_witness *w, bl_error *err)
{
    bl_scan_source *src = &x->sources[x->count];
    const bl_checkpoint *c = x->s->c;
    *src = (bl_scan_source){.path = w->path, .owned = true, .index = SIZE_MAX};
    BL_TRY(c->archive ? bl_archive_file(c->archive, w->name, &src->file, err) : bl_file_open(&src->file, w->path, err));
    bl_status s = bl_scan_raw_parts(x, src, &x->lanes[x->count], err);
    s = s == BL_OK ? bl_scan_expect(x, x->count, err) : s;
    if (s != BL_OK) {
        bl_file_close(&src->file);
        return s;
    }
    return add_source(x, src, err);
}

static bl_status add_witness(bl_scanner *x, bl_witness *w, bl_error *err)
{
    if (w->hub.kind == BL_HUB_GIT) {
        BL_TRY(bl_witness_check_git(x->f, w, err));
    }
    return bl_witness_hashes(w) && !is_file(x->s->c, w->path) ? add_other(x, w, err) : BL_OK;
}

/* Files beside them that something is recorded for. One that cannot be opened is a finding like any other. */
static bl_status add_others(bl_scanner *x, bl_error *err)
{
    for (size_t i = 0; x->s->witnesses && i < x->s->witnesses->count; i++) {
        bl_error e;
        bl_error_clear(&e);
        bl_status s = add_witness(x, &x->s->witnesses->items[i], &e);
        if (s == BL_E_INPUT) {
            x->f->level = 3;
            bl_finder_problem(x->f, &e);
        } else if (s != BL_OK) {
            if (err && err->code == BL_OK) {
                *err = e;
            }
            return s;
        }
    }
    return BL_OK;
}

/* What the rank manifest records about each tensor, and room for what will be found. */
static bl_status add_records(bl_scanner *x, bl_error *err)
{
    const bl_checkpoint *c = x->s->c;
    x->chunks = bl_arena_array(x->arena, c->tensor_count, sizeof *x->chunks);
    x->records = bl_arena_array(x->arena, c->tensor_count, sizeof *x->records);
    if (!x->chunks || !x->records) {
        return nomem(err);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        x->records[i] = x->cached[c->tensors[i].file] ? NULL : bl_checkpoint_record(c, &c->tensors[i]);
        x->chunks[i] = bl_arena_array(x->arena, bl_chunk_count(c->tensors[i].nbytes), sizeof **x->chunks);
        if (!x->chunks[i]) {
            return nomem(err);
        }
    }
    return BL_OK;
}

/* Note the files that were proven. */
static bl_status remember(bl_scanner *x, bl_error *err)
{
    for (size_t i = 0; x->s->proven && i < x->count; i++) {
        const bl_scan_source *src = &x->sources[i];
        struct stat now;
        bool sound = src->index == SIZE_MAX || !x->flawed[src->index];
        if (sound && src->witness && src->witness->hashed && bl_witness_proven(src->witness) && !bl_file_base(src->file) &&
            fstat(bl_file_fd(src->file), &now) == 0) {
            BL_TRY(bl_proven_add(x->s->proven, &src->state, &now, src->witness->sha256, err));
        }
    }
    return BL_OK;
}

/* ---- looking at bytes */

static void look(bl_scanner *x, const bl_scan_source *src, const bl_scan_piece *p, uint64_t offset, uint64_t n, const uint8_t *data)
{
    bl_flaw f = bl_flaw_find(&x->values.kernels, p->tensor->dtype, p->weight, data, n);
    if (f.count) {
        pthread_mutex_lock(&x->lock);
        x->flawed[p->tensor->file] = true;
        pthread_mutex_unlock(&x->lock);
        uint64_t at = p->tensor->offset + p->base + offset;
        bl_find(x->f, 2, src->path, p->tensor->name, (int64_t)(at + f.first * f.size), (int64_t)(at + (f.last + 1) * f.size),
                "%llu %s", (unsigned long long)f.count, f.what);
    }
}

static bool values_fit(const bl_weight *w, bool scale)
{
    return bl_values_granule(w, scale) <= BL_STREAM_TILE;
}

/* Add to the value digest; a scale that makes it impossible is a finding. */
static bl_status digest(bl_scanner *x, const bl_scan_piece *p, uint64_t offset, uint64_t n, const bl_tile *t, const uint8_t *data,
                        bl_error *err)
{
    bl_error e;
    bl_error_clear(&e);
    size_t index = (size_t)(p->weight - x->s->binding->weights);
    bl_status s = BL_OK;
    bool said = false; /* the scale's bytes are looked at themselves */
    if (values_fit(p->weight, p->scale)) {
        bl_view v = bl_view_of(p->weight);
        s = bl_values_add(&x->values, &v, p->scale, offset, n, data, t->scratch, &x->s->sums[index], &e);
        if (s == BL_OK && bl_compare_refine(x->s, &v.w)) {
            s = bl_values_add(&x->values, &v, p->scale, offset, n, data, t->scratch, &x->s->shared[index], &e);
        }
        said = x->s->semantic;
    } else {
        s = bl_fail(&e, BL_E_INPUT, x->s->c->path, p->tensor->name, -1, "rows too wide for a value digest");
    }
    if (s == BL_OK) {
        return BL_OK;
    }
    if (s != BL_E_INPUT) {
        if (err) {
            *err = e;
        }
        return s;
    }
    pthread_mutex_lock(&x->lock);
    bool first = !x->s->broken[index];
    x->s->broken[index] = true;
    pthread_mutex_unlock(&x->lock);
    if (first && !said) {
        bl_find(x->f, -1, e.path, e.tensor, e.offset, e.offset < 0 ? -1 : e.offset + 1, "%s", e.message);
    }
    return BL_OK;
}

static bl_status work(void *arg, const bl_tile *t, bl_error *err)
{
    bl_scanner *x = arg;
    const bl_scan_source *src = &x->sources[t->lane];
    const uint8_t *data;
    BL_TRY(bl_reader_read(src->reader, t->data - t->offset % BL_IO_ALIGN, t->nbytes, t->offset, &data, err));
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_scan_piece *p = &src->pieces[x->lanes[t->lane].parts[g->part].tag];
        if (p->tensor && x->s->semantic) {
            look(x, src, p, g->offset, g->nbytes, data);
        }
        if (p->weight && x->s->look) {
            x->s->look(x->s->arg, p->weight, p->scale, g->offset, g->nbytes, data);
        }
        if (p->weight && x->s->values) {
            BL_TRY(digest(x, p, g->offset, g->nbytes, t, data, err));
        }
        bl_scan_count(x, t->lane, &x->lanes[t->lane].parts[g->part], g->nbytes);
        data += g->nbytes;
    }
    return BL_OK;
}

/* The CRC-32 that an archive has of its member. */
static void check_crc(bl_scanner *x, bl_scan_source *src, const bl_tile *t)
{
    src->crc = (uint32_t)crc32_z(src->crc, t->data, t->nbytes);
    if (!t->last) {
        return;
    }
    if (src->crc == src->crc_wanted) {
        pthread_mutex_lock(&x->lock);
        x->s->crcs_right++;
        pthread_mutex_unlock(&x->lock);
    } else {
        bl_find(x->f, 3, src->path, NULL, 0, (int64_t)bl_file_size(src->file), "its CRC-32 differs from the archive's");
    }
}

static bl_status in_order(void *arg, const bl_tile *t, bl_error *err)
{
    bl_scanner *x = arg;
    bl_scan_source *src = &x->sources[t->lane];
    const uint8_t *data = t->data;
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_scan_piece *p = src->chunker ? &src->pieces[x->lanes[t->lane].parts[g->part].tag] : NULL;
        if (p && p->tensor) {
            bl_hash_both(src->hash, src->chunker, data, g->nbytes, p->base + g->offset, p->tensor->nbytes,
                         x->chunks[p->tensor - x->s->c->tensors]);
        } else {
            bl_hash_both(src->hash, NULL, data, g->nbytes, 0, 0, NULL);
        }
        data += g->nbytes;
    }
    if (src->has_crc) {
        check_crc(x, src, t);
    }
    if (src->hash && t->last) {
        uint8_t sha256[32];
        BL_TRY(bl_sha256_final(src->hash, sha256, err));
        bl_witness_judge(x->f, src->witness, sha256, bl_file_size(src->file));
    }
    return BL_OK;
}

static void compare_chunks(bl_scanner *x)
{
    const bl_checkpoint *c = x->s->c;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const bl_tensor *t = &c->tensors[i];
        const bl_manifest_tensor *m = x->records[i];
        for (size_t k = 0; m && k < m->chunk_count; k++) {
            if (bl_digest_equal(&x->chunks[i][k], &m->chunks[k])) {
                x->s->chunks_right++;
                continue;
            }
            uint64_t begin = k * BL_CHUNK_BYTES, end = begin + BL_CHUNK_BYTES < t->nbytes ? begin + BL_CHUNK_BYTES : t->nbytes;
            x->flawed[t->file] = true;
            bl_find(x->f, 3, bl_checkpoint_file(c, t)->path, t->name, (int64_t)(t->offset + begin), (int64_t)(t->offset + end),
                    "chunk %zu of %zu differs from its digest in the manifest", k, m->chunk_count);
        }
    }
}

/* The value digests that a packed model records, against those just computed. */
static void compare_values(bl_scanner *x)
{
    const bl_scan *s = x->s;
    for (size_t i = 0; s->c->rank_count && i < s->binding->count; i++) {
        const bl_weight *w = &s->binding->weights[i];
        bl_digest have = bl_sum_digest(s->sums[i]), recorded;
        if (s->broken[i] || !bl_weight_recorded(s->c, w, &recorded) || bl_digest_equal(&have, &recorded)) {
            continue;
        }
        s->broken[i] = true;
        bl_find(x->f, 3, bl_checkpoint_file(s->c, w->tensor)->path, w->slot->name, (int64_t)w->offset, (int64_t)(w->offset + w->nbytes),
                "its values differ from the value digest in the manifest");
    }
}

static bl_status run(bl_scanner *x, bl_error *err)
{
    bl_scan *s = x->s;
    const bl_verify_options *o = x->f->o;
    size_t room = s->c->file_count + (s->witnesses ? s->witnesses->count : 0);
    x->sources = bl_arena_array(x->arena, room, sizeof *x->sources);
    x->lanes = bl_arena_array(x->arena, room, sizeof *x->lanes);
    x->cached = bl_arena_array(x->arena, s->c->file_count, sizeof *x->cached);
    x->flawed = bl_arena_array(x->arena, s->c->file_count, sizeof *x->flawed);
    if (!x->sources || !x->lanes || !x->cached || !x->flawed) {
        return nomem(err);
    }
    BL_TRY(bl_scan_index(x, err));
    BL_TRY(s->skip_weights ? BL_OK : add_files(x, err));
    BL_TRY(add_others(x, err));
    if (x->arrives) {
        bl_arrival_seal(s->c);
    }
    if (s->chunks) {
        BL_TRY(add_records(x, err));
    }
    bl_stream stream = {.lanes = x->lanes,
                        .lane_count = x->count,
                        .sequence = x->arrives,
                        .jobs = o->jobs,
                        .scratch = s->values ? bl_values_scratch(&x->values, 0) : 0,
                        .scratch_ratio = s->values ? BL_VALUES_SCRATCH_RATIO : 0,
                        .work = work,
                        .in_order = s->chunks || s->witnesses ? in_order : NULL,
                        .arg = x,
                        .cancelled = o->cancelled,
                        .progress = o->progress,
                        .progress_arg = o->progress_arg};
    BL_TRY(x->count ? bl_stream_run(&stream, err) : BL_OK);
    for (size_t i = 0; i < x->count; i++) {
        s->bytes += bl_file_size(x->sources[i].file);
    }
    if (s->chunks) {
        compare_chunks(x);
    }
    if (s->values) {
        compare_values(x);
    }
    return remember(x, err);
}

static void close_all(bl_scanner *x)
{
    for (size_t i = 0; x->sources && i < x->count; i++) {
        bl_scan_source *src = &x->sources[i];
        bl_reader_close(&src->reader);
        bl_sha256_destroy(&src->hash);
        bl_chunker_destroy(&src->chunker);
        if (src->owned) {
            bl_file_close(&src->file);
        }
    }
    bl_values_close(&x->values);
    pthread_mutex_destroy(&x->lock);
}

bl_status bl_scan_run(bl_scan *s, bl_finder *f, bl_arena *arena, bl_error *err)
{
    static const bl_binding none;
    bl_scanner x = {.s = s, .f = f, .arena = arena, .arrives = bl_arrives(s->c)};
    pthread_mutex_init(&x.lock, NULL);
    bl_status status = bl_values_open(&x.values, s->c, s->binding ? s->binding : &none, f->o->cpu, arena, err);
    if (status == BL_OK && s->values) {
        s->sums = bl_arena_array(arena, s->binding->count, sizeof *s->sums);
        s->broken = bl_arena_array(arena, s->binding->count, sizeof *s->broken);
        s->shared = bl_arena_array(arena, s->beside ? s->binding->count : 0, sizeof *s->shared);
        status = s->sums && s->broken && s->shared ? BL_OK : nomem(err);
    }
    if (status == BL_OK) {
        status = run(&x, err);
    }
    close_all(&x);
    return status;
}
