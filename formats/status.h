/* Results, errors and exit codes: what every fallible function in the project returns and fills in. */
#ifndef BL_FORMATS_STATUS_H
#define BL_FORMATS_STATUS_H

#include <stddef.h>
#include <stdint.h>

/* Stable values. Negative is failure; the first failure wins and is forwarded with its context. */
typedef enum bl_status {
    BL_OK = 0,
    BL_E_FINDING = -1,     /* everything was read and something does not hold (verify) */
    BL_E_USAGE = -2,       /* the caller asked for something that makes no sense (flag, argument) */
    BL_E_INPUT = -3,       /* a file, folder or request is not what it must be; also: missing under an input path */
    BL_E_IO = -4,          /* trouble with a good input or output: disk full, read error, permission on output */
    BL_E_NOMEM = -5,       /* an allocation failed */
    BL_E_CANCELLED = -6,   /* stopped on request (signal, disconnected client) */
    BL_E_INTERNAL = -7,    /* our own bug; never the input's fault */
} bl_status;

/* Where and why. Strings are always NUL-terminated and single-line (control bytes of file content are escaped). */
typedef struct bl_error {
    bl_status code;
    char path[1024];   /* file or folder, "" when none */
    char tensor[320];  /* tensor, key or flag, "" when none */
    int64_t offset;    /* byte offset in path, -1 when none */
    char message[768]; /* one sentence without a final stop */
} bl_error;

/* Forward a failure to the caller. */
#define BL_TRY(expr)                          \
    do {                                      \
        bl_status bl_try_ = (expr);           \
        if (bl_try_ != BL_OK) return bl_try_; \
    } while (0)

/* Fill err (may be NULL; an err that already holds a failure is left alone) and return code.
 * path and tensor may be NULL; offset is -1 when there is none. Control characters and malformed UTF-8 are escaped as \xNN,
 * quotes in tensor as \'; too long texts are cut at a character. A zeroed bl_error is "no failure" too. */
bl_status bl_fail(bl_error *err, bl_status code, const char *path, const char *tensor, int64_t offset, const char *fmt,
                  ...) __attribute__((format(printf, 6, 7)));

/* The same for a failed system call: the message ends in strerror(errno_value). When reading is nonzero, what lies in the path
 * itself (ENOENT, ENOTDIR, EISDIR, ELOOP, EACCES, EPERM, ENAMETOOLONG) becomes BL_E_INPUT; ENOMEM is BL_E_NOMEM, everything
 * else BL_E_IO. */
bl_status bl_fail_errno(bl_error *err, int errno_value, int reading, const char *path, const char *doing);

/* Copy src to dst (cap bytes, at least 1), unprintable bytes as \xNN and, with quotes set, ' as \'; cut at a character.
 * Returns dst. What every text in a bl_error has been through. */
char *bl_text_escape(char *dst, size_t cap, const char *src, int quotes);

/* Reset err to "no failure". err may be NULL. */
void bl_error_clear(bl_error *err);

/* One line "path: 'tensor': at byte N: message" (absent parts left out) without newline into buf, cut to cap. Returns buf. */
char *bl_error_line(const bl_error *err, char *buf, size_t cap);

/* Process exit status for a result: 0 ok, 1 finding, 2 usage, 3 bad input, 4 I/O, memory and everything else. */
int bl_exit_code(bl_status s);

/* Checked arithmetic for anything read from a file: nonzero on overflow, *out is then unspecified. */
static inline int bl_add_overflow(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}
static inline int bl_mul_overflow(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}
/* How many pieces of size cover n, the last one partial: n / size rounded up, for every n. */
static inline uint64_t bl_pieces(uint64_t n, uint64_t size)
{
    return n / size + (n % size != 0);
}

/* Ending of a noun that n is the number of: "" for 1, else "s". */
const char *bl_plural(uint64_t n);

#endif
