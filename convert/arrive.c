/* Converting what comes in the order of an archive: output files are made in the order in which their last bytes come, and a source
 * tensor is dropped when all that is made of it is. */
#include "convert/job.h"
#include "verify/arrival.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* A read of a source tensor for the output file that is made in this place of the order. */
typedef struct use {
    uint64_t begin, end;
    size_t turn;
} use;

/* Do something for every source tensor that a piece of an output file is made of. */
static bl_status each_origin(const bl_job *j, const bl_piece *piece, void *arg,
                             bl_status (*each)(const bl_job *j, const bl_tensor *t, void *arg, bl_error *err), bl_error *err)
{
    const bl_plan_tensor *pt = piece->tensor;
    if (!pt || pt->member_count == 0 || (pt->encode && pt->scale)) {
        return BL_OK; /* a header; padding; scales that are made with their codes */
    }
    bl_view v = bl_plan_view(pt, piece->member);
    for (size_t i = 0; i < v.count; i++) {
        const bl_weight *w = &v.pieces[i];
        if (v.count > 1 && w->replica) {
            continue;
        }
        BL_TRY(pt->scale ? BL_OK : each(j, w->tensor, arg, err));
        BL_TRY(w->scale ? each(j, w->scale, arg, err) : BL_OK);
    }
    return BL_OK;
}

static bl_status expect(const bl_job *j, const bl_tensor *t, void *arg, bl_error *err)
{
    const bl_file *f = bl_checkpoint_file(j->source, t)->file;
    uint64_t *reach = arg, end = bl_arrival_place(f, t->offset) + t->nbytes;
    *reach = end > *reach ? end : *reach;
    return bl_arrival_expect(f, t->offset, t->nbytes, err);
}

static bl_status done(const bl_job *j, const bl_tensor *t, void *arg, bl_error *err)
{
    (void)arg, (void)err;
    bl_arrival_done(bl_checkpoint_file(j->source, t)->file, t->offset, t->nbytes);
    return BL_OK;
}

typedef struct use_list {
    use *items;
    size_t count, turn;
} use_list;

static bl_status list_use(const bl_job *j, const bl_tensor *t, void *arg, bl_error *err)
{
    use_list *l = arg;
    uint64_t at = bl_arrival_place(bl_checkpoint_file(j->source, t)->file, t->offset);
    if (l->items) {
        l->items[l->count] = (use){.begin = at, .end = at + t->nbytes, .turn = l->turn};
    }
    l->count++;
    (void)err;
    return BL_OK;
}

