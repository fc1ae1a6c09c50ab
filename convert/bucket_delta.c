/* Making the delta between two states of a model's buckets. */
#include "convert/bucket_diff.h"
#include "convert/bucket_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Streams in one encoding, in a file beside the delta's. */
typedef struct attempt {
    bl_delta_encoding encoding;
    bl_diff *diff;
    bl_hasher *hash; /* of the stream that is being written */
    bl_output *spool;
    uint64_t spooled;
} attempt;

/* One bucket: the old one beside the new one that is being produced, and what has come of it. */
typedef struct lane {
    bl_file *file;
    bl_reader *reader;
    bl_hasher *before; /* of the tensor, as the old bucket has it */
    /* [tries] The first has all streams, until it is known what the header must say. A second one has that of the tensor under way in
     * the other encoding, which takes the place of the first one's where it is shorter. */
    attempt attempts[2];
    size_t tries;
    bl_delta_tensor *tensors; /* [count] */
    size_t count, cap;
} lane;

typedef struct delta_job {
    bl_bucket_job b; /* first: the passes get a pointer to it */
    const bl_bucket_options *o;
    bl_bucket_report *report;
    bl_arena arena; /* of the base's description */
    bl_place place; /* of the base */
    bl_buckets base;
    bl_digest base_digest;
    lane *lanes; /* [buckets] */
    bl_delta delta;
} delta_job;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a delta");
}

/* ---- streams wait in a file beside the delta's */

/* Compressed bytes of the lane's tensor. */
static bl_status to_spool(void *arg, const void *data, size_t n, bl_error *err)
{
    attempt *a = arg;
    BL_TRY(bl_output_write(a->spool, data, n, a->spooled, err));
    a->spooled += n;
    bl_hasher_update(a->hash, data, n);
    return BL_OK;
}

/* number: of the bucket, from 1. */
static bl_status open_attempt(delta_job *d, attempt *a, bl_delta_encoding encoding, size_t number, bl_error *err)
{
    char name[48];
    snprintf(name, sizeof name, "spool-%05zu-%s", number, bl_delta_encoding_name(encoding));
    const char *spool = bl_job_path(&d->b.job, name);
    a->encoding = encoding;
    BL_TRY(spool ? bl_hasher_create(&a->hash, err) : nomem(err));
    BL_TRY(bl_diff_create(&a->diff, encoding, d->o->level, to_spool, a, err));
    return bl_output_open(&a->spool, spool, 0, err);
}

static bl_status open_lane(delta_job *d, size_t i, bl_error *err)
{
    lane *l = &d->lanes[i];
    const bl_bucket *b = &d->base.buckets[i];
    bool both = d->o->encoding == BL_DELTA_AUTO;
    BL_TRY(bl_place_file(&d->place, b->name, &l->file, err));
    if (bl_file_size(l->file) != b->data_offset + b->nbytes) {
        return bl_fail(err, BL_E_INPUT, bl_file_path(l->file), NULL, -1, "has %llu byte%s, not the %llu of its description",
                       (unsigned long long)bl_file_size(l->file), bl_plural(bl_file_size(l->file)),
                       (unsigned long long)(b->data_offset + b->nbytes));
    }
    BL_TRY(bl_reader_open(&l->reader, l->file, err));
    BL_TRY(bl_hasher_create(&l->before, err));
    l->tries = both ? 2 : 1;
    BL_TRY(open_attempt(d, &l->attempts[0], both ? BL_DELTA_XOR : d->o->encoding, i + 1, err));
    return both ? open_attempt(d, &l->attempts[1], BL_DELTA_RANGES, i + 1, err) : BL_OK;
}

static void close_lane(lane *l)
{
    bl_reader_close(&l->reader);
    bl_file_close(&l->file);
    bl_hasher_destroy(&l->before);
    for (size_t i = 0; i < 2; i++) {
        bl_hasher_destroy(&l->attempts[i].hash);
        bl_diff_destroy(&l->attempts[i].diff);
        bl_output_abort(&l->attempts[i].spool);
    }
}

/* ---- comparing */

/* The old bytes beside a tile of the new: in its scratch, which producing has no more use for. */
static bl_status read_base(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    delta_job *d = (delta_job *)(void *)b;
    lane *l = &d->lanes[t->lane];
    const uint8_t *data;
    bl_status s = BL_OK;
    pthread_mutex_lock(&b->job.lock);
    if (!l->reader) {
        s = open_lane(d, t->lane, err);
        if (s != BL_OK) {
            close_lane(l); /* whoever waits for it here tries again, and fails too */
        }
    }
    pthread_mutex_unlock(&b->job.lock);
    BL_TRY(s);
    return bl_reader_read(l->reader, t->scratch, t->nbytes, t->offset, &data, err);
}

