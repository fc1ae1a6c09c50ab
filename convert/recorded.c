/* Holding what was read from a packed model against the value digests in its manifests: what comes out gets digests of its own, so
 * damage that goes in unseen would be proven ever after. */
#include "convert/job.h"

#include <stdlib.h>

/* A slot: the digest of what came out, each part counted once, and the source's pieces. */
typedef struct whole {
    bl_sum sum;
    uint64_t covered; /* values */
    const bl_weight *pieces;
    size_t count;
    bool retiled; /* what came out has digests of other tiles than the source's */
} whole;

static bool are_recorded(const bl_job *j)
{
    return j->source->rank_count && !j->o->no_digests;
}

static uint64_t area(bl_rect r)
{
    return r.rows * r.cols;
}

bool bl_job_reads_again(const bl_job *j, const bl_plan_tensor *t, size_t member)
{
    if (t->member_count == 0) {
        return false; /* padding */
    }
    const bl_weight *w = t->members[member].pieces;
    return are_recorded(j) && !t->scale && !t->encode && (t->fine_rows != w->fine_rows || t->fine_cols != w->fine_cols);
}

/* Parts of one slot are equal or disjoint, and the first ranks that hold any hold all of it between them. */
static void add_members(bl_job *j, const bl_plan_tensor *t, whole *list)
{
    for (size_t i = 0; i < t->member_count; i++) {
        const bl_plan_member *m = &t->members[i];
        whole *w = &list[m->pieces->slot - j->binding.slots.slots];
        if (w->covered < area(bl_slot_rect(m->pieces->slot))) {
            w->covered += area(m->part);
            w->pieces = m->pieces;
            w->count = m->piece_count;
            w->retiled |= bl_job_reads_again(j, t, i);
            bl_sum_add(&w->sum, j->producer.sums[m->sum]);
        }
    }
}

static bl_status differs(const bl_job *j, const bl_weight *w, bl_error *err)
{
    return bl_fail(err, BL_E_INPUT, j->source->path, w->slot->name, -1,
                   "its values differ from the value digest in the manifest: the model is damaged ('baleen verify' says where)");
}

/* What came out of a slot, or went into encoding it, against what the manifests record of its pieces. */
static bl_status compare(const bl_job *j, const whole *w, bl_error *err)
{
    bl_sum recorded = {0};
    for (size_t i = 0; i < w->count; i++) {
        bl_digest d;
        if (!w->pieces[i].replica && bl_weight_recorded(j->source, &w->pieces[i], &d)) {
            bl_sum_add(&recorded, bl_digest_sum(d));
        }
    }
    if (recorded.lo == w->sum.lo && recorded.hi == w->sum.hi) {
        return BL_OK;
    }
    return differs(j, w->pieces, err);
}

/* The value digest of a piece, of its own tiles. */
static bl_status digest_piece(bl_job *j, const bl_weight *w, uint8_t *room, uint64_t step, bl_sum *sum, bl_error *err)
{
    bl_values *values = &j->producer.values;
    const bl_view v = bl_view_of(w);
    uint64_t buffer = bl_io_pages(BL_READ_ROOM(step));
    for (uint64_t at = 0, n; at < w->nbytes; at += n) {
        const uint8_t *data;
        n = w->nbytes - at < step ? w->nbytes - at : step;
        BL_TRY(bl_values_read(values, &v, false, at, n, room, room + buffer, &data, err));
        BL_TRY(bl_values_add(values, &v, false, at, n, data, room + buffer, sum, err));
    }
    return BL_OK;
}

/* The same by reading the pieces once more. Cuts inside tiles are few, and small. */
static bl_status compare_again(bl_job *j, const whole *w, bl_error *err)
{
    bl_status s = BL_OK;
    for (size_t i = 0; s == BL_OK && i < w->count; i++) {
        bl_sum sum = {0};
        bl_digest recorded, have;
        const bl_weight *piece = &w->pieces[i];
        uint64_t step = bl_values_granule(piece, false), bytes = bl_io_pages(BL_READ_ROOM(step));
        if (piece->replica || !bl_weight_recorded(j->source, piece, &recorded)) {
            continue;
        }
        bytes = bl_io_pages(bytes + bl_values_scratch(&j->producer.values, step));
        uint8_t *room = aligned_alloc(BL_IO_ALIGN, bytes);
        s = room ? digest_piece(j, piece, room, step, &sum, err) : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
        free(room);
        have = bl_sum_digest(sum);
        s = s == BL_OK && !bl_digest_equal(&have, &recorded) ? differs(j, piece, err) : s;
    }
    return s;
}

bl_status bl_job_recorded_file(bl_job *j, size_t file, bl_error *err)
{
    const bl_plan_file *pf = &j->plan.files[file];
    for (size_t i = 0; are_recorded(j) && i < pf->count; i++) {
        const bl_plan_tensor *t = &pf->tensors[i];
        if (t->encode && !t->scale) {
            const bl_plan_member *m = t->members;
            whole w = {.sum = j->producer.sums[m->sum], .pieces = m->pieces, .count = m->piece_count};
            BL_TRY(compare(j, &w, err));
        }
    }
    return BL_OK;
}

bl_status bl_job_recorded(bl_job *j, bl_error *err)
{
    const bl_slots *slots = &j->binding.slots;
    if (!are_recorded(j)) {
        return BL_OK;
    }
    whole *list = bl_arena_array(&j->arena, slots->count, sizeof *list);
    if (!list) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < j->plan.tensor_count; i++) {
        const bl_plan_tensor *t = &j->plan.tensors[i];
        if (!t->scale && !t->encode) { /* bl_job_recorded_file has held those */
            add_members(j, t, list);
        }
    }
    for (size_t i = 0; i < slots->count; i++) {
        if (list[i].count && list[i].covered == area(bl_slot_rect(&slots->slots[i]))) {
            BL_TRY(list[i].retiled ? compare_again(j, &list[i], err) : compare(j, &list[i], err));
        }
    }
    return BL_OK;
}
