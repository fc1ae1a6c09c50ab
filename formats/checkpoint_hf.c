/* Hugging Face checkpoint folders: config.json, shards, index. */
#include "formats/checkpoint_build.h"
#include "formats/foreign.h"
#include "formats/json.h"
#include "formats/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_NAME "model.safetensors.index.json"
#define MAX_INDEX ((size_t)1 << 29)

/* One line of the index's weight_map. */
typedef struct entry {
    const char *tensor, *file;
} entry;

typedef struct folder {
    bl_build *b;
    const char *path, *index_path;
    bool has_index;
    entry *entries; /* sorted by tensor */
    size_t entry_count;
    bl_json last_file; /* text of the last entry's: an index names few files, mostly the same as in the line before */
    bool has_total;
    uint64_t total_size;
    const char **shards; /* names the index uses (or, without one, those in the folder), sorted, each once */
    size_t shard_count;
    int64_t *opened; /* [shard_count] place in files, -1 = could not be read */
    bool unread;     /* some could not */
} folder;

static bl_status no_memory(const folder *f)
{
    return bl_fail(f->b->err, BL_E_NOMEM, f->path, NULL, -1, "out of memory");
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->tensor, ((const entry *)b)->tensor);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *take_string(const folder *f, bl_json v, size_t *n)
{
    char *s = bl_arena_alloc(&f->b->c->arena, v.n);
    if (s) {
        *n = bl_json_string(v, s, v.n);
    }
    return s;
}

static bl_status read_entry(folder *f, const char *text, bl_json key, bl_json value)
{
    size_t n = 0, m = 0;
    entry e = {take_string(f, key, &n), NULL};
    int64_t offset = (int64_t)(key.p - text);
    if (!e.tensor) {
        return no_memory(f);
    }
    if (!bl_tensor_name_ok(e.tensor, n)) {
        return bl_build_report(f->b, f->index_path, e.tensor, offset, "not a legal tensor name");
    }
    if (value.kind != BL_JSON_STRING) {
        return bl_build_report(f->b, f->index_path, e.tensor, offset, "its file name is not a string");
    }
    if (f->entry_count && value.n == f->last_file.n && memcmp(value.p, f->last_file.p, value.n) == 0) {
        e.file = f->entries[f->entry_count - 1].file;
        f->entries[f->entry_count++] = e;
        return BL_OK;
    }
    e.file = take_string(f, value, &m);
    if (!e.file) {
        return no_memory(f);
    }
    if (!bl_build_name_ok(e.file, m)) {
        return bl_build_report(f->b, f->index_path, e.tensor, offset, "'%s' may not be the name of a shard",
                               e.file);
    }
    f->last_file = value;
    f->entries[f->entry_count++] = e;
    return BL_OK;
}

static bl_status read_index_text(folder *f, const char *text, size_t n)
{
    const bl_json_limits limits = {.max_bytes = MAX_INDEX};
    bl_json root, k, v;
    bl_error e = {0};
    bl_status s = bl_json_parse(text, n, &limits, f->index_path, &root, &e);
    if (s != BL_OK) {
        return bl_build_problem(f->b, s, &e);
    }
    bl_json map = bl_json_get(root, "weight_map");
    if (map.kind != BL_JSON_OBJECT) {
        return bl_build_report(f->b, f->index_path, "weight_map", -1,
                               map.kind == BL_JSON_NONE ? "is missing" : "is not an object");
    }
    size_t count = bl_json_count(map);
    if (count == 0) {
        return bl_build_report(f->b, f->index_path, "weight_map", -1, "is empty");
    }
    f->entries = bl_arena_array(&f->b->c->arena, count, sizeof *f->entries);
    if (!f->entries) {
        return no_memory(f);
    }
    bl_json_iter it = bl_json_begin(map);
    while (bl_json_next(&it, &k, &v)) {
        BL_TRY(read_entry(f, text, k, v));
    }
    qsort(f->entries, f->entry_count, sizeof *f->entries, by_tensor);
    f->has_total = bl_json_u64(bl_json_get(bl_json_get(root, "metadata"), "total_size"), &f->total_size);
    f->has_index = true;
    return BL_OK;
}

static bl_status read_index(folder *f)
{
    struct stat st;
    bl_error e = {0};
    char *text = NULL;
    size_t n = 0;
    if (lstat(f->index_path, &st) != 0 && errno == ENOENT) {
        return BL_OK; /* a dangling link, in contrast, is an index that is missing */
    }
    bl_status s = bl_foreign_slurp(f->index_path, MAX_INDEX, &text, &n, &e);
    s = s == BL_OK ? read_index_text(f, text, n) : bl_build_problem(f->b, s, &e);
    free(text);
    return s;
}

