#include "convert/bucket_diff.h"

#include "tests/unit/scratch.h"

#include "formats/output.h"

/* A sink: a file in the scratch folder. */
typedef struct spool {
    bl_output *out;
    uint64_t n;
} spool;

static bl_status to_file(void *arg, const void *data, size_t n, bl_error *err)
{
    spool *s = arg;
    BL_TRY(bl_output_write(s->out, data, n, s->n, err));
    s->n += n;
    return BL_OK;
}

/* A tensor of total bytes, the old one all zero; the new one has the byte 7 at each place of at. */
typedef struct case_of {
    uint64_t total;
    const uint64_t *at;
    size_t count;
} case_of;

enum { CHUNK = 4 << 20 };
static uint8_t zeros[CHUNK], chunk[CHUNK];

/* Bytes [offset, offset + n) of the new tensor; false: they are zero. */
static bool new_bytes(const case_of *c, uint64_t offset, uint64_t n)
{
    bool any = false;
    for (size_t i = 0; i < c->count; i++) {
        if (c->at[i] >= offset && c->at[i] - offset < n) {
            if (!any) {
                memset(chunk, 0, n);
            }
            chunk[c->at[i] - offset] = 7;
            any = true;
        }
    }
    return any;
}

static void make(const case_of *c, bl_delta_encoding encoding, const char *path, bl_delta_tensor *t)
{
    bl_diff *d;
    bl_error err = {0};
    spool s = {0};
    assert_int_equal(bl_output_open(&s.out, path, 0, &err), BL_OK);
    assert_int_equal(bl_diff_create(&d, encoding, 1, to_file, &s, &err), BL_OK);
    for (uint64_t at = 0, n; at < c->total; at += n) {
        n = c->total - at < CHUNK ? c->total - at : CHUNK;
        bool any = new_bytes(c, at, n);
        assert_int_equal(bl_diff_add(d, zeros, any ? chunk : zeros, at, n, 1 << 16, &err), BL_OK);
    }
    *t = (bl_delta_tensor){.name = "t"};
    assert_int_equal(bl_diff_end(d, &t->bytes, &err), BL_OK);
    t->nbytes = s.n;
    bl_diff_destroy(&d);
    assert_int_equal(bl_output_commit(&s.out, &err), BL_OK);
}

/* Apply to zeros; *equal: it gives the new bytes. */
static bl_status apply(const case_of *c, bl_delta_encoding encoding, const char *path, const bl_delta_tensor *t, bl_error *err)
{
    bl_file *f;
    bl_patch *p;
    static uint8_t data[CHUNK];
    assert_int_equal(bl_file_open(&f, path, err), BL_OK);
    bl_status s = bl_patch_open(&p, encoding, f, 0, t, c->total, err);
    bool dirty = true;
    for (uint64_t at = 0, n; s == BL_OK && at < c->total; at += n) {
        n = c->total - at < CHUNK ? c->total - at : CHUNK;
        if (dirty) {
            memset(data, 0, sizeof data);
        }
        s = bl_patch_apply(p, data, at, n, err);
        dirty = new_bytes(c, at, n);
        if (s == BL_OK) {
            assert_true(memcmp(data, dirty ? chunk : zeros, n) == 0); /* cmocka's own takes its time */
        }
    }
    s = s == BL_OK ? bl_patch_end(p, err) : s;
    bl_patch_close(&p);
    bl_file_close(&f);
    return s;
}

static void round_trip(const case_of *c, bl_delta_encoding encoding)
{
    char path[400];
    bl_delta_tensor t;
    bl_error err = {0};
    snprintf(path, sizeof path, "%s/stream", scratch_root);
    make(c, encoding, path, &t);
    assert_int_equal(apply(c, encoding, path, &t, &err), BL_OK);
    if (encoding == BL_DELTA_XOR) {
        assert_true(t.bytes == c->total);
    }
    if (c->total < CHUNK) {
        t.bytes++;
        assert_int_equal(apply(c, encoding, path, &t, &err), BL_E_INPUT);
    }
}

/* Places beyond 32 bits, and around the border. */
static void beyond_four_gibibytes(void **state)
{
    (void)state;
    static const uint64_t at[] = {5, ((uint64_t)1 << 32) - 1, (uint64_t)1 << 32, ((uint64_t)1 << 32) + 3 * CHUNK + 11};
    const case_of c = {.total = ((uint64_t)1 << 32) + 3 * CHUNK + 12, .at = at, .count = 4};
    round_trip(&c, BL_DELTA_RANGES);
    round_trip(&c, BL_DELTA_XOR);
}

static void small(void **state)
{
    (void)state;
    static const uint64_t at[] = {0, 1, 65535, 65536, 300000};
    for (int e = BL_DELTA_XOR; e <= BL_DELTA_RANGES; e++) {
        for (size_t n = 1; n <= 5; n++) {
            const case_of c = {.total = 300001, .at = at, .count = n};
            round_trip(&c, (bl_delta_encoding)e);
        }
    }
}

