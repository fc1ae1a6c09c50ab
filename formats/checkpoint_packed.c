/* Packed models: the manifests, and the payload files of one rank. */
#include "formats/checkpoint_build.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bl_status no_memory(const bl_build *b)
{
    return bl_fail(b->err, BL_E_NOMEM, b->c->path, NULL, -1, "out of memory");
}

/* The global manifest; without a usable one nothing else can be read. */
static bl_status read_global(bl_build *b, const char *folder)
{
    bl_checkpoint *c = b->c;
    bl_error e = {0};
    bl_manifest *m = bl_arena_alloc(&c->arena, sizeof *m);
    if (!m) {
        return no_memory(b);
    }
    bl_status s = bl_manifest_read(folder, &c->arena, m, &e);
    if (s == BL_E_INPUT) {
        BL_TRY(bl_rank_folder_check(folder, b->err));
    }
    BL_TRY(bl_build_problem(b, s, &e));
    if (s != BL_OK) {
        return BL_OK;
    }
    c->manifest = m;
    if (b->options->one_rank && (b->options->rank < 0 || b->options->rank >= m->layout.ranks)) {
        return bl_fail(b->err, BL_E_USAGE, folder, NULL, -1, "has no rank %d: it was packed for %d", b->options->rank,
                       m->layout.ranks);
    }
    return BL_OK;
}

