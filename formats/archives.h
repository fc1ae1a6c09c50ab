/* Checkpoints in archives: .tar, .tar.gz, .tar.zst, .tar.xz, .zip.
 *
 * Small files are unpacked into a temporary folder that looks like the checkpoint; weights, *.safetensors, have holes of their size
 * there. Weights that lie in the archive as they are (plain tar, stored zip) are ranges of its bytes and are read in place. Compressed
 * ones come through a spool (spool.h), in the order of the archive. A checkpoint is known only when every shard's header is, and those
 * lie between the data: so the archive is read to its end when it is opened. What is unpacked on the way is kept if it is little;
 * else only the headers are, and float32 scales, and the archive is read again, forwards, when weights are asked for.
 *
 * Nothing is left behind, also when the process is killed: the spool has no name, and a folder that a dead process left is removed
 * when the same archive is opened next. */
#ifndef BL_FORMATS_ARCHIVES_H
#define BL_FORMATS_ARCHIVES_H

#include "formats/file.h"

#define BL_SPILL_MAX ((uint64_t)4 << 30) /* for bl_archive_options, where nobody says otherwise */

typedef struct bl_archive bl_archive;

typedef struct bl_archive_options {
    const char *spill;        /* folder for the temporary folder and the spool */
    uint64_t spill_max;       /* bytes of compressed weights that may be unpacked as a whole; above it, or a
                               * quarter of the free space, the archive is read twice */
    bool (*cancelled)(void);  /* polled; may be NULL */
} bl_archive_options;

/* Does a file at path begin like an archive that can be read here? False for anything that cannot be opened. */
bool bl_archive_recognise(const char *path);

/* A folder to unpack into, malloc'd: the one that path is in, or /tmp when that may not be written to. NULL when out of memory. */
char *bl_archive_spill(const char *path);

/* Open, unpack small files, find the headers. Refused with BL_E_INPUT, naming the member: absolute names, "..", control characters,
 * more than eight folders deep; links, devices and other things that are no file and no folder; a name that occurs twice; encrypted
 * members; small files (all but *.safetensors and *.st) over 1 GiB; more than 100000 members; members that unpack to over 1000 times
 * the archive; weights whose data is not as long as they say. A member that there is no room for is BL_E_IO. */
bl_status bl_archive_open(bl_archive **out, const char *path, const bl_archive_options *o, bl_error *err);
/* The folder that looks like the checkpoint: below the folders that all members are in. */
const char *bl_archive_root(const bl_archive *a);
/* How many members have this file name in folders below the root, and the paths of the first two in the archive; borrowed. */
size_t bl_archive_below(const bl_archive *a, const char *name, const char *paths[2]);
/* Open a member's file by its name relative to the root: the range of the archive, what comes into the spool, or what was unpacked. It
 * must be closed before the archive. */
bl_status bl_archive_file(const bl_archive *a, const char *name, bl_file **out, bl_error *err);
/* The archive itself; borrowed. */
const bl_file *bl_archive_whole(const bl_archive *a);
/* Bytes of compressed weights, and whether they will come in a second reading. */
uint64_t bl_archive_compressed(const bl_archive *a, bool *again);
const char *bl_archive_spill_folder(const bl_archive *a); /* where these wait; borrowed */
/* All weights that are wanted were read: hear of damage behind them. Only a second reading can fail. */
bl_status bl_archive_finish(const bl_archive *a, bl_error *err);
/* Is compressed data held against a CRC-32 of each member as it is unpacked? So it is in a zip; damage is a failure of the reading. */
bool bl_archive_sums(const bl_archive *a);
/* Let err name the archive's member instead of a place in the temporary folder. a and err may be NULL. */
void bl_archive_show(const bl_archive *a, bl_error *err);
/* Remove what is temporary; frees *a; NULL is fine. */
void bl_archive_close(bl_archive **a);

#endif
