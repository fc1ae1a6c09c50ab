#include "formats/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/scratch.h"

/* A file that must be refused: a header (its length field is right) and data, or the raw bytes of the whole
 * file. */
typedef struct hostile {
    const char *header;
    size_t data;
    const char *fragments;
} hostile;

#define A4 "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define ONE(entry) "{\"a\":" entry "}"

static const hostile headers[] = {
    {"[]", 0, "does not start with '{'"},
    {" {}", 0, "does not start with '{'"},
    {"{" A4 "}\n", 4, "padding|at byte"},
    {"{" A4 "}  x", 4, "something follows"},
    {"{" A4 "} {}", 4, "something follows"},
    {"{" A4, 4, "ends inside an object"},
    {"{" A4 ",}", 4, "at byte 61: JSON: expected a key"},
    {"{" A4 "," A4 "}", 4, "'a'|duplicate key"},
    {"{" A4 ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "'a'|duplicate key"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
     "'dtype'|duplicate key"},
    {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "invalid UTF-8"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "byte 9|empty name"},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "NUL or control"},
    {"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "NUL or control|a\\x0ab"},
    {"{\"a\\u001b[31m\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "NUL or control"},
    {"{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "lone surrogate"},
    {ONE("1"), 4, "'a'|not an object"},
    {ONE("[\"U8\",[4],[0,4]]"), 4, "'a'|not an object"},
    {ONE("{\"shape\":[4],\"data_offsets\":[0,4]}"), 4, "'a'|'dtype' is missing"},
    {ONE("{\"dtype\":\"U8\",\"data_offsets\":[0,4]}"), 4, "'a'|'shape' is missing"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4]}"), 4, "'a'|'data_offsets' is missing"},
    {ONE("{\"dtype\":8,\"shape\":[4],\"data_offsets\":[0,4]}"), 4, "'dtype' is not a string"},
    {ONE("{\"dtype\":\"F8\",\"shape\":[4],\"data_offsets\":[0,4]}"), 4, "unknown dtype 'F8'"},
    {ONE("{\"dtype\":\"u8\",\"shape\":[4],\"data_offsets\":[0,4]}"), 4, "unknown dtype 'u8'"},
    {ONE("{\"dtype\":\"U8\\u0000\",\"shape\":[4],\"data_offsets\":[0,4]}"), 4, "unknown dtype"},
    {ONE("{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}"), 4, "'shape' is not an array"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4e0],\"data_offsets\":[0,4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[null],\"data_offsets\":[0,4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}"), 4, "nested deeper"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"x\":{\"y\":[]}}"), 4, "nested deeper"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{\"0\":0,\"1\":4}}"), 4, "not an array of two"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}"), 4, "not an array of two"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}"), 4, "not an array of two"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,-4]}"), 4, "not an integer"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}"), 4, "ends at 0 before it begins at 4"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,5]}"), 5, "span 5 bytes|need 4"},
    {ONE("{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,4]}"), 4, "span 4 bytes|need 8"},
    {ONE("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}"), 0, "span 0 bytes|need 4"},
    {ONE("{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}"), 0,
     "do not give a whole number of bytes"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4611686018427387904,4,0],\"data_offsets\":[0,0]}"), 0,
     "do not give a whole number of bytes"},
    {ONE("{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}"), 2,
     "do not give a whole number of bytes"},
    {ONE("{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,1]}"), 1,
     "do not give a whole number of bytes"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}"), 5, "'a'|a hole of 1 byte"},
    {ONE("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[18446744073709551611,18446744073709551615]}"), 4,
     "'a'|a hole of"},
    {"{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", 6, "'b'|overlaps 'a' by 2"},
    {"{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "'b'|overlaps 'a' by 4"},
    {"{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}", 10, "'b'|a hole of 2 bytes"},
    {"{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4, "'b'|overlaps"},
    {"{" A4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,5]}}", 4, "'b'|a hole of 1"},
    {"{" A4 "}", 3, "truncated: 1 of 4 data bytes are missing"},
    {"{" A4 "}", 0, "truncated: 4 of 4 data bytes are missing"},
    {"{" A4 "}", 6, "2 bytes follow the last tensor"},
    {"{}", 1, "1 byte follows the last tensor"},
    {"{\"__metadata__\":1," A4 "}", 4, "'__metadata__'|not an object"},
    {"{\"__metadata__\":{\"format\":1}," A4 "}", 4, "'__metadata__'|not a string"},
    {"{\"__metadata__\":null," A4 "}", 4, "'__metadata__'|not an object"},
};

