#include "runtime/engram.h"
#include "formats/file.h"
#include "formats/json.h"
#include "tests/unit/tiny_tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static char text[32768], full[32768];

/* The tiny tokenizer with ids 266..299 filled: "w133" and "W133" share a class, and so on. */
static bl_tokenizer *tiny(bool holes)
{
    bl_tokenizer *t;
    bl_error err;
    bl_error_clear(&err);
    size_t n = tiny_tokenizer(text, sizeof text);
    const char *at = strstr(text, ":265}") + 4;
    size_t m = (size_t)snprintf(full, sizeof full, "%.*s", (int)(at - text), text);
    for (int id = 266; id < 300; id++)
        m += (size_t)snprintf(full + m, sizeof full - m, ",\"%c%d\":%d", id % 2 ? 'W' : 'w', id / 2, id);
    m += (size_t)snprintf(full + m, sizeof full - m, "%s", at);
    bl_status s = holes ? bl_tokenizer_parse(&t, text, n, "tiny", &err) : bl_tokenizer_parse(&t, full, m, "tiny", &err);
    if (s != BL_OK)
        fail_msg("%s", err.message);
    return t;
}

static void test_classes(void **state)
{
    bl_tokenizer *t = tiny(false);
    int32_t *map;
    int classes;
    assert_int_equal(bl_engram_token_map(t, &map, &classes, NULL), BL_OK);
    assert_int_equal(map[0], 0);
    assert_int_equal(map[TINY_BYTE + 'a'], map[TINY_BYTE + 'A']);
    assert_int_equal(map[TINY_BYTE + ' '], map[TINY_BYTE + '\n']); /* blanks fold to one space, which stays */
    assert_int_equal(map[TINY_HELLO], map[TINY_SPACE_HELLO]);
    assert_int_equal(map[266], map[267]);
    assert_int_not_equal(map[TINY_BYTE + 0xC3], map[TINY_BYTE + 0xC4]); /* no text of their own: their names */
    assert_int_not_equal(map[TINY_BYTE + 28], map[TINY_BYTE + 29]);     /* strip leaves nothing: their text */
    free(map);
    bl_tokenizer_close(&t);

    bl_error err;
    bl_error_clear(&err);
    t = tiny(true);
    assert_int_equal(bl_engram_token_map(t, &map, &classes, &err), BL_E_INPUT);
    assert_non_null(strstr(err.message, "no token 266"));
    bl_tokenizer_close(&t);
}

static const int layer_ids[] = {1, 14};

static bl_config config_of(int classes, const int64_t *rows)
{
    return (bl_config){.engram_layer_ids = layer_ids,
                       .engram_num_embeddings = rows,
                       .engram_count = 2,
                       .engram_max_ngram_size = 3,
                       .engram_n_heads = 2,
                       .engram_vocab_size = 61,
                       .engram_pad_token_id = 2,
                       .engram_compressed_vocab_size = classes};
}

static void test_layout(void **state)
{
    static const int64_t primes[] = {61, 67, 71, 73, 79, 83, 89, 97}, rows[] = {61 + 67 + 71 + 73, 79 + 83 + 89 + 97};
    bl_tokenizer *t = tiny(false);
    int32_t *map;
    int classes;
    assert_int_equal(bl_engram_token_map(t, &map, &classes, NULL), BL_OK);
    free(map);
    bl_config c = config_of(classes, rows);
    bl_engram *e;
    assert_int_equal(bl_engram_create(&e, &c, t, NULL), BL_OK);
    assert_int_equal(e->columns, 4);
    assert_int_equal(e->pad, 2);
    assert_memory_equal(e->primes, primes, sizeof primes);
    assert_memory_equal(e->table_rows, rows, sizeof rows);
    const int64_t offsets[] = {0, 61, 128, 199, 0, 79, 162, 251};
    assert_memory_equal(e->offsets, offsets, sizeof offsets);
    bl_engram_destroy(&e);
    assert_null(e);

    /* Everything the config says is held against what the tokenizer gives. */
    struct {
        bl_config c;
        const char *key, *message;
    } bad[5] = {{c, "engram_compressed_vocab_size", "Engram classes, the config says"},
                {c, "engram_num_embeddings", "its addressing needs 272"},
                {c, "engram_pad_token_id", "is no token"},
                {c, "engram_vocab_size", "out of range"},
                {c, "engram_max_ngram_size", "columns"}};
    static const int64_t wrong[] = {273, 348};
    bad[0].c.engram_compressed_vocab_size++;
    bad[1].c.engram_num_embeddings = wrong;
    bad[2].c.engram_pad_token_id = TINY_SIZE;
    bad[3].c.engram_vocab_size = INT64_MAX;
    bad[4].c.engram_n_heads = 1 << 20;
    for (int i = 0; i < 5; i++) {
        bl_error err;
        bl_error_clear(&err);
        assert_int_equal(bl_engram_create(&e, &bad[i].c, t, &err), BL_E_INPUT);
        assert_null(e);
        assert_string_equal(err.tensor, bad[i].key);
        assert_non_null(strstr(err.message, bad[i].message));
    }
    bl_tokenizer_close(&t);
}

