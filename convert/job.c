#include "convert/job.h"

#include "formats/names.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *bl_job_path(bl_job *j, const char *name)
{
    return bl_path_join(&j->arena, j->folder, name);
}

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

bl_status bl_job_sum(bl_job *j, const char *name, const uint8_t sha256[32], bl_error *err)
{
    bl_sum_line *grown = bl_grow(j->sums, &j->sum_cap, j->sum_count, sizeof *grown);
    if (!grown) {
        return nomem(err);
    }
    j->sums = grown;
    char *copy = bl_arena_strndup(&j->arena, name, strlen(name));
    if (!copy) {
        return nomem(err);
    }
    bl_sum_line *line = &j->sums[j->sum_count++];
    line->name = copy;
    memcpy(line->digest, sha256, 32);
    return BL_OK;
}

bl_status bl_job_small_file(bl_job *j, const char *name, const void *data, size_t n, bl_error *err)
{
    uint8_t sha256[32];
    const char *path = bl_job_path(j, name);
    if (!path) {
        return nomem(err);
    }
    BL_TRY(bl_output_file(path, data, n, err));
    BL_TRY(bl_job_put_file(j, name, err));
    BL_TRY(bl_sha256_bytes(data, n, sha256, err));
    return bl_job_sum(j, name, sha256, err);
}

bl_status bl_job_sums(bl_job *j, bl_error *err)
{
    const char *path = bl_job_path(j, BL_SUMS_NAME);
    BL_TRY(path ? bl_sums_write(j->sums, j->sum_count, path, err) : nomem(err));
    return bl_job_put_file(j, BL_SUMS_NAME, err);
}

/* ---- streaming the payload */

bl_status bl_job_hash_open(bl_job *j, size_t file, bl_error *err)
{
    bl_job_file *f = &j->files[file];
    if (!j->o->no_sha256) {
        BL_TRY(bl_sha256_create(&f->hash, err));
    } else {
        f->whole_chunks = bl_arena_array(&j->arena, bl_chunk_count(j->plan.files[file].head.file_bytes), sizeof *f->whole_chunks);
        BL_TRY(f->whole_chunks ? bl_chunker_create(&f->whole, err) : nomem(err));
    }
    return j->chunks ? bl_chunker_create(&f->chunker, err) : BL_OK;
}

static void hash_close(bl_job_file *f)
{
    bl_chunker_destroy(&f->chunker);
    bl_chunker_destroy(&f->whole);
    bl_sha256_destroy(&f->hash);
}

static void hash_segment(bl_job *j, size_t lane, const bl_segment *g, const uint8_t *data)
{
    const bl_job_file *f = &j->files[lane];
    const bl_piece *piece = &j->producer.pieces[j->producer.lanes[lane].parts[g->part].tag];
    const bl_plan_tensor *t = piece->tensor;
    if (!t || !f->chunker || j->o->no_digests) {
        bl_hash_both(f->hash, NULL, data, g->nbytes, 0, 0, NULL);
        return;
    }
    /* members of a tensor are equally long */
    uint64_t offset = piece->member * bl_plan_member_bytes(t, piece->member) + g->offset;
    bl_hash_both(f->hash, f->chunker, data, g->nbytes, offset, t->tensor.nbytes, j->chunks[t - j->plan.tensors]);
}

bl_status bl_job_hash(bl_job *j, const bl_tile *t, bl_error *err)
{
    bl_job_file *f = &j->files[t->lane];
    uint64_t bytes = j->plan.files[t->lane].head.file_bytes;
    const uint8_t *data = t->data;
    for (size_t i = 0; i < t->segment_count; i++) {
        hash_segment(j, t->lane, &t->segments[i], data);
        data += t->segments[i].nbytes;
    }
    if (f->whole) {
        bl_chunker_update(f->whole, t->data, t->offset, t->nbytes, bytes, f->whole_chunks);
    }
    if (!t->last) {
        return BL_OK;
    }
    bl_status s = BL_OK;
    if (f->hash) {
        s = bl_sha256_final(f->hash, f->digest, err);
    } else {
        bl_digest d = bl_digest_bytes(f->whole_chunks, bl_chunk_count(bytes) * sizeof *f->whole_chunks);
        memcpy(f->digest, d.b, sizeof d.b);
    }
    hash_close(f);
    return s;
}

