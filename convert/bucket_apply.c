/* Applying a delta: the new state of a model's buckets from the old one. */
#include "convert/bucket_diff.h"
#include "convert/bucket_job.h"

#include "formats/names.h"
#include "verify/buckets.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One bucket on its way from the old state to the new. */
typedef struct lane {
    const bl_bucket *before, *after;
    const bl_delta_file *delta;      /* NULL: nothing changes in it */
    const bl_delta_tensor **changes; /* [after->count] NULL: that tensor does not change */
    const char *path;                /* of the old one */
    bl_file *file, *stream;          /* the old one, and the delta's */
    bl_reader *reader;
    bl_st_head head;
    const bl_bucket_tensor **parts;  /* of each part of the lane: what is there; NULL: header or padding */
    bl_data_hashes after_hashes;
    bl_hasher *before_hash;
    bl_sha256 *sha256;
    bl_patch *patch;
    bl_writer *writer;
    bool opened, linked;
    uint8_t digest[32];
} lane;

typedef struct apply_job {
    bl_bucket_job b; /* first, as for the others: the folder is made by the same functions */
    const bl_apply_options *o;
    bl_apply_report *report;
    bl_place from, base_place; /* the delta, the old state */
    const char *delta_path, *base_path; /* the folders of both */
    bl_buckets base, target;
    bl_delta delta;
    char *text; /* of target.json */
    size_t text_bytes;
    lane *lanes; /* [buckets] */
    bl_lane *streams;
    size_t count;
} apply_job;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a delta");
}

/* ---- what is to be done */

/* The small files of the delta as its SHA256SUMS has them. */
static bl_status check_small(apply_job *a, bl_error *err)
{
    static const char *const names[] = {BL_DELTA_NAME, BL_DELTA_TARGET_NAME, "config.json"};
    bl_arena *arena = &a->b.job.arena;
    const char *sums = bl_path_join(arena, a->delta_path, BL_SUMS_NAME);
    bl_sum_line *lines;
    char *text;
    size_t n, count;
    BL_TRY(sums ? bl_file_slurp(sums, BL_MANIFEST_MAX_BYTES, &text, &n, err) : nomem(err));
    bl_status s = bl_sums_parse(text, n, sums, arena, &lines, &count, err);
    free(text);
    BL_TRY(s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bl_sum_line *line = bl_sums_find(lines, count, names[i]);
        const char *path = bl_path_join(arena, a->delta_path, names[i]);
        uint8_t sha256[32];
        BL_TRY(path ? bl_file_slurp(path, BL_MANIFEST_MAX_BYTES, &text, &n, err) : nomem(err)); /* not a hole of a terabyte */
        s = bl_sha256_bytes(text, n, sha256, err);
        free(text);
        BL_TRY(s);
        if (!line || memcmp(line->digest, sha256, sizeof sha256) != 0) {
            return bl_fail(err, BL_E_INPUT, path, NULL, -1,
                           line ? "its SHA-256 differs from " BL_SUMS_NAME : "is not listed in " BL_SUMS_NAME);
        }
    }
    return BL_OK;
}

static bl_status read_states(apply_job *a, bl_error *err)
{
    bl_arena *arena = &a->b.job.arena;
    char *text;
    size_t n;
    BL_TRY(bl_delta_read(a->delta_path, arena, &a->delta, err));
    BL_TRY(check_small(a, err));
    BL_TRY(bl_buckets_read(a->base_path, arena, &a->base, &text, &n, err));
    bl_digest d = bl_digest_bytes(text, n);
    free(text);
    if (!bl_digest_equal(&d, &a->delta.base)) {
        return bl_fail(err, BL_E_INPUT, a->base_path, NULL, -1,
                       "is not the state that the delta was made for, by the digest of " BL_BUCKETS_NAME);
    }
    BL_TRY(bl_delta_target(a->delta_path, &a->delta, arena, &a->target, &a->text, &a->text_bytes, err));
    const char *path = bl_path_join(arena, a->delta_path, BL_DELTA_TARGET_NAME);
    return path ? bl_buckets_alike(&a->base, &a->target, path, err) : nomem(err);
}

