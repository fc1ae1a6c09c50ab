/* tokenizer.json into tables. The file is untrusted: whatever this tokenizer would not do exactly is refused by name. */
#include "formats/json.h"
#include "formats/utf8.h"
#include "runtime/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Ids may have holes, but not more than this many per token and besides. */
#define MAX_SPARSE 4
#define FREE_SPARSE 4096
#define MAX_ADDED_BYTES 1024

typedef struct loader {
    bl_tokenizer *t;
    const char *path;
    bl_error *err;
    uint32_t names_len, bytes_len;
    int16_t byte_of[512]; /* code point of the byte alphabet -> byte, -1 = none */
} loader;

static bl_status refuse(loader *l, const char *key, const char *why)
{
    return bl_fail(l->err, BL_E_INPUT, l->path, key, -1, "%s", why);
}

/* Members of an object by name, in one walk; others than these are refused. prefix ("model.") names the object in errors. */
static bl_status take(loader *l, bl_json v, const char *prefix, const char *const *names, bl_json *out, int n)
{
    char key[256];
    if (v.kind != BL_JSON_OBJECT)
        return refuse(l, prefix, "must be an object");
    for (int i = 0; i < n; i++)
        out[i] = (bl_json){0};
    bl_json k, value;
    for (bl_json_iter it = bl_json_begin(v); bl_json_next(&it, &k, &value);) {
        int i = 0;
        while (i < n && !bl_json_equals(k, names[i]))
            i++;
        if (i == n) {
            int at = snprintf(key, sizeof key, "%s.", prefix);
            bl_json_string(k, key + at, sizeof key - (size_t)at);
            return refuse(l, key, "unknown key");
        }
        out[i] = value;
    }
    return BL_OK;
}

static bl_status expect_type(loader *l, bl_json v, const char *key, const char *type)
{
    if (!bl_json_equals(bl_json_get(v, "type"), type))
        return bl_fail(l->err, BL_E_INPUT, l->path, key, -1, "must have the type %s", type);
    return BL_OK;
}

/* Must be absent or null (or, when an empty string says the same, empty). */
static bl_status expect_none(loader *l, bl_json v, const char *key, bool or_empty)
{
    if (v.kind == BL_JSON_NONE || v.kind == BL_JSON_NULL || (or_empty && bl_json_equals(v, "")))
        return BL_OK;
    return refuse(l, key, "is not supported, must be null");
}

static bl_status expect_bool(loader *l, bl_json v, const char *key, bool value, bool required)
{
    if (v.kind == BL_JSON_NONE && !required)
        return BL_OK;
    if (v.kind != (value ? BL_JSON_TRUE : BL_JSON_FALSE))
        return refuse(l, key, value ? "must be true" : "must be false");
    return BL_OK;
}

static bl_status check_normalizer(loader *l, bl_json v)
{
    if (v.kind == BL_JSON_NONE || v.kind == BL_JSON_NULL)
        return BL_OK;
    BL_TRY(expect_type(l, v, "normalizer", "Sequence"));
    bl_json list = bl_json_get(v, "normalizers");
    if (list.kind != BL_JSON_ARRAY || bl_json_count(list) != 0)
        return refuse(l, "normalizer.normalizers", "normalizers are not supported, the list must be empty");
    return BL_OK;
}

static const char *const byte_level_keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex"};

/* The pre-tokenizer's last step; nothing but the byte alphabet. */
static bl_status check_byte_level(loader *l, bl_json v, const char *key)
{
    bl_json m[4];
    BL_TRY(take(l, v, key, byte_level_keys, m, 4));
    BL_TRY(expect_bool(l, m[1], key, false, true));
    return expect_bool(l, m[3], key, false, true);
}

