/* A device that casts weights beside the processor: what a conversion needs of it, whatever it is. */
#ifndef BL_KERNELS_CAST_DEVICE_H
#define BL_KERNELS_CAST_DEVICE_H

#include "formats/status.h"
#include "kernels/linear.h"

typedef struct bl_cast_device bl_cast_device;
struct bl_cast_device {
    /* y [rows, cols] = the fp8 (32x32) or fp4 (1x32) weight w as bf16, the bytes that kernels/cast.h gives. w's first row begins a block,
     * its codes and scales are legal, cols is a multiple of 32. All memory is the host's. Waits; any thread, several at once. BL_E_NOMEM
     * when the device has no more memory, BL_E_IO when it fails. */
    bl_status (*cast)(bl_cast_device *d, uint16_t *y, const bl_matrix *w, bl_error *err);
    /* Memory that casts read or write is prepared for that, whole pages; it is given back before it is freed. Memory that is not works
     * too, more slowly. */
    bl_status (*pin)(bl_cast_device *d, void *memory, uint64_t bytes, bl_error *err);
    void (*unpin)(bl_cast_device *d, void *memory);
    void (*destroy)(bl_cast_device *d);
};

#endif
