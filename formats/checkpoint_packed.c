/* Packed models: the manifests, and the payload files of one rank. */
#include "formats/checkpoint_build.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bl_status no_memory(const bl_build *b)
{
    return bl_fail(b->err, BL_E_NOMEM, b->c->path, NULL, -1, "out of memory");
}

static bl_status read_manifests(bl_build *b, const char *folder)
{
    bl_checkpoint *c = b->c;
    bl_error e = {0};
    int rank = b->options->rank;
    bl_manifest *m = bl_arena_alloc(&c->arena, sizeof *m);
    bl_rank_manifest *r = bl_arena_alloc(&c->arena, sizeof *r);
    if (!m || !r) {
        return no_memory(b);
    }
    bl_status s = bl_manifest_read(folder, &c->arena, m, &e);
    BL_TRY(bl_build_problem(b, s, &e));
    if (s != BL_OK) {
        return BL_OK;
    }
    c->manifest = m;
    if (rank < 0 || rank >= m->ranks) {
        return bl_fail(b->err, BL_E_USAGE, folder, NULL, -1, "has no rank %d: it was packed for %d", rank,
                       m->ranks);
    }
    s = bl_rank_manifest_read(folder, rank, &c->arena, r, &e);
    BL_TRY(bl_build_problem(b, s, &e));
    c->rank = s == BL_OK ? r : NULL;
    return BL_OK;
}

static bool same_shape(const bl_tensor *a, const bl_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0;
}

