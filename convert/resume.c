/* Going on from what an earlier run left: finding out whether it is the same job, and proving the files that it finished. */
#include "convert/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void add_text(bl_sha256 *h, const char *s)
{
    bl_sha256_update(h, s, strlen(s) + 1);
}

static void add_number(bl_sha256 *h, uint64_t n)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    add_text(h, text);
}

/* Config, headers, and of each file size and time of the last change: hashing all of it again would take as long as the job. */
static void identify(const bl_checkpoint *c, bl_sha256 *h)
{
    bl_sha256_update(h, c->config.text, c->config.text_bytes);
    for (size_t i = 0; i < c->file_count; i++) {
        struct stat st = {0};
        fstat(bl_file_fd(c->archive ? bl_archive_whole(c->archive) : c->files[i].file), &st);
        add_text(h, c->files[i].name);
        add_number(h, bl_file_size(c->files[i].file));
        add_number(h, (uint64_t)st.st_mtim.tv_sec);
        add_number(h, (uint64_t)st.st_mtim.tv_nsec);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        const bl_tensor *t = &c->tensors[i];
        add_text(h, t->name);
        add_number(h, t->file);
        add_number(h, t->dtype);
        add_number(h, t->offset);
        add_number(h, t->nbytes);
    }
}

/* Version, options, and all that the plan says about the files. */
static void identify_plan(const bl_job *j, bl_sha256 *h)
{
    const bl_convert_options *o = j->o;
    const bl_plan *p = &j->plan;
    add_text(h, BL_VERSION);
    add_number(h, o->target);
    add_number(h, p->dropped);
    add_number(h, o->no_sha256);
    add_number(h, o->no_digests);
    add_number(h, o->save_scales);
    add_number(h, (uint64_t)p->layout->tp);
    add_number(h, (uint64_t)p->layout->ep);
    add_number(h, (uint64_t)p->layout->pp);
    add_number(h, o->link);
    add_number(h, p->layout->engram_shared);
    add_number(h, p->layout->vocab_rows);
    add_number(h, p->layout->split);
    add_number(h, o->no_hints);
    add_number(h, o->fp4_ties);
    add_number(h, o->canonical_zero);
    add_number(h, j->hints != NULL);
    if (j->hints) {
        identify(bl_hints_source(j->hints), h);
    }
    add_number(h, o->layer_count);
    for (size_t i = 0; i < o->layer_count; i++) {
        add_number(h, (uint64_t)o->layers[i]);
    }
    for (size_t i = 0; i < p->file_count; i++) {
        add_text(h, p->files[i].name);
        add_number(h, p->files[i].head.file_bytes);
        bl_sha256_update(h, p->files[i].head.text, p->files[i].head.text_bytes);
    }
}

bl_status bl_job_journal(bl_job *j, bl_error *err)
{
    uint8_t source[32], plan[32];
    bl_sha256 *h;
    BL_TRY(bl_sha256_create(&h, err));
    identify(j->source, h);
    bl_status s = bl_sha256_final(h, source, err);
    identify_plan(j, h);
    if (s == BL_OK) {
        s = bl_sha256_final(h, plan, err);
    }
    bl_sha256_destroy(&h);
    BL_TRY(s);
    return bl_journal_open(&j->journal, bl_folder_journal(j->out), bl_folder_partial(j->out), source, plan, &j->arena, err);
}

/* Mark the files of the plan that the journal calls finished and that are there in their full size. */
static size_t mark_finished(bl_job *j, const char **names)
{
    size_t count = 0;
    for (size_t i = 0; i < j->plan.file_count; i++) {
        const bl_plan_file *pf = &j->plan.files[i];
        const char *path = bl_job_path(j, pf->name);
        struct stat st;
        for (size_t k = 0; k < j->journal.count; k++) { /* the last note counts */
            const bl_journal_file *noted = &j->journal.files[k];
            if (!strcmp(noted->name, pf->name) && noted->bytes == pf->head.file_bytes) {
                memcpy(j->files[i].noted, noted->digest, sizeof noted->digest);
                j->files[i].done = path && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == pf->head.file_bytes;
            }
        }
        if (j->files[i].done) {
            names[count++] = pf->name;
        }
    }
    return count;
}

static bl_status open_done(bl_job *j, size_t file, bl_error *err)
{
    bl_job_file *f = &j->files[file];
    const char *path = bl_job_path(j, j->plan.files[file].name);
    bl_file *opened = NULL;
    bl_status s = path ? bl_file_open(&opened, path, err) : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    if (s == BL_OK) {
        s = bl_reader_open(&f->reader, opened, err);
        bl_file_close(&opened);
    }
    return s == BL_OK ? bl_job_hash_open(j, file, err) : s;
}

static bl_status read_tile(bl_job *j, const bl_tile *t, bl_error *err)
{
    bl_job_file *f = &j->files[t->lane];
    const uint8_t *data;
    bl_status s = BL_OK;
    pthread_mutex_lock(&j->lock);
    if (!f->reader) {
        s = open_done(j, t->lane, err);
    }
    pthread_mutex_unlock(&j->lock);
    BL_TRY(s);
    BL_TRY(bl_reader_read(f->reader, t->data - t->offset % BL_IO_ALIGN, t->nbytes, t->offset, &data, err));
    return bl_produce_digest(&j->producer, t, err);
}

/* Hash all files that are marked; a file with another digest than noted is not done. */
static bl_status prove_marked(bl_job *j, size_t *bad, bl_error *err)
{
    memset(j->producer.sums, 0, j->plan.sum_count * sizeof *j->producer.sums);
    bl_status s = bl_job_pass(j, true, read_tile, bl_job_hash, err);
    *bad = 0;
    for (size_t i = 0; i < j->plan.file_count; i++) {
        bl_job_file *f = &j->files[i];
        bl_reader_close(&f->reader);
        if (s == BL_OK && f->done && memcmp(f->digest, f->noted, sizeof f->digest) != 0) {
            f->done = false;
            ++*bad;
        }
    }
    return s;
}

bl_status bl_job_prove(bl_job *j, bl_error *err)
{
    const char **names = bl_arena_array(&j->arena, j->plan.file_count, sizeof *names);
    size_t bad = 1;
    if (!names) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    size_t count = mark_finished(j, names);
    bl_folder_keep(j->out, names, count);
    while (bad && count) { /* again when one is bad: its bytes are in the value digests */
        BL_TRY(prove_marked(j, &bad, err));
        count -= bad;
    }
    for (size_t i = 0; i < j->plan.file_count; i++) {
        j->kept_files += j->files[i].done;
        j->kept_bytes += j->files[i].done ? j->plan.files[i].head.file_bytes : 0;
    }
    return BL_OK;
}
