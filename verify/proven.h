/* A cache of files whose SHA-256 was proven, so that a later run need not read them again. Private to verify/.
 *
 * It knows a file by size, device, inode and the times of the last change of content and of state, and can only tell that nobody has
 * written to it since: it cannot see bit rot. What an entry says holds for one model as a whole (config, headers, manifests): a change in
 * any of those makes all of its files be read again.
 *
 * Text:
 *   baleen-cache 1
 *   SHA256 MODEL SIZE DEVICE INODE MTIME CTIME   a file: 64 digits; 64 digits of the model; decimal numbers, times in nanoseconds
 *   end SHA256                                   of all bytes before this line
 *
 * Whatever is not exactly that is not believed. The file is its owner's alone; one that others may write is not believed either. */
#ifndef BL_VERIFY_PROVEN_H
#define BL_VERIFY_PROVEN_H

#include "formats/checkpoint.h"

#include <sys/stat.h>

typedef struct bl_proven bl_proven;

/* Open the cache at path: a file, there or to be made, or a folder that gets a file for each model's. What is there and cannot be used is
 * ignored, and *note (one sentence, in the cache) says why; else *note is NULL. BL_E_IO: it could not be written at the end either.
 * BL_E_USAGE: it would lie in c's folder. */
bl_status bl_proven_open(bl_proven **out, const char *path, const bl_checkpoint *c, const char **note, bl_error *err);
/* Nulls *p; NULL is fine. */
void bl_proven_close(bl_proven **p);

/* The SHA-256 that file was proven to have, if it is known and unchanged. */
bool bl_proven_find(const bl_proven *p, const struct stat *file, uint8_t sha256[32]);
/* Add a file that was proven: before and after are its state when that began and now. One that has changed meanwhile, or less than two
 * seconds before the cache was opened, is left out: a time could be the same for a change that follows. */
bl_status bl_proven_add(bl_proven *p, const struct stat *before, const struct stat *after, const uint8_t sha256[32], bl_error *err);
/* Write what was added, and what was there and is not about those files (complete or absent: of several that write at once one wins). A
 * file that is no cache is left alone. */
bl_status bl_proven_write(bl_proven *p, bl_error *err);

#endif