/* Put the second attempt's stream in place of the first one's, which begins at offset. */
static bl_status replace(lane *l, uint64_t offset, bl_error *err)
{
    attempt *to = &l->attempts[0], *from = &l->attempts[1];
    uint8_t buf[16384];
    to->spooled = offset;
    for (uint64_t done = 0, n; done < from->spooled; done += n) {
        n = from->spooled - done < sizeof buf ? from->spooled - done : sizeof buf;
        BL_TRY(bl_output_read(from->spool, buf, n, done, err));
        BL_TRY(bl_output_write(to->spool, buf, n, to->spooled, err));
        to->spooled += n;
    }
    return BL_OK;
}

/* The streams of a tensor end; the shorter one stays, in the first attempt's spool from offset on. t gets what is known of it; its bytes
 * are 0 where nothing differs. */
static bl_status end_streams(lane *l, uint64_t offset, bl_delta_tensor *t, bl_error *err)
{
    uint64_t bytes[2] = {0};
    bl_digest digests[2] = {0};
    for (size_t i = 0; i < l->tries; i++) {
        BL_TRY(bl_diff_end(l->attempts[i].diff, &bytes[i], err));
        digests[i] = bl_hasher_final(l->attempts[i].hash);
    }
    size_t best = l->tries > 1 && l->attempts[1].spooled < l->attempts[0].spooled - offset;
    BL_TRY(best ? replace(l, offset, err) : BL_OK);
    l->attempts[1].spooled = 0;
    t->encoding = l->attempts[best].encoding;
    t->offset = offset;
    t->nbytes = l->attempts[0].spooled - offset;
    t->bytes = bytes[best];
    t->digest = digests[best];
    return BL_OK;
}

/* A tensor of the bucket ends: note it if it has changed. */
static bl_status end_tensor(delta_job *d, lane *l, const bl_bucket_tensor *before, const bl_bucket_tensor *after, bl_error *err)
{
    bl_digest seen = bl_hasher_final(l->before);
    uint64_t offset = l->count ? l->tensors[l->count - 1].offset + l->tensors[l->count - 1].nbytes : 0;
    bl_delta_tensor t = {.name = after->tensor.name, .base = before->digest, .target = after->digest};
    BL_TRY(end_streams(l, offset, &t, err));
    if (!bl_digest_equal(&seen, &before->digest)) {
        return bl_fail(err, BL_E_INPUT, bl_file_path(l->file), before->tensor.name, -1, "differs from its digest: the base is damaged");
    }
    if (t.bytes == 0) {
        return BL_OK;
    }
    bl_delta_tensor *grown = bl_grow(l->tensors, &l->cap, l->count, sizeof *grown);
    if (!grown) {
        return nomem(err);
    }
    l->tensors = grown;
    l->tensors[l->count++] = t;
    pthread_mutex_lock(&d->b.job.lock);
    d->report->changed++;
    d->report->changed_bytes += after->tensor.nbytes;
    pthread_mutex_unlock(&d->b.job.lock);
    return BL_OK;
}

/* Bytes of a row of a matrix; anything else has none. */
static uint64_t row_bytes(const bl_tensor *t)
{
    return t->ndim >= 2 && t->shape[0] ? t->nbytes / t->shape[0] : 64;
}

/* ---- the delta's file of a bucket */

typedef struct assembly {
    bl_output *out; /* NULL: into the archive */
    bl_archive_writer *archive;
    bl_sha256 *sha256; /* NULL: not wanted */
    bl_hasher *data;
    uint64_t at;
} assembly;

static bl_status put(assembly *a, const void *bytes, uint64_t n, bl_error *err)
{
    BL_TRY(a->out ? bl_output_write(a->out, bytes, n, a->at, err) : bl_archive_writer_put(a->archive, bytes, n, err));
    a->at += n;
    if (a->sha256) {
        bl_sha256_update(a->sha256, bytes, n);
    }
    return BL_OK;
}

/* Header and streams, a piece at a time. */
static bl_status put_all(assembly *a, const lane *l, const bl_st_head *head, uint8_t *buf, uint64_t room, bl_error *err)
{
    for (uint64_t n; a->at < head->header_bytes;) {
        n = head->header_bytes - a->at < room ? head->header_bytes - a->at : room;
        bl_st_head_copy(head, a->at, n, buf);
        BL_TRY(put(a, buf, n, err));
    }
    const attempt *streams = &l->attempts[0];
    for (uint64_t done = 0, n; done < streams->spooled; done += n) {
        n = streams->spooled - done < room ? streams->spooled - done : room;
        BL_TRY(bl_output_read(streams->spool, buf, n, done, err));
        BL_TRY(put(a, buf, n, err));
        bl_hasher_update(a->data, buf, n);
    }
    return BL_OK;
}

