/* What the parts of a scan share. Private to verify/scan*.c. */
#ifndef BL_VERIFY_SCAN_IMPL_H
#define BL_VERIFY_SCAN_IMPL_H

#include "verify/scan.h"
#include "verify/stream.h"

/* A part of a file: raw bytes (tensor NULL), or a tensor, or one expert's slice of a stacked one. */
typedef struct bl_scan_piece {
    const bl_tensor *tensor;
    const bl_weight *weight; /* NULL when it fills no slot */
    bool scale;              /* these are the weight's scale bytes */
    uint64_t base;           /* offset in the tensor; of raw bytes in the file */
    _Atomic uint64_t read;   /* bytes of it, where tensors come in the order of an archive */
} bl_scan_piece;

/* A file being read: one of the checkpoint's, or another one that a witness knows. */
typedef struct bl_scan_source {
    const char *path;
    bl_file *file; /* borrowed for a checkpoint's file, else owned */
    bool owned;
    bl_reader *reader;
    bl_witness *witness;
    bl_sha256 *hash;
    bool has_crc; /* to be compared: CRC-32 on record, and of the bytes so far */
    uint32_t crc_wanted, crc;
    bl_chunker *chunker;
    bl_scan_piece *pieces;
    size_t index;      /* of the checkpoint's file; SIZE_MAX: none of them */
    struct stat state; /* before it is read, when there is a cache */
} bl_scan_source;

typedef struct bl_scanner {
    bl_scan *s;
    bl_finder *f;
    bl_arena *arena;
    bl_values values;
    bl_scan_source *sources;
    bl_lane *lanes;
    size_t count;
    bl_digest **chunks;                     /* [tensors] as computed */
    const bl_manifest_tensor **records;     /* [tensors] as recorded */
    size_t *first_weight, *first_scale;     /* [tensors] head of the list of weights in it: index + 1 */
    size_t *next_weight, *next_scale;       /* [weights] */
    bool arrives;                           /* tensors come in the order of an archive */
    bool *cached, *flawed;                  /* [files] not read; something in it was found */
    pthread_mutex_t lock;
} bl_scanner;

/* For every tensor find the weights whose bytes it holds, in order. */
bl_status bl_scan_index(bl_scanner *x, bl_error *err);
/* Make src's pieces and its lane's parts: of the checkpoint's file that holds these tensors, in data order, its header, its tensors, and
 * raw bytes where neither is; or of one that is raw bytes all through. */
bl_status bl_scan_file_parts(bl_scanner *x, const bl_tensor **order, size_t tensors, bl_scan_source *src, bl_lane *lane, bl_error *err);
bl_status bl_scan_raw_parts(bl_scanner *x, bl_scan_source *src, bl_lane *lane, bl_error *err);

/* Tell which bytes the parts of a lane need: their own and, for the values of codes, the scale. */
bl_status bl_scan_expect(const bl_scanner *x, size_t lane, bl_error *err);
/* n bytes of a part were read and looked at: what it needed may go when that was all of it, for the last time. */
void bl_scan_count(const bl_scanner *x, size_t lane, const bl_part *part, uint64_t n);

#endif
