/* What the parts of reading an archive share. Private to formats/archive*.c. */
#ifndef BL_FORMATS_ARCHIVE_PARTS_H
#define BL_FORMATS_ARCHIVE_PARTS_H

#include "formats/archives.h"
#include "formats/spool.h"

struct archive;
struct archive_entry;

/* Where a member's bytes are. */
typedef enum bl_member_kind {
    BL_MEMBER_UNPACKED, /* in the temporary folder: small files */
    BL_MEMBER_RANGE,    /* in the archive, as they are */
    BL_MEMBER_SPOOLED   /* in the spool, at base; when they have come */
} bl_member_kind;

typedef struct bl_member {
    char *name;
    bl_member_kind kind;
    uint64_t base, size;
} bl_member;

/* The folder that looks like the checkpoint: small files, and a hole for every other member. */
typedef struct bl_archive_folder {
    char *path; /* NULL: none */
    int lock;   /* its descriptor, locked while we live; -1 = none */
} bl_archive_folder;

struct bl_archive {
    char *path, *root;
    bl_archive_folder folder;
    size_t root_skip; /* bytes of names above the root */
    bl_member *members; /* in the archive's order */
    size_t count, cap;
    bl_file *file;
    bl_spool *spool; /* NULL: nothing is compressed */
    uint64_t spooled; /* bytes of members in it */
    size_t count_spooled, last_spooled; /* how many these are, and the index of the last */
    char *spill;
};

/* The name of an entry without "./" in front, and NULL in *why, if it may be read: a file or a folder under a sound name. */
const char *bl_entry_name(struct archive_entry *e, const char **why);
bool bl_entry_is_weights(const char *name); /* *.safetensors */
bool bl_entry_is_small(const char *name);   /* neither that nor *.st */

/* Make the folder "<in>/.<name of the archive>.unpacked-XXXXXX" and lock it; those that dead processes left are removed first. */
bl_status bl_archive_folder_make(bl_archive_folder *f, const char *in, const char *archive, bl_error *err);
/* Create a file in it and the folders above; EEXIST and the like in *why when something else has its name. size: what it will have,
 * for which there must be room; a hole needs none. */
bl_status bl_archive_folder_create(const bl_archive_folder *f, const char *name, uint64_t size, int *fd, bool *twice, bl_error *err);
void bl_archive_folder_remove(bl_archive_folder *f);

/* Read the whole archive: names, small files, headers of weights. */
bl_status bl_archive_scan(bl_archive *a, const bl_archive_options *o, bl_error *err);

#endif
