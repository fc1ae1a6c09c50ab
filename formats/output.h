/* Files to write: under a temporary name in the target's folder, fsynced, then renamed. Complete or absent. */
#ifndef BL_FORMATS_OUTPUT_H
#define BL_FORMATS_OUTPUT_H

#include "formats/status.h"

#include <stdbool.h>

typedef struct bl_output bl_output;

/* Start path under a temporary name. Existing files are replaced only at commit; what is there and no file is refused (BL_E_IO).
 * size > 0 reserves that many bytes, so that a full disk shows before the work is done; the file then has at least that size. Several outputs for one path may be open:
 * the last commit wins. */
bl_status bl_output_open(bl_output **out, const char *path, uint64_t size, bl_error *err);
/* Write all n bytes at offset; thread-safe for disjoint ranges. */
bl_status bl_output_write(bl_output *o, const void *data, uint64_t n, uint64_t offset, bl_error *err);
/* Read back n bytes that were written at offset. */
bl_status bl_output_read(const bl_output *o, void *data, uint64_t n, uint64_t offset, bl_error *err);
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
/* path without slashes at its end, malloc'd; NULL when out of memory. */
char *bl_folder_plain(const char *path);

/* An output folder in the making. Beside path there is "<path>.partial" with two entries: "files", which is renamed to path at
 * commit, so that a folder that carries the final name is complete, and "journal", which the process that makes the folder holds
 * locked (flock) and in which it may note what a later one can go on from. A process that dies leaves both. */
typedef struct bl_folder bl_folder;

/* Begin path, which must pass bl_folder_check, or take over what a process left that died. Unless resume is set what it left is
 * removed. BL_E_USAGE when another process is making path now, or when "<path>.partial" is something else. */
bl_status bl_folder_begin(bl_folder **out, const char *path, bool resume, bl_error *err);
const char *bl_folder_files(const bl_folder *f);   /* path of the folder to write into */
const char *bl_folder_partial(const bl_folder *f); /* "<path>.partial" */
int bl_folder_journal(const bl_folder *f);         /* descriptor, read and write; borrowed */
bool bl_folder_left_over(const bl_folder *f);      /* was there something when it was begun? */
/* Begun with resume: path is there and complete, and only the journal was left. Nothing remains to be done but bl_folder_abort,
 * once the journal shows that it is the folder that is wanted. */
bool bl_folder_committed(const bl_folder *f);
/* Remove everything from files but folders and the files named (names is not NULL), relative to it and at most one folder deep. */
void bl_folder_keep(const bl_folder *f, const char *const *names, size_t count);
/* Rename files to path, fsync what holds it, remove the rest; frees and nulls *f unless the rename failed. */
bl_status bl_folder_commit(bl_folder **f, bl_error *err);
/* The same where one file was to be made: files/name becomes path, which must not be there; everything else goes. */
bl_status bl_folder_commit_file(bl_folder **f, const char *name, bl_error *err);
/* Give up: remove all of "<path>.partial", or, when keep is set, leave it for a later bl_folder_begin. Frees and nulls *f; NULL is
 * fine. */
void bl_folder_abort(bl_folder **f, bool keep);
/* Free bytes on the file system that holds path (or its nearest existing parent). */
bl_status bl_free_space(const char *path, uint64_t *bytes, bl_error *err);

#endif
