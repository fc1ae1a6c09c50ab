#include "runtime/api_values.h"

#include <math.h>
#include <string.h>

bl_status bl_api_refuse(api_reader *r, const char *what)
{
    return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "%s", what);
}

bl_status bl_api_flag(api_reader *r, bool *out)
{
    return bl_json_bool(r->v, out) ? BL_OK : bl_api_refuse(r, "must be true or false");
}

bl_status bl_api_int(api_reader *r, int64_t least, int64_t most, int64_t *out)
{
    double d;
    if (r->v.kind != BL_JSON_NUMBER)
        return bl_api_refuse(r, "must be a whole number");
    if (!bl_json_i64(r->v, out)) {
        if (!bl_json_double(r->v, &d) || fabs(d) > 9e15)
            return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "must be a whole number from %lld to %lld", (long long)least, (long long)most);
        if (d != floor(d))
            return bl_api_refuse(r, "must be a whole number");
        *out = (int64_t)d;
    }
    if (*out < least && most == INT64_MAX)
        return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "must be at least %lld", (long long)least);
    if (*out < least || *out > most)
        return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "must be from %lld to %lld", (long long)least, (long long)most);
    return BL_OK;
}

bl_status bl_api_real(api_reader *r, double least, double most, float *out)
{
    double d;
    if (r->v.kind != BL_JSON_NUMBER)
        return bl_api_refuse(r, "must be a number");
    if (!bl_json_double(r->v, &d) || !(d >= least && d <= most))
        return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "must be from %g to %g", least, most);
    *out = (float)d;
    return BL_OK;
}

bl_status bl_api_string(api_reader *r, bl_json v, const char **out)
{
    if (v.kind != BL_JSON_STRING)
        return bl_api_refuse(r, "must be a string or a list of strings");
    size_t n = bl_json_string(v, NULL, 0);
    char *s = bl_arena_alloc(r->arena, n + 1);
    if (!s)
        return bl_fail(r->err, BL_E_NOMEM, NULL, r->key, -1, "no memory");
    bl_json_string(v, s, n + 1);
    if (strlen(s) != n)
        return bl_api_refuse(r, "must not hold NUL");
    *out = s;
    return BL_OK;
}