static bl_status load_split(loader *l, bl_json v, const char *key)
{
    static const char *const names[] = {"type", "pattern", "behavior", "invert"};
    static const char *const pattern_names[] = {"Regex"};
    bl_json m[4], regex;
    BL_TRY(take(l, v, key, names, m, 4));
    if (!bl_json_equals(m[2], "Isolated"))
        return refuse(l, key, "behavior must be Isolated");
    BL_TRY(expect_bool(l, m[3], key, false, true));
    BL_TRY(take(l, m[1], key, pattern_names, &regex, 1));
    if (regex.kind != BL_JSON_STRING)
        return refuse(l, key, "pattern must have a Regex");
    if (l->t->split_count == BL_MAX_SPLITS)
        return refuse(l, key, "too many Split steps");
    char *pattern = malloc(regex.n);
    if (!pattern)
        return bl_fail(l->err, BL_E_NOMEM, l->path, key, -1, "out of memory");
    size_t n = bl_json_string(regex, pattern, regex.n);
    bl_status s = bl_split_compile(&l->t->splits[l->t->split_count], pattern, n, l->path, key, l->err);
    free(pattern);
    if (s == BL_OK)
        l->t->split_count++;
    return s;
}

static bl_status load_pre_tokenizer(loader *l, bl_json v)
{
    static const char *const names[] = {"type", "pretokenizers"};
    bl_json m[2], step;
    BL_TRY(take(l, v, "pre_tokenizer", names, m, 2));
    BL_TRY(expect_type(l, v, "pre_tokenizer", "Sequence"));
    size_t count = bl_json_count(m[1]), i = 0;
    if (m[1].kind != BL_JSON_ARRAY || count == 0)
        return refuse(l, "pre_tokenizer.pretokenizers", "must be a list that ends in ByteLevel");
    for (bl_json_iter it = bl_json_begin(m[1]); bl_json_next(&it, &v, &step); i++) {
        char key[64];
        snprintf(key, sizeof key, "pre_tokenizer.pretokenizers[%zu]", i);
        bool last = i + 1 == count;
        BL_TRY(expect_type(l, step, key, last ? "ByteLevel" : "Split"));
        BL_TRY(last ? check_byte_level(l, step, key) : load_split(l, step, key));
    }
    return BL_OK;
}

/* The byte alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up in order. */
static void fill_alphabet(loader *l)
{
    memset(l->byte_of, -1, sizeof l->byte_of);
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool itself = (b > 32 && b < 127) || (b > 160 && b != 173);
        l->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

/* Bytes of a vocabulary name into dst; a name outside the alphabet stands for its own UTF-8. Returns the length. */
static uint32_t name_to_bytes(const loader *l, const char *name, uint32_t n, char *dst)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < n;) {
        unsigned len;
        uint32_t cp = UINT32_MAX;
        bl_utf8_step(name + i, n - i, &len, &cp);
        if (cp >= sizeof l->byte_of / sizeof *l->byte_of || l->byte_of[cp] < 0) {
            memcpy(dst, name, n);
            return n;
        }
        dst[out++] = (char)l->byte_of[cp];
        i += len;
    }
    return out;
}

/* How much room both lists of tokens need. */
static bl_status measure(loader *l, bl_json vocab, bl_json added, uint64_t *names_bytes, uint64_t *count)
{
    uint64_t id, max = 0;
    bl_json key, value;
    if (vocab.kind != BL_JSON_OBJECT)
        return refuse(l, "model.vocab", "must be an object");
    if (added.kind != BL_JSON_ARRAY)
        return refuse(l, "added_tokens", "must be a list");
    *names_bytes = 1;
    *count = 0;
    for (bl_json_iter it = bl_json_begin(vocab); bl_json_next(&it, &key, &value); ++*count) {
        if (!bl_json_u64(value, &id) || id > INT32_MAX / 2)
            return refuse(l, "model.vocab", "an id is no small whole number");
        max = id > max ? id : max;
        *names_bytes += key.n;
    }
    for (bl_json_iter it = bl_json_begin(added); bl_json_next(&it, &key, &value); ++*count) {
        if (!bl_json_u64(bl_json_get(value, "id"), &id) || id > INT32_MAX / 2)
            return refuse(l, "added_tokens", "an id is no small whole number");
        max = id > max ? id : max;
        *names_bytes += bl_json_get(value, "content").n;
    }
    if (*names_bytes > UINT32_MAX)
        return refuse(l, "model.vocab", "is too large");
    if (max >= *count * MAX_SPARSE + FREE_SPARSE)
        return bl_fail(l->err, BL_E_INPUT, l->path, "model.vocab", -1, "id %llu is too large for %llu tokens",
                       (unsigned long long)max, (unsigned long long)*count);
    l->t->size = (int)(max + 1);
    return BL_OK;
}

