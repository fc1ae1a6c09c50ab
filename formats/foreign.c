#include "formats/foreign.h"

#include "formats/archive_write.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool starts(const char *s, size_t n, const char *with)
{
    size_t m = strlen(with);
    return n >= m && memcmp(s, with, m) == 0;
}

/* The rest of the line that starts with key in a pointer file; "" when there is none. */
static void pointer_field(const char *text, const char *key, char *out, size_t cap)
{
    const char *line = strstr(text, key);
    size_t n = 0;
    if (line) {
        line += strlen(key);
        n = strcspn(line, "\r\n");
        n = n < cap ? n : cap - 1;
        memcpy(out, line, n);
    }
    out[n] = 0;
}

static bl_status lfs_pointer(const char *path, const char *text, bl_error *err)
{
    char oid[128], size[32];
    pointer_field(text, "\noid ", oid, sizeof oid);
    pointer_field(text, "\nsize ", size, sizeof size);
    return bl_fail(err, BL_E_INPUT, path, NULL, -1,
                   "a git-lfs pointer, not the file itself: fetch it (git lfs pull); oid %s, size %s", oid,
                   size);
}

/* Markup: skips a byte order mark and white space. */
static const char *markup(const char *text)
{
    const char *p = starts(text, strlen(text), "\xef\xbb\xbf") ? text + 3 : text;
    p += strspn(p, " \t\r\n");
    if (strncasecmp(p, "<!doctype html", 14) == 0 || strncasecmp(p, "<html", 5) == 0 ||
        strncasecmp(p, "<head", 5) == 0) {
        return "an HTML page: the download got a web page, perhaps an error or a login";
    }
    if (strncasecmp(p, "<?xml", 5) == 0) {
        return "an XML document: the download got an error reply";
    }
    return NULL;
}

bl_status bl_foreign_check(const bl_file *f, bl_error *err)
{
    static const struct {
        const char *magic;
        size_t n;
        const char *what;
    } known[] = {
        {"PK\x03\x04", 4, "a ZIP archive (PyTorch .bin and .pt files are): not a safetensors file"},
        {"\x1f\x8b", 2, "gzip data: decompress it first"},
        {"\x28\xb5\x2f\xfd", 4, "zstd data: decompress it first"},
        {"GGUF", 4, "a GGUF file, not a safetensors file"},
        {"\x89HDF", 4, "an HDF5 file, not a safetensors file"},
        {"\x80\x02", 2, "a Python pickle, not a safetensors file"},
        {"\x93NUMPY", 6, "a NumPy array, not a safetensors file"},
        {"{", 1, "JSON text, not a safetensors file"},
    };
    char head[513];
    size_t n = bl_file_size(f) < sizeof head - 1 ? (size_t)bl_file_size(f) : sizeof head - 1;
    BL_TRY(bl_file_read(f, head, n, 0, err));
    head[n] = 0;
    if (starts(head, n, "version https://git-lfs")) {
        return lfs_pointer(bl_file_path(f), head, err);
    }
    const char *what = markup(head);
    for (size_t i = 0; !what && i < sizeof known / sizeof *known; i++) {
        if (n >= known[i].n && memcmp(head, known[i].magic, known[i].n) == 0) {
            what = known[i].what;
        }
    }
    if (!what && n > 262 && memcmp(head + 257, "ustar", 5) == 0) {
        what = "a tar archive: unpack it first";
    }
    if (!what && n >= 8 && head[0] == 0 && memcmp(head, head + 1, n - 1) == 0) {
        what = "zero bytes where the header should be: a download or a copy that was never filled";
    }
    if (!what && bl_archive_kind_of(bl_file_path(f)) != BL_ARCHIVE_NONE) {
        what = "is named like an archive, but does not begin like one that can be read";
    }
    return what ? bl_fail(err, BL_E_INPUT, bl_file_path(f), NULL, -1, "%s", what) : BL_OK;
}

bl_status bl_foreign_slurp(const char *path, uint64_t max, char **out, size_t *size, bl_error *err)
{
    BL_TRY(bl_file_slurp(path, max, out, size, err));
    const char *what = markup(*out);
    bl_status s = BL_OK;
    if (starts(*out, strlen(*out), "version https://git-lfs")) {
        s = lfs_pointer(path, *out, err);
    } else if (what) {
        s = bl_fail(err, BL_E_INPUT, path, NULL, -1, "%s", what);
    }
    if (s != BL_OK) {
        free(*out);
        *out = NULL;
    }
    return s;
}
