/* Files that pretend to be part of a checkpoint: say what they are. */
#ifndef BL_FORMATS_FOREIGN_H
#define BL_FORMATS_FOREIGN_H

#include "formats/file.h"

/* BL_OK when f is nothing known; otherwise BL_E_INPUT with a message that names what it is: a git-lfs pointer (with oid and
 * size of the real file), an HTML or XML page, a ZIP archive (old PyTorch), gzip, zstd, tar, GGUF, HDF5, a Python pickle,
 * JSON text, all zeros. Judged from the first bytes: call it only on a file that is no safetensors file. */
bl_status bl_foreign_check(const bl_file *f, bl_error *err);

/* The whole of a small text file, as bl_file_slurp; one that is a git-lfs pointer or a web page instead is refused by name. */
bl_status bl_foreign_slurp(const char *path, uint64_t max, char **out, size_t *size, bl_error *err);

#endif
