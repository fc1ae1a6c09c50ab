#include "tests/fuzz/fuzz.h"

#include "formats/json.h"

#include <stdlib.h>
#include <string.h>

/* Every value inside a valid document is itself a valid document, and walking it meets only its own bytes. */
static void walk(bl_json v, unsigned depth)
{
    static const bl_json_limits limits = {.max_depth = 64};
    bl_json k, e, again;
    BL_MUST(v.kind != BL_JSON_NONE && v.n > 0);
    if (depth < 3) { /* quadratic otherwise */
        BL_MUST(bl_json_parse(v.p, v.n, &limits, NULL, &again, NULL) == BL_OK && again.p == v.p &&
                again.n == v.n && again.kind == v.kind);
    }
    double d;
    int64_t i;
    uint64_t u;
    bool b;
    char small[4];
    if (bl_json_u64(v, &u) && u <= INT64_MAX) {
        BL_MUST(bl_json_i64(v, &i) && (uint64_t)i == u && bl_json_double(v, &d));
    }
    bl_json_bool(v, &b);
    size_t n = bl_json_string(v, small, sizeof small);
    if (v.kind == BL_JSON_STRING) {
        char *text = malloc(n + 1);
        BL_MUST(text && n <= v.n && bl_json_string(v, text, n + 1) == n);
        BL_MUST(bl_json_equals(v, text) == (strlen(text) == n));
        free(text);
    }
    size_t count = 0;
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &k, &e)) {
        BL_MUST(e.p > v.p && e.p + e.n < v.p + v.n);
        BL_MUST((k.kind == BL_JSON_STRING) == (v.kind == BL_JSON_OBJECT));
        walk(e, depth + 1);
        count++;
    }
    BL_MUST(bl_json_count(v) == count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_json root;
    bl_error err = {0};
    char line[2400];
    bl_json_limits limits = {.max_depth = size ? data[0] % 70u : 0};
    if (size == 0) {
        return 0;
    }
    limits.last_duplicate_wins = data[0] & 128;
    if (bl_json_parse((const char *)data + 1, size - 1, &limits, "input", &root, &err) == BL_OK) {
        limits.last_duplicate_wins ? (void)bl_json_count(root) : walk(root, 0);
    } else {
        BL_MUST(err.code == BL_E_INPUT && !strpbrk(bl_error_line(&err, line, sizeof line), "\n\r\t"));
    }
    return 0;
}