/* The shards that the index names, each once. */
static bl_status collect_shards(folder *f)
{
    f->shards = bl_arena_array(&f->b->c->arena, f->entry_count, sizeof *f->shards);
    if (!f->shards) {
        return no_memory(f);
    }
    size_t count = 0;
    for (size_t i = 0; i < f->entry_count; i++) {
        if (i == 0 || f->entries[i].file != f->entries[i - 1].file) {
            f->shards[count++] = f->entries[i].file;
        }
    }
    if (count) {
        qsort(f->shards, count, sizeof *f->shards, by_text);
    }
    for (size_t i = 0; i < count; i++) {
        if (f->shard_count == 0 || strcmp(f->shards[f->shard_count - 1], f->shards[i]) != 0) {
            f->shards[f->shard_count++] = f->shards[i];
        }
    }
    return BL_OK;
}

/* Place of a shard name, -1 when the index does not use it. */
static int64_t shard_place(const folder *f, const char *name)
{
    const char **p =
        f->shard_count ? bsearch(&name, f->shards, f->shard_count, sizeof *f->shards, by_text) : NULL;
    return p ? p - f->shards : -1;
}

static bl_status choose_shards(folder *f)
{
    const char **present;
    size_t count;
    BL_TRY(bl_build_list(f->b, f->path, &present, &count));
    if (f->has_index) {
        BL_TRY(collect_shards(f));
        for (size_t i = 0; i < count; i++) {
            if (shard_place(f, present[i]) < 0) {
                BL_TRY(bl_build_report(f->b, bl_build_path(f->b, f->path, present[i]), NULL, -1,
                                       "a stray file: the index does not name it"));
            }
        }
        return BL_OK;
    }
    if (count == 0) {
        BL_TRY(bl_build_report(f->b, f->path, NULL, -1,
                               "not a checkpoint: no *.safetensors file in the folder"));
        f->unread = true; /* nor need anybody look for the tensors */
    }
    struct stat st;
    if (count > 1 && lstat(f->index_path, &st) != 0) { /* what is wrong with one that is there has been said */
        BL_TRY(bl_build_report(f->b, f->path, NULL, -1, "%zu *.safetensors files but no " INDEX_NAME,
                               count));
    }
    f->shards = present;
    f->shard_count = count;
    return BL_OK;
}

/* N of a name that ends in "-of-N.safetensors"; 0 for others. */
static uint64_t of_count(const char *name)
{
    size_t end = bl_stem(name, ".safetensors"), p = end;
    uint64_t count = 0;
    while (p > 0 && name[p - 1] >= '0' && name[p - 1] <= '9' && end - p < 10) {
        p--;
    }
    for (size_t i = p; i < end; i++) {
        count = count * 10 + (uint64_t)(name[i] - '0');
    }
    return p < end && p >= 4 && memcmp(name + p - 4, "-of-", 4) == 0 ? count : 0;
}

static bl_status check_of_counts(folder *f)
{
    uint64_t of = 0, have = 0;
    for (size_t i = 0; i < f->shard_count; i++) {
        uint64_t n = of_count(f->shards[i]);
        if (n && of && n != of) {
            BL_TRY(bl_build_report(f->b, bl_build_path(f->b, f->path, f->shards[i]), NULL, -1,
                                   "one of %" PRIu64 " by its name, others are of %" PRIu64, n, of));
        }
        of = of ? of : n;
        have += n != 0;
    }
    if (of && have != of) {
        BL_TRY(bl_build_report(f->b, f->path, NULL, -1,
                               "shard names say %" PRIu64 " file%s, there are %" PRIu64, of, bl_plural(of), have));
    }
    return BL_OK;
}

/* What the shards that could not be read would have held. */
static bl_status note_unread(folder *f)
{
    for (size_t i = 0; i < f->shard_count; i++) {
        f->unread |= f->opened[i] < 0;
    }
    f->b->c->unread_unknown = f->unread && !f->has_index;
    for (size_t i = 0; f->unread && i < f->entry_count; i++) {
        if (f->opened[shard_place(f, f->entries[i].file)] < 0) {
            BL_TRY(bl_build_unread(f->b, f->entries[i].tensor));
        }
    }
    return BL_OK;
}

