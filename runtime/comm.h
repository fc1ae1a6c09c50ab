/* The communicator: how ranks exchange what each computed a part of. Buffers are in the backend's memory. A forward pass calls
 * it at named points and nowhere else. */
#ifndef BL_RUNTIME_COMM_H
#define BL_RUNTIME_COMM_H

#include "formats/dtype.h"

/* Where in the pass an exchange stands. */
typedef enum bl_exchange {
    BL_AT_EMBEDDING = 0, /* sum of BF16 rows, of which one rank's is not zero */
    BL_AT_ENGRAM_ROWS,   /* likewise */
    BL_AT_ATTENTION,     /* sum of F32 partial products of wo_b, in rank order */
    BL_AT_EXPERTS,       /* sum of F32 partial sums over the experts, in rank order */
    BL_AT_HEAD,          /* F32 logits of each rank's vocabulary range, gathered */
    BL_AT_STAGE          /* residual streams and mixing coefficients to the next pipeline stage */
} bl_exchange;

typedef struct bl_comm bl_comm;
struct bl_comm {
    const char *name;
    void (*destroy)(bl_comm *c);
    /* In place on buffer [rows, cols]: every rank ends with the sum. */
    void (*all_reduce)(bl_comm *c, bl_exchange at, void *buffer, int64_t rows, int64_t cols, bl_dtype dtype);
    /* Every rank ends with all cols of each row, of which it brought [first, first + count). */
    void (*all_gather)(bl_comm *c, bl_exchange at, void *buffer, int64_t rows, int64_t cols, int64_t first, int64_t count,
                       bl_dtype dtype);
    /* From the stage before, to the stage after; nothing at the ends of the pipeline. */
    void (*receive)(bl_comm *c, bl_exchange at, void *buffer, int64_t rows, int64_t cols, bl_dtype dtype);
    void (*send)(bl_comm *c, bl_exchange at, const void *buffer, int64_t rows, int64_t cols, bl_dtype dtype);
};

/* One rank: every exchange is nothing. Static, destroy does nothing. */
bl_comm *bl_comm_single(void);

#endif
