/* The manifests of a packed model: manifest.json of the folder and rank-NNNN/manifest.json of each rank. Descriptions only:
 * what the files should hold. Hashing is verify's job, laying out is convert's. With the chunk digests they fix every byte of a
 * payload file that is not linked: its header holds the tensors that the manifest has in it, {"format": "pt"} as __metadata__,
 * and padding.
 *
 * manifest.json
 *   "format"        "baleen-packed"
 *   "version"       1; any other is refused, and so are unknown keys: both mean a newer writer
 *   "writer"        program and version that wrote it, for people
 *   "source"        {"tensors": count, "tensor_bytes": sum, "config_sha256": hex, "index_sha256": hex or null}
 *   "layout"        {"tp": T, "ep": E, "pp": P, "ranks": P * max(T, E)}, and where they apply
 *                     "layers": [backbone layers of each stage]         needed when P > 1
 *                     "vocab_rows": rows of embedding and head together, when padded beyond the vocabulary
 *                     "split": "pad", "expand1x32" or "bf16"            what was done to weights whose cut falls inside a scale block
 *                     "engram_shared": true                             the first rank of a stage has whole Engram tables, the
 *                                                                       others name them; absent: every rank has some rows
 *   "dropped"       tensor classes left out on purpose, among "dspark", "vision"
 *   "chunk_bytes"   8388608: the piece of a tensor that one chunk digest covers
 *   "engram"        [{"layer": L, "rows": table rows, "multipliers": ["decimal", ...]}], ascending by layer
 *   "files"         [{"name": "rank-0000/layer-00.safetensors", "bytes": size, "sha256": hex or null}]: every file of the
 *                   folder but manifest.json and SHA256SUMS, '/' only after a rank folder
 *
 * rank-NNNN/manifest.json
 *   "format"        "baleen-packed-rank"
 *   "version"       1
 *   "rank"          this rank
 *   "files"         [{"name": "layer-00.safetensors", "bytes": size}], with "linked": true for a file of the source that
 *                   was hard-linked as it stood: exempt from alignment, and it may hold tensors that the manifest does not
 *                   name; with "rank": R for a file that lies in the folder of rank R, which names the same tensors in it
 *   "tensors"       sorted by name (bytes), each
 *     "name", "dtype", "shape"   as in the safetensors header of its file, except that a linked file may use another name
 *     "file"                     index into files
 *     "offset"                   absolute byte offset in that file
 *     "start"                    [ndim] first element of the global tensor that it holds
 *     "global_shape"             [ndim] shape of the global tensor, rows of padding at its end included (equal to shape when the
 *                                rank holds it all); "value" has the shape without padding
 *     "chunks"                   hex of XXH3-128 (canonical byte order) of each chunk_bytes of its bytes, the last partial
 *     "value"                    null (scales: covered by their weight's), or {"class", "shape", "digests"} and, where a cut falls inside
 *                                a 32x32 tile, "unit": see below
 *
 * Value record: class "matrix" (32x32 tiles of canonical BF16), "rows" (Engram rows), "elements" (of a vector that ranks cut) or
 * "bytes" (4 KiB units): verify/digest.h. shape is the
 * global shape of the decoded tensor ([out, in] elements also when the bytes are packed fp4), so that a cast and its source
 * have equal records. unit: [rows, columns] of the tiles of a matrix, powers of two; absent: [32, 32]. The digests that ranks record for their parts of a tensor add up, modulo 2^128, to that of the whole. digests has one entry, or, for stacked experts, one for each expert held here, in order (shape is then
 * that of one expert): an expert's record equals that of the unstacked tensor. */
#ifndef BL_FORMATS_MANIFEST_H
#define BL_FORMATS_MANIFEST_H

#include "formats/arena.h"
#include "formats/digest.h"
#include "formats/safetensors.h"

#define BL_CHUNK_BYTES ((uint64_t)8 << 20)
#define BL_MANIFEST_MAX_BYTES ((size_t)1 << 30) /* a rank's manifest of the real model has about 3 MB */
#define BL_MAX_RANKS 4096
#define BL_DROP_DSPARK 1u
#define BL_DROP_VISION 2u

typedef struct bl_manifest_file {
    const char *name; /* relative to the folder of the manifest */
    uint64_t bytes;
    bool has_sha256; /* global manifest only */
    uint8_t sha256[32];
    bool linked; /* rank manifest only */
    int rank;    /* rank manifest only: in whose folder it lies */
} bl_manifest_file;

typedef struct bl_manifest_engram {
    int layer;
    uint64_t rows;
    const int64_t *multipliers; /* [multiplier_count], positive */
    size_t multiplier_count;
} bl_manifest_engram;

