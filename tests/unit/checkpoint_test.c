#include "formats/checkpoint.h"

#include "formats/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/breakage.h"

#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define GOOD_INDEX                                                                                           \
    "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"" SHARD1 "\",\"b\":\"" SHARD2                 \
    "\",\"c\":\"" SHARD1 "\"}}"

/* A sound folder of two shards: a and c in the first, b in the second. */
static const char *sound(const char *name)
{
    assert_int_equal(mkdir(scratch_path("%s", name), 0700), 0);
    scratch_text(scratch_path("%s/config.json", name), tiny_config);
    scratch_text(scratch_path("%s/" INDEX, name), GOOD_INDEX);
    shard(name, SHARD1, "{" T4("c", "0,4") "," T4("a", "4,8") "}", 8);
    shard(name, SHARD2, "{" T4("b", "0,4") "}", 4);
    return scratch_path("%s", name);
}

static void index_is(const char *folder, const char *text)
{
    scratch_text(scratch_path("%s/" INDEX, folder), text);
}

static void lose_shard(const char *f)
{
    unlink(scratch_path("%s/" SHARD2, f));
}
static void dangle_shard(const char *f)
{
    lose_shard(f);
    assert_int_equal(symlink("../nowhere", scratch_path("%s/" SHARD2, f)), 0);
}
static void add_stray(const char *f)
{
    shard(f, "model.safetensors", "{" T4("a", "0,4") "}", 4);
}
static void lose_tensor(const char *f)
{
    shard(f, SHARD1, "{" T4("c", "0,4") "}", 4);
}
static void add_tensor(const char *f)
{
    shard(f, SHARD2, "{" T4("b", "0,4") "," T4("d", "4,8") "}", 8);
}
static void double_tensor(const char *f)
{
    shard(f, SHARD2, "{" T4("b", "0,4") "," T4("a", "4,8") "}", 8);
}
static void swap_shards(const char *f)
{
    index_is(f, "{\"metadata\":{},\"weight_map\":{\"a\":\"" SHARD1 "\",\"b\":\"" SHARD1 "\",\"c\":\"" SHARD2
                "\"}}");
}
static void climb_out(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":\"../x.safetensors\"}}");
}
static void absolute_name(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
}
static void hidden_name(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":\"..\"}}");
}
static void nul_name(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":\"" SHARD1 "\\u0000x\"}}");
}
static void nul_tensor(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\\u0000b\":\"" SHARD1 "\"}}");
}
static void number_name(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":1}}");
}
static void double_key(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":\"" SHARD1 "\",\"a\":\"" SHARD2 "\"}}");
}
static void empty_map(const char *f)
{
    index_is(f, "{\"metadata\":{\"total_size\":0},\"weight_map\":{}}");
}
static void no_map(const char *f)
{
    index_is(f, "{\"metadata\":{}}");
}
static void list_map(const char *f)
{
    index_is(f, "{\"weight_map\":[]}");
}
static void list_index(const char *f)
{
    index_is(f, "[]");
}
static void bad_index(const char *f)
{
    index_is(f, "{\"weight_map\":{");
}
static void page_index(const char *f)
{
    index_is(f, "<html>404</html>");
}
static void folder_index(const char *f)
{
    unlink(scratch_path("%s/" INDEX, f));
    mkdir(scratch_path("%s/" INDEX, f), 0700);
}
static void no_index(const char *f)
{
    unlink(scratch_path("%s/" INDEX, f));
}
static void lfs_shard(const char *f)
{
    scratch_text(scratch_path("%s/" SHARD1, f),
                 "version https://git-lfs.github.com/spec/v1\noid sha256:77\nsize 12\n");
}
static void short_shard(const char *f)
{
    assert_int_equal(truncate(scratch_path("%s/" SHARD1, f), 100), 0);
}
static void folder_shard(const char *f)
{
    lose_shard(f);
    mkdir(scratch_path("%s/" SHARD2, f), 0700);
}
static void fifo_shard(const char *f)
{
    lose_shard(f);
    assert_int_equal(mkfifo(scratch_path("%s/" SHARD2, f), 0600), 0);
}
static void no_config(const char *f)
{
    unlink(scratch_path("%s/config.json", f));
}
static void wrong_count(const char *f)
{
    assert_int_equal(
        rename(scratch_path("%s/" SHARD2, f), scratch_path("%s/model-00002-of-00003.safetensors", f)), 0);
    index_is(f, "{\"weight_map\":{\"a\":\"" SHARD1
                "\",\"b\":\"model-00002-of-00003.safetensors\",\"c\":\"" SHARD1 "\"}}");
}
static void half_indexed(const char *f)
{
    index_is(f, "{\"weight_map\":{\"a\":\"" SHARD1 "\",\"c\":\"" SHARD1 "\"}}");
    lose_shard(f);
}

