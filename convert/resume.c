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

/* Config and headers: what there is, not what is in it (bl_job_states). */
static void identify(const bl_checkpoint *c, bl_sha256 *h)
{
    bl_sha256_update(h, c->config.text, c->config.text_bytes);
    for (size_t i = 0; i < c->file_count; i++) {
        add_text(h, c->files[i].name);
        add_number(h, bl_file_size(c->files[i].file));
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

/* Size and times of a file: hashing its content again would take as long as the job. The time of the last change of state cannot be
 * set, and so tells of a file that was replaced by another of the same size and time; but a link that is made to a file changes it too, as
 * --link itself does (linked). Inode numbers are left out: network file systems may deal them out anew at every mount. */
static bl_digest state_of(size_t file, const struct stat *st, bool linked)
{
    int64_t state[6] = {(int64_t)file, (int64_t)st->st_size, (int64_t)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
                        linked ? 0 : (int64_t)st->st_ctim.tv_sec, linked ? 0 : st->st_ctim.tv_nsec};
    return bl_digest_bytes(state, sizeof state);
}

/* Of a checkpoint's file. What is unpacked from an archive is new every time: there the archive's own state counts. */
static bl_digest state_of_file(const bl_checkpoint *c, size_t file, bool linked)
{
    struct stat st = {0};
    fstat(bl_file_fd(c->archive ? bl_archive_whole(c->archive) : c->files[file].file), &st);
    return state_of(file, &st, linked);
}

/* Add the states of all that a file is made from to *sum. used: [source files] scratch, cleared. */
static void add_sources(const bl_job *j, const bl_plan_file *pf, const bl_digest *states, bool *used, bl_sum *sum)
{
    for (size_t i = 0; i < pf->count; i++) {
        const bl_plan_tensor *t = &pf->tensors[i];
        for (size_t m = 0; m < t->member_count; m++) {
            for (size_t k = 0; k < t->members[m].piece_count; k++) {
                const bl_weight *w = &t->members[m].pieces[k];
                used[w->tensor->file] = true;
                used[w->scale ? w->scale->file : w->tensor->file] = true;
            }
        }
    }
    for (size_t i = 0; i < j->source->file_count; i++) {
        if (used[i] || (pf->linked && pf->source == i)) {
            bl_sum_add(sum, bl_digest_sum(states[i]));
        }
        used[i] = false;
    }
}

static bool is_encoded(const bl_plan_file *pf)
{
    for (size_t i = 0; i < pf->count; i++) {
        if (pf->tensors[i].encode) {
            return true;
        }
    }
    return false;
}

bl_status bl_job_states(bl_job *j, bl_error *err)
{
    const bl_checkpoint *c = j->source, *h = j->hints ? bl_hints_source(j->hints) : NULL;
    bl_digest *states = bl_arena_array(&j->arena, c->file_count, sizeof *states);
    bool *used = bl_arena_array(&j->arena, c->file_count, sizeof *used);
    bl_sum hints = {0};
    j->files = bl_arena_array(&j->arena, j->plan.file_count, sizeof *j->files);
    if (!states || !used || !j->files) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < j->plan.file_count; i++) {
        if (j->plan.files[i].linked) {
            used[j->plan.files[i].source] = true;
        }
    }
    for (size_t i = 0; i < c->file_count; i++) {
        states[i] = state_of_file(c, i, used[i]);
        used[i] = false;
    }
    for (size_t i = 0; h && i < h->file_count; i++) {
        bl_sum_add(&hints, bl_digest_sum(state_of_file(h, i, false)));
    }
    for (size_t i = 0; i < j->plan.file_count; i++) {
        const bl_plan_file *pf = &j->plan.files[i];
        bl_sum sum = is_encoded(pf) ? hints : (bl_sum){0};
        add_sources(j, pf, states, used, &sum);
        j->files[i].state = bl_sum_digest(sum);
    }
    return BL_OK;
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

/* The last note about a file. */
static const bl_journal_file *note_of(const bl_job *j, const bl_plan_file *pf)
{
    const bl_journal_file *note = NULL;
    for (size_t k = 0; k < j->journal.count; k++) {
        note = strcmp(j->journal.files[k].name, pf->name) == 0 ? &j->journal.files[k] : note;
    }
    return note;
}

/* Mark the files of the plan that the journal calls finished, made from what the source still has, and that are there in their full
 * size. */
static size_t mark_finished(bl_job *j, const char **names)
{
    size_t count = 0, changed = 0;
    for (size_t i = 0; i < j->plan.file_count; i++) {
        const bl_plan_file *pf = &j->plan.files[i];
        bl_job_file *f = &j->files[i];
        const char *path = bl_job_path(j, pf->name);
        const bl_journal_file *note = note_of(j, pf);
        struct stat st;
        if (!note || note->bytes != pf->head.file_bytes || !path || lstat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
            (uint64_t)st.st_size != pf->head.file_bytes) {
            continue;
        }
        f->done = bl_digest_equal(&note->state, &f->state);
        changed += !f->done;
        memcpy(f->noted, note->digest, sizeof f->noted);
        if (f->done) {
            names[count++] = pf->name;
        }
    }
    if (changed && j->o->note) {
        char text[160];
        snprintf(text, sizeof text, "the source has changed: %zu finished file%s made from what has, and made again", changed,
                 changed == 1 ? " was" : "s were");
        j->o->note(text);
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
        if (s != BL_OK) {
            bl_reader_close(&f->reader); /* whoever waits for it here opens it again */
        }
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

bl_status bl_job_committed(bl_job *j, const char *dst, bl_error *err)
{
    for (size_t i = 0; i < j->plan.file_count; i++) {
        const bl_journal_file *note = note_of(j, &j->plan.files[i]);
        if (!note || !bl_digest_equal(&note->state, &j->files[i].state)) {
            return bl_fail(err, BL_E_USAGE, dst, NULL, -1, "is complete, but the source has changed since: remove it to convert anew");
        }
    }
    j->kept_files = j->plan.file_count;
    j->kept_bytes = j->plan.file_bytes;
    return BL_OK;
}

void bl_job_encoded(const bl_job *j, bl_encode_stats out[BL_ENCODE_CLASSES])
{
    bl_encode_count(&j->plan, out);
    for (size_t i = 0; i < j->plan.file_count; i++) {
        bl_encode_stats made[BL_ENCODE_CLASSES] = {0};
        bool kept = j->files[i].done || bl_folder_committed(j->out);
        const bl_journal_file *note = kept ? note_of(j, &j->plan.files[i]) : NULL;
        if (!kept && j->producer.encoder) {
            bl_encoder_stats(j->producer.encoder, i, made);
        }
        for (int c = 0; c < BL_ENCODE_CLASSES; c++) {
            bl_encode_stats_add(&out[c], note ? &note->encoded[c] : &made[c]);
        }
    }
}
