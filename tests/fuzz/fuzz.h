/* What the fuzz targets share. A target is one file NAME_fuzz.c with LLVMFuzzerTestOneInput; corpus/NAME
 * holds its inputs, also run by driver.c as an ordinary test. With -Dfuzz=enabled (clang) each is also linked
 * with libFuzzer: meson setup build-fuzz -Dfuzz=enabled -Db_sanitize=address,undefined -Db_lundef=false
 *   build-fuzz/tests/fuzz_json -max_total_time=120 new-inputs/ tests/fuzz/corpus/json */
#ifndef BL_TESTS_FUZZ_FUZZ_H
#define BL_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that must hold whatever the input: abort when it does not. */
#define BL_MUST(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            __builtin_trap();                                                                                \
        }                                                                                                    \
    } while (0)

#endif
