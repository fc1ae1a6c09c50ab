/* Opening packed models, sound ones and broken ones. */
#include "formats/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/breakage.h"

#define META "\"__metadata__\":{\"format\":\"pt\"},"

static const uint64_t four[] = {4}, eight[] = {8}, zero[] = {0};
static const bl_digest digest = {{1, 2, 3}};

/* A packed model of one rank: a, c in one file, b in a linked one that also holds d. */
static const char *packed(const char *name)
{
    bl_manifest_file files[] = {{.name = "rank-0000/manifest.json"}, {.name = "rank-0000/rest.safetensors"}};
    bl_manifest_file rank_files[] = {{.name = "rest.safetensors"},
                                     {.name = "linked.safetensors", .linked = true}};
    static const char rest[] = "{" META T4("c", "0,4") "," T4("a", "4,8") "}",
                      linked[] = "{" T4("x.b", "0,4") "," T4("d", "4,8") "}";
    bl_error e = {0};
    assert_int_equal(mkdir(scratch_path("%s", name), 0700), 0);
    assert_int_equal(mkdir(scratch_path("%s/rank-0000", name), 0700), 0);
    scratch_text(scratch_path("%s/config.json", name), tiny_config);
    shard(name, "rank-0000/rest.safetensors", rest, 8);
    shard(name, "rank-0000/linked.safetensors", linked, 8);
    uint64_t at = 8 + strlen(rest), linked_at = 8 + strlen(linked);
    rank_files[0].bytes = at + 8;
    rank_files[1].bytes = linked_at + 8;
    bl_manifest_tensor t[] = {
        {.tensor = {.name = "a", .shape = four, .ndim = 1, .dtype = BL_DT_U8, .offset = at + 4}},
        {.tensor =
             {.name = "b", .shape = four, .ndim = 1, .dtype = BL_DT_U8, .file = 1, .offset = linked_at}},
        {.tensor = {.name = "c", .shape = four, .ndim = 1, .dtype = BL_DT_U8, .offset = at}}};
    for (int i = 0; i < 3; i++) {
        t[i].start = zero;
        t[i].global_shape = i == 1 ? eight : four;
        t[i].chunks = &digest;
        t[i].chunk_count = 1;
    }
    bl_rank_manifest r = {.files = rank_files, .file_count = 2, .tensors = t, .tensor_count = 3};
    bl_manifest m = {
        .writer = "test", .layout = {.tp = 1, .ep = 1, .pp = 1, .ranks = 1}, .files = files, .file_count = 2};
    expect_ok(bl_rank_manifest_write(&r, scratch_path("%s/rank-0000/manifest.json", name), &e), &e);
    expect_ok(bl_manifest_write(&m, scratch_path("%s/manifest.json", name), &e), &e);
    return scratch_path("%s", name);
}

static void test_packed(void **state)
{
    bl_checkpoint *c;
    bl_error e = {0};
    char path[512];
    snprintf(path, sizeof path, "%s", packed("packed"));
    expect_ok(bl_checkpoint_open(&c, path, NULL, &e), &e);
    assert_int_equal(c->kind, BL_SOURCE_PACKED);
    assert_int_equal(c->file_count, 2);
    assert_int_equal(c->tensor_count, 3);
    assert_non_null(c->manifest);
    assert_int_equal(c->ranks[0].tensor_count, 3);
    const bl_tensor *b = bl_checkpoint_find(c, "b");
    assert_string_equal(bl_checkpoint_file(c, b)->name, "rank-0000/linked.safetensors");
    assert_null(bl_checkpoint_find(c, "d"));
    bl_checkpoint_close(&c);
    const bl_checkpoint_options other = {.one_rank = true, .rank = 1};
    expect_failure(bl_checkpoint_open(&c, path, &other, &e), &e, BL_E_USAGE, "no rank 1");
}

static void cut_manifest(const char *f)
{
    assert_int_equal(truncate(scratch_path("%s/manifest.json", f), 50), 0);
}
static void lose_rank(const char *f)
{
    unlink(scratch_path("%s/rank-0000/manifest.json", f));
}
static void lose_payload(const char *f)
{
    unlink(scratch_path("%s/rank-0000/rest.safetensors", f));
}
static void stray_payload(const char *f)
{
    shard(f, "rank-0000/more.safetensors", "{" T4("e", "0,4") "}", 4);
}
static void rename_tensor(const char *f)
{
    shard(f, "rank-0000/rest.safetensors", "{" META T4("c", "0,4") "," T4("e", "4,8") "}", 8);
}
static void retype_tensor(const char *f)
{
    shard(f, "rank-0000/rest.safetensors",
          "{" META "\"c\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}," T4("a", "4,8") "}", 8);
}
static void other_metadata(const char *f)
{
    shard(f, "rank-0000/rest.safetensors",
          "{\"__metadata__\":{\"format\":\"qt\"}," T4("c", "0,4") "," T4("a", "4,8") "}", 8);
}
static void no_metadata(const char *f)
{
    shard(f, "rank-0000/rest.safetensors",
          "{" T4("c", "0,4") "," T4("a", "4,8") "}"
                                                "                               ",
          8);
}
static void move_tensor(const char *f)
{
    shard(f, "rank-0000/rest.safetensors", "{" META T4("a", "0,4") "," T4("c", "4,8") "}", 8);
}
static void pad_payload(const char *f)
{
    shard(f, "rank-0000/rest.safetensors", "{" META T4("c", "0,4") "," T4("a", "4,8") "} ", 8);
}
static void retype_linked(const char *f)
{
    shard(f, "rank-0000/linked.safetensors",
          "{\"x.b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}," T4("d", "4,8") "}", 8);
}
static void move_linked(const char *f)
{
    shard(f, "rank-0000/linked.safetensors",
          "{\"q\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}"
          "                                                      ",
          8);
}

static void test_broken_packed(void **state)
{
    static const breakage broken[] = {
        {"cut_manifest", cut_manifest, "manifest.json|JSON"},
        {"lose_rank", lose_rank, "rank-0000/manifest.json|No such file"},
        {"lose_payload", lose_payload, "rest.safetensors|No such file"},
        {"stray_payload", stray_payload, "more.safetensors|stray"},
        {"rename_tensor", rename_tensor, "rest.safetensors|'a'|missing"},
        {"retype_tensor", retype_tensor, "'c'|differ"},
        {"other_metadata", other_metadata, "rest.safetensors|'__metadata__'|\"pt\""},
        {"no_metadata", no_metadata, "rest.safetensors|'__metadata__'"},
        {"move_tensor", move_tensor, "'a'|differ"},
        {"pad_payload", pad_payload, "rest.safetensors|the manifest says"},
        {"retype_linked", retype_linked, "linked.safetensors|'b'|has no U8 tensor"},
        {"move_linked", move_linked, "linked.safetensors|'b'|has no U8 tensor"},
        {"pconfig", bad_config, "config.json|llama"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        bl_checkpoint *c;
        bl_error e = {0};
        seen all = {broken[i].fragments, 0, 0};
        const bl_checkpoint_options tolerate = {.tolerate = true, .on_problem = collect, .arg = &all};
        char path[512];
        snprintf(path, sizeof path, "%s", packed(broken[i].name));
        broken[i].apply(broken[i].name);
        expect_failure(bl_checkpoint_open(&c, path, NULL, &e), &e, BL_E_INPUT, broken[i].fragments);
        bl_error_clear(&e);
        expect_ok(bl_checkpoint_open(&c, path, &tolerate, &e), &e);
        assert_true(all.matches >= 1);
        bl_checkpoint_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed), cmocka_unit_test(test_broken_packed)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