static bl_status read_path(const char *path, bl_arena *arena, bl_st_header *h, bl_error *e)
{
    bl_file *f = NULL;
    BL_TRY(bl_file_open(&f, path, e));
    bl_status s = bl_st_read(f, 5, arena, h, e);
    bl_file_close(&f);
    return s;
}

static void expect_refused(const char *path, const char *fragments)
{
    bl_arena arena = {0};
    bl_st_header h;
    bl_error e = {0};
    bl_status s = read_path(path, &arena, &h, &e);
    expect_failure(s, &e, BL_E_INPUT, fragments);
    expect_failure(s, &e, BL_E_INPUT, strrchr(path, '/') + 1); /* the line names the file */
    bl_arena_reset(&arena);
}

static void test_hostile_headers(void **state)
{
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        const char *path = scratch_path("h%zu.safetensors", i);
        scratch_safetensors(path, headers[i].header, strlen(headers[i].header), headers[i].data);
        expect_refused(path, headers[i].fragments);
    }
}

static void test_hostile_lengths(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *fragments;
    } files[] = {
        {"", 0, "the file is empty"},
        {"\x02", 1, "only 1 byte"},
        {"\x02\0\0\0\0\0\0", 7, "only 7 bytes"},
        {"\x02\0\0\0\0\0\0\0", 8, "truncated|2 bytes|2 of them are missing"},
        {"\x02\0\0\0\0\0\0\0{", 9, "truncated|1 of them are missing"},
        {"\0\0\0\0\0\0\0\0", 8, "zero bytes"},
        {"\0\0\0\0\0\0\0\0{}", 10, "the header is empty"},
        {"\x01\0\0\0\0\0\0\0{", 9, "expected a key"},
        {"\x03\0\0\0\0\0\0\0[1]", 11, "does not start with '{'"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "18446744073709551615"},
        {"\0\0\0\0\0\0\0\x80{}", 10, "9223372036854775808"},
        {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, "100000001, the most is 100000000"},
        {"\0\xe1\xf5\x05\0\0\0\0{}", 10, "truncated|100000000 bytes"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = scratch_path("l%zu.safetensors", i);
        scratch_write(path, files[i].bytes, files[i].n);
        expect_refused(path, files[i].fragments);
    }
}

static void test_says_what_it_is_instead(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *fragments;
    } files[] = {
#define FILE_OF(text, fragments) {text, sizeof(text) - 1, fragments}
        FILE_OF("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 5368709120\n",
                "git-lfs pointer|oid sha256:4d7a21|size 5368709120"),
        FILE_OF("<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
        FILE_OF("\n  <html lang=en>", "HTML page"),
        FILE_OF("\xef\xbb\xbf<!doctype HTML>", "HTML page"),
        FILE_OF("<?xml version=\"1.0\"?><Error>AccessDenied</Error>", "XML"),
        FILE_OF("PK\x03\x04\x14\0\0\0\x08\0archive/data.pkl", "ZIP archive|PyTorch"),
        FILE_OF("\x1f\x8b\x08\0\0\0\0\0\0\x03xyz", "gzip"),
        FILE_OF("\x28\xb5\x2f\xfd\x04\x58\x01\0\0abc", "zstd"),
        FILE_OF("GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0", "GGUF"),
        FILE_OF("\x80\x02}q\0(X\x01\0\0\0", "pickle"),
        FILE_OF("\x93NUMPY\x01\0v\0{'descr'", "NumPy"),
        FILE_OF("{\"metadata\":{}}", "JSON text"),
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = scratch_path("f%zu.safetensors", i);
        scratch_write(path, files[i].bytes, files[i].n);
        expect_refused(path, files[i].fragments);
    }
    char tar[1024] = "model/x";
    memcpy(tar + 257, "ustar", 5);
    scratch_write(scratch_path("t.safetensors"), tar, sizeof tar);
    expect_refused(scratch_path("t.safetensors"), "tar archive");
}

/* {"NAME": a tensor of 4 bytes with this shape} */
static void write_one(const char *path, const char *name, const char *shape)
{
    size_t cap = strlen(name) + strlen(shape) + 100;
    char *text = malloc(cap);
    int n =
        snprintf(text, cap, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,4]}}", name, shape);
    scratch_safetensors(path, text, (size_t)n, 4);
    free(text);
}

