/* Deltas of weight-sync buckets: what turns one state of a folder of buckets (buckets.h) into another of the same layout.
 *
 * target.json is buckets.json of the new state. delta-NNNNN.safetensors, from 00001, is there for every bucket in which something
 * changed: a U8 tensor for each changed tensor (or slice), under its name, a zstd stream of one of
 *   xor      old bytes xor new bytes, all of them. Applied twice, it gives the old state again
 *   ranges   records of changed bytes, ascending: u64 offset in the tensor, u64 length, the new bytes; integers little-endian. In a
 *            matrix a record is of whole rows
 *
 * delta.json
 *   "format"     "baleen-bucket-delta"
 *   "version"    1; any other is refused, and so are unknown keys
 *   "writer"     program and version that wrote it, for people
 *   "encoding"   "xor" or "ranges", of all streams, or "auto": every tensor has an "encoding" of its own
 *   "base"       XXH3-128 of buckets.json of the old state, which has the digest of every tensor: it names that state
 *   "target"     XXH3-128 of target.json
 *   "files"      [{"name", "bucket": number from 0, "data_offset", "nbytes": of the data, "xxh3": XXH3-128 of the data, "tensors"}],
 *                ascending by bucket, tensors in data order and without gaps, each {"name", "offset", "nbytes": of the stream,
 *                "encoding" as said above, "bytes": of what it holds, "xxh3": of the stream, "base": XXH3-128 of the tensor before, "target": after} */
#ifndef BL_FORMATS_DELTA_H
#define BL_FORMATS_DELTA_H

#include "formats/buckets.h"

#define BL_DELTA_NAME "delta.json"
#define BL_DELTA_TARGET_NAME "target.json"

typedef enum bl_delta_encoding {
    BL_DELTA_XOR = 0,
    BL_DELTA_RANGES,
    BL_DELTA_AUTO /* of a delta: for each tensor the one of the others whose stream is shorter */
} bl_delta_encoding;

typedef struct bl_delta_tensor {
    const char *name;
    uint64_t offset, nbytes; /* of the stream, in the file's data */
    bl_delta_encoding encoding; /* not BL_DELTA_AUTO */
    uint64_t bytes;          /* of what it holds */
    bl_digest digest, base, target;
} bl_delta_tensor;

typedef struct bl_delta_file {
    const char *name;
    size_t bucket;
    uint64_t data_offset, nbytes;
    bl_digest digest;
    bl_delta_tensor *tensors; /* [count] */
    size_t count;
} bl_delta_file;

typedef struct bl_delta {
    const char *writer;
    bl_delta_encoding encoding;
    bl_digest base, target;
    bl_delta_file *files; /* [count] */
    size_t count;
} bl_delta;

/* "xor", "ranges", "auto". */
const char *bl_delta_encoding_name(bl_delta_encoding e);

/* Parse and check delta.json. path names it in errors. Everything out points to lives in arena. */
bl_status bl_delta_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_delta *out, bl_error *err);
/* The same from folder. */
bl_status bl_delta_read(const char *folder, bl_arena *arena, bl_delta *out, bl_error *err);
/* Is there a delta in folder, if only by a target.json whose delta.json is missing? */
bool bl_delta_recognise(const char *folder);
/* delta.json as text, malloc'd. What parse would refuse is BL_E_INTERNAL. */
bl_status bl_delta_text(const bl_delta *d, char **text, size_t *n, bl_error *err);

/* Name of the file for bucket i (from 0) into buf of at least 32 bytes; returns buf. */
char *bl_delta_file_name(char *buf, size_t i);

#endif