/* The released constants (99,092 classes, layers 1 and 14). */
static void test_multipliers(void **state)
{
    static const int64_t want[2][4] = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                       {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
    for (int i = 0; i < 2; i++) {
        int64_t m[4];
        bl_engram_multipliers(m, 4, layer_ids[i], 99092);
        assert_memory_equal(m, want[i], sizeof m);
    }
}

static void test_history(void **state)
{
    int64_t multipliers[] = {3, 5, 7}, primes[] = {11, 13, 17, 19}, offsets[] = {0, 11, 24, 41}, rows[4];
    bl_engram e = {.layers = 1, .order = 3, .heads = 2, .columns = 4, .pad = 2, .multipliers = multipliers, .primes = primes,
                   .offsets = offsets};
    int64_t two = (9 * 3) ^ (8 * 5), three = two ^ (4 * 7);
    bl_engram_rows(&e, 0, (const int32_t[]){9, 8, 4}, rows);
    const int64_t want[] = {two % 11, two % 13 + 11, three % 17 + 24, three % 19 + 41};
    assert_memory_equal(rows, want, sizeof want);
    /* A dead entry blocks itself and everything older. */
    int64_t dead[4];
    bl_engram_rows(&e, 0, (const int32_t[]){9, BL_ENGRAM_DEAD, 4}, rows);
    bl_engram_rows(&e, 0, (const int32_t[]){9, 2, 2}, dead);
    assert_memory_equal(rows, dead, sizeof dead);
    bl_engram_rows(&e, 0, (const int32_t[]){BL_ENGRAM_DEAD, 8, 4}, rows);
    bl_engram_rows(&e, 0, (const int32_t[]){2, 2, 2}, dead);
    assert_memory_equal(rows, dead, sizeof dead);
}

static int64_t number(bl_json *it_value)
{
    int64_t v;
    assert_true(bl_json_i64(*it_value, &v));
    return v;
}

/* The published hash vectors at the released size. */
static void check_case(const bl_engram *e, bl_json test)
{
    int32_t history[64 + 3];
    bl_json key, v, row;
    int n = 0;
    for (bl_json_iter it = bl_json_begin(bl_json_get(test, "compressed")); bl_json_next(&it, &key, &v); n++)
        history[n] = (int32_t)number(&v);
    for (int l = 0; l < e->layers; l++) {
        int at = 0;
        bl_json rows = bl_json_get(bl_json_get(test, "rows"), l ? "14" : "1");
        for (bl_json_iter it = bl_json_begin(rows); bl_json_next(&it, &key, &row); at++) {
            int32_t back[4];
            int64_t got[24];
            for (int i = 0; i < 4; i++)
                back[i] = at >= i ? history[at - i] : BL_ENGRAM_DEAD;
            bl_engram_rows(e, l, back, got);
            int c = 0;
            for (bl_json_iter k = bl_json_begin(row); bl_json_next(&k, &key, &v); c++)
                assert_int_equal(got[c], number(&v));
            assert_int_equal(c, 24);
        }
        assert_int_equal(at, n);
    }
}

static void test_released(void **state)
{
    const char *shared = getenv("BL_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/data/engram_golden.json", shared ? shared : BL_SOURCE_ROOT "/../shared");
    char *golden;
    size_t n;
    if (bl_file_slurp(path, 1 << 20, &golden, &n, NULL) != BL_OK) {
        print_message("SKIPPED: no %s: the released hash vectors are NOT checked\n", path);
        skip();
    }
    bl_error err;
    bl_error_clear(&err);
    snprintf(path, sizeof path, "%s/data/tokenizer.reconstructed.json", shared ? shared : BL_SOURCE_ROOT "/../shared");
    bl_tokenizer *t;
    assert_int_equal(bl_tokenizer_open(&t, path, &err), BL_OK);
    static const int64_t rows[] = {384006168, 384016682};
    bl_config c = config_of(99092, rows);
    c.engram_max_ngram_size = 4;
    c.engram_n_heads = 8;
    c.engram_vocab_size = 16000000;
    bl_engram *e;
    if (bl_engram_create(&e, &c, t, &err) != BL_OK)
        fail_msg("%s", err.message);
    bl_json root, key, test;
    assert_int_equal(bl_json_parse(golden, n, NULL, path, &root, &err), BL_OK);
    int cases = 0;
    for (bl_json_iter it = bl_json_begin(bl_json_get(root, "cases")); bl_json_next(&it, &key, &test); cases++)
        check_case(e, test);
    assert_int_equal(cases, 5);
    free(golden);
    bl_engram_destroy(&e);
    bl_tokenizer_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes), cmocka_unit_test(test_layout),   cmocka_unit_test(test_multipliers),
        cmocka_unit_test(test_history), cmocka_unit_test(test_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