static void test_caps_on_names_and_dimensions(void **state)
{
    char name[BL_MAX_NAME + 2], shape[200] = "4";
    const char *path = scratch_path("caps.safetensors");
    bl_arena arena = {0};
    bl_st_header h;
    bl_error e = {0};
    memset(name, 'n', sizeof name);
    name[BL_MAX_NAME + 1] = 0;
    write_one(path, name, "4");
    expect_refused(path, "a name of 1025 bytes");
    name[BL_MAX_NAME] = 0;
    write_one(path, name, "4");
    expect_ok(read_path(path, &arena, &h, &e), &e);
    for (int i = 1; i < BL_MAX_DIMS; i++) {
        strcat(shape, ",1");
    }
    write_one(path, "a", shape);
    expect_ok(read_path(path, &arena, &h, &e), &e);
    assert_int_equal(h.tensors[0].ndim, BL_MAX_DIMS);
    strcat(shape, ",1");
    write_one(path, "a", shape);
    expect_refused(path, "33 dimensions");
    bl_arena_reset(&arena);
}

static void test_reads_what_is_legal(void **state)
{
    static const char text[] =
        "{\"z\":{\"dtype\":\"I64\",\"shape\":[2,0],\"data_offsets\":[12,12]},"
        "\"c\\u00e9\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[9,12],\"extra\":\"ignored\"},"
        " \"__metadata__\" : {\"format\":\"pt\",\"k\\n\":\"\"} ,\n"
        "\"s\":{\"shape\":[],\"data_offsets\":[8,9],\"dtype\":\"U8\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}   ";
    static const char *const order[] = {"a", "b", "s", "c\xc3\xa9", "z"};
    static const uint64_t bytes[] = {0, 8, 1, 3, 0};
    const char *path = scratch_path("legal.safetensors");
    bl_arena arena = {0};
    bl_st_header h;
    bl_error e = {0};
    scratch_safetensors(path, text, sizeof text - 1, 12);
    expect_ok(read_path(path, &arena, &h, &e), &e);
    assert_int_equal(h.count, 5);
    assert_int_equal(h.header_bytes, 8 + sizeof text - 1);
    assert_int_equal(h.file_bytes, h.header_bytes + 12);
    uint64_t at = h.header_bytes;
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(h.tensors[i].name, order[i]);
        assert_int_equal(h.tensors[i].nbytes, bytes[i]);
        assert_int_equal(h.tensors[i].offset, at);
        assert_int_equal(h.tensors[i].file, 5);
        at += bytes[i];
    }
    assert_int_equal(bl_tensor_elements(&h.tensors[3]), 6);
    assert_int_equal(bl_tensor_elements(&h.tensors[2]), 1);
    assert_int_equal(bl_tensor_elements(&h.tensors[4]), 0);
    assert_int_equal(h.metadata_count, 2);
    assert_string_equal(h.metadata[0], "format");
    assert_string_equal(h.metadata[1], "pt");
    assert_string_equal(h.metadata[2], "k\n");
    scratch_safetensors(path, "{}", 2, 0);
    expect_ok(read_path(path, &arena, &h, &e), &e);
    assert_int_equal(h.count, 0);
    bl_arena_reset(&arena);
}

/* The 4 GiB line: sizes and offsets past 32 bits, in a sparse file. */
/* Empty tensors share their offset with the one that begins there, whatever their names. */
static void test_empty_tensors_come_first(void **state)
{
    static const char text[] = "{\"m\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                               "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                               "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]},"
                               "\"y\":{\"dtype\":\"U8\",\"shape\":[0,2],\"data_offsets\":[4,4]}}";
    bl_arena arena = {0};
    bl_st_header h;
    bl_error e = {0};
    scratch_safetensors(scratch_path("zeros.safetensors"), text, sizeof text - 1, 8);
    expect_ok(read_path(scratch_path("zeros.safetensors"), &arena, &h, &e), &e);
    assert_string_equal(h.tensors[0].name, "z");
    assert_string_equal(h.tensors[3].name, "a");
    bl_arena_reset(&arena);
    bl_tensor s = {.name = "a", .file = 1}, t = {.name = "b", .file = 0, .offset = 9};
    assert_true(bl_tensor_by_place(&s, &t) > 0 && bl_tensor_by_place(&t, &s) < 0 &&
                bl_tensor_by_place(&s, &s) == 0);
}