/* One U8 tensor for each stream. */
static bl_status lay_out(const lane *l, bl_arena *arena, bl_st_head *head, bl_error *err)
{
    bl_tensor *tensors = bl_arena_array(arena, l->count, sizeof *tensors);
    uint64_t *shapes = bl_arena_array(arena, l->count, sizeof *shapes);
    if (!tensors || !shapes) {
        return nomem(err);
    }
    for (size_t i = 0; i < l->count; i++) {
        shapes[i] = l->tensors[i].nbytes;
        tensors[i] = (bl_tensor){.name = l->tensors[i].name, .dtype = BL_DT_U8, .ndim = 1, .shape = &shapes[i]};
    }
    return bl_st_layout(tensors, l->count, bl_st_metadata, 1, BL_BUCKETS_MAX_ALIGN, 1, arena, head, err);
}

static bl_status write_file(delta_job *d, const lane *l, const char *path, const bl_st_head *head, bl_delta_file *f, uint8_t sha256[32],
                            bl_error *err)
{
    enum { PIECE = 1 << 20 };
    assembly a = {.archive = d->b.job.archive};
    uint8_t *buf = malloc(PIECE);
    bl_status s = !buf        ? nomem(err)
                  : a.archive ? bl_archive_writer_begin(a.archive, f->name, head->file_bytes, err)
                              : bl_output_open(&a.out, path, head->file_bytes, err);
    s = s == BL_OK ? bl_hasher_create(&a.data, err) : s;
    s = s == BL_OK && !d->b.job.o->no_sha256 ? bl_sha256_create(&a.sha256, err) : s;
    s = s == BL_OK ? put_all(&a, l, head, buf, PIECE, err) : s;
    s = s == BL_OK && a.sha256 ? bl_sha256_final(a.sha256, sha256, err) : s;
    if (s == BL_OK) {
        f->data_offset = head->header_bytes;
        f->nbytes = l->attempts[0].spooled;
        f->digest = bl_hasher_final(a.data);
        s = a.out ? bl_output_commit(&a.out, err) : BL_OK;
    }
    bl_output_abort(&a.out);
    bl_hasher_destroy(&a.data);
    bl_sha256_destroy(&a.sha256);
    free(buf);
    return s;
}

/* The bucket has ended. */
static bl_status finish_lane(delta_job *d, size_t index, bl_error *err)
{
    lane *l = &d->lanes[index];
    bl_delta_file *f = &d->delta.files[index];
    bl_arena arena = {0};
    bl_st_head head;
    char name[32];
    uint8_t sha256[32];
    bl_status s = BL_OK;
    if (l->count) {
        pthread_mutex_lock(&d->b.job.lock); /* of the arena */
        f->name = bl_arena_strndup(&d->b.job.arena, bl_delta_file_name(name, index), strlen(bl_delta_file_name(name, index)));
        const char *path = bl_job_path(&d->b.job, name);
        pthread_mutex_unlock(&d->b.job.lock);
        f->bucket = index;
        f->tensors = l->tensors;
        f->count = l->count;
        s = f->name && path ? lay_out(l, &arena, &head, err) : nomem(err);
        s = s == BL_OK ? write_file(d, l, path, &head, f, sha256, err) : s;
        pthread_mutex_lock(&d->b.job.lock);
        d->report->changed_buckets++;
        d->report->delta_bytes += s == BL_OK ? head.file_bytes : 0;
        s = s == BL_OK && !d->b.job.o->no_sha256 ? bl_job_sum(&d->b.job, f->name, sha256, err) : s;
        pthread_mutex_unlock(&d->b.job.lock);
        bl_arena_reset(&arena);
    }
    close_lane(l);
    return s;
}

static bl_status compare(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    delta_job *d = (delta_job *)(void *)b;
    lane *l = &d->lanes[t->lane];
    const bl_bucket *before = &d->base.buckets[t->lane], *after = &b->planned.buckets.buckets[t->lane];
    const uint8_t *new = t->data, *old = t->scratch + t->offset % BL_IO_ALIGN;
    for (size_t i = 0; i < t->segment_count; new += t->segments[i].nbytes, old += t->segments[i++].nbytes) {
        const bl_segment *g = &t->segments[i];
        const bl_bucket_tensor *entry = bl_bucket_entry(b, t, g);
        if (!entry) {
            continue;
        }
        bl_hasher_update(l->before, old, g->nbytes);
        for (size_t k = 0; k < l->tries; k++) {
            BL_TRY(bl_diff_add(l->attempts[k].diff, old, new, g->offset, g->nbytes, row_bytes(&entry->tensor), err));
        }
        if (g->offset + g->nbytes == entry->tensor.nbytes) {
            BL_TRY(end_tensor(d, l, &before->tensors[entry - after->tensors], entry, err));
        }
    }
    return t->last ? finish_lane(d, t->lane, err) : BL_OK;
}