/* The manifests of the ranks to open. */
static bl_status read_ranks(bl_build *b, const char *folder)
{
    bl_checkpoint *c = b->c;
    int first = b->options->one_rank ? b->options->rank : 0;
    int end = b->options->one_rank ? first + 1 : c->manifest->layout.ranks;
    bl_rank_manifest *ranks = bl_arena_array(&c->arena, (size_t)(end - first), sizeof *ranks);
    if (!ranks) {
        return no_memory(b);
    }
    c->ranks = ranks;
    for (int rank = first; rank < end; rank++) {
        bl_error e = {0};
        bl_status s = bl_rank_manifest_read(folder, rank, &c->arena, &ranks[c->rank_count], &e);
        if (s == BL_E_INPUT) {
            bl_file_folder_absent(e.path, &e);
        }
        BL_TRY(bl_build_problem(b, s, &e));
        if (s == BL_OK) {
            c->rank_count++;
        } else {
            c->unread_unknown = true;
        }
    }
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
static bl_status check_linked(bl_build *b, const bl_rank_manifest *r, const bl_st_header *h, uint32_t file, const char *path)
{
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
static bl_status check_payload(bl_build *b, const bl_rank_manifest *r, const bl_st_header *h, uint32_t file, const char *path)
{
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

static const char *rank_name(bl_build *b, int rank)
{
    char buf[16];
    bl_rank_folder(buf, rank);
    return bl_arena_strndup(&b->c->arena, buf, strlen(buf));
}

static bl_status open_payload(bl_build *b, const bl_rank_manifest *r, uint32_t file, int64_t *place)
{
    bl_st_header h;
    bl_error e = {0};
    uint32_t index = 0;
    const char *folder = rank_name(b, r->files[file].rank);
    const char *name = folder ? bl_build_path(b, folder, r->files[file].name) : NULL;
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
    b->c->files[index].rank = r;
    if (h.file_bytes != r->files[file].bytes) {
        BL_TRY(bl_build_report(b, path, NULL, -1, "has %" PRIu64 " bytes, the manifest says %" PRIu64,
                               h.file_bytes, r->files[file].bytes));
    }
    return r->files[file].linked ? check_linked(b, r, &h, file, path) : check_payload(b, r, &h, file, path);
}

/* No other *.safetensors file may be in the rank's folder: somebody who opens them all would mix it in. */
static bl_status check_strays(bl_build *b, const bl_rank_manifest *r)
{
    const char **present, *name = rank_name(b, r->rank);
    const char *folder = name ? bl_build_path(b, b->c->path, name) : NULL;
    size_t count;
    if (!folder) {
        return no_memory(b);
    }
    BL_TRY(bl_build_list(b, folder, &present, &count));
    for (size_t i = 0; i < count; i++) {
        bool named = false;
        for (size_t j = 0; j < r->file_count && !named; j++) {
            named = r->files[j].rank == r->rank && strcmp(r->files[j].name, present[i]) == 0;
        }
        if (!named) {
            BL_TRY(bl_build_report(b, bl_build_path(b, folder, present[i]), NULL, -1,
                                   "a stray file: the manifest does not name it"));
        }
    }
    return BL_OK;
}

static const bl_rank_manifest *opened(const bl_checkpoint *c, int rank)
{
    for (size_t i = 0; i < c->rank_count; i++) {
        if (c->ranks[i].rank == rank) {
            return &c->ranks[i];
        }
    }
    return NULL;
}

static bool same_record(const bl_manifest_tensor *a, const bl_manifest_tensor *b)
{
    return b && same_shape(&a->tensor, &b->tensor) && a->tensor.offset == b->tensor.offset && a->chunk_count == b->chunk_count &&
           (!a->chunk_count || memcmp(a->chunks, b->chunks, a->chunk_count * sizeof *a->chunks) == 0);
}

/* A file in the folder of another rank that is open too: opened with that rank, which must say the same of it. */
static bl_status check_shared(bl_build *b, const bl_rank_manifest *r, uint32_t file, const bl_rank_manifest *owner)
{
    for (size_t i = 0; i < r->tensor_count; i++) {
        const bl_manifest_tensor *t = &r->tensors[i], *other;
        if (t->tensor.file != file) {
            continue;
        }
        other = bl_rank_manifest_find(owner, t->tensor.name);
        if (!same_record(t, other) || owner->files[other->tensor.file].rank != owner->rank ||
            strcmp(owner->files[other->tensor.file].name, r->files[file].name) != 0) {
            BL_TRY(bl_build_report(b, b->c->path, t->tensor.name, -1, "ranks %d and %d, which share it, differ about it",
                                   owner->rank, r->rank));
        }
    }
    return BL_OK;
}

static bl_status open_rank(bl_build *b, const bl_rank_manifest *r)
{
    bl_checkpoint *c = b->c;
    int64_t *places = bl_arena_array(&c->arena, r->file_count, sizeof *places);
    bool *elsewhere = bl_arena_array(&c->arena, r->file_count, sizeof *elsewhere);
    if (!places || !elsewhere) {
        return no_memory(b);
    }
    for (uint32_t i = 0; i < r->file_count; i++) {
        const bl_rank_manifest *owner = r->files[i].rank == r->rank ? NULL : opened(c, r->files[i].rank);
        elsewhere[i] = owner != NULL;
        BL_TRY(owner ? check_shared(b, r, i, owner) : open_payload(b, r, i, &places[i]));
    }
    BL_TRY(check_strays(b, r));
    for (size_t i = 0; i < r->tensor_count; i++) {
        bl_tensor t = r->tensors[i].tensor;
        if (elsewhere[t.file]) {
            continue;
        }
        if (places[t.file] >= 0) {
            t.file = (uint32_t)places[t.file];
            BL_TRY(bl_build_tensors(b, &t, 1));
        } else {
            BL_TRY(bl_build_unread(b, t.name));
        }
    }
    return BL_OK;
}

bl_status bl_checkpoint_read_packed(bl_build *b, const char *folder)
{
    bl_checkpoint *c = b->c;
    BL_TRY(read_global(b, folder));
    BL_TRY(bl_build_config(b, folder));
    if (!c->manifest) {
        c->unread_unknown = true;
        return BL_OK;
    }
    BL_TRY(read_ranks(b, folder));
    for (size_t i = 0; i < c->rank_count; i++) {
        BL_TRY(open_rank(b, &c->ranks[i]));
    }
    return bl_build_finish(b);
}
