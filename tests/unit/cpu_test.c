/* Names of CPU levels and the masks they stand for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu.h"

static void levels_stand_on_each_other(void **unused)
{
    static const char *const x86[] = {"c", "avx2", "avx512", "avx512bf16"};
    unsigned below = 0, mask;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(bl_cpu_parse(x86[i], &mask), 0);
        assert_int_equal(mask & below, below);
        assert_true(i == 0 ? mask == 0 : mask != below);
        assert_string_equal(bl_cpu_name(mask), x86[i]);
        below = mask;
    }
    assert_int_equal(bl_cpu_parse("neon", &mask), 0);
    assert_int_equal(mask, BL_CPU_NEON);
    assert_string_equal(bl_cpu_name(mask), "neon");
}

static void native_is_everything(void **unused)
{
    unsigned mask, have = bl_cpu_detect();
    assert_int_equal(bl_cpu_parse("native", &mask), 0);
    assert_int_equal(mask & have, have);
}

static void unknown_names_are_refused(void **unused)
{
    unsigned mask = 123;
    assert_int_equal(bl_cpu_parse("avx", &mask), -1);
    assert_int_equal(bl_cpu_parse("", &mask), -1);
    assert_int_equal(mask, 123);
}

/* A level is never reported without those it stands on, or a mask would name variants that cannot run. */
static void detection_is_closed(void **unused)
{
    unsigned have = bl_cpu_detect(), mask;
    assert_int_equal(bl_cpu_parse(bl_cpu_name(have), &mask), 0);
    assert_int_equal(have, mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_stand_on_each_other),
        cmocka_unit_test(native_is_everything),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(detection_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
