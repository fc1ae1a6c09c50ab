#include "formats/config_keys.h"

#include "formats/config.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

bl_status bl_keys_bad(const bl_keys *k, const char *key, const char *what)
{
    return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "%s", what);
}

bl_json bl_keys_member(bl_json object, const char *key)
{
    bl_json v = bl_json_get(object, key);
    return v.kind == BL_JSON_NULL ? (bl_json){NULL, 0, BL_JSON_NONE} : v;
}

bl_json bl_keys_find(const bl_keys *k, const char *key)
{
    return bl_keys_member(bl_json_get(k->text, key).kind == BL_JSON_NONE ? k->top : k->text, key);
}

bl_status bl_keys_to_int(const bl_keys *k, const char *key, bl_json v, int64_t min, int64_t max, int64_t *out)
{
    double d;
    /* Trainers write 16.0 where they mean 16. */
    if (!bl_json_i64(v, out)) {
        if (!bl_json_double(v, &d) || d != floor(d) || fabs(d) > 9e15) {
            return bl_keys_bad(k, key, "must be an integer");
        }
        *out = (int64_t)d;
    }
    if (min == max && *out != min) {
        return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "is %" PRId64 ", must be %" PRId64, *out, min);
    }
    if (*out < min || *out > max) {
        return bl_fail(k->err, BL_E_INPUT, k->path, key, -1,
                       "is %" PRId64 ", must be from %" PRId64 " to %" PRId64, *out, min, max);
    }
    return BL_OK;
}

bl_status bl_keys_i64(const bl_keys *k, const char *key, int64_t min, int64_t max, int64_t *out)
{
    bl_json v = bl_keys_find(k, key);
    return v.kind == BL_JSON_NONE ? bl_keys_bad(k, key, "is missing") : bl_keys_to_int(k, key, v, min, max, out);
}

bl_status bl_keys_ints(const bl_keys *k, void *out, const bl_key_int *f, size_t n, bool required)
{
    for (size_t i = 0; i < n; i++) {
        int64_t value;
        if (!required && bl_keys_find(k, f[i].key).kind == BL_JSON_NONE) {
            continue;
        }
        BL_TRY(bl_keys_i64(k, f[i].key, f[i].min, f[i].max, &value));
        int narrow = (int)value;
        memcpy((char *)out + f[i].at, &narrow, sizeof narrow);
    }
    return BL_OK;
}

bl_status bl_keys_to_double(const bl_keys *k, const char *key, bl_json v, double min, double max, double *out)
{
    if (v.kind == BL_JSON_NONE) {
        return bl_keys_bad(k, key, "is missing");
    }
    if (!bl_json_double(v, out)) {
        return bl_keys_bad(k, key, "must be a finite number");
    }
    if (!(*out >= min && *out <= max)) {
        return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "is %g, must be from %g to %g", *out, min, max);
    }
    return BL_OK;
}

bl_status bl_keys_double(const bl_keys *k, const char *key, double min, double max, double *out)
{
    return bl_keys_to_double(k, key, bl_keys_find(k, key), min, max, out);
}

bl_status bl_keys_float(const bl_keys *k, const char *key, double min, double max, float *out)
{
    double d;
    BL_TRY(bl_keys_double(k, key, min, max, &d));
    *out = (float)d;
    return BL_OK;
}

bl_status bl_keys_bool(const bl_keys *k, const char *key, bool fallback, bool *out)
{
    bl_json v = bl_keys_find(k, key);
    *out = fallback;
    return v.kind == BL_JSON_NONE || bl_json_bool(v, out) ? BL_OK : bl_keys_bad(k, key, "must be true or false");
}

bl_status bl_keys_list(const bl_keys *k, const char *key, int64_t min, int64_t max, const int64_t **out, int *count)
{
    bl_json v = bl_keys_find(k, key), name, e;
    *count = 0;
    *out = NULL;
    if (v.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    size_t n = bl_json_count(v);
    if (v.kind != BL_JSON_ARRAY) {
        return bl_keys_bad(k, key, "must be a list of integers");
    }
    if (n > 2 * BL_MAX_LAYERS) {
        return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "has %zu entries, the most is %d", n,
                       2 * BL_MAX_LAYERS);
    }
    int64_t *list = bl_arena_array(k->arena, n, sizeof *list);
    if (!list) {
        return bl_fail(k->err, BL_E_NOMEM, k->path, key, -1, "out of memory");
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &name, &e); i++) {
        BL_TRY(bl_keys_to_int(k, key, e, min, max, &list[i]));
    }
    *out = list;
    *count = (int)n;
    return BL_OK;
}

bl_status bl_keys_int_list(const bl_keys *k, const char *key, int min, int max, const int **out, int *count)
{
    const int64_t *wide;
    BL_TRY(bl_keys_list(k, key, min, max, &wide, count));
    int *list = bl_arena_array(k->arena, (size_t)*count, sizeof *list);
    if (!list) {
        return bl_fail(k->err, BL_E_NOMEM, k->path, key, -1, "out of memory");
    }
    for (int i = 0; i < *count; i++) {
        list[i] = (int)wide[i];
    }
    *out = list;
    return BL_OK;
}

bl_status bl_keys_layers(const bl_keys *k, const char *key, int layers, const int **out, int *count)
{
    BL_TRY(bl_keys_int_list(k, key, 0, layers - 1, out, count));
    for (int i = 1; i < *count; i++) {
        if ((*out)[i] <= (*out)[i - 1]) {
            return bl_keys_bad(k, key, "must be in strictly ascending order");
        }
    }
    return BL_OK;
}

bl_status bl_keys_string(const bl_keys *k, bl_json v, const char *key, const char *want)
{
    char have[64];
    if (v.kind == BL_JSON_NONE || bl_json_equals(v, want)) {
        return BL_OK;
    }
    bl_json_string(v, have, sizeof have);
    return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "is '%s', only '%s' is supported", have, want);
}

bl_status bl_keys_block(const bl_keys *k, bl_json v, const char *key, int64_t rows, int64_t cols)
{
    int64_t have[2] = {0, 0};
    bl_json name, e;
    int n = 0;
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &name, &e)) {
        if (n < 2) {
            BL_TRY(bl_keys_to_int(k, key, e, 1, INT_MAX, &have[n]));
        }
        n++;
    }
    if (v.kind != BL_JSON_ARRAY || n != 2 || have[0] != rows || have[1] != cols) {
        return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "must be [%" PRId64 ", %" PRId64 "]", rows,
                       cols);
    }
    return BL_OK;
}