static bl_status allocate(loader *l, uint64_t names_bytes, uint64_t count, uint64_t merges)
{
    bl_tokenizer *t = l->t;
    uint64_t slots = 16, merge_slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    while (merge_slots < 2 * merges)
        merge_slots *= 2;
    t->tokens = calloc((size_t)t->size, sizeof *t->tokens);
    t->names = malloc(names_bytes);
    t->bytes = malloc(names_bytes);
    t->by_name = malloc(slots * sizeof *t->by_name);
    t->merges = malloc(merge_slots * sizeof *t->merges);
    if (!t->tokens || !t->names || !t->bytes || !t->by_name || !t->merges)
        return bl_fail(l->err, BL_E_NOMEM, l->path, NULL, -1, "out of memory for the vocabulary");
    t->by_name_mask = slots - 1;
    t->merges_mask = merge_slots - 1;
    memset(t->by_name, -1, slots * sizeof *t->by_name);
    for (uint64_t i = 0; i < merge_slots; i++)
        t->merges[i].rank = BL_NO_RANK;
    return BL_OK;
}

/* Enter a new id under the name that lies unescaped at the end of names. literal: the name is the text itself. */
static bl_status enter(loader *l, uint64_t id, uint32_t n, bool literal, const char *key)
{
    bl_tokenizer *t = l->t;
    const char *name = t->names + l->names_len;
    bl_token *k = &t->tokens[id];
    if (k->used)
        return bl_fail(l->err, BL_E_INPUT, l->path, key, -1, "id %llu stands for two tokens", (unsigned long long)id);
    k->used = true;
    k->name = l->names_len;
    k->name_len = n;
    k->bytes = l->bytes_len;
    if (literal)
        memcpy(t->bytes + l->bytes_len, name, k->bytes_len = n);
    else
        k->bytes_len = name_to_bytes(l, name, n, t->bytes + l->bytes_len);
    uint64_t slot = XXH3_64bits(name, n) & t->by_name_mask;
    while (t->by_name[slot] >= 0)
        slot = (slot + 1) & t->by_name_mask;
    t->by_name[slot] = (int32_t)id;
    l->names_len += n;
    l->bytes_len += k->bytes_len;
    return BL_OK;
}

static bl_status load_vocab(loader *l, bl_json vocab)
{
    bl_json key, value;
    uint64_t id;
    for (bl_json_iter it = bl_json_begin(vocab); bl_json_next(&it, &key, &value);) {
        bl_json_u64(value, &id);
        uint32_t n = (uint32_t)bl_json_string(key, l->t->names + l->names_len, key.n);
        BL_TRY(enter(l, id, n, false, "model.vocab"));
    }
    for (int cp = 0; cp < 512; cp++) {
        int b = l->byte_of[cp];
        if (b < 0)
            continue;
        char name[4];
        l->t->byte_id[b] = bl_tokenizer_find(l->t, name, bl_utf8_put((uint32_t)cp, name));
        bool in_utf8 = b < 0xC0 || (b > 0xC1 && b < 0xF5);
        if (in_utf8 && l->t->byte_id[b] < 0)
            return bl_fail(l->err, BL_E_INPUT, l->path, "model.vocab", -1, "has no token for the byte 0x%02X", (unsigned)b);
    }
    return BL_OK;
}

/* The two names of a merge, ["a", "b"] or "a b", unescaped into buf. */
static bl_status merge_names(loader *l, bl_json v, char *buf, size_t cap, const char **left, size_t *nl, const char **right,
                             size_t *nr)
{
    static const char form[] = "must be \"a b\" or [\"a\", \"b\"]";
    if (v.n >= cap)
        return refuse(l, "model.merges", "a merge is too long");
    *left = buf;
    if (v.kind == BL_JSON_STRING) {
        size_t n = bl_json_string(v, buf, cap);
        const char *space = memchr(buf, ' ', n);
        if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - buf)))
            return refuse(l, "model.merges", form);
        *nl = (size_t)(space - buf);
        *right = space + 1;
        *nr = n - *nl - 1;
        return BL_OK;
    }
    bl_json key, a = {0}, b = {0};
    bl_json_iter it = bl_json_begin(v);
    bool two = v.kind == BL_JSON_ARRAY && bl_json_count(v) == 2 && bl_json_next(&it, &key, &a) && bl_json_next(&it, &key, &b);
    if (!two || a.kind != BL_JSON_STRING || b.kind != BL_JSON_STRING)
        return refuse(l, "model.merges", form);
    *nl = bl_json_string(a, buf, cap);
    *right = buf + *nl;
    *nr = bl_json_string(b, buf + *nl, cap - *nl);
    return BL_OK;
}

