/* Values of a checkpoint's weights: reading codes with their scales, decoding them to bf16, digesting them. */
#ifndef BL_VERIFY_VALUES_H
#define BL_VERIFY_VALUES_H

#include "kernels/cast.h"
#include "verify/bind.h"
#include "verify/reader.h"
#include "verify/view.h"

#include <pthread.h>

typedef struct bl_values {
    const bl_checkpoint *source;
    const bl_binding *binding;
    bl_cast_kernels kernels;
    bl_reader **readers;  /* [source files] */
    pthread_mutex_t lock; /* of the sums that bl_values_add adds to */
    uint64_t stripe_bytes; /* room for 32 decoded rows of the widest fp8 or fp4 weight */
} bl_values;

/* Set up; arrays live in arena. Always followed by bl_values_close, also after a failure. cpu: capability mask. */
bl_status bl_values_open(bl_values *v, const bl_checkpoint *source, const bl_binding *binding, unsigned cpu, bl_arena *arena,
                         bl_error *err);
void bl_values_close(bl_values *v);

/* Scratch of one thread that handles up to tile bytes of codes at once: room to gather, scale bytes, a stripe. Aligned to
 * BL_IO_ALIGN. */
uint64_t bl_values_scratch(const bl_values *v, uint64_t tile);
/* The part of it that grows with the tile, in sixteenths of the tile. */
#define BL_VALUES_SCRATCH_RATIO 1

/* n bytes at offset of the codes, or of the scale grid, of a view, as stored; whole rows where the view is a part of a weight or
 * has several pieces. Between the rows of a view with padding there is room for that, which is left as it was. buf: BL_READ_ROOM(n), aligned to BL_IO_ALIGN; *data points into it. scratch: as bl_values_scratch. Bytes
 * that one piece holds are read as they lie, others are gathered. Errors as bl_file_read, naming the tensor. */
bl_status bl_values_read(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, uint8_t *buf, uint8_t *scratch,
                         const uint8_t **data, bl_error *err);

/* The same into dst, anywhere; buf is used for what is not in the page cache. */
bl_status bl_values_copy(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, uint8_t *dst, uint8_t *buf,
                         uint8_t *scratch, bl_error *err);

/* Rows [row, row + rows) of a view of an FP8 or FP4 weight, relative to it; row is a multiple of 32. */
typedef struct bl_rows {
    const bl_view *view;
    uint64_t row, rows;
    const uint8_t *codes, *scale;
} bl_rows;

/* Read the scales of r into scratch and set r->scale. A byte for which some code has no exact bf16 value, and an F32 scale
 * outside BL_F32_SCALE_MIN..MAX, is BL_E_INPUT, naming the scale tensor and the place. */
bl_status bl_values_scale(bl_values *v, bl_rows *r, uint8_t *scratch, bl_error *err);
/* Decode rows [from, from + count) of r, relative to it, into out [count, cols] bf16: exactly, or under F32 scales that are no
 * powers of two rounded as fp8_f32_row does. cols is at most BL_VALUE_MAX_COLS. */
void bl_values_decode(const bl_values *v, const bl_rows *r, uint64_t from, uint64_t count, uint16_t *out);

/* Add n bytes at offset of a view (of its scale's bytes when scale is set) to *sum, its part of the weight's value digest. The
 * piece splits no unit. scratch: bl_values_scratch(n) bytes. Thread-safe. Errors as bl_values_scale. */
bl_status bl_values_add(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, const uint8_t *data,
                        uint8_t *scratch, bl_sum *sum, bl_error *err);

/* Tiles of the value digest of w's part from a row of it on; rows lie one after the other. */
bl_tiles bl_weight_tiles(const bl_weight *w, uint64_t row);
/* At which multiples of bytes the codes of w's part, or its scale, may be cut so that no unit and no row is split. */
uint64_t bl_values_granule(const bl_weight *w, bool scale);

#endif
