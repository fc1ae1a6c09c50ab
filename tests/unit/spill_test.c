#include "convert/spill.h"

#include "tests/unit/scratch.h"

#include <dirent.h>

enum { ITEMS = 5 };

static const uint64_t sizes[ITEMS] = {1, 5000, BL_SPILL_SMALL, BL_SPILL_SMALL + 1, 3 * BL_SPILL_SMALL};

static uint8_t byte_of(size_t item, uint64_t at)
{
    return (uint8_t)(item * 131 + at * 7 + (at >> 9));
}

/* Put every item in pieces, last piece first, all items in turn; take them in other pieces. */
static void in_any_order(void **state)
{
    (void)state;
    bl_spill *s;
    bl_error err = {0};
    uint8_t *buf = malloc(4 * BL_SPILL_SMALL);
    assert_int_equal(bl_spill_create(&s, scratch_root, ITEMS, &err), BL_OK);
    for (int piece = 9; piece >= 0; piece--) {
        for (size_t i = 0; i < ITEMS; i++) {
            uint64_t from = sizes[i] * (uint64_t)piece / 10, to = sizes[i] * (uint64_t)(piece + 1) / 10;
            for (uint64_t k = from; k < to; k++) {
                buf[k - from] = byte_of(i, k);
            }
            assert_int_equal(bl_spill_put(s, i, sizes[i], from, buf, to - from, &err), BL_OK);
        }
    }
    for (size_t i = ITEMS; i-- > 0;) {
        for (uint64_t at = 0, n; at < sizes[i]; at += n) {
            n = sizes[i] - at < 100001 ? sizes[i] - at : 100001;
            assert_int_equal(bl_spill_take(s, i, sizes[i], at, buf, n, &err), BL_OK);
            for (uint64_t k = 0; k < n; k++) {
                assert_int_equal(buf[k], byte_of(i, at + k));
            }
        }
    }
    bl_spill_destroy(&s);
    assert_null(s);
    free(buf);
}

/* Nothing is left in the folder, and what was never taken is freed. */
static void leaves_nothing(void **state)
{
    (void)state;
    bl_spill *s;
    bl_error err = {0};
    uint8_t *big = calloc(1, BL_SPILL_SMALL + 1);
    assert_int_equal(bl_spill_create(&s, scratch_root, 2, &err), BL_OK);
    assert_int_equal(bl_spill_put(s, 0, BL_SPILL_SMALL + 1, 0, big, BL_SPILL_SMALL + 1, &err), BL_OK);
    assert_int_equal(bl_spill_put(s, 1, 10, 0, big, 10, &err), BL_OK);
    DIR *d = opendir(scratch_root);
    for (struct dirent *e; (e = readdir(d));) {
        assert_true(!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."));
    }
    closedir(d);
    bl_spill_destroy(&s);
    bl_spill_destroy(&s);
    free(big);
}

static void refuses(void **state)
{
    (void)state;
    bl_spill *s;
    bl_error err = {0};
    uint8_t *big = calloc(1, BL_SPILL_SMALL + 1);
    assert_int_equal(bl_spill_create(&s, "/nowhere/at/all", 1, &err), BL_OK);
    assert_int_equal(bl_spill_take(s, 0, 4, 0, big, 4, &err), BL_E_INTERNAL);
    bl_error_clear(&err);
    assert_int_equal(bl_spill_put(s, 0, BL_SPILL_SMALL + 1, 0, big, 1, &err), BL_E_IO);
    assert_non_null(strstr(err.path, "/nowhere/at/all"));
    bl_spill_destroy(&s);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_any_order), cmocka_unit_test(leaves_nothing), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
