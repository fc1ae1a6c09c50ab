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
    if (!f->writer) {
        const char *path = bl_job_path(j, j->plan.files[file].name);
        s = path ? bl_writer_open(&f->writer, path, j->plan.files[file].head.file_bytes, err)
                 : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
        s = s == BL_OK && !j->o->no_sha256 ? bl_sha256_create(&f->hash, err) : s;
    }
    pthread_mutex_unlock(&j->lock);
    return s;
}

static bl_status write_tile(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    BL_TRY(open_file(b, t->lane, err));
    return bl_writer_put(b->job.files[t->lane].writer, t->data, t->nbytes, t->offset, err);
}

static bl_status finish_tile(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    bl_job_file *f = &b->job.files[t->lane];
    if (f->hash) {
        bl_sha256_update(f->hash, t->data, t->nbytes);
    }
    if (!t->last) {
        return BL_OK;
    }
    if (f->hash) {
        BL_TRY(bl_sha256_final(f->hash, f->digest, err));
    }
    return bl_writer_commit(&f->writer, err);
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
    const char *path = bl_job_path(j, BL_SUMS_NAME);
    return path ? bl_sums_write(j->sums, j->sum_count, path, err) : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

bl_status bl_bucket_folder(bl_bucket_job *b, const char *dst, bl_status (*fill)(bl_bucket_job *b, bl_error *err), bl_error *err)
{
    bl_job *j = &b->job;
    BL_TRY(bl_folder_begin(&j->out, dst, false, err));
    j->folder = bl_folder_files(j->out);
    bl_status s = bl_job_space(j, dst, err);
    s = s == BL_OK ? fill(b, err) : s;
    if (s == BL_OK && j->o->cancelled && j->o->cancelled()) {
        s = bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
    }
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
        s = o->dry_run ? rehearse(&b, dst, o, err) : bl_bucket_folder(&b, dst, fill_folder, err);
    }
    bl_bucket_job_close(&b, s, err);
    report->seconds = bl_bucket_now() - start;
    return s;
}
