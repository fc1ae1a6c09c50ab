/* Proving a folder of weight-sync buckets. */
#include "verify/bucket_proof.h"

#include "formats/file.h"
#include "formats/names.h"
#include "verify/buckets.h"
#include "verify/folder_proof.h"
#include "verify/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct prover {
    bl_folder_proof p; /* first */
    bl_buckets buckets;
} prover;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

/* ---- names */

static int name_is(const void *key, const void *at)
{
    return strcmp(key, *(const char *const *)at);
}

static bool has(const char **names, size_t count, const char *name)
{
    return count && bsearch(name, names, count, sizeof *names, name_is);
}

/* Is there a scale for codes of this name? */
static bool has_scale(const char **names, size_t count, const char *weight)
{
    char scale[BL_MAX_NAME + 32];
    snprintf(scale, sizeof scale, "%.*s.weight_scale_inv", (int)bl_stem(weight, ".weight"), weight);
    return has(names, count, scale) || (bl_scale_name(scale, sizeof scale, weight) && has(names, count, scale));
}

static void check_scale(const prover *x, const char **names, size_t count, const char *name, bl_dtype dtype)
{
    if ((dtype == BL_DT_F8_E4M3 || dtype == BL_DT_I8) && bl_stem(name, ".weight") && !has_scale(names, count, name)) {
        bl_find(x->p.f, 0, x->p.folder, name, -1, -1, "its scale is in no bucket, and nobody keeps it");
    }
}

static void check_scales(const prover *x, const char **names, size_t count)
{
    const bl_buckets *b = &x->buckets;
    for (size_t i = 0; i < b->count; i++) {
        for (size_t k = 0; k < b->buckets[i].count; k++) {
            const bl_bucket_tensor *t = &b->buckets[i].tensors[k];
            if (!t->of || t->row == 0) {
                check_scale(x, names, count, t->of ? t->of : t->tensor.name, t->tensor.dtype);
            }
        }
    }
    for (size_t i = 0; i < b->host_count; i++) {
        check_scale(x, names, count, b->host[i].tensor.name, b->host[i].tensor.dtype);
    }
}

/* Every tensor that the config calls for is sent or kept. Configs of earlier generations call for nothing by name. */
static bl_status check_config(prover *x, const char **names, size_t count, bl_error *err)
{
    bl_config c;
    bl_slots slots = {0};
    const char *path;
    BL_TRY(bl_folder_config(&x->p, &c, &path, err));
    if (!c.earlier) {
        BL_TRY(bl_slots_build(&c, path, &x->p.arena, &slots, err));
    }
    for (size_t i = 0; i < slots.count; i++) {
        const bl_slot *slot = &slots.slots[i];
        bool left = slots.present && slot->group == BL_GROUP_MODEL && slot->layer >= 0 && !slots.present[slot->layer];
        if (!left && !has(names, count, slot->name)) {
            bl_find(x->p.f, 0, x->p.folder, slot->name, -1, -1, "is in no bucket, and nobody keeps it: the config calls for it");
        }
    }
    return BL_OK;
}

static bl_status check_coverage(prover *x, bl_error *err)
{
    const char **names;
    size_t count;
    bl_digest d;
    bl_error e = {0};
    BL_TRY(bl_buckets_names(&x->buckets, &x->p.arena, &names, &count, err));
    BL_TRY(bl_names_digest(names, count, &d, err));
    if (!bl_digest_equal(&d, &x->buckets.names)) {
        bl_find(x->p.f, 0, x->p.folder, NULL, -1, -1,
                "the tensors of " BL_BUCKETS_NAME " are not those of the model, by the digest of their names");
    }
    check_scales(x, names, count);
    return bl_folder_judge(&x->p, 0, check_config(x, names, count, &e), &e, err);
}

/* ---- files */

/* A text that follows from buckets.json. */
static bl_status check_flattened(prover *x, bool elements, bl_error *err)
{
    const char *path = bl_path_join(&x->p.arena, x->p.folder, elements ? BL_BUCKETS_ELEMENTS_NAME : BL_BUCKETS_BYTES_NAME);
    char *want, *have = NULL;
    size_t n, m = 0;
    bl_error e = {0};
    if (!path) {
        return nomem(err);
    }
    BL_TRY(bl_buckets_flattened(&x->buckets, elements, &want, &n, err));
    bl_status s = bl_file_slurp(path, BL_MANIFEST_MAX_BYTES, &have, &m, &e);
    if (s == BL_OK && (n != m || memcmp(want, have, n) != 0)) {
        bl_find(x->p.f, 1, path, NULL, -1, -1, "is not what follows from " BL_BUCKETS_NAME);
    }
    free(want);
    free(have);
    return bl_folder_judge(&x->p, 1, s, &e, err);
}