/* Which tensors of the bucket change: those of the delta, in its order, and no others. */
static bl_status match_changes(apply_job *a, lane *l, bl_error *err)
{
    size_t next = 0, count = l->delta ? l->delta->count : 0;
    l->changes = bl_arena_array(&a->b.job.arena, l->after->count, sizeof *l->changes);
    if (!l->changes) {
        return nomem(err);
    }
    for (size_t i = 0; i < l->after->count; i++) {
        const bl_bucket_tensor *before = &l->before->tensors[i], *after = &l->after->tensors[i];
        const bl_delta_tensor *t = next < count ? &l->delta->tensors[next] : NULL;
        if (t && !strcmp(t->name, after->tensor.name)) {
            l->changes[i] = t;
            next++;
        }
        bool right = l->changes[i] ? bl_digest_equal(&t->base, &before->digest) && bl_digest_equal(&t->target, &after->digest)
                                   : bl_digest_equal(&before->digest, &after->digest);
        if (!right) {
            return bl_fail(err, BL_E_INPUT, a->delta_path, after->tensor.name, -1,
                           "the delta does not lead to the digest of its new state");
        }
    }
    return next == count ? BL_OK
                         : bl_fail(err, BL_E_INPUT, a->delta_path, l->delta->tensors[next].name, -1,
                                   "is not a tensor of %s, or out of order", l->after->name);
}

/* The parts of the new file: header, tensors, padding. */
static bl_status plan_lane(apply_job *a, lane *l, bl_lane *out, bl_error *err)
{
    bl_arena *arena = &a->b.job.arena;
    bl_part *parts = bl_arena_array(arena, 2 * l->after->count + 1, sizeof *parts);
    l->parts = bl_arena_array(arena, 2 * l->after->count + 1, sizeof *l->parts);
    if (!parts || !l->parts) {
        return nomem(err);
    }
    BL_TRY(bl_bucket_head(l->after, arena, &l->head, err));
    uint64_t at = 0;
    size_t n = 0;
    parts[n++] = (bl_part){.nbytes = l->head.header_bytes, .granule = BL_IO_ALIGN};
    for (size_t i = 0; i < l->after->count; i++) {
        const bl_tensor *t = &l->after->tensors[i].tensor;
        if (t->offset > at) {
            parts[n++] = (bl_part){.nbytes = t->offset - at, .granule = BL_IO_ALIGN};
        }
        l->parts[n] = &l->after->tensors[i];
        parts[n++] = (bl_part){.nbytes = t->nbytes, .granule = BL_IO_ALIGN};
        at = t->offset + t->nbytes;
    }
    *out = (bl_lane){.parts = parts, .count = n};
    return BL_OK;
}

static bl_status plan(apply_job *a, bl_error *err)
{
    bl_arena *arena = &a->b.job.arena;
    size_t next = 0;
    a->count = a->target.count;
    a->lanes = bl_arena_array(arena, a->count, sizeof *a->lanes);
    a->streams = bl_arena_array(arena, a->count, sizeof *a->streams);
    if (!a->lanes || !a->streams) {
        return nomem(err);
    }
    for (size_t i = 0; i < a->count; i++) {
        lane *l = &a->lanes[i];
        bool changed = next < a->delta.count && a->delta.files[next].bucket == i;
        *l = (lane){.before = &a->base.buckets[i], .after = &a->target.buckets[i], .delta = changed ? &a->delta.files[next++] : NULL};
        l->path = bl_path_join(arena, a->base_path, l->before->name);
        BL_TRY(l->path ? match_changes(a, l, err) : nomem(err));
        BL_TRY(plan_lane(a, l, &a->streams[i], err));
        a->b.job.plan.file_bytes += l->head.file_bytes;
        a->report->changed += changed ? l->delta->count : 0;
        a->report->tensors += l->after->count;
        a->report->delta_bytes += changed ? l->delta->nbytes : 0;
    }
    a->report->buckets = a->count;
    a->report->changed_buckets = a->delta.count;
    a->report->file_bytes = a->b.job.plan.file_bytes;
    return next == a->delta.count ? BL_OK
                                  : bl_fail(err, BL_E_INPUT, a->delta_path, a->delta.files[next].name, -1, "there is no such bucket");
}

/* ---- files */