static bl_status load_merges(loader *l, bl_json merges)
{
    bl_tokenizer *t = l->t;
    char buf[8192];
    bl_json key, value;
    uint32_t rank = 0;
    for (bl_json_iter it = bl_json_begin(merges); bl_json_next(&it, &key, &value); rank++) {
        const char *left = NULL, *right = NULL;
        size_t nl = 0, nr = 0;
        BL_TRY(merge_names(l, value, buf, sizeof buf, &left, &nl, &right, &nr));
        bl_merge m = {.rank = rank};
        m.left = bl_tokenizer_find(t, left, nl);
        m.right = bl_tokenizer_find(t, right, nr);
        memmove(buf + nl, right, nr);
        m.id = bl_tokenizer_find(t, buf, nl + nr);
        if (m.left < 0 || m.right < 0 || m.id < 0)
            return bl_fail(l->err, BL_E_INPUT, l->path, "model.merges", -1,
                           "merge %u names a token that is not in the vocabulary: '%.*s'", (unsigned)rank, (int)(nl + nr), buf);
        uint64_t slot = bl_merge_slot(t, m.left, m.right);
        while (t->merges[slot].rank != BL_NO_RANK && (t->merges[slot].left != m.left || t->merges[slot].right != m.right))
            slot = (slot + 1) & t->merges_mask;
        t->merges[slot] = m; /* a pair that comes twice has its later rank, as in the reference */
    }
    return BL_OK;
}

static bl_status load_model(loader *l, bl_json v, bl_json added)
{
    enum { TYPE, DROPOUT, UNK, PREFIX, SUFFIX, FUSE, FALLBACK, IGNORE, VOCAB, MERGES, KEYS };
    static const char *const names[KEYS] = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                            "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"};
    bl_json m[KEYS];
    BL_TRY(take(l, v, "model", names, m, KEYS));
    if (!bl_json_equals(m[TYPE], "BPE"))
        return refuse(l, "model.type", "must be BPE");
    BL_TRY(expect_none(l, m[DROPOUT], "model.dropout", false));
    BL_TRY(expect_none(l, m[UNK], "model.unk_token", false));
    BL_TRY(expect_none(l, m[PREFIX], "model.continuing_subword_prefix", true));
    BL_TRY(expect_none(l, m[SUFFIX], "model.end_of_word_suffix", true));
    BL_TRY(expect_bool(l, m[FALLBACK], "model.byte_fallback", false, false));
    BL_TRY(expect_bool(l, m[IGNORE], "model.ignore_merges", false, false));
    if (m[MERGES].kind != BL_JSON_ARRAY)
        return refuse(l, "model.merges", "must be a list");
    uint64_t names_bytes = 0, count = 0;
    BL_TRY(measure(l, m[VOCAB], added, &names_bytes, &count));
    BL_TRY(allocate(l, names_bytes, count, bl_json_count(m[MERGES])));
    BL_TRY(load_vocab(l, m[VOCAB]));
    return load_merges(l, m[MERGES]);
}