/* Tensor i of a file's header as buckets.json has it: entry t, or, for NULL, padding up to offset at. */
static bool as_described(const bl_tensor *have, const bl_bucket_tensor *t, uint64_t begin, uint64_t at)
{
    if (!t) {
        return have->dtype == BL_DT_U8 && have->offset == begin && have->nbytes == at - begin &&
               !strncmp(have->name, BL_BUCKETS_PAD, strlen(BL_BUCKETS_PAD));
    }
    return !strcmp(have->name, t->tensor.name) && have->dtype == t->tensor.dtype && have->ndim == t->tensor.ndim &&
           memcmp(have->shape, t->tensor.shape, have->ndim * sizeof *have->shape) == 0 && have->offset == at;
}

/* The header of a bucket against its description; fills p's tensors. */
static bl_status match_header(prover *x, const bl_bucket *b, const bl_st_header *h, bl_payload *p, bl_error *err)
{
    bl_payload_tensor *list = bl_arena_array(&x->p.arena, 2 * b->count, sizeof *list);
    uint64_t end = b->data_offset;
    size_t n = 0;
    if (!list) {
        return nomem(err);
    }
    for (size_t i = 0; i < b->count; i++) {
        const bl_bucket_tensor *t = &b->tensors[i];
        uint64_t at = b->data_offset + t->tensor.offset;
        if (at > end) {
            if (n >= h->count || !as_described(&h->tensors[n], NULL, end, at)) {
                return bl_fail(err, BL_E_INPUT, p->path, t->tensor.name, -1, "its header has no padding of %llu byte%s before it",
                               (unsigned long long)(at - end), bl_plural(at - end));
            }
            list[n++] = (bl_payload_tensor){.dtype = BL_DT_U8, .nbytes = at - end};
        }
        if (n >= h->count || !as_described(&h->tensors[n], t, 0, at)) {
            return bl_fail(err, BL_E_INPUT, p->path, t->tensor.name, -1, "is not in the file's header as " BL_BUCKETS_NAME " has it");
        }
        list[n++] = (bl_payload_tensor){.name = t->tensor.name, .dtype = t->tensor.dtype, .nbytes = t->tensor.nbytes, .digest = &t->digest};
        end = at + t->tensor.nbytes;
    }
    if (n != h->count || h->header_bytes != b->data_offset) {
        return bl_fail(err, BL_E_INPUT, p->path, n < h->count ? h->tensors[n].name : NULL, -1, "its header has more than " BL_BUCKETS_NAME);
    }
    p->tensors = list;
    p->count = n;
    return BL_OK;
}

static bl_status match_bucket(bl_folder_proof *p, size_t i, const bl_st_header *h, bl_payload *out, bl_error *err)
{
    prover *x = (prover *)(void *)p;
    const bl_bucket *b = &x->buckets.buckets[i];
    p->report->tensors += b->count;
    out->data_offset = b->data_offset;
    out->data = &b->digest;
    return match_header(x, b, h, out, err);
}

/* ---- all of it */

static bl_status prove(bl_folder_proof *p, bl_error *err)
{
    prover *x = (prover *)(void *)p;
    bl_error e = {0};
    bl_status s = bl_buckets_read(p->folder, &p->arena, &x->buckets, NULL, NULL, &e);
    BL_TRY(bl_folder_judge(p, 0, s, &e, err));
    if (s != BL_OK) {
        return BL_OK; /* nothing else can be told */
    }
    BL_TRY(bl_folder_expect(p, x->buckets.count, err));
    for (size_t i = 0; i < x->buckets.count; i++) {
        const bl_bucket *b = &x->buckets.buckets[i];
        p->expected[i] = (bl_manifest_file){.name = b->name, .bytes = b->data_offset + b->nbytes};
    }
    BL_TRY(check_coverage(x, err));
    BL_TRY(bl_folder_strays(p, err));
    if (p->f->o->level >= 1) {
        BL_TRY(check_flattened(x, false, err));
        BL_TRY(check_flattened(x, true, err));
        BL_TRY(bl_folder_open(p, match_bucket, err));
    }
    return BL_OK;
}

bl_status bl_buckets_prove(const bl_place *place, bl_finder *f, const bl_key *key, bl_verify_report *report, bl_error *err)
{
    prover x = {.p = {.place = place, .folder = place->folder, .f = f, .report = report}};
    report->kind = BL_SOURCE_BUCKETS;
    return bl_folder_prove(&x.p, key, prove, err);
}
