/* Proving a folder with a delta of weight-sync buckets. That it leads where it says is proven where it is applied: that takes the base. */
#include "verify/bucket_proof.h"

#include "formats/delta.h"
#include "verify/buckets.h"
#include "verify/folder_proof.h"

#include <stdlib.h>
#include <string.h>

typedef struct prover {
    bl_folder_proof p; /* first */
    bl_delta delta;
    bl_buckets target;
} prover;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

static bl_status match_file(bl_folder_proof *p, size_t i, const bl_st_header *h, bl_payload *out, bl_error *err)
{
    const bl_delta_file *d = &((prover *)(void *)p)->delta.files[i];
    bl_payload_tensor *list = bl_arena_array(&p->arena, d->count, sizeof *list);
    if (!list) {
        return nomem(err);
    }
    p->report->tensors += d->count;
    if (h->count != d->count || h->header_bytes != d->data_offset) {
        return bl_fail(err, BL_E_INPUT, out->path, NULL, -1, "its header is not what " BL_DELTA_NAME " says");
    }
    for (size_t k = 0; k < d->count; k++) {
        const bl_tensor *have = &h->tensors[k];
        const bl_delta_tensor *t = &d->tensors[k];
        if (strcmp(have->name, t->name) != 0 || have->dtype != BL_DT_U8 || have->nbytes != t->nbytes) {
            return bl_fail(err, BL_E_INPUT, out->path, t->name, -1, "is not in the file's header as " BL_DELTA_NAME " has it");
        }
        list[k] = (bl_payload_tensor){.name = t->name, .dtype = BL_DT_U8, .nbytes = t->nbytes, .digest = &t->digest};
    }
    *out = (bl_payload){.path = out->path, .file = out->file, .data_offset = d->data_offset, .data = &d->digest, .tensors = list,
                        .count = d->count};
    return BL_OK;
}

/* Every changed tensor is one of its bucket, in order, and comes to the digest that the new state has. */
static void check_tensors(prover *x)
{
    for (size_t i = 0; i < x->delta.count; i++) {
        const bl_delta_file *f = &x->delta.files[i];
        const bl_bucket *b = f->bucket < x->target.count ? &x->target.buckets[f->bucket] : NULL;
        for (size_t k = 0, at = 0; k < f->count; k++) {
            while (b && at < b->count && strcmp(b->tensors[at].tensor.name, f->tensors[k].name) != 0) {
                at++;
            }
            if (!b || at == b->count || !bl_digest_equal(&b->tensors[at].digest, &f->tensors[k].target)) {
                bl_find(x->p.f, 0, x->p.folder, f->tensors[k].name, -1, -1, "does not come to a tensor of " BL_DELTA_TARGET_NAME);
                return;
            }
        }
    }
}

static bl_status prove(bl_folder_proof *p, bl_error *err)
{
    prover *x = (prover *)(void *)p;
    bl_config config;
    bl_error e = {0};
    bl_status s = bl_delta_read(p->folder, &p->arena, &x->delta, &e);
    s = s == BL_OK ? bl_delta_target(p->folder, &x->delta, &p->arena, &x->target, NULL, NULL, &e) : s;
    BL_TRY(bl_folder_judge(p, 0, s, &e, err));
    if (s != BL_OK) {
        return BL_OK; /* nothing else can be told */
    }
    BL_TRY(bl_folder_expect(p, x->delta.count, err));
    for (size_t i = 0; i < x->delta.count; i++) {
        const bl_delta_file *f = &x->delta.files[i];
        p->expected[i] = (bl_manifest_file){.name = f->name, .bytes = f->data_offset + f->nbytes};
    }
    check_tensors(x);
    s = bl_folder_config(p, &config, NULL, &e);
    BL_TRY(bl_folder_judge(p, 0, s, &e, err));
    BL_TRY(bl_folder_strays(p, err));
    return p->f->o->level >= 1 ? bl_folder_open(p, match_file, err) : BL_OK;
}

bl_status bl_delta_prove(const bl_place *place, bl_finder *f, const bl_key *key, bl_verify_report *report, bl_error *err)
{
    prover x = {.p = {.place = place, .folder = place->folder, .f = f, .report = report}};
    report->kind = BL_SOURCE_DELTA;
    return bl_folder_prove(&x.p, key, prove, err);
}