static void test_large_files(void **state)
{
    static const char text[] =
        "{\"big\":{\"dtype\":\"F8_E4M3\",\"shape\":[20000000,256],\"data_offsets\":[0,5120000000]},"
        "\"end\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5120000000,5120000004]}}";
    const char *path = scratch_path("big.safetensors");
    bl_arena arena = {0};
    bl_st_header h;
    bl_error e = {0};
    scratch_safetensors(path, text, sizeof text - 1, 0);
    assert_int_equal(truncate(path, (off_t)(8 + sizeof text - 1 + 5120000004)), 0);
    expect_ok(read_path(path, &arena, &h, &e), &e);
    assert_int_equal(h.tensors[1].offset, 8 + sizeof text - 1 + 5120000000);
    bl_arena_reset(&arena);
}

/* Lay out, write with zeros as data, read back. */
static void round_trip(bl_tensor *tensors, size_t count, const char *const *metadata, size_t metadata_count,
                       uint32_t align, int keep, bl_arena *arena, bl_st_header *h)
{
    const char *path = scratch_path("layout.safetensors");
    bl_st_head head;
    bl_error e = {0};
    expect_ok(bl_st_layout(tensors, count, metadata, metadata_count, align, keep, arena, &head, &e), &e);
    assert_int_equal(head.header_bytes % align, 0);
    char *text = malloc(head.header_bytes);
    assert_non_null(text);
    for (uint64_t at = 0, n; at < head.header_bytes; at += n) { /* in pieces, some of them only spaces */
        n = head.header_bytes - at < 1000 ? head.header_bytes - at : 1000;
        bl_st_head_copy(&head, at, n, text + at);
    }
    scratch_write(path, text, head.header_bytes);
    free(text);
    assert_int_equal(truncate(path, (off_t)head.file_bytes), 0);
    expect_ok(read_path(path, arena, h, &e), &e);
    assert_int_equal(h->header_bytes, head.header_bytes);
    assert_int_equal(h->count, count);
    for (size_t i = 0; i < count; i++) {
        const bl_tensor *found = NULL;
        for (size_t j = 0; j < count; j++) {
            found = strcmp(h->tensors[j].name, tensors[i].name) == 0 ? &h->tensors[j] : found;
        }
        assert_non_null(found);
        assert_int_equal(found->offset, tensors[i].offset);
        assert_int_equal(found->nbytes, tensors[i].nbytes);
        assert_int_equal(found->dtype, tensors[i].dtype);
        assert_int_equal(found->ndim, tensors[i].ndim);
        assert_memory_equal(found->shape, tensors[i].shape, tensors[i].ndim * sizeof(uint64_t));
        if (!keep) {
            assert_int_equal(found->offset * 8 % bl_dtype_bits(found->dtype), 0);
        }
    }
}

static void test_layout(void **state)
{
    static const uint64_t odd[] = {3}, wide[] = {5, 3}, empty[] = {0, 7}, large[] = {64, 64}, half[] = {3, 2},
                          one[] = {1};
    bl_tensor t[] = {{.name = "odd", .shape = odd, .ndim = 1, .dtype = BL_DT_U8},
                     {.name = "q\"\\\xc3\xa9", .shape = wide, .ndim = 2, .dtype = BL_DT_F32},
                     {.name = "empty", .shape = empty, .ndim = 2, .dtype = BL_DT_F64},
                     {.name = "scalar", .shape = NULL, .ndim = 0, .dtype = BL_DT_F32},
                     {.name = "large", .shape = large, .ndim = 2, .dtype = BL_DT_BF16},
                     {.name = "nibbles", .shape = half, .ndim = 2, .dtype = BL_DT_F4},
                     {.name = "i64", .shape = odd, .ndim = 1, .dtype = BL_DT_I64},
                     {.name = "pair", .shape = one, .ndim = 1, .dtype = BL_DT_BF16}};
    static const char *const metadata[] = {"format", "pt", "note", "a \"quoted\"\nline\x01"};
    bl_arena arena = {0};
    bl_st_header h;
    round_trip(t, 8, metadata, 2, 4096, 0, &arena, &h);
    assert_string_equal(h.tensors[0].name, "large");
    assert_string_equal(h.tensors[1].name, "i64");
    assert_string_equal(h.tensors[2].name, "empty");
    assert_string_equal(h.metadata[3], metadata[3]);
    round_trip(t, 8, NULL, 0, 8, 1, &arena, &h);
    assert_string_equal(h.tensors[0].name, "odd");
    assert_string_equal(h.tensors[6].name, "i64");
    assert_string_equal(h.tensors[7].name, "pair");
    round_trip(t, 0, NULL, 0, 2 << 20, 0, &arena, &h);
    bl_arena_reset(&arena);
}

