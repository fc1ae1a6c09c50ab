#include "verify/buckets.h"

#include "formats/foreign.h"
#include "formats/names.h"
#include "verify/digest.h"

#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bl_status bl_buckets_names(const bl_buckets *b, bl_arena *arena, const char ***names, size_t *count, bl_error *err)
{
    size_t most = b->host_count, n = 0;
    for (size_t i = 0; i < b->count; i++) {
        most += b->buckets[i].count;
    }
    const char **list = *names = bl_arena_array(arena, most, sizeof *list);
    if (!list) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < b->host_count; i++) {
        list[n++] = b->host[i].tensor.name;
    }
    for (size_t i = 0; i < b->count; i++) {
        for (size_t k = 0; k < b->buckets[i].count; k++) {
            const bl_bucket_tensor *t = &b->buckets[i].tensors[k];
            if (!t->of || t->row == 0) {
                list[n++] = t->of ? t->of : t->tensor.name;
            }
        }
    }
    qsort(list, n, sizeof *list, by_name);
    *count = n;
    return BL_OK;
}

bl_status bl_names_digest(const char *const *names, size_t count, bl_digest *out, bl_error *err)
{
    bl_hasher *h;
    BL_TRY(bl_hasher_create(&h, err));
    for (size_t i = 0; i < count; i++) {
        bl_hasher_update(h, names[i], strlen(names[i]));
        bl_hasher_update(h, "\n", 1);
    }
    *out = bl_hasher_final(h);
    bl_hasher_destroy(&h);
    return BL_OK;
}

bl_status bl_delta_target(const char *folder, const bl_delta *d, bl_arena *arena, bl_buckets *out, char **text, size_t *n, bl_error *err)
{
    const char *path = bl_path_join(arena, folder, BL_DELTA_TARGET_NAME);
    char *have;
    size_t bytes;
    BL_TRY(path ? bl_foreign_slurp(path, BL_MANIFEST_MAX_BYTES, &have, &bytes, err)
                : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory"));
    bl_digest digest = bl_digest_bytes(have, bytes);
    bl_status s = bl_digest_equal(&digest, &d->target) ? bl_buckets_parse(have, bytes, path, arena, out, err)
                                                       : bl_fail(err, BL_E_INPUT, path, NULL, -1,
                                                                 "is not the state that " BL_DELTA_NAME " leads to, by its digest");
    if (s == BL_OK && text) {
        *text = have;
        *n = bytes;
    } else {
        free(have);
    }
    return s;
}
