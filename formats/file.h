/* Files to read: positioned reads that never come up short, and mapped regions. */
#ifndef BL_FORMATS_FILE_H
#define BL_FORMATS_FILE_H

#include "formats/spool.h"

typedef struct bl_file bl_file; /* refcounted, safe to share between threads */

/* What there is instead of a regular file, by its st_mode: "a folder", "a FIFO", ... */
const char *bl_file_type_name(unsigned mode);

/* Why path cannot be opened: as bl_fail_errno, but a symbolic link to nothing is called that, with what it names. */
bl_status bl_file_absent(const char *path, int errno_value, bl_error *err);

/* A file at path that is not there: is all of the folder that it would lie in missing, or is that empty? *problem says so then (BL_E_INPUT,
 * of the folder, in the same words for each of its files). */
bool bl_file_folder_absent(const char *path, bl_error *problem);

/* Open a regular file for reading (symbolic links are followed; folders, devices and FIFOs are refused without blocking).
 * err names path. */
bl_status bl_file_open(bl_file **out, const char *path, bl_error *err);
bl_file *bl_file_ref(bl_file *f);
/* Drop a reference; closes with the last one. Nulls *f. */
void bl_file_close(bl_file **f);
uint64_t bl_file_size(const bl_file *f);
const char *bl_file_path(const bl_file *f);
int bl_file_fd(const bl_file *f); /* borrowed */
/* Where the file's byte 0 lies in its descriptor's file: 0, unless it was made by bl_file_range. */
uint64_t bl_file_base(const bl_file *f);
/* The CRC-32 that an archive has of all of the file's bytes, for whoever reads them all; false: none. */
bool bl_file_crc32(const bl_file *f, uint32_t *crc);
/* Note it, before the file is shared. */
void bl_file_note_crc32(bl_file *f, uint32_t crc);
/* size bytes at base of whole, which must have them, as a file of its own; path is what it is called in errors. */
bl_status bl_file_range(bl_file **out, bl_file *whole, uint64_t base, uint64_t size, const char *path, bl_error *err);

/* The same of what comes into a spool, which must outlive the file. */
bl_status bl_file_spooled(bl_file **out, bl_spool *spool, uint64_t base, uint64_t size, const char *path, bl_error *err);
bl_spool *bl_file_spool(const bl_file *f); /* NULL: an ordinary file */
/* Wait until n bytes at offset are there; only files in a spool ever wait. bl_file_read and bl_region_open do so themselves. */
bl_status bl_file_wait(const bl_file *f, uint64_t offset, uint64_t n, bl_error *err);

/* Read exactly n bytes at offset: EINTR and short reads are retried; an end of file before n bytes is BL_E_INPUT
 * ("truncated while reading"), EIO and friends BL_E_IO. Thread-safe. */
bl_status bl_file_read(const bl_file *f, void *dst, uint64_t n, uint64_t offset, bl_error *err);
/* The whole file, NUL-terminated, malloc'd; refused above max bytes. *size may be NULL. */
bl_status bl_file_slurp(const char *path, uint64_t max, char **out, size_t *size, bl_error *err);

typedef enum bl_access {
    BL_ACCESS_AUTO = 0, /* mmap on local file systems, pread on network ones (statfs) */
    BL_ACCESS_MMAP,
    BL_ACCESS_PREAD
} bl_access;

/* Bytes of a file in memory. Only the region unmaps or frees them. */
typedef struct bl_region bl_region;

/* n bytes at offset of f, read-only: a shared mapping, or with BL_ACCESS_PREAD a private anonymous buffer filled with
 * large reads. data is aligned like offset modulo 4096 in the mapped form, to 64 in the other. A file
 * that is cut short while it is mapped raises SIGBUS on access: replace files, never truncate them. */
bl_status bl_region_open(bl_region **out, bl_file *f, uint64_t offset, uint64_t n, bl_access access, bl_error *err);
void bl_region_close(bl_region **r);
const uint8_t *bl_region_data(const bl_region *r);

#endif
