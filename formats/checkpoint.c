#include "formats/checkpoint.h"

#include "formats/checkpoint_build.h"
#include "formats/delta.h"
#include "formats/foreign.h"
#include "formats/json.h"
#include "formats/names.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CONFIG ((uint64_t)16 << 20)

static bl_status no_memory(const bl_build *b)
{
    return bl_fail(b->err, BL_E_NOMEM, b->c->path, NULL, -1, "out of memory");
}

bl_status bl_build_problem(bl_build *b, bl_status s, const bl_error *problem)
{
    bl_error shown;
    if (s == BL_OK) {
        return BL_OK;
    }
    shown = *problem;
    bl_archive_show(b->c->archive, &shown);
    problem = &shown;
    if (s == BL_E_INPUT && b->options->tolerate) {
        b->c->problems++;
        if (b->options->on_problem) {
            b->options->on_problem(b->options->arg, problem);
        }
        return BL_OK;
    }
    if (b->err && b->err->code == BL_OK) {
        *b->err = *problem;
    }
    return s;
}

bl_status bl_build_report(bl_build *b, const char *path, const char *tensor, int64_t offset, const char *fmt,
                          ...)
{
    bl_error problem = {0};
    char text[sizeof problem.message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bl_build_problem(b, bl_fail(&problem, BL_E_INPUT, path, tensor, offset, "%s", text), &problem);
}

const char *bl_build_path(bl_build *b, const char *folder, const char *name)
{
    return bl_path_join(&b->c->arena, folder, name);
}

bl_status bl_build_file(bl_build *b, const char *name, const char *path, bl_st_header *h, uint32_t *index,
                        bl_error *err)
{
    bl_checkpoint *c = b->c;
    bl_source_file *grown = bl_arena_grow(&c->arena, c->files, &b->file_cap, c->file_count, sizeof *grown);
    if (!grown) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    c->files = grown;
    bl_file *f = NULL;
    BL_TRY(c->archive ? bl_archive_file(c->archive, name, &f, err) : bl_file_open(&f, path, err));
    bl_status s = bl_st_read(f, (uint32_t)c->file_count, &c->arena, h, err);
    if (s != BL_OK) {
        bl_file_close(&f);
        return s;
    }
    *index = (uint32_t)c->file_count;
    c->files[c->file_count++] = (bl_source_file){name, path, f, h->header_bytes, h->file_bytes, h->count, NULL};
    return BL_OK;
}

bl_status bl_build_reserve(bl_build *b, size_t cap)
{
    bl_checkpoint *c = b->c;
    if (cap <= b->tensor_cap) {
        return BL_OK;
    }
    bl_tensor *grown = bl_arena_array(&c->arena, cap, sizeof *grown);
    if (!grown) {
        return no_memory(b);
    }
    if (c->tensor_count) {
        memcpy(grown, c->tensors, c->tensor_count * sizeof *grown);
    }
    c->tensors = grown;
    b->tensor_cap = cap;
    return BL_OK;
}

bl_status bl_build_tensors(bl_build *b, const bl_tensor *tensors, size_t count)
{
    bl_checkpoint *c = b->c;
    size_t need = c->tensor_count + count;
    if (need > b->tensor_cap) {
        BL_TRY(bl_build_reserve(b, 2 * b->tensor_cap > need ? 2 * b->tensor_cap : need));
    }
    if (count) {
        memcpy(c->tensors + c->tensor_count, tensors, count * sizeof *tensors);
    }
    c->tensor_count += count;
    return BL_OK;
}

bl_status bl_build_unread(bl_build *b, const char *name)
{
    bl_checkpoint *c = b->c;
    const char **grown = bl_arena_grow(&c->arena, c->unread, &b->unread_cap, c->unread_count, sizeof *grown);
    if (!grown) {
        return no_memory(b);
    }
    c->unread = grown;
    c->unread[c->unread_count++] = name;
    return BL_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_name_and_file(const void *a, const void *b)
{
    int order = bl_tensor_by_name(a, b);
    return order ? order : bl_tensor_by_place(a, b);
}

bl_status bl_build_finish(bl_build *b)
{
    bl_checkpoint *c = b->c;
    size_t kept = 0;
    if (c->tensor_count) {
        qsort(c->tensors, c->tensor_count, sizeof *c->tensors, by_name_and_file);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        const bl_tensor *t = &c->tensors[i], *last = kept ? &c->tensors[kept - 1] : NULL;
        if (c->kind != BL_SOURCE_PACKED && last && strcmp(last->name, t->name) == 0) {
            BL_TRY(bl_build_report(b, c->files[t->file].path, t->name, -1, "is also in %s",
                                   c->files[last->file].name));
            continue;
        }
        c->tensor_bytes += t->nbytes; /* cannot overflow: sizes of files */
        c->tensors[kept++] = *t;
    }
    c->tensor_count = kept;
    if (c->unread_count) {
        qsort(c->unread, c->unread_count, sizeof *c->unread, by_text);
    }
    return BL_OK;
}

bl_status bl_build_config(bl_build *b, const char *folder)
{
    bl_checkpoint *c = b->c;
    bl_error e = {0};
    char *text = NULL;
    size_t n = 0;
    const char *path = bl_build_path(b, folder, "config.json");
    if (!path) {
        return no_memory(b);
    }
    bl_status s = bl_foreign_slurp(path, MAX_CONFIG, &text, &n, &e);
    if (s == BL_OK) {
        bool any = b->options->any_generation && c->kind == BL_SOURCE_HF;
        s = (any ? bl_config_parse_any : bl_config_parse)(text, n, path, &c->arena, &c->config, &e);
        c->has_config = s == BL_OK;
    }
    free(text);
    return bl_build_problem(b, s, &e);
}

bool bl_build_name_ok(const char *name, size_t n)
{
    return n > 0 && n < 256 && name[0] != '.' && !memchr(name, '/', n) && bl_text_is_clean(name, n);
}

static bool is_safetensors(const char *name)
{
    return name[0] != '.' && bl_ends_with(name, ".safetensors");
}

bl_status bl_build_list(bl_build *b, const char *folder, const char ***names, size_t *count)
{
    size_t cap = 0;
    *names = NULL;
    *count = 0;
    DIR *d = opendir(folder);
    if (!d) {
        return bl_fail_errno(b->err, errno, 1, folder, "cannot open the folder");
    }
    bool full = false;
    errno = 0;
    for (struct dirent *e; !full && (e = readdir(d));) {
        if (!is_safetensors(e->d_name)) {
            continue;
        }
        *names = bl_arena_grow(&b->c->arena, *names, &cap, *count, sizeof **names);
        char *name = *names ? bl_arena_strndup(&b->c->arena, e->d_name, strlen(e->d_name)) : NULL;
        full = !name;
        if (name) {
            (*names)[(*count)++] = name;
        }
    }
    int e = errno;
    closedir(d);
    if (full) {
        return no_memory(b);
    }
    if (e != 0) {
        return bl_fail_errno(b->err, e, 1, folder, "cannot list the folder");
    }
    if (*count) {
        qsort(*names, *count, sizeof **names, by_text);
    }
    return BL_OK;
}

static bl_status read_single(bl_build *b, const char *path)
{
    bl_st_header h;
    uint32_t index;
    bl_error e = {0};
    const char *slash = strrchr(path, '/');
    bl_status s = bl_build_file(b, slash ? slash + 1 : path, path, &h, &index, &e);
    BL_TRY(bl_build_problem(b, s, &e));
    if (s == BL_OK) {
        BL_TRY(bl_build_tensors(b, h.tensors, h.count));
    }
    return bl_build_finish(b);
}

/* An archive of something else is not a damaged checkpoint. */
static bl_status check_archive(bl_build *b)
{
    static const char *const marks[] = {"config.json", "manifest.json", "model.safetensors.index.json"};
    struct stat st;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *path = bl_build_path(b, b->c->path, marks[i]);
        if (!path) {
            return no_memory(b);
        }
        if (stat(path, &st) == 0) {
            return BL_OK;
        }
    }
    const char *paths[2];
    size_t below = bl_archive_below(b->c->archive, marks[0], paths);
    return below > 1 ? bl_fail(b->err, BL_E_INPUT, b->c->name, NULL, -1,
                               "has no config.json at its top but %zu in folders, '%s' and '%s'%s: pack one of them alone", below, paths[0],
                               paths[1], below > 2 ? " among them" : "")
           : below   ? bl_fail(b->err, BL_E_INPUT, b->c->name, NULL, -1,
                               "has its config.json at '%s' beside files that are not in that folder: pack the folder alone", paths[0])
                     : bl_fail(b->err, BL_E_INPUT, b->c->name, NULL, -1,
                               "is an archive without a checkpoint: there is no config.json in it");
}

/* What weight sync makes has a config.json and safetensors files too. */
static bl_status check_other(bl_build *b)
{
    const char *what = bl_buckets_recognise(b->c->path) ? "weight-sync buckets"
                       : bl_delta_recognise(b->c->path) ? "a delta of weight-sync buckets"
                                                        : NULL;
    return what ? bl_fail(b->err, BL_E_INPUT, b->c->name, NULL, -1, "holds %s, no checkpoint: see 'baleen bucket --help'", what) : BL_OK;
}

/* The archive that path is, if it is to be read as a checkpoint. */
static bl_status open_archive(bl_build *b, const char *path)
{
    bl_checkpoint *c = b->c;
    if (b->options->opened) {
        c->archive = *b->options->opened;
        *b->options->opened = NULL;
    } else if (b->options->archives && bl_archive_recognise(path)) {
        BL_TRY(bl_archive_open(&c->archive, path, b->options->archives, b->err));
    }
    if (!c->archive) {
        return BL_OK;
    }
    const char *root = bl_archive_root(c->archive);
    c->path = bl_arena_strndup(&c->arena, root, strlen(root));
    return c->path ? check_archive(b) : no_memory(b);
}

static bl_status read_any(bl_build *b, const char *path)
{
    struct stat st;
    bl_checkpoint *c = b->c;
    if (stat(path, &st) != 0) {
        return bl_file_absent(path, errno, b->err);
    }
    if (S_ISDIR(st.st_mode) && access(path, R_OK | X_OK) != 0) {
        return bl_fail_errno(b->err, errno, 1, path, "cannot read the folder");
    }
    BL_TRY(S_ISDIR(st.st_mode) ? BL_OK : open_archive(b, path));
    if (!S_ISDIR(st.st_mode) && !c->archive) {
        c->kind = BL_SOURCE_FILE;
        return read_single(b, c->path);
    }
    BL_TRY(check_other(b));
    const char *manifest = bl_build_path(b, c->path, "manifest.json");
    if (!manifest) {
        return no_memory(b);
    }
    c->kind = stat(manifest, &st) == 0 ? BL_SOURCE_PACKED : BL_SOURCE_HF;
    return c->kind == BL_SOURCE_PACKED ? bl_checkpoint_read_packed(b, c->path)
                                       : bl_checkpoint_read_hf(b, c->path);
}

bl_status bl_checkpoint_open(bl_checkpoint **out, const char *path, const bl_checkpoint_options *options,
                             bl_error *err)
{
    static const bl_checkpoint_options strict;
    *out = NULL;
    bl_checkpoint *c = calloc(1, sizeof *c);
    if (!c || !(c->path = bl_arena_strndup(&c->arena, path, strlen(path)))) {
        free(c);
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    c->name = c->path;
    bl_build b = {.c = c, .options = options ? options : &strict, .err = err};
    c->only_rank = b.options->one_rank ? b.options->rank : -1;
    bl_status s = read_any(&b, path);
    if (s != BL_OK) {
        bl_archive_show(c->archive, err);
        bl_checkpoint_close(&c);
    }
    *out = c;
    return s;
}

void bl_checkpoint_close(bl_checkpoint **cp)
{
    bl_checkpoint *c = *cp;
    *cp = NULL;
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->file_count; i++) {
        bl_file_close(&c->files[i].file);
    }
    bl_archive_close(&c->archive);
    bl_arena_reset(&c->arena);
    free(c);
}

static int name_against_tensor(const void *name, const void *tensor)
{
    return strcmp(name, ((const bl_tensor *)tensor)->name);
}

const bl_tensor *bl_checkpoint_find(const bl_checkpoint *c, const char *name)
{
    const bl_tensor *t = c->tensor_count
                             ? bsearch(name, c->tensors, c->tensor_count, sizeof *c->tensors, name_against_tensor)
                             : NULL;
    while (t && t > c->tensors && strcmp(t[-1].name, name) == 0) {
        t--;
    }
    return t;
}

const bl_tensor *bl_checkpoint_find_rank(const bl_checkpoint *c, const char *name, int rank)
{
    const bl_tensor *t = bl_checkpoint_find(c, name), *end = c->tensors + c->tensor_count;
    for (; t && t < end && strcmp(t->name, name) == 0; t++) {
        const bl_rank_manifest *r = c->files[t->file].rank;
        if (!r || r->rank == rank) {
            return t;
        }
    }
    return NULL;
}

const bl_manifest_tensor *bl_checkpoint_record(const bl_checkpoint *c, const bl_tensor *t)
{
    const bl_rank_manifest *r = c->files[t->file].rank;
    return r ? bl_rank_manifest_find(r, t->name) : NULL;
}

bool bl_checkpoint_unread(const bl_checkpoint *c, const char *name)
{
    return c->unread_unknown || (c->unread_count && bsearch(&name, c->unread, c->unread_count,
                                                            sizeof *c->unread, by_text) != NULL);
}

bool bl_checkpoint_covers(const bl_checkpoint *c, const char *name)
{
    char folder[16];
    if (c->kind != BL_SOURCE_PACKED || c->only_rank < 0 || strncmp(name, "rank-", 5) != 0) {
        return true;
    }
    size_t n = strlen(bl_rank_folder(folder, c->only_rank));
    if (strncmp(name, folder, n) == 0 && (name[n] == '/' || !name[n])) {
        return true;
    }
    for (size_t i = 0; i < c->file_count; i++) {
        if (strcmp(c->files[i].name, name) == 0) {
            return true; /* shared with the rank */
        }
    }
    return false;
}

const bl_source_file *bl_checkpoint_file(const bl_checkpoint *c, const bl_tensor *t)
{
    return &c->files[t->file];
}