static bl_status open_shards(folder *f)
{
    f->opened = bl_arena_array(&f->b->c->arena, f->shard_count, sizeof *f->opened);
    if (!f->opened) {
        return no_memory(f);
    }
    BL_TRY(bl_build_reserve(f->b, f->entry_count));
    for (size_t i = 0; i < f->shard_count; i++) {
        bl_st_header h;
        uint32_t index = 0;
        bl_error e = {0};
        struct stat st;
        const char *path = bl_build_path(f->b, f->path, f->shards[i]);
        if (!path) {
            return no_memory(f);
        }
        f->opened[i] = -1;
        if (stat(path, &st) != 0 && errno == ENOENT) {
            BL_TRY(bl_build_report(f->b, path, NULL, -1,
                                   lstat(path, &st) == 0 ? "shard is missing: a symbolic link to nothing"
                                                         : "shard is missing"));
            continue;
        }
        bl_status s = bl_build_file(f->b, f->shards[i], path, &h, &index, &e);
        BL_TRY(bl_build_problem(f->b, s, &e));
        if (s == BL_OK) {
            f->opened[i] = index;
            BL_TRY(bl_build_tensors(f->b, h.tensors, h.count));
        }
    }
    return note_unread(f);
}

/* An entry of the index whose tensor no shard that was read has. */
static bl_status report_missing(folder *f, const entry *e)
{
    int64_t place = f->opened[shard_place(f, e->file)];
    return place < 0 ? BL_OK
                     : bl_build_report(f->b, f->b->c->files[place].path, e->tensor, -1, "missing: the index says it is in this shard");
}

static bl_status check_place(folder *f, const entry *e, const bl_tensor *t)
{
    const char *file = f->b->c->files[t->file].name;
    if (strcmp(file, e->file) == 0 || f->opened[shard_place(f, e->file)] < 0) {
        return BL_OK;
    }
    return bl_build_report(f->b, f->index_path, e->tensor, -1, "the index says %s, it is in %s", e->file, file);
}

/* Both ways: what the index names is where it says, and nothing else is there. Both lists are sorted by name. */
static bl_status check_against_index(folder *f)
{
    const bl_checkpoint *c = f->b->c;
    for (size_t i = 0, k = 0; i < f->entry_count || k < c->tensor_count;) {
        const entry *e = &f->entries[i];
        const bl_tensor *t = &c->tensors[k];
        int order = i == f->entry_count ? 1 : k == c->tensor_count ? -1 : strcmp(e->tensor, t->name);
        BL_TRY(order < 0   ? report_missing(f, e)
               : order > 0 ? bl_build_report(f->b, c->files[t->file].path, t->name, -1, "is not in the index")
                           : check_place(f, e, t));
        i += order <= 0;
        k += order >= 0;
    }
    if (f->b->options->tolerate && f->has_total && f->total_size != c->tensor_bytes && !f->unread) {
        BL_TRY(bl_build_report(f->b, f->index_path, "metadata.total_size", -1,
                               "is %" PRIu64 ", the tensors have %" PRIu64 " bytes", f->total_size,
                               c->tensor_bytes));
    }
    return BL_OK;
}

static int name_is(const void *name, const void *tensor)
{
    return strcmp(name, ((const bl_tensor *)tensor)->name);
}

static bool has(const bl_checkpoint *c, const char *name)
{
    return c->tensor_count && bsearch(name, c->tensors, c->tensor_count, sizeof *c->tensors, name_is);
}

/* V4.1's names begin with no "model."; some trainers put it there. Names are then those of the release. */
static bl_status leave_out_model(folder *f)
{
    static const char prefix[] = "model.";
    bl_checkpoint *c = f->b->c;
    const size_t n = strlen(prefix);
    if (!c->has_config || c->config.earlier || !has(c, "model.embed.weight") || has(c, "embed.weight")) {
        return BL_OK;
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        c->tensors[i].name += strncmp(c->tensors[i].name, prefix, n) == 0 ? n : 0;
    }
    for (size_t i = 0; i < c->unread_count; i++) {
        c->unread[i] += strncmp(c->unread[i], prefix, n) == 0 ? n : 0;
    }
    c->tensor_bytes = 0;
    return bl_build_finish(f->b);
}

bl_status bl_checkpoint_read_hf(bl_build *b, const char *path)
{
    folder f = {.b = b, .path = path, .index_path = bl_build_path(b, path, INDEX_NAME)};
    if (!f.index_path) {
        return no_memory(&f);
    }
    BL_TRY(read_index(&f));
    BL_TRY(choose_shards(
        &f)); /* before the config: a folder without shards is no checkpoint, whatever else it lacks */
    BL_TRY(bl_build_config(b, path));
    BL_TRY(check_of_counts(&f));
    BL_TRY(open_shards(&f));
    BL_TRY(bl_build_finish(b));
    BL_TRY(f.has_index ? check_against_index(&f) : BL_OK);
    return leave_out_model(&f);
}
