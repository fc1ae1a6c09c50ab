/* A folder, or an archive of one that is read as if it were a folder: for what is no checkpoint (weight-sync buckets). */
#ifndef BL_FORMATS_PLACE_H
#define BL_FORMATS_PLACE_H

#include "formats/archives.h"

typedef struct bl_place {
    const char *name;    /* what was opened; borrowed */
    const char *folder;  /* small files are below it: name, or the folder that stands for the archive */
    bl_archive *archive; /* NULL: name is no archive */
} bl_place;

/* Open path, which p borrows: an archive is opened (bl_archive_open; o->spill may be NULL, then it is bl_archive_spill of path);
 * anything else is taken for a folder, whatever it is. */
bl_status bl_place_open(bl_place *p, const char *path, const bl_archive_options *o, bl_error *err);
/* Open a file of it. What comes out of an archive must be closed before the place. */
bl_status bl_place_file(const bl_place *p, const char *name, bl_file **out, bl_error *err);
void bl_place_close(bl_place *p); /* twice is fine */

#endif
