#include "tests/fuzz/fuzz.h"

#include "formats/utf8.h"
#include "runtime/engram.h"

#include <stdlib.h>
#include <string.h>

/* What was encoded decodes to itself, and every id is one of the tokenizer's. */
static void round_trip(const bl_tokenizer *t, const char *text, size_t n, bool added)
{
    bl_ids ids = {0};
    bl_error err = {0};
    bl_status s = bl_tokenizer_encode(t, text, n, added, &ids, &err);
    BL_MUST(s == BL_OK || s == BL_E_INPUT); /* a hostile pattern may give up on the text */
    BL_MUST(bl_utf8_check(text, n) == n || s == BL_E_INPUT);
    bl_detok d = {0};
    bl_text out = {0};
    for (size_t i = 0; s == BL_OK && i < ids.count; i++) {
        size_t len;
        const char *p = bl_tokenizer_bytes(t, ids.ids[i], &len);
        BL_MUST(p);
        bl_detok_bytes(&d, p, len, &out);
    }
    bl_detok_end(&d, &out);
    BL_MUST(s != BL_OK || (out.n == n && (n == 0 || memcmp(out.p, text, n) == 0)));
    free(out.p);
    free(ids.ids);
}

/* A tokenizer.json, and behind the last NUL byte a text. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data, *nul = memrchr(json, 0, size);
    size_t n = nul ? (size_t)(nul - json) : size;
    bl_tokenizer *t;
    bl_error err = {0};
    bl_status s = bl_tokenizer_parse(&t, json, n, "input", &err);
    if (s != BL_OK) {
        BL_MUST(s == BL_E_INPUT && err.code == BL_E_INPUT && !t);
        return 0;
    }
    const char *text = nul ? nul + 1 : json;
    size_t len = nul ? size - n - 1 : size < 256 ? size : 256;
    round_trip(t, text, len, false);
    round_trip(t, text, len, true);
    int32_t *map;
    int classes;
    if (bl_engram_token_map(t, &map, &classes, &err) == BL_OK) {
        for (int i = 0; i < bl_tokenizer_size(t); i++)
            BL_MUST(map[i] >= 0 && map[i] < classes && map[i] <= i);
        free(map);
    }
    bl_tokenizer_close(&t);
    return 0;
}
