/* What is on record about the bytes of a folder's files: SHA256SUMS, and the objects that the Hugging Face client names. Private to
 * verify/. */
#ifndef BL_VERIFY_WITNESS_H
#define BL_VERIFY_WITNESS_H

#include "formats/checkpoint.h"
#include "verify/finder.h"
#include "verify/hub.h"
#include "verify/sha256.h"

/* A file whose bytes something is recorded of, or are to be hashed. */
typedef struct bl_witness {
    const char *name; /* relative to the folder */
    const char *path;
    bool listed; /* in SHA256SUMS, with this digest */
    uint8_t sums[32];
    bl_hub_record hub;
    bool wanted; /* its SHA-256 is needed in any case */
    /* What was found: */
    bool hashed; /* sha256 is that of the bytes */
    uint8_t sha256[32];
    bool wrong; /* something recorded says otherwise */
    bool hub_right;
} bl_witness;

typedef struct bl_witnesses {
    bl_witness *items; /* [count], sorted by path */
    size_t count;
    const char *text; /* of SHA256SUMS, [bytes], as everything here knows it; NULL: there is none that can be read */
    size_t bytes;
    bool unread; /* there is one, but it cannot */
    size_t unrecorded; /* files that the Hugging Face client has no record of, when that was asked for */
    size_t damaged;    /* its records that are not whole: reported */
} bl_witnesses;

/* Read SHA256SUMS of c's folder, once: what is proven and what is signed are then the same bytes. One that cannot be read is found at
 * level 3. First. */
bl_status bl_witness_read(bl_finder *f, const bl_checkpoint *c, bl_arena *arena, bl_witnesses *out, bl_error *err);

/* Gather what is recorded for the files of the folder; missing files and files of a packed model that are not listed are found at
 * level 3, and when a signature is to cover all (sign or key of the options) whatever is not listed. Files that SHA256SUMS may be
 * completed by before it is signed are wanted. Files that level 0 or 1 finds unfit are left out, so that nobody hashes a hole of a
 * terabyte. All lives in arena. */
bl_status bl_witness_gather(bl_finder *f, const bl_checkpoint *c, bl_arena *arena, bl_witnesses *out, bl_error *err);
/* The record of a file by its path; NULL when there is none. */
bl_witness *bl_witness_of(const bl_witnesses *w, const char *path);
/* Is the SHA-256 of the file's bytes needed? */
bool bl_witness_hashes(const bl_witness *w);
/* Does something that is recorded say that this is not the SHA-256? */
bool bl_witness_denies(const bl_witness *w, const uint8_t sha256[32]);
/* Take the SHA-256 of the bytes of a file of that size, and hold it against what is recorded. */
void bl_witness_judge(bl_finder *f, bl_witness *w, const uint8_t sha256[32], uint64_t size);
/* Check a small file whose record is a git SHA-1 now (such files are small: others are stored by SHA-256). */
bl_status bl_witness_check_git(bl_finder *f, bl_witness *w, bl_error *err);
/* Was something recorded, and is all of it right? */
bool bl_witness_proven(const bl_witness *w);

#endif