/* The delta's file: its header is what delta.json says. */
static bl_status open_stream(apply_job *a, lane *l, bl_error *err)
{
    bl_arena arena = {0};
    bl_st_header h;
    const bl_delta_file *d = l->delta;
    BL_TRY(bl_place_file(&a->from, d->name, &l->stream, err));
    const char *path = bl_file_path(l->stream);
    bl_status s = bl_st_read(l->stream, 0, &arena, &h, err);
    if (s == BL_OK && (h.count != d->count || h.header_bytes != d->data_offset)) {
        s = bl_fail(err, BL_E_INPUT, path, NULL, -1, "its header is not what " BL_DELTA_NAME " says");
    }
    for (size_t i = 0; s == BL_OK && i < d->count; i++) {
        const bl_tensor *t = &h.tensors[i];
        if (strcmp(t->name, d->tensors[i].name) != 0 || t->dtype != BL_DT_U8 || t->nbytes != d->tensors[i].nbytes) {
            s = bl_fail(err, BL_E_INPUT, path, d->tensors[i].name, -1, "is not in the file's header as " BL_DELTA_NAME " has it");
        }
    }
    bl_arena_reset(&arena);
    return s;
}

static bool link_bucket(apply_job *a, lane *l, const char *path)
{
    if (!a->o->link || l->delta || a->base_place.archive) {
        return false;
    }
    if (linkat(AT_FDCWD, l->path, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        a->report->linked++;
        a->report->linked_bytes += l->head.file_bytes;
        return true;
    }
    if (a->o->note) {
        char text[512];
        snprintf(text, sizeof text, "%.300s is copied, it cannot be linked here: %s", l->path, strerror(errno));
        a->o->note(text);
    }
    return false;
}

static bl_status open_lane(apply_job *a, lane *l, bl_error *err)
{
    const char *path = bl_job_path(&a->b.job, l->after->name);
    BL_TRY(path ? bl_place_file(&a->base_place, l->before->name, &l->file, err) : nomem(err));
    if (bl_file_size(l->file) != l->head.file_bytes) {
        return bl_fail(err, BL_E_INPUT, l->path, NULL, -1, "has %llu byte%s, not the %llu of its description",
                       (unsigned long long)bl_file_size(l->file), bl_plural(bl_file_size(l->file)),
                       (unsigned long long)l->head.file_bytes);
    }
    BL_TRY(bl_reader_open(&l->reader, l->file, err));
    BL_TRY(l->delta ? open_stream(a, l, err) : BL_OK);
    BL_TRY(bl_data_hashes_open(&l->after_hashes, err));
    BL_TRY(bl_hasher_create(&l->before_hash, err));
    BL_TRY(a->o->no_sha256 ? BL_OK : bl_sha256_create(&l->sha256, err));
    l->linked = link_bucket(a, l, path);
    return l->linked || a->b.job.archive ? BL_OK : bl_writer_open(&l->writer, path, l->head.file_bytes, err);
}

static void close_lane(lane *l)
{
    bl_reader_close(&l->reader);
    bl_file_close(&l->file);
    bl_file_close(&l->stream);
    bl_data_hashes_close(&l->after_hashes);
    bl_hasher_destroy(&l->before_hash);
    bl_sha256_destroy(&l->sha256);
    bl_patch_close(&l->patch);
    bl_writer_abort(&l->writer);
}

/* ---- bytes */

static bl_status read_old(void *arg, const bl_tile *t, bl_error *err)
{
    apply_job *a = arg;
    lane *l = &a->lanes[t->lane];
    const uint8_t *data;
    bl_status s = BL_OK;
    pthread_mutex_lock(&a->b.job.lock);
    if (!l->opened) {
        s = open_lane(a, l, err);
        l->opened = s == BL_OK;
        if (s != BL_OK) {
            close_lane(l); /* whoever waits for it here tries again, and fails too */
        }
    }
    pthread_mutex_unlock(&a->b.job.lock);
    BL_TRY(s);
    return bl_reader_read(l->reader, t->data - t->offset % BL_IO_ALIGN, t->nbytes, t->offset, &data, err);
}

/* A piece of a tensor that changes. */
static bl_status change(apply_job *a, lane *l, const bl_bucket_tensor *entry, const bl_delta_tensor *t, const bl_segment *g, uint8_t *data,
                        bl_error *err)
{
    bl_hasher_update(l->before_hash, data, g->nbytes);
    if (g->offset == 0) {
        BL_TRY(bl_patch_open(&l->patch, t->encoding, l->stream, l->delta->data_offset + t->offset, t, entry->tensor.nbytes, err));
    }
    BL_TRY(bl_patch_apply(l->patch, data, g->offset, g->nbytes, err));
    if (g->offset + g->nbytes < entry->tensor.nbytes) {
        return BL_OK;
    }
    bl_digest before = bl_hasher_final(l->before_hash);
    if (!bl_digest_equal(&before, &t->base)) {
        return bl_fail(err, BL_E_INPUT, l->path, t->name, -1, "differs from its digest: the base is damaged");
    }
    BL_TRY(bl_patch_end(l->patch, err));
    bl_patch_close(&l->patch);
    return BL_OK;
}

static bl_status check_tensor(lane *l, const bl_bucket_tensor *entry, bool changed, bl_error *err)
{
    bl_digest d = bl_hasher_final(l->after_hashes.tensor);
    if (bl_digest_equal(&d, &entry->digest)) {
        return BL_OK;
    }
    return bl_fail(err, BL_E_INPUT, changed ? bl_file_path(l->stream) : l->path, entry->tensor.name, -1,
                   changed ? "the result differs from its digest: the delta is damaged" : "differs from its digest: the base is damaged");
}

/* Header and padding, which no tensor's digest covers: a linked bucket must have those that others are given. */
static bl_status make_rest(const lane *l, const bl_segment *g, uint8_t *data, bl_error *err)
{
    uint8_t piece[4096];
    for (size_t at = 0, n; at < g->nbytes; at += n) {
        n = g->nbytes - at < sizeof piece ? g->nbytes - at : sizeof piece;
        if (g->part == 0) {
            bl_st_head_copy(&l->head, g->offset + at, n, piece);
        } else {
            memset(piece, 0, n);
        }
        if (l->linked && memcmp(data + at, piece, n) != 0) {
            return bl_fail(err, BL_E_INPUT, l->path, NULL, -1, "its %s differs from its description: the base is damaged",
                           g->part == 0 ? "header" : "padding");
        }
        memcpy(data + at, piece, n);
    }
    return BL_OK;
}

static bl_status finish_lane(apply_job *a, lane *l, bl_error *err)
{
    bl_digest d = bl_hasher_final(l->after_hashes.data);
    if (!bl_digest_equal(&d, &l->after->digest)) {
        return bl_fail(err, BL_E_INPUT, a->delta_path, NULL, -1, "%s does not have the digest of its description", l->after->name);
    }
    if (l->sha256) {
        BL_TRY(bl_sha256_final(l->sha256, l->digest, err));
    }
    bl_status s = l->writer ? bl_writer_commit(&l->writer, err) : BL_OK;
    close_lane(l);
    return s;
}

static bl_status write_tile(apply_job *a, lane *l, const bl_tile *t, bl_error *err)
{
    bl_archive_writer *archive = a->b.job.archive;
    if (archive) {
        BL_TRY(t->offset == 0 ? bl_archive_writer_begin(archive, l->after->name, l->head.file_bytes, err) : BL_OK);
        return bl_archive_writer_put(archive, t->data, t->nbytes, err);
    }
    return l->writer ? bl_writer_put(l->writer, t->data, t->nbytes, t->offset, err) : BL_OK; /* NULL: linked */
}

static bl_status make_new(void *arg, const bl_tile *t, bl_error *err)
{
    apply_job *a = arg;
    lane *l = &a->lanes[t->lane];
    uint8_t *data = t->data;
    for (size_t i = 0; i < t->segment_count; data += t->segments[i++].nbytes) {
        const bl_segment *g = &t->segments[i];
        const bl_bucket_tensor *entry = l->parts[g->part];
        const bl_delta_tensor *d = entry ? l->changes[entry - l->after->tensors] : NULL;
        if (!entry) {
            BL_TRY(make_rest(l, g, data, err));
        } else if (d) {
            BL_TRY(change(a, l, entry, d, g, data, err));
        }
        if (g->part) {
            bl_data_hash(&l->after_hashes, data, g->nbytes, entry != NULL);
        }
        if (entry && g->offset + g->nbytes == entry->tensor.nbytes) {
            BL_TRY(check_tensor(l, entry, d != NULL, err));
        }
    }
    if (l->sha256) {
        bl_sha256_update(l->sha256, t->data, t->nbytes);
    }
    BL_TRY(write_tile(a, l, t, err));
    return t->last ? finish_lane(a, l, err) : BL_OK;
}

/* ---- the folder */

static bl_status copy_config(apply_job *a, bl_error *err)
{
    const char *path = bl_path_join(&a->b.job.arena, a->delta_path, "config.json");
    char *text;
    size_t n;
    BL_TRY(path ? bl_file_slurp(path, BL_MANIFEST_MAX_BYTES, &text, &n, err) : nomem(err));
    return bl_bucket_text_file(&a->b.job, "config.json", text, n, err);
}

static bl_status fill_folder(bl_bucket_job *b, bl_error *err)
{
    apply_job *a = (apply_job *)(void *)b;
    bl_job *j = &b->job;
    const bl_stream stream = {.lanes = a->streams, .lane_count = a->count, .sequence = j->archive != NULL, .jobs = a->o->jobs,
                              .work = read_old, .in_order = make_new, .arg = a, .cancelled = a->o->cancelled,
                              .progress = a->o->progress, .progress_arg = a->o->progress_arg};
    bl_status s = a->count ? bl_stream_run(&stream, err) : BL_OK;
    for (size_t i = 0; i < a->count; i++) {
        close_lane(&a->lanes[i]);
    }
    BL_TRY(s);
    for (size_t i = 0; !a->o->no_sha256 && i < a->count; i++) {
        BL_TRY(bl_job_sum(j, a->lanes[i].after->name, a->lanes[i].digest, err));
    }
    BL_TRY(bl_job_small_file(j, BL_BUCKETS_NAME, a->text, a->text_bytes, err));
    BL_TRY(bl_bucket_flattened(j, &a->target, err));
    BL_TRY(copy_config(a, err));
    return bl_job_sums(j, err);
}

static bl_status open_places(apply_job *a, const char *delta, const char *base, const char *dst, bl_error *err)
{
    const bl_apply_options *o = a->o;
    BL_TRY(bl_bucket_place(&a->from, delta, dst, o->spill_max, o->cancelled, err));
    BL_TRY(bl_bucket_place(&a->base_place, base, dst, o->spill_max, o->cancelled, err));
    a->delta_path = a->from.folder;
    a->base_path = a->base_place.folder;
    if (o->link && a->base_place.archive && o->note) {
        o->note("the old state is an archive, in which there are no files to link: buckets are copied");
    }
    return BL_OK;
}

bl_status bl_bucket_apply(const char *delta, const char *base, const char *dst, const bl_apply_options *o, bl_apply_report *report,
                          bl_error *err)
{
    apply_job a = {.o = o, .report = report};
    double start = bl_bucket_now();
    *report = (bl_apply_report){0};
    a.b.options = (bl_convert_options){.no_sha256 = o->no_sha256, .link = o->link, .cancelled = o->cancelled, .note = o->note};
    a.b.job.o = &a.b.options;
    a.b.job.kind = bl_archive_kind_of(dst);
    BL_TRY(bl_job_check_archive(&a.b.job, dst, err));
    BL_TRY(bl_job_place(base, dst, err));
    BL_TRY(bl_job_place(delta, dst, err));
    BL_TRY(bl_folder_check(dst, err));
    pthread_mutex_init(&a.b.job.lock, NULL);
    bl_status s = open_places(&a, delta, base, dst, err);
    s = s == BL_OK ? read_states(&a, err) : s;
    s = s == BL_OK ? plan(&a, err) : s;
    s = s == BL_OK ? bl_bucket_output(&a.b, dst, fill_folder, &report->archive_bytes, err) : s;
    bl_bucket_job_close(&a.b, s, err);
    bl_archive_show(a.from.archive, s == BL_OK ? NULL : err);
    bl_archive_show(a.base_place.archive, s == BL_OK ? NULL : err);
    bl_place_close(&a.from);
    bl_place_close(&a.base_place);
    free(a.text);
    report->seconds = bl_bucket_now() - start;
    return s;
}
