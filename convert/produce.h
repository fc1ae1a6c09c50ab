/* Making the bytes of planned output files: read, check, cast, digest. One tile at a time, on any thread. */
#ifndef BL_CONVERT_PRODUCE_H
#define BL_CONVERT_PRODUCE_H

#include "convert/plan.h"
#include "verify/stream.h"
#include "verify/values.h"

/* Where a part of an output file comes from; a part's tag is its index. */
typedef struct bl_piece {
    const bl_plan_tensor *tensor; /* NULL: the file's header */
    size_t member;
} bl_piece;

typedef struct bl_producer {
    const bl_plan *plan;
    bl_values values;
    bl_sum *sums; /* [plan sum_count] value digests */
    bl_lane *lanes; /* [plan files] */
    bl_piece *pieces;
    bool digest; /* compute value digests */
    uint64_t scratch, scratch_ratio; /* what bl_stream needs for bl_produce */
} bl_producer;

/* Set up; arrays live in arena. Always followed by bl_producer_close, also after a failure. cpu: capability mask. */
bl_status bl_producer_open(bl_producer *p, const bl_checkpoint *source, const bl_binding *binding, const bl_plan *plan,
                           bool digest, unsigned cpu, bl_arena *arena, bl_error *err);
void bl_producer_close(bl_producer *p);

/* Fill t->data. Errors as bl_values_scale and bl_values_read. */
bl_status bl_produce(bl_producer *p, const bl_tile *t, bl_error *err);

#endif