static bl_status load_added_token(loader *l, bl_json v)
{
    enum { ID, CONTENT, SINGLE, LSTRIP, RSTRIP, NORMALIZED, SPECIAL, KEYS };
    static const char *const names[KEYS] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"};
    bl_json m[KEYS];
    uint64_t id;
    bool normalized, special;
    BL_TRY(take(l, v, "added_tokens", names, m, KEYS));
    BL_TRY(expect_bool(l, m[SINGLE], "added_tokens.single_word", false, true));
    BL_TRY(expect_bool(l, m[LSTRIP], "added_tokens.lstrip", false, true));
    BL_TRY(expect_bool(l, m[RSTRIP], "added_tokens.rstrip", false, true));
    if (!bl_json_bool(m[NORMALIZED], &normalized) || !bl_json_bool(m[SPECIAL], &special))
        return refuse(l, "added_tokens", "normalized and special must be true or false");
    if (m[CONTENT].kind != BL_JSON_STRING || !bl_json_u64(m[ID], &id))
        return refuse(l, "added_tokens", "content must be a string and id a number");
    char *content = l->t->names + l->names_len;
    uint32_t n = (uint32_t)bl_json_string(m[CONTENT], content, m[CONTENT].n);
    if (n == 0 || n > MAX_ADDED_BYTES)
        return refuse(l, "added_tokens.content", "must have between 1 and 1024 bytes");
    int known = bl_tokenizer_find(l->t, content, n);
    if (known >= 0 && (uint64_t)known != id)
        return bl_fail(l->err, BL_E_INPUT, l->path, "added_tokens", -1, "'%.*s' has the id %llu here and %d elsewhere", (int)n,
                       content, (unsigned long long)id, known);
    bl_token *k = &l->t->tokens[id];
    if (known >= 0) {
        if (k->added)
            return bl_fail(l->err, BL_E_INPUT, l->path, "added_tokens", -1, "'%.*s' comes twice", (int)n, content);
        if (k->bytes_len != n || memcmp(l->t->bytes + k->bytes, content, n) != 0)
            return bl_fail(l->err, BL_E_INPUT, l->path, "added_tokens", -1,
                           "'%.*s' is other bytes in the vocabulary's alphabet than as text", (int)n, content);
    } else {
        BL_TRY(enter(l, id, n, true, "added_tokens"));
    }
    k->added = true;
    k->special = special;
    return bl_trie_add(&l->t->added[normalized], l->t->bytes + k->bytes, n, (int32_t)id, l->err);
}

static bl_status load(loader *l, const char *text, size_t n)
{
    enum { VERSION, TRUNCATION, PADDING, ADDED, NORMALIZER, PRE, POST, DECODER, MODEL, KEYS };
    static const char *const names[KEYS] = {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                            "post_processor", "decoder", "model"};
    bl_json root, m[KEYS], key, value;
    BL_TRY(bl_json_parse(text, n, NULL, l->path, &root, l->err));
    BL_TRY(take(l, root, "tokenizer", names, m, KEYS));
    BL_TRY(expect_none(l, m[TRUNCATION], "truncation", false));
    BL_TRY(expect_none(l, m[PADDING], "padding", false));
    BL_TRY(check_normalizer(l, m[NORMALIZER]));
    BL_TRY(load_pre_tokenizer(l, m[PRE]));
    /* A ByteLevel post-processor changes offsets only; others would add tokens. */
    if (m[POST].kind != BL_JSON_NONE && m[POST].kind != BL_JSON_NULL)
        BL_TRY(expect_type(l, m[POST], "post_processor", "ByteLevel"));
    BL_TRY(expect_type(l, m[DECODER], "decoder", "ByteLevel"));
    fill_alphabet(l);
    BL_TRY(load_model(l, m[MODEL], m[ADDED]));
    for (bl_json_iter it = bl_json_begin(m[ADDED]); bl_json_next(&it, &key, &value);)
        BL_TRY(load_added_token(l, value));
    return BL_OK;
}

bl_status bl_tokenizer_parse(bl_tokenizer **out, const char *text, size_t n, const char *name, bl_error *err)
{
    *out = NULL;
    bl_tokenizer *t = calloc(1, sizeof *t);
    if (!t || !(t->path = strdup(name ? name : "tokenizer"))) {
        free(t);
        return bl_fail(err, BL_E_NOMEM, name, NULL, -1, "out of memory");
    }
    bl_trie_init(&t->added[0]);
    bl_trie_init(&t->added[1]);
    loader l = {.t = t, .path = t->path, .err = err};
    bl_status s = load(&l, text, n);
    if (s != BL_OK)
        bl_tokenizer_close(&t);
    *out = t;
    return s;
}