static void nothing_differs(void **state)
{
    (void)state;
    char path[400];
    bl_delta_tensor t;
    const case_of c = {.total = 3 * CHUNK + 1};
    snprintf(path, sizeof path, "%s/none", scratch_root);
    for (int e = BL_DELTA_XOR; e <= BL_DELTA_RANGES; e++) {
        make(&c, (bl_delta_encoding)e, path, &t);
        assert_true(t.bytes == 0 && t.nbytes == 0);
    }
}

/* A stream of records that nobody makes. */
static bl_status forged(const uint64_t *words, size_t count, uint64_t total)
{
    char path[400];
    bl_error err = {0};
    spool s = {0};
    bl_zstd_writer *w;
    snprintf(path, sizeof path, "%s/forged", scratch_root);
    assert_int_equal(bl_output_open(&s.out, path, 0, &err), BL_OK);
    assert_int_equal(bl_zstd_writer_open(&w, 1, to_file, &s, &err), BL_OK);
    for (size_t i = 0; i < count; i++) {
        uint8_t b[8];
        for (int k = 0; k < 8; k++) {
            b[k] = (uint8_t)(words[i] >> (8 * k));
        }
        assert_int_equal(bl_zstd_write(w, b, sizeof b, &err), BL_OK);
    }
    assert_int_equal(bl_zstd_writer_close(&w, &err), BL_OK);
    assert_int_equal(bl_output_commit(&s.out, &err), BL_OK);
    const bl_delta_tensor t = {.name = "t", .nbytes = s.n, .bytes = 8 * count};
    bl_file *f;
    bl_patch *p;
    uint8_t data[64] = {0};
    assert_int_equal(bl_file_open(&f, path, &err), BL_OK);
    bl_status r = bl_patch_open(&p, BL_DELTA_RANGES, f, 0, &t, total, &err);
    r = r == BL_OK ? bl_patch_apply(p, data, 0, sizeof data, &err) : r;
    r = r == BL_OK ? bl_patch_end(p, &err) : r;
    bl_patch_close(&p);
    bl_file_close(&f);
    return r;
}

static void forged_records(void **state)
{
    (void)state;
    static const uint64_t sound[] = {8, 8, 1, 16, 8, 2}, overlap[] = {8, 8, 1, 15, 8, 2}, back[] = {16, 8, 1, 8, 8, 2}, empty[] = {8, 0},
                          past[] = {60, 8, 1}, wraps[] = {8, UINT64_MAX - 4, 1}, far[] = {UINT64_MAX, 8, 1}, cut[] = {8, 16, 1},
                          half[] = {8, 8, 1, 20};
    assert_int_equal(forged(sound, 6, 64), BL_OK);
    assert_int_equal(forged(overlap, 6, 64), BL_E_INPUT);
    assert_int_equal(forged(back, 6, 64), BL_E_INPUT);
    assert_int_equal(forged(empty, 2, 64), BL_E_INPUT);
    assert_int_equal(forged(past, 3, 64), BL_E_INPUT);
    assert_int_equal(forged(wraps, 3, 64), BL_E_INPUT);
    assert_int_equal(forged(far, 3, 64), BL_E_INPUT);
    assert_int_equal(forged(cut, 3, 64), BL_E_INPUT);
    assert_int_equal(forged(half, 4, 64), BL_E_INPUT);
}

/* What is stored plainly, or in another format, is no zstd stream. */
static void other_streams(void **state)
{
    (void)state;
    static const char *const texts[] = {"plain text that is no stream at all", "\x1f\x8b\x08 gzip",
                                         "\x28\xb5\x2f\xfd", "\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[400];
        bl_error err = {0};
        bl_file *f;
        bl_patch *p;
        uint8_t data[16] = {0};
        snprintf(path, sizeof path, "%s/text", scratch_root);
        assert_int_equal(bl_output_file(path, texts[i], strlen(texts[i]), &err), BL_OK);
        const bl_delta_tensor t = {.name = "t", .nbytes = strlen(texts[i]), .bytes = 16};
        assert_int_equal(bl_file_open(&f, path, &err), BL_OK);
        bl_status s = bl_patch_open(&p, BL_DELTA_XOR, f, 0, &t, sizeof data, &err);
        s = s == BL_OK ? bl_patch_apply(p, data, 0, sizeof data, &err) : s;
        assert_int_equal(s, BL_E_INPUT);
        bl_patch_close(&p);
        bl_file_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small),          cmocka_unit_test(nothing_differs), cmocka_unit_test(forged_records),
        cmocka_unit_test(other_streams),  cmocka_unit_test(beyond_four_gibibytes),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