static const breakage breakages[] = {
    {"lose_shard", lose_shard, SHARD2 "|shard is missing"},
    {"dangle_shard", dangle_shard, SHARD2 "|symbolic link to nothing"},
    {"add_stray", add_stray, "/model.safetensors|stray"},
    {"lose_tensor", lose_tensor, SHARD1 "|'a'|missing"},
    {"add_tensor", add_tensor, SHARD2 "|'d'|not in the index"},
    {"double_tensor", double_tensor, SHARD2 "|'a'|is also in " SHARD1},
    {"swap_shards", swap_shards, "'b'|the index says " SHARD1 ", it is in " SHARD2},
    {"climb_out", climb_out, INDEX "|'a'|'../x.safetensors' may not"},
    {"absolute_name", absolute_name, INDEX "|'/etc/passwd' may not"},
    {"hidden_name", hidden_name, "'..' may not"},
    {"nul_name", nul_name, "may not be the name"},
    {"nul_tensor", nul_tensor, "not a legal tensor name"},
    {"number_name", number_name, "'a'|not a string"},
    {"double_key", double_key, "'a'|duplicate key"},
    {"empty_map", empty_map, "'weight_map'|is empty"},
    {"no_map", no_map, "'weight_map'|is missing"},
    {"list_map", list_map, "'weight_map'|not an object"},
    {"list_index", list_index, "'weight_map'|is missing"},
    {"bad_index", bad_index, INDEX "|expected a key"},
    {"page_index", page_index, INDEX "|HTML page"},
    {"folder_index", folder_index, INDEX "|a folder"},
    {"no_index", no_index, "2 *.safetensors files but no " INDEX},
    {"lfs_shard", lfs_shard, SHARD1 "|git-lfs pointer|sha256:77"},
    {"short_shard", short_shard, SHARD1 "|truncated"},
    {"folder_shard", folder_shard, SHARD2 "|a folder"},
    {"fifo_shard", fifo_shard, SHARD2 "|a FIFO"},
    {"no_config", no_config, "config.json|No such file"},
    {"bad_config", bad_config, "config.json|'model_type'|llama"},
    {"wrong_count", wrong_count, "model-00002-of-00003|of 3 by its name"},
    {"half_indexed", half_indexed, "say 2 files, there are 1"},
};

static void test_broken_folders(void **state)
{
    for (size_t i = 0; i < sizeof breakages / sizeof *breakages; i++) {
        bl_checkpoint *c;
        bl_error e = {0};
        seen all = {breakages[i].fragments, 0, 0};
        const bl_checkpoint_options tolerate = {.tolerate = true, .on_problem = collect, .arg = &all};
        char path[512];
        snprintf(path, sizeof path, "%s", sound(breakages[i].name));
        breakages[i].apply(breakages[i].name);
        expect_failure(bl_checkpoint_open(&c, path, NULL, &e), &e, BL_E_INPUT, breakages[i].fragments);
        assert_null(c);
        bl_error_clear(&e);
        expect_ok(bl_checkpoint_open(&c, path, &tolerate, &e), &e);
        if (all.matches < 1) {
            fail_msg("%s: tolerant opening does not report it", breakages[i].name);
        }
        assert_int_equal(c->problems, all.count);
        bl_checkpoint_close(&c);
    }
}

static void test_sound_folder(void **state)
{
    bl_checkpoint *c;
    bl_error e = {0};
    char path[512];
    snprintf(path, sizeof path, "%s", sound("sound"));
    expect_ok(bl_checkpoint_open(&c, path, NULL, &e), &e);
    assert_int_equal(c->kind, BL_SOURCE_HF);
    assert_int_equal(c->file_count, 2);
    assert_int_equal(c->tensor_count, 3);
    assert_int_equal(c->tensor_bytes, 12);
    assert_true(c->has_config && c->config.hidden_size == 128);
    assert_string_equal(c->tensors[0].name, "a");
    const bl_tensor *t = bl_checkpoint_find(c, "a");
    assert_ptr_equal(t, &c->tensors[0]);
    assert_string_equal(bl_checkpoint_file(c, t)->name, SHARD1);
    uint8_t byte;
    expect_ok(bl_file_read(bl_checkpoint_file(c, t)->file, &byte, 1, t->offset, &e), &e);
    assert_int_equal(byte, 4); /* a begins at data byte 4 */
    assert_null(bl_checkpoint_find(c, "aa"));
    bl_checkpoint_close(&c);
    bl_checkpoint_close(&c);
}

