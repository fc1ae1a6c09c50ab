#include "formats/json_keys.h"

#include "formats/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Objects with at most this many keys are compared pair by pair, larger ones are sorted by hash. */
#define FEW_KEYS 32u

void bl_json_keys_begin(bl_json_keys *k, const char *text)
{
    *k = (bl_json_keys){.text = text};
    if (getrandom(&k->seed, sizeof k->seed, GRND_NONBLOCK) != (ssize_t)sizeof k->seed) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        k->seed = (uint64_t)t.tv_nsec << 32 ^ (uint64_t)(uintptr_t)&t;
    }
}

void bl_json_keys_end(bl_json_keys *k)
{
    free(k->keys);
    free(k->scratch);
    *k = (bl_json_keys){0};
}

/* The unescaped bytes of a key, in the text itself or in scratch. */
static bl_status key_bytes(bl_json_keys *k, bl_json key, bool escaped, const char **out, size_t *n)
{
    *out = key.p + 1;
    *n = key.n - 2;
    if (!escaped) {
        return BL_OK;
    }
    if (key.n > k->scratch_cap) {
        char *p = realloc(k->scratch, key.n + key.n / 2);
        if (!p) {
            return BL_E_NOMEM;
        }
        k->scratch = p;
        k->scratch_cap = key.n + key.n / 2;
    }
    *n = bl_json_string(key, k->scratch, k->scratch_cap);
    *out = k->scratch;
    return BL_OK;
}

bl_status bl_json_keys_add(bl_json_keys *k, bl_json key, bool escaped)
{
    const char *s;
    size_t n;
    BL_TRY(key_bytes(k, key, escaped, &s, &n));
    bl_json_key *grown = bl_grow(k->keys, &k->cap, k->count, sizeof *grown);
    if (!grown) {
        return BL_E_NOMEM;
    }
    k->keys = grown;
    k->keys[k->count++] =
        (bl_json_key){(uint32_t)XXH3_64bits_withSeed(s, n, k->seed), (uint32_t)(key.p - k->text)};
    return BL_OK;
}

static bl_json key_at(const bl_json_keys *k, uint32_t at)
{
    const char *p = k->text + at, *q = p + 1;
    while (*q != '"') {
        q += *q == '\\' ? 2 : 1;
    }
    return (bl_json){p, (size_t)(q + 1 - p), BL_JSON_STRING};
}

/* Do two keys hold the same text once unescaped? Called on equal hashes only. */
static bool same_key(const bl_json_keys *k, const bl_json_key *a, const bl_json_key *b)
{
    bl_json s = key_at(k, a->at), t = key_at(k, b->at);
    if (!memchr(s.p, '\\', s.n) && !memchr(t.p, '\\', t.n)) {
        return s.n == t.n && memcmp(s.p, t.p, s.n) == 0;
    }
    char *buf = malloc(s.n + t.n);
    if (!buf) {
        return true; /* all but certain */
    }
    size_t n = bl_json_string(s, buf, s.n), m = bl_json_string(t, buf + s.n, t.n);
    bool same = n == m && memcmp(buf, buf + s.n, n) == 0;
    free(buf);
    return same;
}

/* Sort by hash, a byte at a time, lowest first; room is for n keys. Stable: equal hashes stay in the order of
 * the text. */
static void sort_keys(bl_json_key *keys, size_t n, bl_json_key *room)
{
    bl_json_key *from = keys, *to = room;
    for (unsigned shift = 0; shift < 32; shift += 8) {
        size_t count[256] = {0}, at = 0;
        for (size_t i = 0; i < n; i++) {
            count[from[i].hash >> shift & 255]++;
        }
        for (int d = 0; d < 256; d++) {
            size_t here = count[d];
            count[d] = at;
            at += here;
        }
        for (size_t i = 0; i < n; i++) {
            to[count[from[i].hash >> shift & 255]++] = from[i];
        }
        bl_json_key *swap = from;
        from = to;
        to = swap;
    }
}

bl_status bl_json_keys_close(bl_json_keys *k, size_t first, bl_json *twice)
{
    bl_json_key *keys = k->keys ? k->keys + first : NULL; /* no key yet: NULL + 0 is undefined */
    size_t n = k->count - first;
    bool sorted = n > FEW_KEYS;
    k->count = first;
    if (sorted) {
        bl_json_key *room = malloc(n * sizeof *room);
        if (!room) {
            return BL_E_NOMEM;
        }
        sort_keys(keys, n, room);
        free(room);
    }
    for (size_t i = 1; i < n; i++) {
        for (size_t j = i; j-- > 0 && (!sorted || keys[j].hash == keys[i].hash);) {
            if (keys[j].hash == keys[i].hash && same_key(k, &keys[j], &keys[i])) {
                *twice = key_at(k, keys[i].at);
                return BL_E_INPUT;
            }
        }
    }
    return BL_OK;
}
