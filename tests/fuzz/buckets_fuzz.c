#include "tests/fuzz/fuzz.h"

#include "convert/bucket_diff.h"
#include "formats/delta.h"
#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* ---- streams of a delta */

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

static bl_status collect(void *arg, const void *data, size_t n, bl_error *err)
{
    bytes *b = arg;
    b->data = realloc(b->data, b->n + n + 1);
    BL_MUST(b->data != NULL);
    memcpy(b->data + b->n, data, n);
    b->n += n;
    (void)err;
    return BL_OK;
}

static uint8_t old_byte(size_t i)
{
    return (uint8_t)(i * 31 + 7);
}

/* Apply a stream that says to hold t->bytes to a tensor of total bytes, in pieces; what comes of it into after. */
static bl_status apply(bl_delta_encoding encoding, const bytes *stream, bl_delta_tensor *t, size_t total, size_t piece, uint8_t *after)
{
    char path[40];
    bl_file *f;
    bl_patch *p;
    int fd = memfd_create("stream", MFD_CLOEXEC);
    BL_MUST(fd >= 0 && write(fd, stream->data, stream->n) == (ssize_t)stream->n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    BL_MUST(bl_file_open(&f, path, NULL) == BL_OK);
    t->name = "t";
    t->nbytes = stream->n;
    bl_status s = bl_patch_open(&p, encoding, f, 0, t, total, NULL);
    for (size_t at = 0, n; s == BL_OK && at < total; at += n) {
        n = total - at < piece ? total - at : piece;
        uint8_t *exact = malloc(n); /* so that a write past it shows */
        BL_MUST(exact != NULL);
        for (size_t i = 0; i < n; i++) {
            exact[i] = old_byte(at + i);
        }
        s = bl_patch_apply(p, exact, at, n, NULL);
        memcpy(after + at, exact, n);
        free(exact);
    }
    s = s == BL_OK ? bl_patch_end(p, NULL) : s;
    bl_patch_close(&p);
    bl_file_close(&f);
    close(fd);
    BL_MUST(s == BL_OK || s == BL_E_INPUT || s == BL_E_NOMEM);
    return s;
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

/* What content means, said a second time; false: nothing. */
static bool expected(bl_delta_encoding encoding, const bytes *content, size_t total, uint8_t *after)
{
    for (size_t i = 0; i < total; i++) {
        after[i] = old_byte(i);
    }
    if (encoding == BL_DELTA_XOR) {
        for (size_t i = 0; content->n == total && i < total; i++) {
            after[i] ^= content->data[i];
        }
        return content->n == total;
    }
    uint64_t end = 0;
    for (size_t at = 0; at < content->n;) {
        if (content->n - at < 16) {
            return false;
        }
        uint64_t begin = get_u64(content->data + at), n = get_u64(content->data + at + 8);
        at += 16;
        if (begin < end || begin > total || n == 0 || n > total - begin || n > content->n - at) {
            return false;
        }
        memcpy(after + begin, content->data + at, n);
        at += n;
        end = begin + n;
    }
    return true;
}

/* Content that is compressed here, so that what it says is looked at: applied, it does what it should, or is refused. */
static void check_content(bl_delta_encoding encoding, const bytes *content, size_t total, size_t piece, bool lie)
{
    uint8_t *want = malloc(total + 1), *have = malloc(total + 1);
    bl_zstd_writer *w;
    bytes stream = {0};
    bl_delta_tensor t = {.bytes = content->n + lie};
    BL_MUST(want && have && bl_zstd_writer_open(&w, 1, collect, &stream, NULL) == BL_OK);
    BL_MUST(bl_zstd_write(w, content->data, content->n, NULL) == BL_OK && bl_zstd_writer_close(&w, NULL) == BL_OK);
    bool sound = expected(encoding, content, total, want);
    bl_status s = apply(encoding, &stream, &t, total, piece, have);
    BL_MUST((s == BL_OK) == (sound && !lie));
    BL_MUST(s != BL_OK || memcmp(want, have, total) == 0);
    free(want);
    free(have);
    free(stream.data);
}

/* What turns the old bytes into others, does. */
static void check_difference(bl_delta_encoding encoding, const bytes *after, size_t piece, size_t unit)
{
    uint8_t *old = malloc(after->n + 1), *have = malloc(after->n + 1);
    bytes stream = {0};
    bl_delta_tensor t = {0};
    bl_diff *d;
    BL_MUST(old && have && bl_diff_create(&d, encoding, 1, collect, &stream, NULL) == BL_OK);
    for (size_t i = 0; i < after->n; i++) {
        old[i] = old_byte(i);
    }
    for (size_t at = 0, n; at < after->n; at += n) {
        n = after->n - at < piece ? after->n - at : piece;
        BL_MUST(bl_diff_add(d, old + at, after->data + at, at, n, unit, NULL) == BL_OK);
    }
    BL_MUST(bl_diff_end(d, &t.bytes, NULL) == BL_OK);
    bool same = memcmp(old, after->data, after->n) == 0;
    BL_MUST((t.bytes == 0) == same && (stream.n == 0) == same);
    BL_MUST(same || apply(encoding, &stream, &t, after->n, piece, have) == BL_OK);
    BL_MUST(same || memcmp(have, after->data, after->n) == 0);
    bl_diff_destroy(&d);
    free(old);
    free(have);
    free(stream.data);
}

/* A letter, how large the tensor and the pieces are, and bytes: x, r: a stream; X, R: what one holds; D, E: bytes that it leads to. */
static void check_stream(const uint8_t *data, size_t size)
{
    if (size < 5 || !data[0] || !strchr("xrXRDE", data[0])) { /* no stream is empty */
        return;
    }
    bl_delta_encoding encoding = strchr("xXD", data[0]) ? BL_DELTA_XOR : BL_DELTA_RANGES;
    size_t total = data[1] % 128 * (data[1] & 128 ? 1021 : 1), piece = (size_t)data[2] * 257 + 1;
    bytes rest = {.data = malloc(size - 3), .n = size - 4}; /* one more, for empty ones */
    BL_MUST(rest.data != NULL);
    memcpy(rest.data, data + 4, rest.n);
    if (data[0] == 'x' || data[0] == 'r') {
        uint8_t *after = malloc(total + 1);
        bl_delta_tensor t = {.bytes = data[3]};
        BL_MUST(after != NULL);
        apply(encoding, &rest, &t, total, piece, after);
        free(after);
    } else if (data[0] == 'X' || data[0] == 'R') {
        total = data[3] & 2 ? rest.n : total;
        check_content(encoding, &rest, total, piece, data[3] & 1);
    } else {
        check_difference(encoding, &rest, piece, (size_t)data[3] + 1);
    }
    free(rest.data);
}

/* Either kind of description: what is neither is refused by both. Or a stream. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_arena arena = {0};
    bl_buckets b;
    bl_delta d;
    bl_error err = {0};
    if (size) {
        check_stream(data, size);
    }
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