static void test_layout_refuses(void **state)
{
    static const uint64_t one[] = {1}, huge[] = {(uint64_t)1 << 62, 4}, three[] = {3};
    bl_arena arena = {0};
    bl_error e = {0};
    bl_st_head head;
    bl_tensor twice[] = {{.name = "x", .shape = one, .ndim = 1, .dtype = BL_DT_U8},
                         {.name = "x", .shape = one, .ndim = 1, .dtype = BL_DT_U8}};
    expect_failure(bl_st_layout(twice, 2, NULL, 0, 8, 0, &arena, &head, &e), &e, BL_E_INPUT,
                   "'x'|two tensors");
    const struct {
        bl_tensor t;
        const char *fragments;
    } bad[] = {{{.name = "__metadata__", .shape = one, .ndim = 1, .dtype = BL_DT_U8}, "not a legal"},
               {{.name = "a\nb", .shape = one, .ndim = 1, .dtype = BL_DT_U8}, "not a legal"},
               {{.name = "\xff", .shape = one, .ndim = 1, .dtype = BL_DT_U8}, "not a legal"},
               {{.name = "h", .shape = huge, .ndim = 2, .dtype = BL_DT_U8}, "no size"},
               {{.name = "f", .shape = three, .ndim = 1, .dtype = BL_DT_F4}, "no size"},
               {{.name = "n", .shape = one, .ndim = 1, .dtype = BL_DT_NONE}, "no size"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bl_tensor t = bad[i].t;
        bl_error_clear(&e);
        expect_failure(bl_st_layout(&t, 1, NULL, 0, 8, 0, &arena, &head, &e), &e, BL_E_INPUT,
                       bad[i].fragments);
    }
    bl_error_clear(&e);
    expect_failure(bl_st_layout(twice, 1, NULL, 0, 12, 0, &arena, &head, &e), &e, BL_E_INTERNAL,
                   "alignment");
    bl_error_clear(&e);
    expect_failure(bl_st_layout(twice, 1, NULL, 0, 1u << 27, 0, &arena, &head, &e), &e, BL_E_INPUT,
                   "the most is 100000000");
    static const char *const metadata[] = {"k", "1", "k", "2"};
    bl_error_clear(&e);
    expect_failure(bl_st_layout(twice, 1, metadata, 2, 8, 0, &arena, &head, &e), &e, BL_E_INPUT,
                   "'k' twice");
    bl_arena_reset(&arena);
}

static void test_sizes(void **state)
{
    static const uint64_t max[] = {(uint64_t)1 << 61}, under[] = {((uint64_t)1 << 61) - 1}, zero[] = {0, 5};
    uint64_t n;
    assert_false(bl_tensor_size(BL_DT_U8, max, 1, &n));
    assert_true(bl_tensor_size(BL_DT_U8, under, 1, &n) && n == under[0]);
    assert_true(bl_tensor_size(BL_DT_F4, max, 1, &n) && n == max[0] / 2);
    assert_true(bl_tensor_size(BL_DT_F6_E3M2, zero, 2, &n) && n == 0);
    assert_false(bl_tensor_size(BL_DT_NONE, zero, 2, &n));
    assert_false(bl_tensor_name_ok("", 0));
    assert_true(bl_tensor_name_ok("x", 1));
    assert_false(bl_tensor_name_ok("__metadata__", 12));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile_headers),
                                       cmocka_unit_test(test_hostile_lengths),
                                       cmocka_unit_test(test_says_what_it_is_instead),
                                       cmocka_unit_test(test_caps_on_names_and_dimensions),
                                       cmocka_unit_test(test_reads_what_is_legal),
                                       cmocka_unit_test(test_empty_tensors_come_first),
                                       cmocka_unit_test(test_large_files),
                                       cmocka_unit_test(test_layout),
                                       cmocka_unit_test(test_layout_refuses),
                                       cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
