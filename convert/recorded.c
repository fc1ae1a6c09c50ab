/* Holding what was read from a packed model against the value digests in its manifests: what comes out gets digests of its own, so
 * damage that goes in unseen would be proven ever after. */
#include "convert/job.h"

/* A slot: the digest of what came out, each part counted once, and the source's pieces. */
typedef struct whole {
    bl_sum sum;
    uint64_t covered; /* values */
    const bl_weight *pieces;
    size_t count;
} whole;

static uint64_t area(bl_rect r)
{
    return r.rows * r.cols;
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
            bl_sum_add(&w->sum, j->producer.sums[m->sum]);
        }
    }
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
    return bl_fail(err, BL_E_INPUT, j->source->path, w->pieces->slot->name, -1,
                   "its values differ from the value digest in the manifest: the model is damaged ('baleen verify' says where)");
}

static bool are_recorded(const bl_job *j)
{
    return j->source->rank_count && !j->o->no_digests;
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
            BL_TRY(compare(j, &list[i], err));
        }
    }
    return BL_OK;
}
