#include "convert/journal.h"

#include "formats/digest.h"
#include "verify/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_BYTES ((uint64_t)64 << 20)
#define CHECK_DIGITS 32
#define MAGIC "baleen-journal 2 "

static bl_status io(const bl_journal *j, const char *doing, bl_error *err)
{
    return bl_fail_errno(err, errno, 0, j->path, doing);
}

static bl_status nomem(const bl_journal *j, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, j->path, NULL, -1, "out of memory for the journal");
}

static void check_of(const char *line, size_t n, char check[CHECK_DIGITS + 1])
{
    bl_digest d = bl_digest_bytes(line, n);
    bl_hex_encode(check, d.b, sizeof d.b);
}

/* A line with its check and newline. */
static void put_line(FILE *f, const char *line)
{
    char check[CHECK_DIGITS + 1];
    check_of(line, strlen(line), check);
    fprintf(f, "%s %s\n", line, check);
}

/* Append whole lines, and wait until they are on disk. */
static bl_status append(bl_journal *j, const char *text, size_t n, bl_error *err)
{
    for (size_t at = 0; at < n;) {
        ssize_t put = pwrite(j->fd, text + at, n - at, (off_t)(j->end + at));
        if (put > 0) {
            at += (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            return io(j, "cannot write the journal", err);
        }
    }
    if (fdatasync(j->fd) != 0) {
        return io(j, "cannot sync the journal", err);
    }
    j->end += n;
    return BL_OK;
}

static bl_status slurp(const bl_journal *j, bl_arena *arena, char **text, size_t *n, bl_error *err)
{
    struct stat st;
    if (fstat(j->fd, &st) != 0) {
        return io(j, "cannot look at the journal", err);
    }
    if ((uint64_t)st.st_size > MAX_BYTES) {
        return bl_fail(err, BL_E_INPUT, j->path, NULL, -1, "its journal has %lld bytes: it is none", (long long)st.st_size);
    }
    *n = 0;
    *text = bl_arena_alloc(arena, (size_t)st.st_size + 1);
    if (!*text) {
        return nomem(j, err);
    }
    while (*n < (size_t)st.st_size) {
        ssize_t got = pread(j->fd, *text + *n, (size_t)st.st_size - *n, (off_t)*n);
        if (got < 0 && errno != EINTR) {
            return io(j, "cannot read the journal", err);
        }
        if (got == 0) {
            break;
        }
        *n += got > 0 ? (size_t)got : 0;
    }
    return BL_OK;
}

/* The next whole line at *at: its words, without check and newline, NUL-terminated; NULL at the end of what can be trusted. */
static char *next_line(char *text, size_t n, size_t *at)
{
    char *line = text + *at, *end = memchr(line, '\n', n - *at), check[CHECK_DIGITS + 1];
    if (!end || end - line < CHECK_DIGITS + 2 || memchr(line, 0, (size_t)(end - line))) {
        return NULL;
    }
    char *words_end = end - CHECK_DIGITS - 1;
    check_of(line, (size_t)(words_end - line), check);
    if (*words_end != ' ' || memcmp(words_end + 1, check, CHECK_DIGITS) != 0) {
        return NULL;
    }
    *words_end = 0;
    *at = (size_t)(end - text) + 1;
    return line;
}

static bool read_file_line(char *line, bl_journal_file *f)
{
    char digest[65] = "", state[33] = "";
    int name = 0;
    if (sscanf(line, "file %64[0-9a-f] %" SCNu64 " %32[0-9a-f] %n", digest, &f->bytes, state, &name) != 3 || !name || !line[name]) {
        return false;
    }
    f->name = line + name;
    return strlen(digest) == 64 && bl_hex_decode(f->digest, digest, 64) && strlen(state) == 32 && bl_hex_decode(f->state.b, state, 32);
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* What became of a class, of the file whose line follows. */
static bool read_encoded_line(const char *line, bl_journal_file *f)
{
    bl_encode_stats s = {0};
    uint64_t error2, value2, error;
    unsigned class;
    int name = 0;
    if (sscanf(line, "encoded %u %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %n", &class, &s.values,
               &s.blocks, &s.kept, &s.lost, &error2, &value2, &error, &name) != 8 || !name || class >= BL_ENCODE_CLASSES) {
        return false;
    }
    s.error2 = from_bits(error2);
    s.value2 = from_bits(value2);
    s.error = (float)from_bits(error);
    f->encoded[class] = s;
    return true;
}

/* A line after the first: file gathers what is known of the next finished file. True when that is complete. */
static bool take_line(char *line, bl_journal_file *file)
{
    return !read_encoded_line(line, file) && read_file_line(line, file);
}

static bl_status read_lines(bl_journal *j, char *text, size_t n, const char *head, bl_arena *arena, bl_error *err)
{
    size_t at = 0, lines = 0;
    for (size_t i = 0; i < n; i++) {
        lines += text[i] == '\n';
    }
    j->files = bl_arena_array(arena, lines + 1, sizeof *j->files);
    if (!j->files) {
        return nomem(j, err);
    }
    char *first = next_line(text, n, &at);
    size_t begun = at;
    for (char *line = first; line; line = next_line(text, n, &at)) {
        j->end = at;
        j->count += line != first && take_line(line, &j->files[j->count]);
    }
    if (!first || strcmp(first, head) == 0) {
        return BL_OK;
    }
    if (j->end == begun) { /* nothing was finished: begun anew, nothing is lost */
        j->end = 0;
        return BL_OK;
    }
    size_t source = strlen(MAGIC) + 64;
    bool same = strlen(first) == strlen(head) && strncmp(first, head, source) == 0;
    return bl_fail(err, BL_E_USAGE, j->path, NULL, -1,
                   same ? "was begun with other options or another version: repeat those, or start anew without --resume"
                        : "was begun from another source, or by another version: start anew without --resume");
}

static bl_status begin(bl_journal *j, const char *head, bl_error *err)
{
    char check[CHECK_DIGITS + 1], *line;
    check_of(head, strlen(head), check);
    int n = asprintf(&line, "%s %s\n", head, check);
    if (n < 0) {
        return nomem(j, err);
    }
    bl_status s = append(j, line, (size_t)n, err);
    free(line);
    return s;
}

bl_status bl_journal_open(bl_journal *j, int fd, const char *path, const uint8_t source[32], const uint8_t plan[32], bl_arena *arena,
                          bl_error *err)
{
    char head[256], a[65], b[65], *text = NULL;
    size_t n = 0;
    *j = (bl_journal){.fd = fd, .path = path};
    snprintf(head, sizeof head, MAGIC "%s %s", bl_hex_encode(a, source, 32), bl_hex_encode(b, plan, 32));
    BL_TRY(slurp(j, arena, &text, &n, err));
    BL_TRY(read_lines(j, text, n, head, arena, err));
    if (ftruncate(fd, (off_t)j->end) != 0) {
        return io(j, "cannot cut the journal", err);
    }
    return j->end == 0 ? begin(j, head, err) : BL_OK;
}

static bool put_encoded(FILE *f, const bl_journal_file *file)
{
    char *line;
    for (unsigned i = 0; i < BL_ENCODE_CLASSES; i++) {
        const bl_encode_stats *s = &file->encoded[i];
        if (!s->values) {
            continue;
        }
        int n = asprintf(&line, "encoded %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %s", i,
                         s->values, s->blocks, s->kept, s->lost, bits_of(s->error2), bits_of(s->value2), bits_of((double)s->error), file->name);
        if (n < 0) {
            return false;
        }
        put_line(f, line);
        free(line);
    }
    return true;
}

bl_status bl_journal_add(bl_journal *j, const bl_journal_file *file, bl_error *err)
{
    char digest[65], state[33], *line = NULL, *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    bool good = f && asprintf(&line, "file %s %" PRIu64 " %s %s", bl_hex_encode(digest, file->digest, 32), file->bytes,
                              bl_hex_encode(state, file->state.b, 16), file->name) >= 0;
    if (good) {
        good = put_encoded(f, file);
        put_line(f, line);
        free(line);
        good = good && !ferror(f);
    }
    good = (!f || fclose(f) == 0) && good;
    bl_status s = good ? append(j, text, n, err) : nomem(j, err);
    j->added += s == BL_OK;
    free(text);
    return s;
}
