/* The encoders' part of baleen bench cast. */
#ifndef BL_TOOLS_BENCH_ENCODE_H
#define BL_TOOLS_BENCH_ENCODE_H

#include "tools/bench.h"

typedef struct bench_encode {
    uint16_t *x; /* [rows, 5120] bf16 */
    uint8_t *codes;
    int64_t rows;
} bench_encode;

/* Buffers for a bf16 input of about that many bytes, freed by bench_end. */
bl_status bench_encode_open(bench *b, bench_encode *e, uint64_t bytes, bl_error *err);
/* Measures with the current pool. */
bl_status bench_encode_run(bench *b, const bench_encode *e, bl_error *err);

#endif
