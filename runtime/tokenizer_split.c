/* Pre-tokenisation: the file's own Split patterns, run by PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "runtime/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

/* Backtracking steps one match may take: a pattern that needs more is refused instead of hanging. */
#define MATCH_LIMIT 10000000

/* The reference engine does not count U+180E as white space, PCRE2 does: outside of classes \s and \S are spelled out. dst has
 * room for BLANK_GROWTH times n bytes; returns the length, 0 for a pattern that quotes with \Q (the engines disagree on it). */
#define BLANK_GROWTH 7
static size_t spell_blanks(const char *p, size_t n, char *dst)
{
    size_t out = 0;
    bool class = false;
    for (size_t i = 0; i < n; i++) {
        bool escape = p[i] == '\\' && i + 1 < n;
        if (escape && p[i + 1] == 'Q')
            return 0;
        if (escape && !class && (p[i + 1] == 's' || p[i + 1] == 'S')) {
            const char *spelled = p[i + 1] == 's' ? "[^\\S\\x{180E}]" : "[\\S\\x{180E}]";
            size_t len = strlen(spelled);
            memcpy(dst + out, spelled, len);
            out += len;
            i++;
            continue;
        }
        class = class ? p[i] != ']' : p[i] == '[';
        dst[out++] = p[i];
        if (escape)
            dst[out++] = p[++i];
    }
    return out;
}

bl_status bl_split_compile(pcre2_code **out, const char *pattern, size_t n, const char *path, const char *key, bl_error *err)
{
    char *spelled = malloc(BLANK_GROWTH * n + 1);
    if (!spelled)
        return bl_fail(err, BL_E_NOMEM, path, key, -1, "out of memory");
    size_t len = spell_blanks(pattern, n, spelled);
    int code;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *c = len ? pcre2_compile((PCRE2_SPTR)spelled, len, options, &code, &at, NULL) : NULL;
    free(spelled);
    if (len == 0)
        return bl_fail(err, BL_E_INPUT, path, key, -1, "split pattern is empty or quotes with \\Q");
    if (!c) {
        char why[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return bl_fail(err, BL_E_INPUT, path, key, -1, "split pattern does not compile at byte %zu: %s", (size_t)at, why);
    }
    /* Without a JIT the interpreter gives the same matches, only slower. */
    pcre2_jit_compile(c, PCRE2_JIT_COMPLETE);
    *out = c;
    return BL_OK;
}

void bl_split_free(pcre2_code *code)
{
    pcre2_code_free(code);
}

bl_status bl_encoder_init(bl_encoder *e, const bl_tokenizer *t, bl_ids *out, bl_error *err)
{
    *e = (bl_encoder){.t = t, .out = out, .err = err};
    e->match = pcre2_match_data_create(1, NULL);
    e->context = pcre2_match_context_create(NULL);
    if (!e->match || !e->context)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for tokenizing");
    pcre2_set_match_limit(e->context, MATCH_LIMIT);
    return BL_OK;
}

void bl_encoder_free(bl_encoder *e)
{
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->context);
    free(e->heap);
    free(e->symbols);
}

/* Next match of pattern `step` at or after from; *found tells. */
static bl_status next_match(bl_encoder *e, int step, const char *text, size_t n, size_t from, bool *found, size_t *start,
                            size_t *end)
{
    /* The text was validated once. The piece is the whole subject: a look-ahead at its end sees the end. */
    uint32_t options = PCRE2_NO_UTF_CHECK;
    const pcre2_code *code = e->t->splits[step];
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, options, e->match, e->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, options | PCRE2_NO_JIT, e->match, e->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return BL_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return bl_fail(e->err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for tokenizing");
    if (rc < 0) {
        char why[160];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return bl_fail(e->err, BL_E_INPUT, e->t->path, NULL, -1, "split pattern %d fails on the text: %s", step + 1, why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(e->match);
    *start = v[0];
    *end = v[1];
    /* \K can put the start behind the end or before the place we search from. */
    if (*start < from || *end < *start)
        return bl_fail(e->err, BL_E_INPUT, e->t->path, NULL, -1, "split pattern %d moves the start of its match", step + 1);
    return BL_OK;
}

static bl_status split(bl_encoder *e, int step, const char *text, size_t n)
{
    if (n == 0)
        return BL_OK;
    if (step == e->t->split_count)
        return bl_bpe_encode(e, text, n);
    size_t done = 0, from = 0;
    while (from < n) {
        bool found;
        size_t start, end;
        BL_TRY(next_match(e, step, text, n, from, &found, &start, &end));
        if (!found)
            break;
        BL_TRY(split(e, step + 1, text + done, start - done));
        BL_TRY(split(e, step + 1, text + start, end - start));
        done = from = end;
        if (start == end) { /* an empty match cuts, then the search moves on by one code point */
            from++;
            while (from < n && ((uint8_t)text[from] & 0xC0) == 0x80)
                from++;
        }
    }
    return split(e, step + 1, text + done, n - done);
}

bl_status bl_split_encode(bl_encoder *e, const char *text, size_t n)
{
    return split(e, 0, text, n);
}
