/* Folders that benchmarks read and write: a checkpoint to begin with, what the page cache holds of it, outputs to remove. */
#ifndef BL_TOOLS_BENCH_FOLDERS_H
#define BL_TOOLS_BENCH_FOLDERS_H

#include "formats/status.h"

#include <stdbool.h>

#define BENCH_FOLDER_PIECE ((size_t)4 << 20)

/* Make a checkpoint of about that many bytes at path: the preset "wide" of synth. */
bl_status bench_source(const char *path, uint64_t bytes, bl_error *err);
/* Remove a folder, with one level of folders in it. */
void bench_folder_remove(const char *path);
/* Bring a folder's files into the page cache, or (cool) out of it. piece: BENCH_FOLDER_PIECE bytes, not needed to cool. */
void bench_folder_warm(const char *path, bool cool, void *piece);
/* The share of a folder's pages that the page cache holds. */
double bench_folder_cached(const char *path);
/* What is dirty or being discarded on folder's file system would count against the next subject: wait for it. */
void bench_settle(const char *folder);

#endif
