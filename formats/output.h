/* Files to write: under a temporary name in the target's folder, fsynced, then renamed. Complete or absent. */
#ifndef BL_FORMATS_OUTPUT_H
#define BL_FORMATS_OUTPUT_H

#include "formats/status.h"

typedef struct bl_output bl_output;

/* Start path under a temporary name. Existing files are replaced only at commit. size > 0 reserves that many bytes, so that
 * a full disk shows before the work is done; the file then has at least that size. Several outputs for one path may be open:
 * the last commit wins. */
bl_status bl_output_open(bl_output **out, const char *path, uint64_t size, bl_error *err);
/* Write all n bytes at offset; thread-safe for disjoint ranges. */
bl_status bl_output_write(bl_output *o, const void *data, uint64_t n, uint64_t offset, bl_error *err);
int bl_output_fd(const bl_output *o); /* borrowed; for copy_file_range and O_DIRECT experts */
/* fsync, rename to path, fsync the folder; frees *o. On failure the temporary file is removed. */
bl_status bl_output_commit(bl_output **o, bl_error *err);
/* Remove the temporary file; frees *o; NULL is fine. */
void bl_output_abort(bl_output **o);

/* A small file in one call. */
bl_status bl_output_file(const char *path, const void *data, uint64_t n, bl_error *err);

/* May a folder be made at path? Not when something is there already, an empty folder aside, nor where the rename at commit must
 * fail: "." and "..", symbolic links, mount points (BL_E_USAGE). A parent that is absent or may not be written to is BL_E_IO. */
bl_status bl_folder_check(const char *path, bl_error *err);
/* An output folder: made under a temporary sibling name ("<path>.partial-<pid>") and renamed to path at commit, so that a
 * folder that carries the final name is complete. path must pass bl_folder_check. Paths of files inside are built by the caller
 * from *tmp (malloc'd). */
bl_status bl_folder_begin(const char *path, char **tmp, bl_error *err);
/* Rename *tmp to path and fsync the parent; frees and nulls *tmp on success. */
bl_status bl_folder_commit(char **tmp, const char *path, bl_error *err);
/* Remove *tmp and all that is in it (one level of sub-folders); frees and nulls *tmp. */
void bl_folder_abort(char **tmp);
/* Free bytes on the file system that holds path (or its nearest existing parent). */
bl_status bl_free_space(const char *path, uint64_t *bytes, bl_error *err);

#endif
