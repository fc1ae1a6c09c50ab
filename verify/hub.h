/* What the Hugging Face client records about the files that it downloads: the name of each one's object on the hub, which is the SHA-256
 * of a large file and git's SHA-1 of a small one. Private to verify/.
 *
 * In its cache a snapshot's files are links to blobs of that name (snapshots/REVISION/NAME -> ../../blobs/OBJECT). A download into a
 * folder leaves .cache/huggingface/download/NAME.metadata with three lines: revision, object, time (huggingface_hub, _local_folder.py). */
#ifndef BL_VERIFY_HUB_H
#define BL_VERIFY_HUB_H

#include "formats/status.h"

#include <stdbool.h>

#define BL_GIT_OID_BYTES 20

typedef enum bl_hub_kind {
    BL_HUB_NONE = 0, /* no record */
    BL_HUB_DAMAGED,  /* one that says nothing */
    BL_HUB_SHA256,
    BL_HUB_GIT
} bl_hub_kind;

typedef struct bl_hub_record {
    bl_hub_kind kind;
    uint8_t object[32]; /* 32 or BL_GIT_OID_BYTES bytes */
} bl_hub_record;

/* The record of folder/name. Where one is there and is not whole, *flaw says where and in what way. */
bl_hub_record bl_hub_find(const char *folder, const char *name, bl_error *flaw);

/* The SHA-1 that git gives a file of n bytes. */
bl_status bl_git_oid(const void *data, size_t n, uint8_t oid[BL_GIT_OID_BYTES], bl_error *err);

#endif