static int by_place(const void *a, const void *b)
{
    const use *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The pieces of the files that are to be made, in order. */
static bl_status each_piece(const bl_job *j, use_list *l, bl_error *err)
{
    l->count = 0;
    for (l->turn = 0; l->turn < j->plan.file_count; l->turn++) {
        size_t f = j->order[l->turn];
        const bl_lane *lane = &j->producer.lanes[f];
        for (size_t i = 0; !j->files[f].done && i < lane->count; i++) {
            BL_TRY(each_origin(j, &j->producer.pieces[lane->parts[i].tag], l, list_use, err));
        }
    }
    return BL_OK;
}

/* Most bytes of tensors that have come, and are not done, while a file is made. */
static bl_status most_waiting(bl_job *j, const uint64_t *reach, uint64_t *most, bl_error *err)
{
    use_list l = {0};
    *most = 0;
    BL_TRY(each_piece(j, &l, err));
    l.items = malloc((l.count + 1) * sizeof *l.items);
    if (!l.items) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    bl_status s = each_piece(j, &l, err);
    if (l.count) {
        qsort(l.items, l.count, sizeof *l.items, by_place);
    }
    size_t n = 0;
    for (size_t i = 0; i < l.count; i++) { /* of each tensor the last use */
        if (n && l.items[n - 1].begin == l.items[i].begin) {
            l.items[n - 1].turn = l.items[i].turn > l.items[n - 1].turn ? l.items[i].turn : l.items[n - 1].turn;
        } else {
            l.items[n++] = l.items[i];
        }
    }
    for (size_t turn = 0; turn < j->plan.file_count; turn++) {
        uint64_t waiting = 0;
        for (size_t i = 0; i < n && l.items[i].begin < reach[j->order[turn]]; i++) {
            waiting += l.items[i].turn >= turn ? l.items[i].end - l.items[i].begin : 0;
        }
        *most = waiting > *most ? waiting : *most;
    }
    free(l.items);
    return s;
}

/* Say how much of a compressed archive is on disk at a time, and why; refuse when there is no room for it beside the output. */
static bl_status check_room(const bl_job *j, bool again, bl_error *err)
{
    const char *folder = bl_archive_spill_folder(j->source->archive);
    struct stat here, there;
    uint64_t have, need = j->waiting;
    char text[1200];
    snprintf(text, sizeof text,
             again ? "%.500s is compressed, and the headers of its files lie between their data: it is read twice; at most %.3f GB wait in "
                     "a temporary file in %.500s"
                   : "%.500s is compressed: %.3f GB were unpacked into a temporary file in %.500s",
             j->source->name, (double)j->waiting * 1e-9, folder);
    if (j->o->note) {
        j->o->note(text);
    }
    if (!again) {
        return BL_OK;
    }
    if (stat(folder, &here) == 0 && stat(j->folder, &there) == 0 && here.st_dev == there.st_dev) {
        need += j->plan.file_bytes - j->kept_bytes + BL_JOB_SMALL_FILES;
    }
    BL_TRY(bl_free_space(folder, &have, err));
    if (have < need) {
        return bl_fail(err, BL_E_IO, folder, NULL, -1, "needs %llu bytes, %llu are free: the order of the archive makes %llu wait there",
                       (unsigned long long)need, (unsigned long long)have, (unsigned long long)j->waiting);
    }
    return BL_OK;
}

bl_status bl_job_expect(bl_job *j, bl_error *err)
{
    size_t files = j->plan.file_count;
    bool again = bl_arrives(j->source);
    if (j->archive) { /* members follow each other */
        j->order = bl_arena_array(&j->arena, files, sizeof *j->order);
        for (size_t i = 0; j->order && i < files; i++) {
            j->order[i] = i;
        }
        BL_TRY(j->order ? BL_OK : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory"));
    }
    j->waiting = j->source->archive ? bl_archive_compressed(j->source->archive, &again) : 0;
    if (!again) {
        return j->waiting ? check_room(j, again, err) : BL_OK;
    }
    uint64_t *reach = bl_arena_array(&j->arena, files, sizeof *reach);
    j->order = bl_arena_array(&j->arena, files, sizeof *j->order);
    if (!reach || !j->order) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    for (size_t f = 0; f < files; f++) {
        const bl_lane *lane = &j->producer.lanes[f];
        for (size_t i = 0; !j->files[f].done && i < lane->count; i++) {
            const bl_piece *p = &j->producer.pieces[lane->parts[i].tag];
            BL_TRY(each_origin(j, p, &reach[f], expect, err));
            if (p->tensor && bl_job_reads_again(j, p->tensor, p->member)) { /* at the end: they stay */
                BL_TRY(each_origin(j, p, &reach[f], expect, err));
            }
        }
        size_t at = f;
        for (; at > 0 && reach[j->order[at - 1]] > reach[f]; at--) {
            j->order[at] = j->order[at - 1];
        }
        j->order[at] = f;
    }
    bl_arrival_seal(j->source);
    j->arrives = true;
    BL_TRY(most_waiting(j, reach, &j->waiting, err));
    return check_room(j, again, err);
}

void bl_job_arrived(bl_job *j, const bl_tile *t)
{
    for (size_t i = 0; j->arrives && i < t->segment_count; i++) {
        const bl_part *part = &j->producer.lanes[t->lane].parts[t->segments[i].part];
        bl_piece *piece = &j->producer.pieces[part->tag];
        if (atomic_fetch_add(&piece->made, t->segments[i].nbytes) + t->segments[i].nbytes == part->nbytes) {
            each_origin(j, piece, NULL, done, NULL);
        }
    }
}
