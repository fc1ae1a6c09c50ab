/* One pass over all files of a checkpoint that checks whatever is asked for. Private to verify/. */
#ifndef BL_VERIFY_SCAN_H
#define BL_VERIFY_SCAN_H

#include "verify/bind.h"
#include "verify/finder.h"
#include "verify/proven.h"
#include "verify/values.h"
#include "verify/witness.h"

typedef struct bl_scan {
    const bl_checkpoint *c;
    const bl_binding *binding;     /* NULL: unknown (no config) */
    const bl_witnesses *witnesses; /* NULL: no SHA-256 */
    bl_proven *proven;             /* NULL: no cache. Files that it knows are not read; what is proven is added. Not with values */
    bool skip_weights;             /* read only what lies beside the weight files */
    bool semantic;                 /* look at the codes, scales and floats */
    bool chunks;                   /* compare chunk digests with the rank manifest */
    bool values;                   /* compute value digests into sums; needs a binding */
    const bl_layout *beside;       /* of a packed model that this one is compared with; NULL: there is none */
    bl_sum *sums;                  /* out, [binding weights] */
    bl_sum *shared;                /* out, [binding weights]: with the tiles that both have, where these are smaller */
    bool *broken;                  /* out, [binding weights]: has no value digest (a finding said why) */
    /* Another job for the same pass; look NULL: none. granule: at which multiples of bytes the codes, or the scales, of a weight may be
     * cut, 0 = anywhere. look gets n bytes at offset of them, from any thread. */
    uint64_t (*granule)(const bl_weight *w, bool scale);
    void (*look)(void *arg, const bl_weight *w, bool scale, uint64_t offset, uint64_t n, const uint8_t *data);
    void *arg;
    size_t chunks_right;               /* out */
    size_t crcs_right;                 /* out: files without SHA-256 whose CRC-32 is that of the archive */
    uint64_t bytes;                    /* out: read */
    size_t files_cached;               /* out: taken from the cache instead */
    uint64_t bytes_cached;             /* out */
} bl_scan;

/* Run; findings go to f, failures to read come back. Arrays live in arena. */
bl_status bl_scan_run(bl_scan *s, bl_finder *f, bl_arena *arena, bl_error *err);

#endif
