/* What the parts of reading an archive share. Private to formats/archive*.c. */
#ifndef BL_FORMATS_ARCHIVE_PARTS_H
#define BL_FORMATS_ARCHIVE_PARTS_H

#include "formats/archives.h"
#include "formats/spool.h"
#include "formats/unpacker.h"

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
    bool has_crc;
    uint32_t crc; /* BL_MEMBER_RANGE in a zip: CRC-32 of the data, by the directory */
} bl_member;

/* The folder that looks like the checkpoint: small files, and a hole for every other member. */
typedef struct bl_archive_folder {
    char *path; /* NULL: none */
    const char *in; /* the folder that it is in: what goes wrong there is not the archive's fault */
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
    bool zip;
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

/* Limits: bytes of a small file, and how often an archive's size it may unpack to. */
#define BL_MEMBERS_SMALL ((uint64_t)1 << 30)
#define BL_MEMBERS_RATIO 1000

/* A walk through the archive, forwards. */
typedef struct bl_members {
    const bl_archive *a;
    bool (*cancelled)(void); /* may be NULL */
    bl_error *err;
    struct archive *r;
    bl_unpacker *unpacker; /* NULL: the archive is not compressed as a whole */
    bl_status status;      /* of the unpacker, and why */
    bl_error failure;
} bl_members;

bl_status bl_members_open(bl_members *x);
void bl_members_close(bl_members *x);
/* The next member; *e is NULL at the end, when all of the archive was read. */
bl_status bl_members_next(bl_members *x, struct archive_entry **e);
/* Pass over what is left of the data. */
bl_status bl_members_skip(const bl_members *x, const char *name);
/* The blocks of a member that holds m->size bytes, in order. each may end the reading early. */
bl_status bl_members_blocks(const bl_members *x, const bl_member *m, bool sparse, void *arg,
                            bl_status (*each)(void *arg, const char *data, uint64_t n, uint64_t at, bool *enough));
/* BL_E_INPUT of the member (NULL: of the archive): why; or what the reader has met. */
bl_status bl_members_refuse(const bl_members *x, const char *name, const char *why);
bl_status bl_members_damaged(const bl_members *x, const char *name);
bl_status bl_members_interrupted(const bl_members *x); /* BL_E_CANCELLED if so */

/* Read the whole archive: names, small files, headers of weights. */
bl_status bl_archive_scan(bl_archive *a, const bl_archive_options *o, bl_error *err);
/* Read it again for the weights that are wanted: what the spool runs; arg is the archive. */
bl_status bl_archive_stream(void *arg, bl_error *err);

/* Set the CRC-32 of the members that are ranges of a zip archive. One that the directory does not have is BL_E_INPUT. */
bl_status bl_zip_sums(bl_archive *a, bl_error *err);

#endif
