/* What the readers of the three kinds of checkpoint share while they fill a bl_checkpoint. */
#ifndef BL_FORMATS_CHECKPOINT_BUILD_H
#define BL_FORMATS_CHECKPOINT_BUILD_H

#include "formats/checkpoint.h"

typedef struct bl_build {
    bl_checkpoint *c;
    const bl_checkpoint_options *options;
    size_t file_cap, tensor_cap, unread_cap;
    bl_error *err;
} bl_build;

/* A problem with the input: reported and forgotten (BL_OK) when problems are tolerated, otherwise forwarded. Statuses that
 * are not the input's fault are always forwarded. problem holds the failure that gave s. */
bl_status bl_build_problem(bl_build *b, bl_status s, const bl_error *problem);

/* The same for a problem found here (BL_E_INPUT), described as with bl_fail. */
bl_status bl_build_report(bl_build *b, const char *path, const char *tensor, int64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* folder/name in the arena; NULL when out of memory. */
const char *bl_build_path(bl_build *b, const char *folder, const char *name);

/* Open the file at path, add it as name, and read its header into *h (in the arena). *index is its place in files. Nothing is
 * added on failure, which goes to err alone. */
bl_status bl_build_file(bl_build *b, const char *name, const char *path, bl_st_header *h, uint32_t *index, bl_error *err);

/* Make room for cap tensors in all: growing leaves the former room in the arena. */
bl_status bl_build_reserve(bl_build *b, size_t cap);

/* Append tensors. */
bl_status bl_build_tensors(bl_build *b, const bl_tensor *tensors, size_t count);

/* Note a tensor whose file could not be read. bl_build_finish sorts them. */
bl_status bl_build_unread(bl_build *b, const char *name);

/* Sort the tensors by name and add up their bytes; a name that occurs twice is a problem, and only the first is kept. */
bl_status bl_build_finish(bl_build *b);

/* Read folder/config.json into the checkpoint; a missing or bad one is a problem. */
bl_status bl_build_config(bl_build *b, const char *folder);

/* Names in folder that end in ".safetensors" and do not start with '.', sorted; in the arena. */
bl_status bl_build_list(bl_build *b, const char *folder, const char ***names, size_t *count);

/* May this be the name of a file inside a folder: not empty, no '/', no leading '.', no control characters? */
bool bl_build_name_ok(const char *name, size_t n);

bl_status bl_checkpoint_read_hf(bl_build *b, const char *folder);
bl_status bl_checkpoint_read_packed(bl_build *b, const char *folder);

#endif