/* The first tensor of h (data order) that begins at offset or later. */
static size_t first_at(const bl_st_header *h, uint64_t offset)
{
    size_t low = 0, high = h->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (h->tensors[mid].offset < offset) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* A linked file keeps the source's names: any tensor of the right type in the right place will do. */
static bool in_linked(const bl_st_header *h, const bl_tensor *t)
{
    if (t->nbytes == 0) {
        return true;
    }
    size_t i =
        first_at(h, t->offset + 1); /* empty tensors at the offset come before the one that has bytes there */
    return i > 0 && h->tensors[i - 1].offset == t->offset && same_shape(&h->tensors[i - 1], t);
}

/* A linked file may hold more than the manifest names, but not less. */
static bl_status check_linked(bl_build *b, const bl_st_header *h, uint32_t file, const char *path)
{
    const bl_rank_manifest *r = b->c->rank;
    for (size_t i = 0; i < r->tensor_count; i++) {
        const bl_tensor *t = &r->tensors[i].tensor;
        if (t->file == file && !in_linked(h, t)) {
            BL_TRY(bl_build_report(b, path, t->name, (int64_t)t->offset,
                                   "the file's header has no %s tensor of this shape here",
                                   bl_dtype_name(t->dtype)));
        }
    }
    return BL_OK;
}

/* Nothing digests a header where SHA-256 was left out: all that the manifest does not name must be what is
 * always there. */
static bl_status check_metadata(bl_build *b, const bl_st_header *h, const char *path)
{
    bool usual = h->metadata_count == 1 && strcmp(h->metadata[0], bl_st_metadata[0]) == 0 &&
                 strcmp(h->metadata[1], bl_st_metadata[1]) == 0;
    return usual ? BL_OK
                 : bl_build_report(b, path, "__metadata__", -1, "is not {\"%s\": \"%s\"}", bl_st_metadata[0],
                                   bl_st_metadata[1]);
}

/* The tensors of a payload file against those that the manifest has in it: the same ones, in the same places.
 */
static bl_status check_payload(bl_build *b, const bl_st_header *h, uint32_t file, const char *path)
{
    const bl_rank_manifest *r = b->c->rank;
    bl_tensor *have = bl_arena_array(&b->c->arena, h->count, sizeof *have);
    size_t at = 0;
    if (!have) {
        return no_memory(b);
    }
    BL_TRY(check_metadata(b, h, path));
    memcpy(have, h->tensors, h->count * sizeof *have);
    qsort(have, h->count, sizeof *have, bl_tensor_by_name);
    for (size_t i = 0; i < r->tensor_count; i++) { /* both lists ascend by name */
        const bl_tensor *want = &r->tensors[i].tensor;
        if (want->file != file) {
            continue;
        }
        for (; at < h->count && strcmp(have[at].name, want->name) < 0; at++) {
            BL_TRY(bl_build_report(b, path, have[at].name, -1, "the manifest does not have it in this file"));
        }
        if (at == h->count || strcmp(have[at].name, want->name) != 0) {
            BL_TRY(bl_build_report(b, path, want->name, -1, "missing: the manifest has it in this file"));
            continue;
        }
        if (!same_shape(&have[at], want) || have[at].offset != want->offset) {
            BL_TRY(bl_build_report(b, path, want->name, -1,
                                   "dtype, shape or offset differ from the manifest's"));
        }
        at++;
    }
    for (; at < h->count; at++) {
        BL_TRY(bl_build_report(b, path, have[at].name, -1, "the manifest does not have it in this file"));
    }
    return BL_OK;
}

static bl_status open_payload(bl_build *b, const char *rank_name, uint32_t file, int64_t *place)
{
    const bl_rank_manifest *r = b->c->rank;
    bl_st_header h;
    bl_error e = {0};
    uint32_t index = 0;
    const char *name = bl_build_path(b, rank_name, r->files[file].name);
    const char *path = name ? bl_build_path(b, b->c->path, name) : NULL;
    if (!path) {
        return no_memory(b);
    }
    bl_status s = bl_build_file(b, name, path, &h, &index, &e);
    *place = s == BL_OK ? (int64_t)index : -1;
    BL_TRY(bl_build_problem(b, s, &e));
    if (s != BL_OK) {
        return BL_OK;
    }
    if (h.file_bytes != r->files[file].bytes) {
        BL_TRY(bl_build_report(b, path, NULL, -1, "has %" PRIu64 " bytes, the manifest says %" PRIu64,
                               h.file_bytes, r->files[file].bytes));
    }
    return r->files[file].linked ? check_linked(b, &h, file, path) : check_payload(b, &h, file, path);
}

/* No other *.safetensors file may be in the rank's folder: somebody who opens them all would mix it in. */
static bl_status check_strays(bl_build *b, const char *rank_path)
{
    const bl_rank_manifest *r = b->c->rank;
    const char **present;
    size_t count;
    BL_TRY(bl_build_list(b, rank_path, &present, &count));
    for (size_t i = 0; i < count; i++) {
        bool named = false;
        for (size_t j = 0; j < r->file_count && !named; j++) {
            named = strcmp(r->files[j].name, present[i]) == 0;
        }
        if (!named) {
            BL_TRY(bl_build_report(b, bl_build_path(b, rank_path, present[i]), NULL, -1,
                                   "a stray file: the manifest does not name it"));
        }
    }
    return BL_OK;
}

bl_status bl_checkpoint_read_packed(bl_build *b, const char *folder)
{
    bl_checkpoint *c = b->c;
    BL_TRY(read_manifests(b, folder));
    BL_TRY(bl_build_config(b, folder));
    if (!c->rank) {
        c->unread_unknown = true;
        return BL_OK;
    }
    char buf[16];
    bl_rank_folder(buf, c->rank->rank);
    const char *rank_name = bl_arena_strndup(&c->arena, buf, strlen(buf));
    const char *rank_path = rank_name ? bl_build_path(b, folder, rank_name) : NULL;
    int64_t *places = bl_arena_array(&c->arena, c->rank->file_count, sizeof *places);
    if (!rank_path || !places) {
        return no_memory(b);
    }
    for (size_t i = 0; i < c->rank->file_count; i++) {
        BL_TRY(open_payload(b, rank_name, (uint32_t)i, &places[i]));
    }
    BL_TRY(check_strays(b, rank_path));
    for (size_t i = 0; i < c->rank->tensor_count; i++) {
        bl_tensor t = c->rank->tensors[i].tensor;
        if (places[t.file] >= 0) {
            t.file = (uint32_t)places[t.file];
            BL_TRY(bl_build_tensors(b, &t, 1));
        } else {
            BL_TRY(bl_build_unread(b, t.name));
        }
    }
    return bl_build_finish(b);
}
