/* What the tokenizer's own files share: tables filled once by tokenizer_load.c, read-only afterwards. */
#ifndef BL_RUNTIME_TOKENIZER_IMPL_H
#define BL_RUNTIME_TOKENIZER_IMPL_H

#include "runtime/tokenizer.h"

/* PCRE2's header needs its width chosen first; only tokenizer_split.c looks inside. */
struct pcre2_real_code_8;

#define BL_MAX_SPLITS 16
#define BL_NO_RANK UINT32_MAX

/* One id. The name is the string in the file (byte alphabet); bytes are what it stands for. */
typedef struct bl_token {
    uint32_t name, name_len;   /* offset and length in names */
    uint32_t bytes, bytes_len; /* offset and length in bytes */
    bool used, added, special;
} bl_token;

/* left + right become id; lower ranks merge first. rank BL_NO_RANK = empty slot. */
typedef struct bl_merge {
    int32_t left, right, id;
    uint32_t rank;
} bl_merge;

/* A node of the added-token tries: children are a linked list. */
typedef struct bl_trie_node {
    int32_t child, sibling; /* -1 = none */
    int32_t id;             /* token that ends here, -1 = none */
    uint8_t byte;
} bl_trie_node;

typedef struct bl_trie {
    bl_trie_node *nodes;
    int32_t count, capacity;
    int32_t first[256]; /* by first byte, -1 = none */
} bl_trie;

struct bl_tokenizer {
    bl_token *tokens; /* [size] */
    int size;
    char *names, *bytes;
    int32_t *by_name; /* open addressing over names, -1 = empty */
    uint64_t by_name_mask;
    bl_merge *merges; /* open addressing over (left, right) */
    uint64_t merges_mask;
    int32_t byte_id[256];   /* token of a single byte, -1 = none */
    bl_trie added[2];       /* matched one after the other: not normalised, then normalised ones */
    struct pcre2_real_code_8 *splits[BL_MAX_SPLITS];
    int split_count;
    char *path; /* for errors */
};

/* ---- tokenizer.c */
int bl_tokenizer_find(const bl_tokenizer *t, const char *name, size_t n);

/* ---- added tokens */
void bl_trie_init(bl_trie *t);
bl_status bl_trie_add(bl_trie *t, const char *s, size_t n, int32_t id, bl_error *err);
void bl_trie_free(bl_trie *t);
/* Leftmost, then longest token in text[from..n): *start, *end (bytes) and its id; -1 when there is none. */
int32_t bl_trie_find(const bl_trie *t, const char *text, size_t n, size_t from, size_t *start, size_t *end);

/* ---- splits */
/* Compile one pattern (UTF, UCP, JIT where there is one). key names it in errors. */
bl_status bl_split_compile(struct pcre2_real_code_8 **out, const char *pattern, size_t n, const char *path, const char *key,
                           bl_error *err);
void bl_split_free(struct pcre2_real_code_8 *code);

/* Scratch of one encode call. */
typedef struct bl_encoder {
    const bl_tokenizer *t;
    bl_ids *out;
    bl_error *err;
    void *match, *context; /* PCRE2 */
    uint64_t *heap;        /* long pieces */
    struct bl_symbol *symbols;
    size_t room; /* symbols that heap and symbols have room for */
} bl_encoder;

bl_status bl_encoder_init(bl_encoder *e, const bl_tokenizer *t, bl_ids *out, bl_error *err);
void bl_encoder_free(bl_encoder *e);
/* Cut text by the patterns, each on the pieces of the one before, and append the ids of every piece. */
bl_status bl_split_encode(bl_encoder *e, const char *text, size_t n);

/* ---- byte pair merging */
/* Append the ids of one piece. */
bl_status bl_bpe_encode(bl_encoder *e, const char *piece, size_t n);
/* The same through the priority queue whatever the length; bl_bpe_encode uses it for long pieces. */
bl_status bl_bpe_encode_long(bl_encoder *e, const char *piece, size_t n);
/* Room for n more ids. */
bl_status bl_ids_reserve(bl_ids *l, size_t n, bl_error *err);

static inline uint64_t bl_merge_slot(const bl_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) & t->merges_mask;
}

/* The merge of left and right, NULL when there is none. */
static inline const bl_merge *bl_merge_find(const bl_tokenizer *t, int32_t left, int32_t right)
{
    for (uint64_t i = bl_merge_slot(t, left, right);; i = (i + 1) & t->merges_mask) {
        const bl_merge *m = &t->merges[i];
        if (m->rank == BL_NO_RANK)
            return NULL;
        if (m->left == left && m->right == right)
            return m;
    }
}

#endif
