/* Weight-sync buckets: a folder of safetensors files, each of which is one buffer to send, and what describes them. Descriptions
 * only: hashing is verify's job, dealing tensors to buckets is convert's.
 *
 * bucket-NNNNN.safetensors, from 00001. The data of the file, from data_offset to its end, is the bucket: what a sender reads in one
 * piece and a receiver takes views of. Tensors of one dtype lie together, wider elements first, and every tensor begins at a multiple
 * of "align" from the start of the data. safetensors allows no holes, so that the bytes in between are tensors too: U8 zeros named
 * "__pad__.0", "__pad__.1" ... in the order of the file, and only behind a tensor whose size is no multiple of align.
 *
 * buckets.json
 *   "format"      "baleen-buckets"
 *   "version"     1; any other is refused, and so are unknown keys: both mean a newer writer
 *   "writer"      program and version that wrote it, for people
 *   "size"        most bytes of a bucket; what must not be parted may exceed it, alone in its bucket
 *   "align"       a power of two up to 4096
 *   "oversize"    "alone" or "slice": what became of tensors larger than a bucket
 *   "names"       XXH3-128 of the names of all tensors of the model, sorted by bytes, each followed by a newline: those sent and
 *                 those of "host_owned" are these
 *   "host_owned"  tensors that are not sent because the receiver keeps them: [{"name", "dtype", "shape", "value"}], sorted by
 *                 name; "value" is {"class", "shape", "digest"}, the value digest of verify/digest.h, by which a receiver proves
 *                 that it has the same; null for a scale, which its weight's covers, and where digests were not wanted
 *   "buckets"     [{"name", "data_offset": absolute, "nbytes": of the data, "xxh3": XXH3-128 of the data, "tensors": [...]}],
 *                 tensors in data order, each
 *     "name", "dtype", "shape"   as in the file's header
 *     "offset", "nbytes"         in the data
 *     "group"                    tensors of one number must reach the receiver together; a group is never parted
 *     "xxh3"                     XXH3-128 of its bytes
 *     "slice"                    {"of": name, "row": first row, "rows": rows of the whole}: only for a part of an oversize tensor,
 *                                whose own name is then "name[row:end]"
 *
 * flattened.bytes.json and flattened.elements.json say the same in the two forms that serving engines read. They follow from
 * buckets.json alone: bl_buckets_flattened. */
#ifndef BL_FORMATS_BUCKETS_H
#define BL_FORMATS_BUCKETS_H

#include "formats/manifest.h"

#define BL_BUCKETS_NAME "buckets.json"
#define BL_BUCKETS_BYTES_NAME "flattened.bytes.json"
#define BL_BUCKETS_ELEMENTS_NAME "flattened.elements.json"
#define BL_BUCKETS_PAD "__pad__."
#define BL_BUCKETS_MAX_ALIGN 4096u

typedef struct bl_bucket_tensor {
    bl_tensor tensor; /* file: the bucket's index; offset: in the bucket's data */
    const char *of;   /* the tensor that this is a slice of; NULL: it is whole */
    uint64_t row, rows; /* slices: the first row, the rows of the whole */
    uint64_t group;
    bl_digest digest;
} bl_bucket_tensor;

typedef struct bl_bucket {
    const char *name;
    uint64_t data_offset, nbytes;
    bl_digest digest;
    bl_bucket_tensor *tensors; /* [count], in data order */
    size_t count;
} bl_bucket;

typedef struct bl_host_tensor {
    bl_tensor tensor; /* file and offset mean nothing */
    bl_value_class value_class; /* BL_VALUE_NONE: no digest */
    const uint64_t *value_shape; /* [value_ndim] */
    uint32_t value_ndim;
    bl_digest value;
} bl_host_tensor;

typedef struct bl_buckets {
    const char *writer;
    uint64_t size, align;
    bool slice; /* "oversize" */
    bl_digest names;
    bl_host_tensor *host; /* [host_count], sorted by name */
    size_t host_count;
    bl_bucket *buckets; /* [count] */
    size_t count;
} bl_buckets;

/* Parse and check buckets.json: types, ranges, names unique and legal, every place where the rules above put it, groups in one bucket
 * each, slices that together are their tensor. path names it in errors. Everything out points to lives in arena. */
bl_status bl_buckets_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_buckets *out, bl_error *err);

/* The same from folder/buckets.json; *text (malloc'd) and *n, which may be NULL, get the text. */
bl_status bl_buckets_read(const char *folder, bl_arena *arena, bl_buckets *out, char **text, size_t *n, bl_error *err);

/* Is there a file called own in folder, or, where the folder is no checkpoint by its index or manifest, one called beside, which nothing
 * else has? */
bool bl_sync_recognise(const char *folder, const char *own, const char *beside);
/* BL_E_INPUT when folder is there, but own, which describes what it holds, is not: in one that was recognised it is missing. */
bl_status bl_sync_there(const char *folder, const char *own, bool recognised, const char *what, bl_error *err);
/* Are there buckets in folder, if only by the texts that follow from a buckets.json that is missing? */
bool bl_buckets_recognise(const char *folder);

/* buckets.json as text, malloc'd. Equal buckets give equal bytes. What parse would refuse is BL_E_INTERNAL. */
bl_status bl_buckets_text(const bl_buckets *b, char **text, size_t *n, bl_error *err);

/* Metadata in the form of flattened tensor buckets, malloc'd. name, shape, dtype (of PyTorch), start_idx, end_idx and numel
 * of each tensor, in one of two units that readers cannot tell apart by themselves, so that the text says which:
 *   bytes     "index_unit": "bytes", "supports_multi_dtypes": true. One buffer of uint8 for each bucket.
 *   elements  "index_unit": "elements", "supports_multi_dtypes": false. One buffer for each dtype in a bucket: indices count its
 *             elements from the buffer's start; "bucket" tells which buffers are of one bucket and must be loaded in one call.
 * "file" and "data_offset" say where a buffer is. A slice has its name in the file, and "slice" as in buckets.json. */
bl_status bl_buckets_flattened(const bl_buckets *b, bool elements, char **text, size_t *n, bl_error *err);

/* Name of bucket i (from 0) into buf of at least 32 bytes; returns buf. */
char *bl_bucket_name(char *buf, size_t i);

/* n rounded up to align, a power of two; n is at most INT64_MAX. */
uint64_t bl_bucket_aligned(uint64_t n, uint64_t align);

#endif