/* ---- the folder */

/* Files of buckets without a change are none. */
static void keep_changed(bl_delta *delta, size_t buckets)
{
    delta->count = 0;
    for (size_t i = 0; i < buckets; i++) {
        if (delta->files[i].count) {
            delta->files[delta->count++] = delta->files[i];
        }
    }
}

/* What stays with the receiver although it has changed, as far as both states have digests of it. */
static size_t changed_hosts(const bl_buckets *old, const bl_buckets *new)
{
    size_t n = 0;
    for (size_t i = 0; i < new->host_count; i++) {
        const bl_host_tensor *a = &old->host[i], *b = &new->host[i];
        n += a->value_class != BL_VALUE_NONE && b->value_class != BL_VALUE_NONE && !bl_digest_equal(&a->value, &b->value);
    }
    return n;
}

static bl_status fill_folder(bl_bucket_job *b, bl_error *err)
{
    static const bl_bucket_pass pass = {.work = read_base, .in_order = compare};
    delta_job *d = (delta_job *)(void *)b;
    bl_job *j = &b->job;
    const bl_config *c = &j->source->config;
    char *text;
    size_t n;
    BL_TRY(bl_bucket_job_stream(b, &pass, err));
    keep_changed(&d->delta, b->planned.buckets.count);
    d->report->host_changed = changed_hosts(&d->base, &b->planned.buckets);
    BL_TRY(bl_buckets_text(&b->planned.buckets, &text, &n, err));
    d->delta.target = bl_digest_bytes(text, n);
    BL_TRY(bl_bucket_text_file(j, BL_DELTA_TARGET_NAME, text, n, err));
    BL_TRY(bl_delta_text(&d->delta, &text, &n, err));
    BL_TRY(bl_bucket_text_file(j, BL_DELTA_NAME, text, n, err));
    BL_TRY(bl_job_small_file(j, "config.json", c->text, c->text_bytes, err));
    return bl_job_sums(j, err);
}

/* The old state: its layout is the new one's. */
static bl_status open_base(delta_job *d, const char *dst, bl_bucket_options *o, bl_error *err)
{
    char *text;
    size_t n;
    BL_TRY(bl_bucket_place(&d->place, o->base, dst, o->spill_max, o->cancelled, err));
    BL_TRY(bl_buckets_read(d->place.folder, &d->arena, &d->base, &text, &n, err));
    d->base_digest = bl_digest_bytes(text, n);
    free(text);
    o->size = d->base.size;
    o->align = d->base.align;
    o->slice = d->base.slice;
    return BL_OK;
}

static bl_status make(delta_job *d, const char *dst, bl_error *err)
{
    bl_job *j = &d->b.job;
    size_t buckets = d->b.planned.buckets.count;
    BL_TRY(bl_buckets_alike(&d->base, &d->b.planned.buckets, d->o->base, err));
    if (d->o->dry_run) {
        return bl_folder_check(dst, err);
    }
    j->plan.file_bytes = 0; /* nobody knows */
    d->lanes = bl_arena_array(&j->arena, buckets, sizeof *d->lanes);
    d->delta = (bl_delta){.writer = "baleen " BL_VERSION, .encoding = d->o->encoding, .base = d->base_digest};
    d->delta.files = bl_arena_array(&j->arena, buckets, sizeof *d->delta.files);
    return d->lanes && d->delta.files ? bl_bucket_output(&d->b, dst, fill_folder, &d->report->archive_bytes, err) : nomem(err);
}

bl_status bl_bucket_delta(const char *src, const char *dst, const bl_bucket_options *o, bl_bucket_report *report, bl_error *err)
{
    bl_bucket_options mine = *o;
    delta_job d = {.o = &mine, .report = report};
    double start = bl_bucket_now();
    *report = (bl_bucket_report){0};
    BL_TRY(bl_job_place(o->base, dst, err));
    BL_TRY(bl_folder_check(dst, err));
    bl_status s = open_base(&d, dst, &mine, err);
    if (s == BL_OK) {
        s = bl_bucket_job_open(&d.b, src, dst, &mine, &d.base, report, err);
        s = s == BL_OK ? make(&d, dst, err) : s;
        for (size_t i = 0; d.lanes && i < d.b.planned.buckets.count; i++) {
            close_lane(&d.lanes[i]);
            free(d.lanes[i].tensors);
        }
        bl_bucket_job_close(&d.b, s, err);
    }
    bl_archive_show(d.place.archive, s == BL_OK ? NULL : err);
    bl_place_close(&d.place);
    bl_arena_reset(&d.arena);
    report->seconds = bl_bucket_now() - start;
    return s;
}
