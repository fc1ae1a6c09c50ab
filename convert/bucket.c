#include "convert/bucket.h"

#include "convert/bucket_job.h"

#include <stdlib.h>
#include <time.h>

double bl_bucket_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bl_status open_file(bl_bucket_job *b, size_t file, bl_error *err)
{
    bl_job *j = &b->job;
    bl_job_file *f = &j->files[file];
    bl_status s = BL_OK;
    pthread_mutex_lock(&j->lock);
    if (!f->opened) {
        const char *path = bl_job_path(j, j->plan.files[file].name);
        s = !path       ? bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory")
            : j->archive ? BL_OK
                         : bl_writer_open(&f->writer, path, j->plan.files[file].head.file_bytes, err);
        s = s == BL_OK && !j->o->no_sha256 ? bl_sha256_create(&f->hash, err) : s;
        f->opened = s == BL_OK;
        if (s != BL_OK) {
            bl_writer_abort(&f->writer); /* whoever waits for it here opens it again */
        }
    }
    pthread_mutex_unlock(&j->lock);
    return s;
}

static bl_status write_tile(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    BL_TRY(open_file(b, t->lane, err));
    bl_writer *w = b->job.files[t->lane].writer; /* NULL: for an archive, written in order */
    return w ? bl_writer_put(w, t->data, t->nbytes, t->offset, err) : BL_OK;
}

static bl_status finish_tile(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    bl_job_file *f = &b->job.files[t->lane];
    BL_TRY(b->job.archive ? bl_job_put_tile(&b->job, t, err) : BL_OK);
    if (f->hash) {
        bl_sha256_update(f->hash, t->data, t->nbytes);
    }
    if (!t->last) {
        return BL_OK;
    }
    if (f->hash) {
        BL_TRY(bl_sha256_final(f->hash, f->digest, err));
    }
    return f->writer ? bl_writer_commit(&f->writer, err) : BL_OK;
}

bl_status bl_bucket_text_file(bl_job *j, const char *name, char *text, size_t n, bl_error *err)
{
    bl_status s = bl_job_small_file(j, name, text, n, err);
    free(text);
    return s;
}

bl_status bl_bucket_flattened(bl_job *j, const bl_buckets *k, bl_error *err)
{
    char *text;
    size_t n;
    BL_TRY(bl_buckets_flattened(k, false, &text, &n, err));
    BL_TRY(bl_bucket_text_file(j, BL_BUCKETS_BYTES_NAME, text, n, err));
    BL_TRY(bl_buckets_flattened(k, true, &text, &n, err));
    return bl_bucket_text_file(j, BL_BUCKETS_ELEMENTS_NAME, text, n, err);
}

static bl_status fill_folder(bl_bucket_job *b, bl_error *err)
{
    static const bl_bucket_pass pass = {.work = write_tile, .in_order = finish_tile};
    bl_job *j = &b->job;
    const bl_config *c = &j->source->config;
    char *text;
    size_t n;
    BL_TRY(bl_bucket_job_stream(b, &pass, err));
    for (size_t i = 0; !j->o->no_sha256 && i < b->planned.buckets.count; i++) {
        BL_TRY(bl_job_sum(j, j->plan.files[i].name, j->files[i].digest, err));
    }
    BL_TRY(bl_buckets_text(&b->planned.buckets, &text, &n, err));
    BL_TRY(bl_bucket_text_file(j, BL_BUCKETS_NAME, text, n, err));
    BL_TRY(bl_bucket_flattened(j, &b->planned.buckets, err));
    BL_TRY(bl_job_small_file(j, "config.json", c->text, c->text_bytes, err));
    return bl_job_sums(j, err);
}

typedef struct filling {
    bl_bucket_job *b;
    const char *dst;
    bl_status (*fill)(bl_bucket_job *b, bl_error *err);
} filling;

static bl_status fill_output(void *arg, bl_error *err)
{
    const filling *f = arg;
    const bl_job *j = &f->b->job;
    BL_TRY(bl_job_space(j, f->dst, err));
    BL_TRY(f->fill(f->b, err));
    return j->o->cancelled && j->o->cancelled() ? bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted") : BL_OK;
}

bl_status bl_bucket_output(bl_bucket_job *b, const char *dst, bl_status (*fill)(bl_bucket_job *b, bl_error *err), uint64_t *archive_bytes,
                           bl_error *err)
{
    bl_job *j = &b->job;
    filling f = {.b = b, .dst = dst, .fill = fill};
    if (j->kind != BL_ARCHIVE_NONE) {
        return bl_job_archive(j, dst, fill_output, &f, archive_bytes, err);
    }
    BL_TRY(bl_folder_begin(&j->out, dst, false, err));
    j->folder = bl_folder_files(j->out);
    bl_status s = fill_output(&f, err);
    s = s == BL_OK ? bl_folder_commit(&j->out, err) : s;
    bl_folder_abort(&j->out, false);
    return s;
}

static bl_status rehearse(bl_bucket_job *b, const char *dst, const bl_bucket_options *o, bl_error *err)
{
    if (o->on_plan) {
        o->on_plan(o->plan_arg, &b->planned.buckets);
    }
    BL_TRY(bl_folder_check(dst, err));
    return bl_job_space(&b->job, dst, err);
}

bl_status bl_bucket_write(const char *src, const char *dst, const bl_bucket_options *o, bl_bucket_report *report, bl_error *err)
{
    bl_bucket_job b;
    double start = bl_bucket_now();
    *report = (bl_bucket_report){0};
    bl_status s = bl_bucket_job_open(&b, src, dst, o, NULL, report, err);
    if (s == BL_OK) {
        s = o->dry_run ? rehearse(&b, dst, o, err) : bl_bucket_output(&b, dst, fill_folder, &report->archive_bytes, err);
    }
    bl_bucket_job_close(&b, s, err);
    report->seconds = bl_bucket_now() - start;
    return s;
}