/* Hard-link the source's file, itself where its name is a symbolic link. Where that cannot be, it is copied as it is. */
static bool link_source(bl_job *j, const bl_plan_file *pf, const char *path)
{
    const char *source = j->source->files[pf->source].path;
    unlink(path); /* an earlier run's */
    if (linkat(AT_FDCWD, source, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        j->linked_files++;
        j->linked_bytes += pf->head.file_bytes;
        return true;
    }
    if (j->o->note) {
        char text[512];
        snprintf(text, sizeof text, "%.300s is copied, it cannot be linked here: %s", source, strerror(errno));
        j->o->note(text);
    }
    return false;
}

static bl_status open_file(bl_job *j, size_t file, bl_error *err)
{
    bl_job_file *f = &j->files[file];
    const bl_plan_file *pf = &j->plan.files[file];
    bl_status s = BL_OK;
    pthread_mutex_lock(&j->lock);
    if (!f->opened) {
        const char *path = bl_job_path(j, pf->name);
        f->linked = path && pf->linked && link_source(j, pf, path);
        s = !path ? nomem(err) : f->linked || j->archive ? BL_OK : bl_writer_open(&f->writer, path, pf->head.file_bytes, err);
        if (s == BL_OK) {
            s = bl_job_hash_open(j, file, err);
        }
        f->opened = s == BL_OK;
        if (s != BL_OK) {
            bl_writer_abort(&f->writer); /* whoever waits for it here opens it again */
        }
    }
    pthread_mutex_unlock(&j->lock);
    return s;
}

static bl_status make_tile(bl_job *j, const bl_tile *t, bl_error *err)
{
    BL_TRY(open_file(j, t->lane, err));
    BL_TRY(bl_produce(&j->producer, t, err));
    bl_job_arrived(j, t);
    if (bl_produce_waits(&j->producer, t)) {
        return BL_OK; /* written in order */
    }
    bl_writer *w = j->files[t->lane].writer; /* NULL: linked, or for an archive and written in order */
    return w ? bl_writer_put(w, t->data, t->nbytes, t->offset, err) : BL_OK;
}

static bl_status finish_tile(bl_job *j, const bl_tile *t, bl_error *err)
{
    bl_job_file *f = &j->files[t->lane];
    const bl_plan_file *pf = &j->plan.files[t->lane];
    if (bl_produce_waits(&j->producer, t)) {
        BL_TRY(bl_produce_late(&j->producer, t, err));
        BL_TRY(f->writer ? bl_writer_put(f->writer, t->data, t->nbytes, t->offset, err) : BL_OK);
    }
    BL_TRY(j->archive ? bl_job_put_tile(j, t, err) : BL_OK);
    BL_TRY(bl_job_hash(j, t, err));
    if (!t->last) {
        return BL_OK;
    }
    BL_TRY(bl_job_recorded_file(j, t->lane, err));
    if (f->writer) {
        BL_TRY(bl_writer_commit(&f->writer, err));
    }
    if (j->archive) {
        return BL_OK; /* nothing goes on from a part of one */
    }
    bl_journal_file note = {.name = pf->name, .bytes = pf->head.file_bytes, .state = f->state};
    memcpy(note.digest, f->digest, sizeof note.digest);
    if (j->producer.encoder) {
        bl_encoder_stats(j->producer.encoder, t->lane, note.encoded);
    }
    pthread_mutex_lock(&j->lock);
    bl_status s = bl_journal_add(&j->journal, &note, err);
    pthread_mutex_unlock(&j->lock);
    return s;
}

/* What a stream's callbacks need to find the job and the file. */
typedef struct pass {
    bl_job *j;
    size_t *files; /* of each lane */
    bl_status (*work)(bl_job *j, const bl_tile *t, bl_error *err);
    bl_status (*in_order)(bl_job *j, const bl_tile *t, bl_error *err);
} pass;

static bl_status pass_work(void *arg, const bl_tile *t, bl_error *err)
{
    const pass *p = arg;
    bl_tile tile = *t;
    tile.lane = p->files[t->lane];
    return p->work(p->j, &tile, err);
}

static bl_status pass_in_order(void *arg, const bl_tile *t, bl_error *err)
{
    const pass *p = arg;
    bl_tile tile = *t;
    tile.lane = p->files[t->lane];
    return p->in_order(p->j, &tile, err);
}

static bl_status pin(void *arg, void *memory, uint64_t bytes, bl_error *err)
{
    bl_cast_device *d = arg;
    return d->pin(d, memory, bytes, err);
}

static void unpin(void *arg, void *memory)
{
    bl_cast_device *d = arg;
    d->unpin(d, memory);
}

bl_status bl_job_pass(bl_job *j, bool done, bl_status (*work)(bl_job *j, const bl_tile *t, bl_error *err),
                      bl_status (*in_order)(bl_job *j, const bl_tile *t, bl_error *err), bl_error *err)
{
    size_t count = 0, all = j->plan.file_count;
    bl_lane *lanes = bl_arena_array(&j->arena, all, sizeof *lanes);
    pass p = {.j = j, .files = bl_arena_array(&j->arena, all, sizeof *p.files), .work = work, .in_order = in_order};
    if (!lanes || !p.files) {
        return nomem(err);
    }
    for (size_t i = 0; i < all; i++) {
        size_t f = j->order ? j->order[i] : i;
        if (j->files[f].done == done) {
            lanes[count] = j->producer.lanes[f];
            p.files[count++] = f;
        }
    }
    bl_stream stream = {.lanes = lanes,
                        .lane_count = count,
                        .sequence = j->order != NULL,
                        .jobs = j->o->jobs,
                        .scratch = j->producer.scratch,
                        .scratch_ratio = j->producer.scratch_ratio,
                        .work = pass_work,
                        .in_order = pass_in_order,
                        .arg = &p,
                        .pin = j->producer.caster ? pin : NULL,
                        .unpin = unpin,
                        .pin_arg = j->producer.caster,
                        .cancelled = j->o->cancelled,
                        .progress = j->o->progress,
                        .progress_arg = j->o->progress_arg};
    bl_status s = count ? bl_stream_run(&stream, err) : BL_OK;
    for (size_t i = 0; i < all; i++) {
        bl_writer_abort(&j->files[i].writer);
        hash_close(&j->files[i]);
    }
    return s;
}

static bl_status prepare(bl_job *j, bl_error *err)
{
    const bl_plan *plan = &j->plan;
    if (plan->target != BL_TO_PACKED) {
        return BL_OK;
    }
    j->chunks = bl_arena_array(&j->arena, plan->tensor_count, sizeof *j->chunks);
    for (size_t i = 0; j->chunks && i < plan->tensor_count; i++) {
        j->chunks[i] = bl_arena_array(&j->arena, bl_chunk_count(plan->tensors[i].tensor.nbytes), sizeof **j->chunks);
        if (!j->chunks[i]) {
            return nomem(err);
        }
    }
    return j->chunks ? BL_OK : nomem(err);
}

bl_status bl_job_stream(bl_job *j, bl_error *err)
{
    BL_TRY(prepare(j, err));
    BL_TRY(j->archive ? BL_OK : bl_job_prove(j, err));
    BL_TRY(bl_job_expect(j, err));
    BL_TRY(bl_job_pass(j, false, make_tile, finish_tile, err));
    BL_TRY(bl_producer_prove(&j->producer, err));
    for (size_t i = 0; !j->o->no_sha256 && i < j->plan.file_count; i++) {
        BL_TRY(bl_job_sum(j, j->plan.files[i].name, j->files[i].digest, err));
    }
    return BL_OK;
}