/* What becomes of a weight whose cut falls inside a scale block. */
typedef enum bl_split {
    BL_SPLIT_NONE = 0, /* refused */
    BL_SPLIT_PAD,      /* padded, so that every rank has whole blocks */
    BL_SPLIT_EXPAND,   /* cut as it is: where rows are cut every row gets scales of its own, where columns are it becomes BF16 */
    BL_SPLIT_BF16,     /* cut as it is, decoded to BF16 */
    BL_SPLITS
} bl_split;

/* "pad", "expand1x32", "bf16"; "none". */
const char *bl_split_name(bl_split s);

/* How a model is spread over ranks: rank = stage * max(tp, ep) + r. Which part of each tensor that gives a rank: verify/share.h. */
typedef struct bl_layout {
    int tp, ep, pp, ranks;
    const int *stage_layers; /* [pp] backbone layers of each stage; NULL when pp is 1 */
    uint64_t vocab_rows;     /* of embedding and head over all ranks, when padded; 0 = the vocabulary */
    bl_split split;          /* NONE when no cut falls inside a block */
    bool engram_shared;
} bl_layout;

/* manifest.json. Strings and arrays are borrowed: from the arena after reading, from the caller when writing. */
typedef struct bl_manifest {
    const char *writer;
    uint64_t source_tensors, source_tensor_bytes;
    uint8_t source_config_sha256[32];
    bool has_source_index_sha256;
    uint8_t source_index_sha256[32];
    bl_layout layout;
    unsigned dropped; /* BL_DROP_ bits */
    const bl_manifest_engram *engram;
    size_t engram_count;
    const bl_manifest_file *files;
    size_t file_count;
} bl_manifest;

typedef enum bl_value_class {
    BL_VALUE_NONE = 0, /* no digest of its own */
    BL_VALUE_MATRIX,
    BL_VALUE_ROWS,
    BL_VALUE_ELEMENTS,
    BL_VALUE_BYTES
} bl_value_class;

/* "matrix", "rows", "elements", "bytes"; "none". */
const char *bl_value_class_name(bl_value_class c);

typedef struct bl_manifest_tensor {
    bl_tensor tensor;             /* file indexes the rank manifest's files */
    const uint64_t *start;        /* [ndim] */
    const uint64_t *global_shape; /* [ndim] */
    const bl_digest *chunks;      /* [chunk_count], chunk_count = ceil(nbytes / BL_CHUNK_BYTES) */
    size_t chunk_count;
    bl_value_class value_class;
    const uint64_t *value_shape; /* [value_ndim] */
    uint32_t value_ndim;
    uint32_t value_unit[2]; /* rows and columns of a matrix's tiles, powers of two up to 32; 0, 0 means 32, 32 */
    const bl_digest *values; /* [value_count] */
    size_t value_count;
} bl_manifest_tensor;

/* rank-NNNN/manifest.json. */
typedef struct bl_rank_manifest {
    int rank;
    const bl_manifest_file *files;
    size_t file_count;
    const bl_manifest_tensor *tensors; /* sorted by name */
    size_t tensor_count;
} bl_rank_manifest;

/* Parse and check a manifest's text: versions, types, ranges, digest lengths and counts, slices inside global shapes, tensors
 * inside their files, names unique and legal. path names it in errors. Everything out points to lives in arena. */
bl_status bl_manifest_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_manifest *out, bl_error *err);
bl_status bl_rank_manifest_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_rank_manifest *out,
                                 bl_error *err);

/* The same from folder/manifest.json and folder/rank-NNNN/manifest.json. */
bl_status bl_manifest_read(const char *folder, bl_arena *arena, bl_manifest *out, bl_error *err);
bl_status bl_rank_manifest_read(const char *folder, int rank, bl_arena *arena, bl_rank_manifest *out, bl_error *err);

/* Write to path (complete or absent, as bl_output_file). Equal manifests give equal bytes. Tensors are written sorted by
 * name in whatever order they are given. What parse would refuse is refused (BL_E_INTERNAL). */
bl_status bl_manifest_write(const bl_manifest *m, const char *path, bl_error *err);
bl_status bl_rank_manifest_write(const bl_rank_manifest *m, const char *path, bl_error *err);

/* By name; NULL when absent. O(log n). */
const bl_manifest_tensor *bl_rank_manifest_find(const bl_rank_manifest *m, const char *name);

/* Is folder that of one rank, by its manifest? Then BL_E_INPUT, and the message says which folder to name instead. BL_OK for anything
 * else, also what cannot be read. */
bl_status bl_rank_folder_check(const char *folder, bl_error *err);

/* "rank-0000" into buf (at least 16 bytes); returns buf. */
char *bl_rank_folder(char *buf, int rank);

/* ceil(nbytes / BL_CHUNK_BYTES) */
size_t bl_chunk_count(uint64_t nbytes);

#endif
