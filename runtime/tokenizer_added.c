/* Added tokens: found in the raw text before anything else, leftmost first, longest at a place. */
#include "runtime/tokenizer_impl.h"

#include <stdlib.h>

void bl_trie_init(bl_trie *t)
{
    *t = (bl_trie){0};
    for (int i = 0; i < 256; i++)
        t->first[i] = -1;
}

void bl_trie_free(bl_trie *t)
{
    free(t->nodes);
    bl_trie_init(t);
}

static int32_t new_node(bl_trie *t, uint8_t byte, int32_t sibling, bl_error *err)
{
    if (t->count == t->capacity) {
        if (t->capacity > INT32_MAX / 2) {
            bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "too many added tokens");
            return -1;
        }
        int32_t capacity = t->capacity ? 2 * t->capacity : 256;
        bl_trie_node *p = realloc(t->nodes, (size_t)capacity * sizeof *p);
        if (!p) {
            bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for added tokens");
            return -1;
        }
        t->nodes = p;
        t->capacity = capacity;
    }
    t->nodes[t->count] = (bl_trie_node){.child = -1, .sibling = sibling, .id = -1, .byte = byte};
    return t->count++;
}

static int32_t child_of(const bl_trie *t, int32_t node, uint8_t byte)
{
    int32_t c = t->nodes[node].child;
    while (c >= 0 && t->nodes[c].byte != byte)
        c = t->nodes[c].sibling;
    return c;
}

bl_status bl_trie_add(bl_trie *t, const char *s, size_t n, int32_t id, bl_error *err)
{
    const uint8_t *b = (const uint8_t *)s;
    int32_t node = t->first[b[0]];
    if (node < 0) {
        node = new_node(t, b[0], -1, err);
        if (node < 0)
            return BL_E_NOMEM;
        t->first[b[0]] = node;
    }
    for (size_t i = 1; i < n; i++) {
        int32_t next = child_of(t, node, b[i]);
        if (next < 0) {
            next = new_node(t, b[i], t->nodes[node].child, err);
            if (next < 0)
                return BL_E_NOMEM;
            t->nodes[node].child = next;
        }
        node = next;
    }
    t->nodes[node].id = id;
    return BL_OK;
}

int32_t bl_trie_find(const bl_trie *t, const char *text, size_t n, size_t from, size_t *start, size_t *end)
{
    const uint8_t *b = (const uint8_t *)text;
    if (t->count == 0)
        return -1;
    for (size_t i = from; i < n; i++) {
        int32_t node = t->first[b[i]], id = -1;
        for (size_t j = i + 1; node >= 0; j++) {
            if (t->nodes[node].id >= 0) {
                id = t->nodes[node].id;
                *end = j;
            }
            node = j < n ? child_of(t, node, b[j]) : -1;
        }
        if (id >= 0) {
            *start = i;
            return id;
        }
    }
    return -1;
}
