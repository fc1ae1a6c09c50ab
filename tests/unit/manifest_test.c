#include "formats/manifest.h"

#include "formats/file.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/scratch.h"

static const int64_t multipliers[] = {3, INT64_MAX};
static const bl_manifest_engram engram[] = {{1, 434, multipliers, 2}, {14, 384016682, multipliers, 1}};
static const bl_manifest_file files[] = {
    {.name = "config.json", .bytes = 7, .has_sha256 = true, .sha256 = {0xab, 1}},
    {.name = "rank-0000/layer-00.safetensors", .bytes = 101522000000},
};
static const int stage_layers[] = {21, 19};
static const bl_manifest global = {.writer = "baleen 0.1.0",
                                   .source_tensors = 96085,
                                   .source_tensor_bytes = 510286023000,
                                   .source_config_sha256 = {1, 2, 3},
                                   .has_source_index_sha256 = true,
                                   .source_index_sha256 = {4},
                                   .layout = {.tp = 2, .ep = 4, .pp = 2, .ranks = 8, .stage_layers = stage_layers,
                                              .vocab_rows = 129536, .split = BL_SPLIT_EXPAND, .engram_shared = true},
                                   .dropped = BL_DROP_DSPARK | BL_DROP_VISION,
                                   .engram = engram,
                                   .engram_count = 2,
                                   .files = files,
                                   .file_count = 2};

static const bl_manifest_file rank_files[] = {
    {.name = "layer-00.safetensors", .bytes = 40000000, .rank = 3},
    {.name = "model-00047.safetensors", .bytes = 5000, .linked = true, .rank = 1}};
static const uint64_t stacked[] = {2, 3000, 3000}, all_experts[] = {8, 3000, 3000}, start[] = {4, 0, 0},
                      decoded[] = {3000, 6000};
static const uint64_t row[] = {9}, none[] = {0};
static const bl_digest digests[] = {{{1}}, {{2}}, {{0xff, 0xee}}};
static const bl_manifest_tensor tensors[] = {
    {.tensor = {.name = "z.scale", .shape = row, .ndim = 1, .dtype = BL_DT_F8_E8M0, .file = 1, .offset = 991},
     .start = none,
     .global_shape = row,
     .chunks = digests,
     .chunk_count = 1},
    {.tensor = {.name = "layers.0.ffn.experts.w1.weight",
                .shape = stacked,
                .ndim = 3,
                .dtype = BL_DT_I8,
                .file = 0,
                .offset = 4096},
     .start = start,
     .global_shape = all_experts,
     .chunks = digests,
     .chunk_count = 3,
     .value_class = BL_VALUE_MATRIX,
     .value_shape = decoded,
     .value_ndim = 2,
     .value_unit = {16, 32},
     .values = digests,
     .value_count = 2},
    {.tensor = {.name = "e", .shape = none, .ndim = 1, .dtype = BL_DT_F32, .file = 0, .offset = 4096},
     .start = none,
     .global_shape = none,
     .value_class = BL_VALUE_BYTES,
     .value_shape = none,
     .value_ndim = 1,
     .values = digests,
     .value_count = 1},
};
static const bl_rank_manifest rank = {
    .rank = 3, .files = rank_files, .file_count = 2, .tensors = tensors, .tensor_count = 3};

static void test_global_round_trip(void **state)
{
    bl_arena arena = {0};
    bl_manifest m;
    bl_error e = {0};
    expect_ok(bl_manifest_write(&global, scratch_path("manifest.json"), &e), &e);
    expect_ok(bl_manifest_read(scratch_root, &arena, &m, &e), &e);
    assert_string_equal(m.writer, global.writer);
    assert_int_equal(m.source_tensors, global.source_tensors);
    assert_int_equal(m.source_tensor_bytes, global.source_tensor_bytes);
    assert_memory_equal(m.source_config_sha256, global.source_config_sha256, 32);
    assert_true(m.has_source_index_sha256);
    assert_memory_equal(m.source_index_sha256, global.source_index_sha256, 32);
    assert_true(m.layout.tp == 2 && m.layout.ep == 4 && m.layout.pp == 2 && m.layout.ranks == 8 && m.dropped == global.dropped);
    assert_memory_equal(m.layout.stage_layers, stage_layers, sizeof stage_layers);
    assert_true(m.layout.vocab_rows == 129536 && m.layout.split == BL_SPLIT_EXPAND && m.layout.engram_shared);
    assert_int_equal(m.engram_count, 2);
    assert_true(m.engram[0].layer == 1 && m.engram[0].rows == 434 && m.engram[0].multipliers[1] == INT64_MAX);
    assert_int_equal(m.file_count, 2);
    assert_true(m.files[0].has_sha256 && m.files[0].sha256[0] == 0xab && !m.files[1].has_sha256);
    assert_int_equal(m.files[1].bytes, 101522000000);
    bl_arena_reset(&arena);
}

