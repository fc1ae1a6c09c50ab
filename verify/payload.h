/* Proving files whose tensors have recorded digests: one pass over all of them. Private to verify/. */
#ifndef BL_VERIFY_PAYLOAD_H
#define BL_VERIFY_PAYLOAD_H

#include "verify/digest.h"
#include "verify/finder.h"
#include "verify/witness.h"

/* A tensor of a file, or padding (name NULL); each begins where the one before it ends. */
typedef struct bl_payload_tensor {
    const char *name;
    bl_dtype dtype;
    uint64_t nbytes;
    const bl_digest *digest;
} bl_payload_tensor;

typedef struct bl_payload {
    const char *path;
    bl_file *file;
    uint64_t data_offset;
    const bl_payload_tensor *tensors; /* [count] */
    size_t count;
    const bl_digest *data;      /* of all bytes from data_offset on; NULL: none is recorded */
    bl_witness *witness;        /* of the file, to be judged; NULL: none */
} bl_payload;

typedef struct bl_payload_proof {
    size_t digests; /* tensors whose digest is the recorded one */
    uint64_t bytes;
} bl_payload_proof;

/* Read everything: look for values that no sound tensor has (from level 2 on), compare digests (from 3 on). What differs is a
 * finding. Arrays live in arena. */
bl_status bl_payload_prove(bl_finder *f, const bl_payload *files, size_t count, bl_arena *arena, bl_payload_proof *out, bl_error *err);

#endif
