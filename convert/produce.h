/* Making the bytes of planned output files: read, check, cast, digest. One tile at a time, on any thread. */
#ifndef BL_CONVERT_PRODUCE_H
#define BL_CONVERT_PRODUCE_H

#include "convert/plan.h"
#include "kernels/cast.h"
#include "verify/reader.h"
#include "verify/stream.h"

#include <pthread.h>

/* Where a part of an output file comes from; a part's tag is its index. */
typedef struct bl_piece {
    const bl_plan_tensor *tensor; /* NULL: the file's header */
    size_t member;
} bl_piece;

typedef struct bl_producer {
    const bl_checkpoint *source;
    const bl_binding *binding;
    const bl_plan *plan;
    bl_cast_kernels kernels;
    bl_reader **readers; /* [source files] */
    bl_lane *lanes;      /* [plan files] */
    bl_piece *pieces;
    bool values;   /* compute value digests */
    bl_sum *sums;  /* [binding weights] */
    pthread_mutex_t lock; /* of sums */
    uint64_t scratch, scratch_ratio; /* what bl_stream needs for bl_produce */
} bl_producer;

/* Set up; arrays live in arena. bl_producer_close frees the rest, also after a failure. cpu: capability mask. */
bl_status bl_producer_open(bl_producer *p, const bl_checkpoint *source, const bl_binding *binding, const bl_plan *plan,
                           bool values, unsigned cpu, bl_arena *arena, bl_error *err);
void bl_producer_close(bl_producer *p);

/* Fill t->data. Refuses scale bytes for which the codes have no exact BF16 value (BL_E_INPUT, naming tensor and place). */
bl_status bl_produce(bl_producer *p, const bl_tile *t, bl_error *err);

#endif