static void test_rank_round_trip(void **state)
{
    bl_arena arena = {0};
    bl_rank_manifest r;
    bl_error e = {0};
    assert_int_equal(mkdir(scratch_path("rank-0003"), 0700), 0);
    expect_ok(bl_rank_manifest_write(&rank, scratch_path("rank-0003/manifest.json"), &e), &e);
    expect_ok(bl_rank_manifest_read(scratch_root, 3, &arena, &r, &e), &e);
    assert_int_equal(r.rank, 3);
    assert_true(!r.files[0].linked && r.files[1].linked);
    assert_true(r.files[0].rank == 3 && r.files[1].rank == 1);
    assert_string_equal(r.tensors[0].tensor.name, "e");
    const bl_manifest_tensor *t = bl_rank_manifest_find(&r, "layers.0.ffn.experts.w1.weight");
    assert_non_null(t);
    assert_true(t->tensor.dtype == BL_DT_I8 && t->tensor.nbytes == 18000000 && t->tensor.offset == 4096);
    assert_memory_equal(t->start, start, sizeof start);
    assert_memory_equal(t->global_shape, all_experts, sizeof all_experts);
    assert_true(t->value_unit[0] == 16 && t->value_unit[1] == 32);
    assert_true(t->chunk_count == 3 && bl_digest_equal(&t->chunks[2], &digests[2]));
    assert_true(t->value_class == BL_VALUE_MATRIX && t->value_count == 2 && t->value_ndim == 2 &&
                t->value_shape[1] == 6000);
    assert_int_equal(bl_rank_manifest_find(&r, "z.scale")->value_class, BL_VALUE_NONE);
    assert_null(bl_rank_manifest_find(&r, "y"));
    bl_error_clear(&e);
    assert_int_equal(mkdir(scratch_path("rank-0004"), 0700), 0);
    expect_ok(bl_rank_manifest_write(&rank, scratch_path("rank-0004/manifest.json"), &e), &e);
    expect_failure(bl_rank_manifest_read(scratch_root, 4, &arena, &r, &e), &e, BL_E_INPUT, "rank 3");
    bl_arena_reset(&arena);
}

