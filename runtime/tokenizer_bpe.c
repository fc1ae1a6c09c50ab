/* Byte pair merging of one piece: always the lowest rank next, the leftmost of equals first. */
#include "runtime/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

/* Pieces up to this long are merged by rescanning an array, which beats a queue there. */
#define SHORT_PIECE 48

/* A symbol of a long piece, a list in text order. rank is that of (this, next), BL_NO_RANK when they do not merge. */
typedef struct bl_symbol {
    int32_t id, made; /* made: what (this, next) become */
    uint32_t prev, next, rank;
} bl_symbol;

#define NO_SYMBOL UINT32_MAX

bl_status bl_ids_reserve(bl_ids *l, size_t n, bl_error *err)
{
    if (l->capacity - l->count >= n)
        return BL_OK;
    size_t capacity = l->capacity + l->capacity / 2 + n + 16;
    if (capacity > SIZE_MAX / sizeof *l->ids)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "too many tokens");
    int32_t *p = realloc(l->ids, capacity * sizeof *p);
    if (!p)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for %zu tokens", capacity);
    l->ids = p;
    l->capacity = capacity;
    return BL_OK;
}

static size_t merge_short(const bl_tokenizer *t, int32_t *ids, size_t n)
{
    uint32_t rank[SHORT_PIECE];
    int32_t made[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) {
        const bl_merge *m = bl_merge_find(t, ids[i], ids[i + 1]);
        rank[i] = m ? m->rank : BL_NO_RANK;
        made[i] = m ? m->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == BL_NO_RANK)
            break;
        ids[best] = made[best];
        size_t tail = n - best - 2; /* symbols after the pair */
        memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
        if (tail > 0) {
            memmove(rank + best, rank + best + 1, tail * sizeof *rank);
            memmove(made + best, made + best + 1, tail * sizeof *made);
        }
        n--;
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const bl_merge *m = bl_merge_find(t, ids[i], ids[i + 1]);
            rank[i] = m ? m->rank : BL_NO_RANK;
            made[i] = m ? m->id : -1;
        }
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t v = heap[i];
    for (size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && heap[c + 1] < heap[c])
            c++;
        if (heap[c] >= v)
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = v;
}

static void sift_up(uint64_t *heap, size_t i)
{
    uint64_t v = heap[i];
    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

/* Look up the pair that starts at symbol i; true when it merges. */
static bool rank_pair(const bl_tokenizer *t, bl_symbol *s, uint32_t i)
{
    const bl_merge *m = s[i].next == NO_SYMBOL ? NULL : bl_merge_find(t, s[i].id, s[s[i].next].id);
    s[i].rank = m ? m->rank : BL_NO_RANK;
    s[i].made = m ? m->id : -1;
    return m != NULL;
}

/* Merge the list of n symbols. A queue entry is rank << 32 | place; one whose rank is no longer that of its place is stale. */
static void merge_long(const bl_tokenizer *t, bl_symbol *s, uint64_t *heap, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (rank_pair(t, s, (uint32_t)i))
            heap[count++] = (uint64_t)s[i].rank << 32 | i;
    for (size_t i = count / 2; i-- > 0;)
        sift_down(heap, count, i);
    while (count > 0) {
        uint64_t top = heap[0];
        uint32_t at = (uint32_t)top;
        bool live = s[at].rank == (uint32_t)(top >> 32);
        heap[0] = heap[--count];
        if (count > 0)
            sift_down(heap, count, 0);
        if (!live)
            continue;
        uint32_t gone = s[at].next, pair[2] = {s[at].prev, at};
        s[at].id = s[at].made;
        s[at].next = s[gone].next;
        if (s[at].next != NO_SYMBOL)
            s[s[at].next].prev = at;
        s[gone].rank = BL_NO_RANK;
        for (int k = 0; k < 2; k++) {
            if (pair[k] != NO_SYMBOL && rank_pair(t, s, pair[k])) {
                heap[count] = (uint64_t)s[pair[k]].rank << 32 | pair[k];
                sift_up(heap, count++);
            }
        }
    }
}

static bl_status make_room(bl_encoder *e, size_t n)
{
    if (n <= e->room)
        return BL_OK;
    free(e->heap);
    free(e->symbols);
    e->room = 0;
    /* One entry per pair at first, and every merge takes one out and puts at most two in. */
    e->heap = malloc(2 * n * sizeof *e->heap);
    e->symbols = malloc(n * sizeof *e->symbols);
    if (!e->heap || !e->symbols)
        return bl_fail(e->err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a piece of %zu bytes", n);
    e->room = n;
    return BL_OK;
}

bl_status bl_bpe_encode_long(bl_encoder *e, const char *piece, size_t n)
{
    if (n >= UINT32_MAX / 4)
        return bl_fail(e->err, BL_E_INPUT, NULL, NULL, -1, "text has a piece of %zu bytes without a place to split", n);
    BL_TRY(make_room(e, n));
    bl_symbol *s = e->symbols;
    for (size_t i = 0; i < n; i++)
        s[i] = (bl_symbol){.id = e->t->byte_id[(uint8_t)piece[i]],
                           .made = -1,
                           .prev = i ? (uint32_t)(i - 1) : NO_SYMBOL,
                           .next = i + 1 < n ? (uint32_t)(i + 1) : NO_SYMBOL,
                           .rank = BL_NO_RANK};
    merge_long(e->t, s, e->heap, n);
    size_t left = 0;
    for (uint32_t i = 0; i != NO_SYMBOL; i = s[i].next)
        left++;
    BL_TRY(bl_ids_reserve(e->out, left, e->err));
    for (uint32_t i = 0; i != NO_SYMBOL; i = s[i].next)
        e->out->ids[e->out->count++] = s[i].id;
    return BL_OK;
}

bl_status bl_bpe_encode(bl_encoder *e, const char *piece, size_t n)
{
    if (n > SHORT_PIECE)
        return bl_bpe_encode_long(e, piece, n);
    BL_TRY(bl_ids_reserve(e->out, n, e->err));
    int32_t *ids = e->out->ids + e->out->count;
    for (size_t i = 0; i < n; i++)
        ids[i] = e->t->byte_id[(uint8_t)piece[i]];
    e->out->count += merge_short(e->t, ids, n);
    return BL_OK;
}
