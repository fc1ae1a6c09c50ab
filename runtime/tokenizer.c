#include "runtime/tokenizer.h"

#include "formats/file.h"
#include "formats/utf8.h"
#include "runtime/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A tokenizer.json larger than this is not one. */
#define MAX_FILE_BYTES 100000000

bl_status bl_tokenizer_open(bl_tokenizer **out, const char *path, bl_error *err)
{
    char *text;
    size_t n;
    *out = NULL;
    BL_TRY(bl_file_slurp(path, MAX_FILE_BYTES, &text, &n, err));
    bl_status s = bl_tokenizer_parse(out, text, n, path, err);
    free(text);
    return s;
}

void bl_tokenizer_close(bl_tokenizer **t)
{
    if (!*t)
        return;
    for (int i = 0; i < (*t)->split_count; i++)
        bl_split_free((*t)->splits[i]);
    for (int i = 0; i < 2; i++)
        bl_trie_free(&(*t)->added[i]);
    free((*t)->tokens);
    free((*t)->names);
    free((*t)->bytes);
    free((*t)->by_name);
    free((*t)->merges);
    free((*t)->path);
    free(*t);
    *t = NULL;
}

int bl_tokenizer_size(const bl_tokenizer *t)
{
    return t->size;
}

int bl_tokenizer_find(const bl_tokenizer *t, const char *name, size_t n)
{
    for (uint64_t i = XXH3_64bits(name, n) & t->by_name_mask;; i = (i + 1) & t->by_name_mask) {
        int32_t id = t->by_name[i];
        if (id < 0)
            return -1;
        if (t->tokens[id].name_len == n && memcmp(t->names + t->tokens[id].name, name, n) == 0)
            return id;
    }
}

int bl_tokenizer_id(const bl_tokenizer *t, const char *token)
{
    return bl_tokenizer_find(t, token, strlen(token));
}

static const bl_token *token_of(const bl_tokenizer *t, int id)
{
    return id >= 0 && id < t->size && t->tokens[id].used ? &t->tokens[id] : NULL;
}

const char *bl_tokenizer_bytes(const bl_tokenizer *t, int id, size_t *n)
{
    const bl_token *k = token_of(t, id);
    *n = k ? k->bytes_len : 0;
    return k ? t->bytes + k->bytes : NULL;
}

const char *bl_tokenizer_name(const bl_tokenizer *t, int id, size_t *n)
{
    const bl_token *k = token_of(t, id);
    *n = k ? k->name_len : 0;
    return k ? t->names + k->name : NULL;
}

bool bl_tokenizer_is_added(const bl_tokenizer *t, int id)
{
    const bl_token *k = token_of(t, id);
    return k && k->added;
}

bool bl_tokenizer_is_special(const bl_tokenizer *t, int id)
{
    const bl_token *k = token_of(t, id);
    return k && k->special;
}

/* Take the tokens of trie `pass` out of text, and hand what lies between to the next pass, at last to the splits. */
static bl_status encode_added(bl_encoder *e, int pass, const char *text, size_t n)
{
    if (pass == 2)
        return bl_split_encode(e, text, n);
    size_t done = 0, start, end;
    int32_t id;
    while ((id = bl_trie_find(&e->t->added[pass], text, n, done, &start, &end)) >= 0) {
        BL_TRY(encode_added(e, pass + 1, text + done, start - done));
        BL_TRY(bl_ids_reserve(e->out, 1, e->err));
        e->out->ids[e->out->count++] = id;
        done = end;
    }
    return encode_added(e, pass + 1, text + done, n - done);
}

bl_status bl_tokenizer_encode(const bl_tokenizer *t, const char *text, size_t n, bool added, bl_ids *out, bl_error *err)
{
    size_t bad = bl_utf8_check(text, n);
    if (bad < n)
        return bl_fail(err, BL_E_INPUT, NULL, NULL, (int64_t)bad, "text is not valid UTF-8");
    bl_encoder e;
    bl_status s = bl_encoder_init(&e, t, out, err);
    if (s == BL_OK)
        s = encode_added(&e, added ? 0 : 2, text, n);
    bl_encoder_free(&e);
    return s;
}
