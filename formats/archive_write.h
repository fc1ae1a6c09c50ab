/* Writing an archive in one pass: .tar, .tar.gz, .tar.zst and .zip.
 *
 * The same members give the same bytes, with the same libraries: no times (1970; zip: 1980), no owners, mode 0644, members in the
 * order given. In a .tar the data of members of a page and more begins at a multiple of 4096, so that it can be mapped and read past
 * the cache in place: a global pax header with a comment, which readers pass over, takes the room before it. Members of a .zip are
 * stored, not compressed, for the same reason. */
#ifndef BL_FORMATS_ARCHIVE_WRITE_H
#define BL_FORMATS_ARCHIVE_WRITE_H

#include "formats/status.h"

#include <stdbool.h>

typedef enum bl_archive_kind {
    BL_ARCHIVE_NONE = 0, /* the name is no archive's: a folder */
    BL_ARCHIVE_TAR,
    BL_ARCHIVE_TAR_GZ,
    BL_ARCHIVE_TAR_ZST,
    BL_ARCHIVE_ZIP,
    BL_ARCHIVE_OTHER /* an archive's, but of a kind that is not written here */
} bl_archive_kind;

/* By the end of the name, in any letter case: .tar, .tar.gz, .tgz, .tar.zst, .tzst, .zip. */
bl_archive_kind bl_archive_kind_of(const char *path);

typedef struct bl_archive_writer bl_archive_writer;

/* Begin the file at path, which must not be there. */
bl_status bl_archive_writer_open(bl_archive_writer **out, const char *path, bl_archive_kind kind, bl_error *err);
/* The next member, whose name is relative and clean. It gets exactly size bytes. */
bl_status bl_archive_writer_begin(bl_archive_writer *w, const char *name, uint64_t size, bl_error *err);
bl_status bl_archive_writer_put(bl_archive_writer *w, const void *data, uint64_t n, bl_error *err);
/* Write what is left, sync, close; frees and nulls *w, also on failure. The file is then complete, or of no use. */
bl_status bl_archive_writer_close(bl_archive_writer **w, bl_error *err);
/* Close without completing it; NULL is fine. */
void bl_archive_writer_abort(bl_archive_writer **w);

#endif
