/* Checkpoints in archives: .tar, .tar.gz, .tar.zst, .zip.
 *
 * A member that lies in the archive as it is (plain tar, stored zip) is a range of the archive's bytes and is read from there:
 * nothing is unpacked but small files. Members that are compressed are unpacked, in one pass, into a temporary folder. Either way the
 * folder looks like the checkpoint; members read from the archive have holes of their size in it. */
#ifndef BL_FORMATS_ARCHIVES_H
#define BL_FORMATS_ARCHIVES_H

#include "formats/file.h"

typedef struct bl_archive bl_archive;

typedef struct bl_archive_options {
    const char *spill;        /* folder in which the temporary folder is made */
    void (*note)(const char *text); /* told when weights must be unpacked; may be NULL */
    bool (*cancelled)(void);  /* polled; may be NULL */
} bl_archive_options;

/* Does a file at path begin like an archive that can be read here? False for anything that cannot be opened. */
bool bl_archive_recognise(const char *path);

/* A folder to unpack into, malloc'd: the one that path is in, or /tmp when that may not be written to. NULL when out of memory. */
char *bl_archive_spill(const char *path);

/* Open and unpack. Refused with BL_E_INPUT, naming the member: absolute names, "..", control characters, more than two folders
 * deep; links, devices and other things that are no file and no folder; a name that occurs twice; small files (all but *.safetensors
 * and *.st) of more than 1 GiB; more than 100,000 members; unpacked data of more than 1 GiB that is over 1000 times the archive's;
 * damage that the archive's own checks find. */
bl_status bl_archive_open(bl_archive **out, const char *path, const bl_archive_options *o, bl_error *err);
/* The folder that looks like the checkpoint: below a common top folder, if all members are in one. */
const char *bl_archive_root(const bl_archive *a);
/* Open a member's file by its name relative to the root: the range of the archive, or what was unpacked. */
bl_status bl_archive_file(const bl_archive *a, const char *name, bl_file **out, bl_error *err);
/* Remove the temporary folder; frees *a; NULL is fine. */
void bl_archive_close(bl_archive **a);

#endif
