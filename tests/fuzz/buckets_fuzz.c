#include "tests/fuzz/fuzz.h"

#include "formats/delta.h"
#include "formats/json.h"

#include <stdlib.h>
#include <string.h>

static void check_buckets(const bl_buckets *b)
{
    uint64_t groups = 0;
    for (size_t i = 0; i < b->count; i++) {
        const bl_bucket *k = &b->buckets[i];
        uint64_t at = 0, next = groups;
        BL_MUST(k->count > 0);
        for (size_t t = 0; t < k->count; t++) {
            const bl_bucket_tensor *e = &k->tensors[t];
            uint64_t width = bl_dtype_bits(e->tensor.dtype) / 8;
            BL_MUST(e->tensor.file == i && width > 0);
            BL_MUST(e->tensor.offset >= at && e->tensor.offset % b->align == 0 && e->tensor.offset % width == 0);
            BL_MUST(e->tensor.nbytes <= k->nbytes - e->tensor.offset);
            BL_MUST(e->group >= groups);
            BL_MUST(!e->of || (e->row < e->rows && e->tensor.shape[0] <= e->rows - e->row));
            next = e->group >= next ? e->group + 1 : next;
            at = e->tensor.offset + e->tensor.nbytes;
        }
        BL_MUST(at == k->nbytes);
        groups = next;
    }
}

/* What was read can be written, and reads the same. */
static void again(const bl_buckets *b)
{
    bl_arena arena = {0};
    bl_buckets second;
    bl_error err = {0};
    char *text, *other;
    size_t n, m;
    BL_MUST(bl_buckets_text(b, &text, &n, &err) == BL_OK);
    BL_MUST(bl_buckets_parse(text, n, "again", &arena, &second, &err) == BL_OK);
    BL_MUST(bl_buckets_text(&second, &other, &m, &err) == BL_OK);
    BL_MUST(n == m && memcmp(text, other, n) == 0);
    free(text);
    free(other);
    for (int elements = 0; elements < 2; elements++) {
        BL_MUST(bl_buckets_flattened(b, elements, &text, &n, &err) == BL_OK);
        bl_json root;
        BL_MUST(bl_json_parse(text, n, NULL, "flattened", &root, &err) == BL_OK);
        free(text);
    }
    bl_arena_reset(&arena);
}

static void check_delta(const bl_delta *d)
{
    bl_error err = {0};
    char *text;
    size_t n;
    for (size_t i = 0; i < d->count; i++) {
        uint64_t at = 0;
        for (size_t t = 0; t < d->files[i].count; t++) {
            BL_MUST(d->files[i].tensors[t].offset == at && d->files[i].tensors[t].nbytes > 0);
            at += d->files[i].tensors[t].nbytes;
        }
        BL_MUST(at == d->files[i].nbytes && (i == 0 || d->files[i].bucket > d->files[i - 1].bucket));
    }
    BL_MUST(bl_delta_text(d, &text, &n, &err) == BL_OK);
    free(text);
}

/* Either kind: what is neither is refused by both. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_arena arena = {0};
    bl_buckets b;
    bl_delta d;
    bl_error err = {0};
    if (bl_buckets_parse((const char *)data, size, "input", &arena, &b, &err) == BL_OK) {
        check_buckets(&b);
        again(&b);
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    bl_error_clear(&err);
    if (bl_delta_parse((const char *)data, size, "input", &arena, &d, &err) == BL_OK) {
        check_delta(&d);
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    bl_arena_reset(&arena);
    return 0;
}
