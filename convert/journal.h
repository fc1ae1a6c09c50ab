/* The journal of a conversion: which output files are finished, with their digests, so that a later run can go on from them. Private to
 * convert/.
 *
 * Text; a line holds words between single spaces, the last word is the XXH3-128 of the line before that space, so that a line torn by
 * a power cut is seen. Reading ends before the first line that is not whole.
 *
 *   baleen-journal 2 SOURCE PLAN CHECK   first line: SHA-256 of what identifies the source, and of the plan and its options
 *   encoded CLASS VALUES BLOCKS KEPT LOST ERROR2 VALUE2 ERROR NAME CHECK
 *                                        before its file's line: what became of weights of a class (bl_encode_stats); the last three
 *                                        are the bits of numbers, 16 digits each, so that they come back as they were
 *   file DIGEST BYTES STATE NAME CHECK   a finished file: 64 digits; its SHA-256, or the XXH3-128 of its chunk digests and zeros. STATE,
 *                                        32 digits: of the source's files that it was made from (bl_job_states)
 */
#ifndef BL_CONVERT_JOURNAL_H
#define BL_CONVERT_JOURNAL_H

#include "convert/encode.h"

typedef struct bl_journal_file {
    const char *name;
    uint64_t bytes;
    uint8_t digest[32];
    bl_digest state;
    bl_encode_stats encoded[BL_ENCODE_CLASSES]; /* weights is 0 */
} bl_journal_file;

typedef struct bl_journal {
    int fd;
    const char *path; /* of the folder, for errors */
    uint64_t end;     /* of the whole lines */
    bl_journal_file *files; /* [count] as found, in order */
    size_t count, added;    /* finished files: found, and noted since */
} bl_journal;

/* Read the journal fd (borrowed), or begin it when no file was finished yet. Another source or plan than those of finished files
 * is BL_E_USAGE.
 * path is borrowed; the rest lives in arena. */
bl_status bl_journal_open(bl_journal *j, int fd, const char *path, const uint8_t source[32], const uint8_t plan[32], bl_arena *arena,
                          bl_error *err);
/* Note a finished file whose bytes are on disk; returns once the note is. Not thread-safe. */
bl_status bl_journal_add(bl_journal *j, const bl_journal_file *file, bl_error *err);

#endif