static void test_same_manifest_same_bytes(void **state)
{
    char *a, *b;
    bl_error e = {0};
    bl_manifest_tensor turned[] = {tensors[2], tensors[0], tensors[1]};
    bl_rank_manifest other = rank;
    other.tensors = turned;
    expect_ok(bl_rank_manifest_write(&rank, scratch_path("a.json"), &e), &e);
    expect_ok(bl_rank_manifest_write(&other, scratch_path("b.json"), &e), &e);
    expect_ok(bl_file_slurp(scratch_path("a.json"), 1 << 20, &a, NULL, &e), &e);
    expect_ok(bl_file_slurp(scratch_path("b.json"), 1 << 20, &b, NULL, &e), &e);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

static void test_writing_refuses_what_reading_would(void **state)
{
    bl_error e = {0};
    bl_manifest m = global;
    m.layout.ranks = 7;
    expect_failure(bl_manifest_write(&m, scratch_path("bad.json"), &e), &e, BL_E_INTERNAL,
                   "bad.json|does not add up");
    bl_manifest_tensor twice[] = {tensors[0], tensors[0]};
    bl_rank_manifest r = rank;
    r.tensors = twice;
    r.tensor_count = 2;
    bl_error_clear(&e);
    expect_failure(bl_rank_manifest_write(&r, scratch_path("bad.json"), &e), &e, BL_E_INTERNAL,
                   "names one twice");
    m = global;
    m.writer = "\xff";
    bl_error_clear(&e);
    assert_int_not_equal(bl_manifest_write(&m, scratch_path("bad.json"), &e), BL_OK);
    assert_int_not_equal(access(scratch_path("bad.json"), F_OK), 0);
}

/* The text of a good manifest with one replacement. */
static void expect_broken(bool is_global, const char *from, const char *to, const char *fragments)
{
    char *text, *changed;
    bl_error e = {0};
    bl_arena arena = {0};
    bl_manifest m;
    bl_rank_manifest r;
    const char *path = scratch_path(is_global ? "g.json" : "r.json");
    expect_ok(is_global ? bl_manifest_write(&global, path, &e) : bl_rank_manifest_write(&rank, path, &e), &e);
    json_t *tree = json_load_file(path, 0, NULL);
    text = json_dumps(tree, JSON_COMPACT);
    json_decref(tree);
    char *at = strstr(text, from);
    if (!at) {
        fail_msg("no %s in %s", from, text);
        return;
    }
    size_t cap = strlen(text) + strlen(to) + 1;
    changed = malloc(cap);
    assert_non_null(changed);
    snprintf(changed, cap, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    size_t n = strlen(changed);
    bl_status s = is_global ? bl_manifest_parse(changed, n, "m.json", &arena, &m, &e)
                            : bl_rank_manifest_parse(changed, n, "m.json", &arena, &r, &e);
    expect_failure(s, &e, BL_E_INPUT, fragments);
    expect_failure(s, &e, BL_E_INPUT, "m.json");
    free(text);
    free(changed);
    bl_arena_reset(&arena);
}

static void test_broken_global(void **state)
{
    static const char *const cases[][3] = {
        {"\"baleen-packed\"", "\"other\"", "'format'"},
        {"\"version\":1", "\"version\":2", "'version' is not 1"},
        {"\"writer\"", "\"writer2\"", "unknown key 'writer2'"},
        {"\"writer\":\"baleen 0.1.0\",", "", "lacks 'writer'"},
        {"\"writer\":\"baleen 0.1.0\"", "\"writer\":1", "'writer' is not a string"},
        {"\"tensors\":96085", "\"tensors\":-1", "'tensors'"},
        {"\"config_sha256\":\"01", "\"config_sha256\":\"0", "64 hexadecimal digits"},
        {"\"config_sha256\":\"01", "\"config_sha256\":\"0g", "64 hexadecimal digits"},
        {"\"tp\":2", "\"tp\":0", "'tp'"},
        {"\"tp\":2", "\"tp\":3", "does not add up"},
        {"\"ranks\":8", "\"ranks\":4", "does not add up"},
        {"\"dspark\"", "\"experts\"", "'dropped'"},
        {"[\"dspark\",\"vision\"]", "{}", "'dropped' is not an array"},
        {"8388608", "4194304", "'chunk_bytes'"},
        {"\"layer\":14", "\"layer\":1", "ascending layers"},
        {"\"9223372036854775807\"", "\"9223372036854775808\"", "multiplier"},
        {"\"9223372036854775807\"", "9007199254740993", "multiplier"},
        {"\"9223372036854775807\"", "\"1e3\"", "multiplier"},
        {"\"9223372036854775807\"", "\"\"", "multiplier"},
        {"\"config.json\"", "\"../config.json\"", "may not be the name"},
        {"\"config.json\"", "\"\"", "may not be the name"},
        {"\"config.json\"", "\"a\\u0000b\"", "control"},
        {"\"config.json\"", "\"rank-0000/layer-00.safetensors\"", "listed twice"},
        {"rank-0000/", "rank-0000/../", "may not be the name"},
        {"rank-0000/", "rank/", "may not be the name"},
        {"rank-0000/", "/rank-0000/", "may not be the name"},
        {"\"bytes\":7", "\"bytes\":7.5", "size"},
        {"\"sha256\":null", "\"sha256\":false", "hexadecimal"},
        {"\"files\":[", "\"files\":[1,", "a file is not an object"},
        {"\"layers\":[21,19]", "\"layers\":[40]", "an entry for each stage"},
        {"\"layers\":[21,19]", "\"layers\":40", "an entry for each stage"},
        {"\"layers\":[21,19],", "", "'layers' is needed"},
        {"\"layers\":[21,19]", "\"layers\":[21,-19]", "'layers'"},
        {"\"vocab_rows\":129536", "\"vocab_rows\":1e5", "'vocab_rows'"},
        {"\"vocab_rows\":129536", "\"vocab_rows\":2147483648", "'vocab_rows'"},
        {"\"split\":\"expand1x32\"", "\"split\":\"none\"", "'split' is not"},
        {"\"split\":\"expand1x32\"", "\"split\":null", "'split' is not"},
        {"\"engram_shared\":true", "\"engram_shared\":1", "'engram_shared'"},
        {"\"engram_shared\":true", "\"engram_both\":true", "unknown key 'engram_both'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_broken(true, cases[i][0], cases[i][1], cases[i][2]);
    }
}

static void test_broken_rank(void **state)
{
    static const char *const cases[][3] = {
        {"baleen-packed-rank", "baleen-packed", "'format'"},
        {"\"rank\":3", "\"rank\":-3", "'rank'"},
        {"\"name\":\"e\"", "\"name\":\"e\",\"layout\":\"tiled\"", "unknown key 'layout'"},
        {"\"name\":\"e\"", "\"name\":\"z.scale\"", "not sorted"},
        {"\"name\":\"e\"", "\"name\":\"__metadata__\"", "not a legal tensor name"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F33\"", "'e'|no size"},
        {"\"shape\":[2,3000,3000]", "\"shape\":[2,3000]", "differ in length"},
        {"\"shape\":[2,3000,3000]", "\"shape\":[5,3000,3000]", "past 'global_shape'"},
        {"\"start\":[4,0,0]", "\"start\":[18446744073709551615,0,0]", "past 'global_shape'"},
        {"\"shape\":[2,3000,3000]", "\"shape\":[1,3000,3000]", "'chunks' has the wrong number"},
        {"\"file\":1", "\"file\":2", "'z.scale'|past the end of 'files'"},
        {"\"offset\":991", "\"offset\":4992", "'z.scale'|past the end of its file"},
        {"\"offset\":991", "\"offset\":18446744073709551615", "'offset'"},
        {"\"class\":\"matrix\"", "\"class\":\"cube\"", "value class"},
        {"\"class\":\"bytes\"", "\"class\":\"none\"", "value class"},
        {"\"chunks\":[\"01", "\"chunks\":[\"1", "32 hexadecimal"},
        {"\"unit\":[16,32]", "\"unit\":[32,32]", "'unit' is not"},
        {"\"unit\":[16,32]", "\"unit\":[12,32]", "'unit' is not"},
        {"\"unit\":[16,32]", "\"unit\":[64,32]", "'unit' is not"},
        {"\"unit\":[16,32]", "\"unit\":[0,32]", "'unit' is not"},
        {"\"unit\":[16,32]", "\"unit\":[16]", "'unit' is not"},
        {"\"digests\":[\"01000000000000000000000000000000\",", "\"digests\":[",
         "'digests' has the wrong number"},
        {"\"linked\":true", "\"linked\":1", "'linked'"},
        {"\"linked\":true", "\"sha256\":null", "unknown key 'sha256'"},
        {"\"name\":\"layer-00.safetensors\"", "\"name\":\"rank-0000/layer-00.safetensors\"",
         "may not be the name"},
        {"\"linked\":true,\"rank\":1", "\"linked\":true,\"rank\":-1", "a file's rank"},
        {"\"linked\":true,\"rank\":1", "\"linked\":true,\"rank\":4096", "a file's rank"},
        {"\"tensors\":[", "\"tensors\":[null,", "a tensor is not an object"},
        {"\"shape\":[2,3000,3000]", "\"shape\":6", "'shape' is not an array"},
        {"\"chunks\":[]", "\"chunks\":{}", "'chunks' is not an array"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_broken(false, cases[i][0], cases[i][1], cases[i][2]);
    }
}

/* Whole members that are of another kind than they should be. */
static void test_wrong_kinds(void **state)
{
    static const char *const cases[][2] = {
        {"{\"format\":\"baleen-packed-rank\",\"version\":1,\"rank\":0,\"files\":[],\"tensors\":{}}",
         "'tensors' is not an array"},
        {"{\"format\":\"baleen-packed-rank\",\"version\":1,\"rank\":0,\"files\":{},\"tensors\":[]}",
         "'files' is not an array"},
        {"{\"version\":1}", "'format' is not"},
        {"[]", "'format' is not"},
        {"null", "'format' is not"},
        {"{\"format\":\"baleen-packed-rank\"}", "'version' is not 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_arena arena = {0};
        bl_rank_manifest r;
        bl_error e = {0};
        expect_failure(bl_rank_manifest_parse(cases[i][0], strlen(cases[i][0]), "m.json", &arena, &r, &e), &e,
                       BL_E_INPUT, cases[i][1]);
        bl_arena_reset(&arena);
    }
}

static void test_helpers(void **state)
{
    char buf[40];
    bl_digest d;
    assert_string_equal(bl_rank_folder(buf, 7), "rank-0007");
    assert_string_equal(bl_rank_folder(buf, 12345), "rank-12345");
    assert_int_equal(bl_chunk_count(0), 0);
    assert_int_equal(bl_chunk_count(1), 1);
    assert_int_equal(bl_chunk_count(BL_CHUNK_BYTES), 1);
    assert_int_equal(bl_chunk_count(BL_CHUNK_BYTES + 1), 2);
    assert_string_equal(bl_hex_encode(buf, "\x00\xfe\x7f", 3), "00fe7f");
    assert_true(bl_hex_decode(&d, "00112233445566778899AABBccddeeff", 32));
    assert_int_equal(d.b[15], 0xff);
    assert_false(bl_hex_decode(&d, "0", 1));
    assert_false(bl_hex_decode(&d, "0 ", 2));
    assert_string_equal(bl_value_class_name(BL_VALUE_ROWS), "rows");
    assert_string_equal(bl_value_class_name((bl_value_class)9), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_global_round_trip),
                                       cmocka_unit_test(test_rank_round_trip),
                                       cmocka_unit_test(test_same_manifest_same_bytes),
                                       cmocka_unit_test(test_writing_refuses_what_reading_would),
                                       cmocka_unit_test(test_broken_global),
                                       cmocka_unit_test(test_broken_rank),
                                       cmocka_unit_test(test_wrong_kinds),
                                       cmocka_unit_test(test_helpers)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
