/* What is on record about the bytes of a folder's files: SHA256SUMS, and the object names of Hugging Face's cache. Private to
 * verify/. */
#ifndef BL_VERIFY_WITNESS_H
#define BL_VERIFY_WITNESS_H

#include "formats/checkpoint.h"
#include "verify/finder.h"
#include "verify/sha256.h"

/* A file and its recorded digest. */
typedef struct bl_witness {
    const char *name; /* relative to the folder */
    const char *path;
    bool sha256; /* digest is a SHA-256; else the SHA-1 that git gives the file, 20 bytes */
    uint8_t digest[32];
    const char *origin; /* what recorded it, for messages */
} bl_witness;

typedef struct bl_witnesses {
    bl_witness *items; /* [count], sorted by name */
    size_t count;
} bl_witnesses;

/* Gather what is recorded for the files of folder; missing files and files of a packed model that are not listed are found at
 * level 3. Listed files that level 1 has found unfit already are left out, so that nobody hashes a hole of a terabyte. All lives in
 * arena. */
bl_status bl_witness_gather(bl_finder *f, const bl_checkpoint *c, bl_arena *arena, bl_witnesses *out, bl_error *err);
/* The record of a file by its path; NULL when there is none. */
const bl_witness *bl_witness_of(const bl_witnesses *w, const char *path);
/* Check a small file whose record is a git SHA-1 now (such files are small: others are stored by SHA-256). */
bl_status bl_witness_check_git(bl_finder *f, const bl_witness *w, bool *right, bl_error *err);

#endif
