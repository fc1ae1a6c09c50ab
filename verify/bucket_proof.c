/* Proving a folder of weight-sync buckets. */
#include "verify/bucket_proof.h"

#include "formats/file.h"
#include "formats/names.h"
#include "verify/buckets.h"
#include "verify/payload.h"
#include "verify/signature.h"
#include "verify/slots.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct prover {
    const char *folder;
    bl_finder *f;
    bl_arena arena;
    bl_buckets buckets;
    bl_payload *files; /* [file_count] the buckets that can be read */
    size_t file_count;
    bl_manifest manifest;
    bl_checkpoint as_packed; /* what records of files are looked up by */
    bl_witnesses witnesses;
    bl_verify_report *report;
} prover;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

/* What is wrong with the input is a finding at the level; other failures come back. */
static bl_status judge(const prover *x, int level, bl_status s, const bl_error *e, bl_error *err)
{
    if (s == BL_E_INPUT) {
        x->f->level = level;
        bl_finder_problem(x->f, (void *)(uintptr_t)e);
        return BL_OK;
    }
    if (s != BL_OK && err && err->code == BL_OK) {
        *err = *e;
    }
    return s;
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
        bl_find(x->f, 0, x->folder, name, -1, -1, "its scale is in no bucket, and nobody keeps it");
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
    char *text;
    size_t n;
    const char *path = bl_path_join(&x->arena, x->folder, "config.json");
    if (!path) {
        return nomem(err);
    }
    BL_TRY(bl_file_slurp(path, (uint64_t)64 << 20, &text, &n, err));
    bl_status s = bl_config_parse_any(text, n, path, &x->arena, &c, err);
    free(text);
    BL_TRY(s);
    if (!c.earlier) {
        BL_TRY(bl_slots_build(&c, path, &x->arena, &slots, err));
    }
    for (size_t i = 0; i < slots.count; i++) {
        const bl_slot *slot = &slots.slots[i];
        bool left = slots.present && slot->group == BL_GROUP_MODEL && slot->layer >= 0 && !slots.present[slot->layer];
        if (!left && !has(names, count, slot->name)) {
            bl_find(x->f, 0, x->folder, slot->name, -1, -1, "is in no bucket, and nobody keeps it: the config calls for it");
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
    BL_TRY(bl_buckets_names(&x->buckets, &x->arena, &names, &count, err));
    BL_TRY(bl_names_digest(names, count, &d, err));
    if (!bl_digest_equal(&d, &x->buckets.names)) {
        bl_find(x->f, 0, x->folder, NULL, -1, -1, "the tensors of " BL_BUCKETS_NAME " are not those of the model, by the digest of their names");
    }
    check_scales(x, names, count);
    return judge(x, 0, check_config(x, names, count, &e), &e, err);
}

/* ---- files */

/* A text that follows from buckets.json. */
static bl_status check_flattened(prover *x, bool elements, bl_error *err)
{
    const char *path = bl_path_join(&x->arena, x->folder, elements ? BL_BUCKETS_ELEMENTS_NAME : BL_BUCKETS_BYTES_NAME);
    char *want, *have = NULL;
    size_t n, m = 0;
    bl_error e = {0};
    if (!path) {
        return nomem(err);
    }
    BL_TRY(bl_buckets_flattened(&x->buckets, elements, &want, &n, err));
    bl_status s = bl_file_slurp(path, BL_MANIFEST_MAX_BYTES, &have, &m, &e);
    if (s == BL_OK && (n != m || memcmp(want, have, n) != 0)) {
        bl_find(x->f, 1, path, NULL, -1, -1, "is not what follows from " BL_BUCKETS_NAME);
    }
    free(want);
    free(have);
    return judge(x, 1, s, &e, err);
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
    bl_payload_tensor *list = bl_arena_array(&x->arena, 2 * b->count, sizeof *list);
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
                return bl_fail(err, BL_E_INPUT, p->path, t->tensor.name, -1, "its header has no padding of %llu bytes before it",
                               (unsigned long long)(at - end));
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

static bl_status open_bucket(prover *x, const bl_bucket *b, bl_error *err)
{
    bl_payload *p = &x->files[x->file_count];
    bl_st_header h;
    *p = (bl_payload){.path = bl_path_join(&x->arena, x->folder, b->name), .data_offset = b->data_offset, .data = &b->digest};
    if (!p->path) {
        return nomem(err);
    }
    BL_TRY(bl_file_open(&p->file, p->path, err));
    bl_status s = bl_st_read(p->file, 0, &x->arena, &h, err);
    s = s == BL_OK ? match_header(x, b, &h, p, err) : s;
    if (s != BL_OK) {
        bl_file_close(&p->file);
        return s;
    }
    x->file_count++;
    return BL_OK;
}

static bl_status open_buckets(prover *x, bl_error *err)
{
    const bl_buckets *b = &x->buckets;
    x->files = bl_arena_array(&x->arena, b->count, sizeof *x->files);
    if (!x->files) {
        return nomem(err);
    }
    for (size_t i = 0; i < b->count; i++) {
        bl_error e = {0};
        x->report->tensors += b->buckets[i].count;
        BL_TRY(judge(x, 1, open_bucket(x, &b->buckets[i], &e), &e, err));
    }
    x->report->files = b->count;
    return BL_OK;
}

/* Readers that take every *.safetensors file of a folder must find the buckets alone. */
static bl_status check_strays(prover *x, bl_error *err)
{
    DIR *d = opendir(x->folder);
    if (!d) {
        return bl_fail(err, BL_E_INPUT, x->folder, NULL, -1, "cannot list the folder");
    }
    for (struct dirent *e; (e = readdir(d));) {
        size_t i = 0;
        while (i < x->buckets.count && strcmp(x->buckets.buckets[i].name, e->d_name) != 0) {
            i++;
        }
        if (i == x->buckets.count && bl_ends_with(e->d_name, ".safetensors")) {
            bl_find(x->f, 0, bl_path_join(&x->arena, x->folder, e->d_name), NULL, -1, -1, "is not among the buckets");
        }
    }
    closedir(d);
    return BL_OK;
}

/* ---- content */

static bl_status check_small(prover *x, bl_error *err)
{
    for (size_t i = 0; i < x->witnesses.count; i++) {
        bl_witness *w = &x->witnesses.items[i];
        uint8_t sha256[32];
        bl_error e = {0};
        if (strncmp(w->name, "bucket-", 7) == 0) {
            continue; /* with its tensors */
        }
        bl_status s = w->hub.kind == BL_HUB_GIT ? bl_witness_check_git(x->f, w, &e) : BL_OK;
        if (s == BL_OK && bl_witness_hashes(w) && (s = bl_sha256_file(w->path, sha256, &e)) == BL_OK) {
            bl_witness_judge(x->f, w, sha256, 0);
        }
        BL_TRY(judge(x, 3, s, &e, err));
    }
    return BL_OK;
}

static bl_status check_content(prover *x, bl_error *err)
{
    bl_payload_proof proof;
    if (x->f->o->level >= 3) {
        BL_TRY(bl_witness_gather(x->f, &x->as_packed, &x->arena, &x->witnesses, err));
        BL_TRY(check_small(x, err));
    }
    for (size_t i = 0; i < x->file_count; i++) {
        x->files[i].witness = bl_witness_of(&x->witnesses, x->files[i].path);
    }
    BL_TRY(bl_payload_prove(x->f, x->files, x->file_count, &x->arena, &proof, err));
    x->report->chunks = proof.digests;
    x->report->bytes = proof.bytes;
    x->report->files_unrecorded = x->witnesses.unrecorded;
    for (size_t i = 0; i < x->witnesses.count; i++) {
        x->report->files_hashed += bl_witness_proven(&x->witnesses.items[i]);
        x->report->files_hub += x->witnesses.items[i].hub_right;
    }
    return BL_OK;
}

/* Records of files are looked up as in a packed model: nothing may be there unlisted, but for what the manifest has without SHA-256.
 * So are buckets (--no-sha256): buckets.json, which must be listed, has their digests. */
static bl_status pose_as_packed(prover *x, bl_error *err)
{
    bl_manifest_file *files = bl_arena_array(&x->arena, x->buckets.count, sizeof *files);
    if (!files) {
        return nomem(err);
    }
    for (size_t i = 0; i < x->buckets.count; i++) {
        const bl_bucket *b = &x->buckets.buckets[i];
        files[i] = (bl_manifest_file){.name = b->name, .bytes = b->data_offset + b->nbytes};
    }
    x->manifest = (bl_manifest){.files = files, .file_count = x->buckets.count};
    return BL_OK;
}

/* Everything but the signature. */
static bl_status prove(prover *x, bl_error *err)
{
    bl_error e = {0};
    bl_status s = bl_buckets_read(x->folder, &x->arena, &x->buckets, NULL, NULL, &e);
    BL_TRY(judge(x, 0, s, &e, err));
    if (s != BL_OK) {
        return BL_OK; /* nothing else can be told */
    }
    BL_TRY(pose_as_packed(x, err));
    BL_TRY(check_coverage(x, err));
    BL_TRY(check_strays(x, err));
    if (x->f->o->level >= 1) {
        BL_TRY(check_flattened(x, false, err));
        BL_TRY(check_flattened(x, true, err));
        BL_TRY(open_buckets(x, err));
    }
    return x->f->o->level >= 2 ? check_content(x, err) : BL_OK;
}

static bl_status run(prover *x, const bl_key *key, bl_error *err)
{
    const bl_verify_options *o = x->f->o;
    bool trusted = true;
    x->as_packed = (bl_checkpoint){
        .kind = BL_SOURCE_PACKED, .path = x->folder, .name = x->folder, .manifest = &x->manifest, .only_rank = -1};
    if (o->level >= 3) {
        BL_TRY(bl_witness_read(x->f, &x->as_packed, &x->arena, &x->witnesses, err));
    }
    if (o->key) { /* before everything that it vouches for */
        BL_TRY(bl_signature_check(x->f, &x->as_packed, key, &x->witnesses, &trusted, err));
        x->report->trust = trusted ? BL_TRUST_SIGNED : BL_TRUST_UNSIGNED;
    }
    BL_TRY(trusted ? prove(x, err) : BL_OK);
    if (o->sign && x->f->count == 0) {
        BL_TRY(bl_signature_make(&x->as_packed, key, &x->witnesses, &x->report->files_listed, err));
        x->report->trust = BL_TRUST_MADE;
    }
    return BL_OK;
}

bl_status bl_buckets_prove(const char *folder, bl_finder *f, const bl_key *key, bl_verify_report *report, bl_error *err)
{
    prover x = {.folder = folder, .f = f, .report = report};
    report->kind = BL_SOURCE_BUCKETS;
    if (f->o->against || f->o->one_rank || f->o->cache || f->o->hub) {
        return bl_fail(err, BL_E_USAGE, folder, NULL, -1,
                       "is a folder of weight-sync buckets: there are no ranks, no values to compare, no records of a download, and no cache");
    }
    bl_status s = run(&x, key, err);
    for (size_t i = 0; i < x.file_count; i++) {
        bl_file_close(&x.files[i].file);
    }
    bl_arena_reset(&x.arena);
    return s;
}