static void test_tolerated_oddities(void **state)
{
    static const char *const indexes[] = {
        GOOD_INDEX,
        "{\"weight_map\":{\"a\":\"" SHARD1 "\",\"b\":\"" SHARD2 "\",\"c\":\"" SHARD1 "\"}}",
        "{\"extra\":[1],\"metadata\":{\"total_size\":3,\"x\":null},\"weight_map\":{\"a\":\"" SHARD1
        "\",\"b\":\"" SHARD2 "\",\"c\":\"" SHARD1 "\"}}",
        "{\"metadata\":\"none\",\"weight_map\":{\"c\":\"" SHARD1 "\",\"b\":\"" SHARD2
        "\",\"\\u0061\":\"" SHARD1 "\"}}",
    };
    char path[512];
    snprintf(path, sizeof path, "%s", sound("odd"));
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        bl_checkpoint *c;
        bl_error e = {0};
        index_is("odd", indexes[i]);
        expect_ok(bl_checkpoint_open(&c, path, NULL, &e), &e);
        assert_int_equal(c->tensor_count, 3);
        bl_checkpoint_close(&c);
    }
    /* A total_size that does not add up is a matter for verify. */
    bl_checkpoint *c;
    bl_error e = {0};
    seen all = {"metadata.total_size|is 3|12 bytes", 0, 0};
    const bl_checkpoint_options tolerate = {.tolerate = true, .on_problem = collect, .arg = &all};
    index_is("odd", indexes[2]);
    expect_ok(bl_checkpoint_open(&c, path, &tolerate, &e), &e);
    assert_int_equal(all.count, 1);
    assert_int_equal(all.matches, 1);
    bl_checkpoint_close(&c);
}

/* The Hugging Face cache keeps files elsewhere and links to them; so may the folder itself be a link. */
static void test_symbolic_links(void **state)
{
    bl_checkpoint *c;
    bl_error e = {0};
    sound("linked");
    assert_int_equal(mkdir(scratch_path("blobs"), 0700), 0);
    assert_int_equal(rename(scratch_path("linked/" SHARD1), scratch_path("blobs/123abc")), 0);
    assert_int_equal(symlink("../blobs/123abc", scratch_path("linked/" SHARD1)), 0);
    assert_int_equal(symlink("linked", scratch_path("snapshot")), 0);
    expect_ok(bl_checkpoint_open(&c, scratch_path("snapshot"), NULL, &e), &e);
    assert_int_equal(c->tensor_count, 3);
    bl_checkpoint_close(&c);
}

static void test_one_file(void **state)
{
    bl_checkpoint *c;
    bl_error e = {0};
    sound("one");
    expect_ok(bl_checkpoint_open(&c, scratch_path("one/" SHARD1), NULL, &e), &e);
    assert_int_equal(c->kind, BL_SOURCE_FILE);
    assert_int_equal(c->tensor_count, 2);
    assert_false(c->has_config);
    assert_string_equal(c->files[0].name, SHARD1);
    bl_checkpoint_close(&c);
    /* Without an index, one file of any name is the checkpoint. */
    unlink(scratch_path("one/" INDEX));
    unlink(scratch_path("one/" SHARD2));
    assert_int_equal(rename(scratch_path("one/" SHARD1), scratch_path("one/weights.safetensors")), 0);
    expect_ok(bl_checkpoint_open(&c, scratch_path("one"), NULL, &e), &e);
    assert_int_equal(c->kind, BL_SOURCE_HF);
    assert_int_equal(c->tensor_count, 2);
    bl_checkpoint_close(&c);
}

static void test_no_checkpoint_at_all(void **state)
{
    bl_checkpoint *c;
    bl_error e = {0};
    assert_int_equal(mkdir(scratch_path("nothing"), 0700), 0);
    expect_failure(bl_checkpoint_open(&c, scratch_path("nothing"), NULL, &e), &e, BL_E_INPUT,
                   "nothing|not a checkpoint");
    bl_error_clear(&e);
    expect_failure(bl_checkpoint_open(&c, scratch_path("missing"), NULL, &e), &e, BL_E_INPUT,
                   "missing|No such file");
    bl_error_clear(&e);
    scratch_text(scratch_path("note.txt"), "hello, this is no tensor file");
    expect_failure(bl_checkpoint_open(&c, scratch_path("note.txt"), NULL, &e), &e, BL_E_INPUT,
                   "note.txt|not a safetensors file");
    bl_error_clear(&e);
    expect_failure(bl_checkpoint_open(&c, "/dev/null", NULL, &e), &e, BL_E_INPUT, "/dev/null|a device");
    assert_null(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sound_folder),
                                       cmocka_unit_test(test_broken_folders),
                                       cmocka_unit_test(test_tolerated_oddities),
                                       cmocka_unit_test(test_symbolic_links),
                                       cmocka_unit_test(test_one_file),
                                       cmocka_unit_test(test_no_checkpoint_at_all)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
