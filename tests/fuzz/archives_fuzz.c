#include "tests/fuzz/fuzz.h"

#include "formats/archives.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST ((uint64_t)1 << 20) /* bytes of a shard that is read */

static char folder[256], input[300];

static void remove_folder(void)
{
    unlink(input);
    rmdir(folder);
}

static int entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    BL_MUST(d != NULL);
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n;
}

/* All of a member, in pieces, forwards or backwards: the same bytes, or the same kind of failure. */
static void read_member(bl_file *f, bool backwards, uint8_t *into, bl_status *s)
{
    uint64_t n = bl_file_size(f), piece = n / 5 + 1;
    *s = BL_OK;
    for (uint64_t i = 0; i < 5 && *s == BL_OK; i++) {
        uint64_t at = (backwards ? 4 - i : i) * piece, take = at < n ? n - at : 0;
        take = take < piece ? take : piece;
        *s = take ? bl_file_read(f, into + at, take, at, NULL) : BL_OK;
        BL_MUST(*s == BL_OK || *s == BL_E_INPUT);
    }
}

/* The only shard, kept as a whole (spill_max), or as it comes: of all of it, or of its last third alone. */
static bl_status read_shard(uint64_t spill_max, int how, uint8_t **bytes, uint64_t *n)
{
    bl_archive *a;
    bl_file *f = NULL;
    bl_error err = {0};
    bool again;
    const bl_archive_options o = {.spill = folder, .spill_max = spill_max};
    bl_status s = bl_archive_open(&a, input, &o, &err);
    *bytes = NULL;
    *n = 0;
    if (s == BL_OK) {
        s = bl_archive_file(a, "model.safetensors", &f, NULL);
    }
    if (s == BL_OK && bl_file_size(f) < MOST) {
        uint64_t from = how == 2 ? bl_file_size(f) / 3 * 2 : 0;
        *n = bl_file_size(f);
        *bytes = calloc(*n + 1, 1);
        bl_archive_compressed(a, &again);
        if (again && how) {
            BL_MUST(bl_spool_expect(bl_file_spool(f), bl_file_base(f) + from, *n - from, NULL) == BL_OK);
            bl_spool_seal(bl_file_spool(f));
        }
        if (how == 2) {
            s = *n - from ? bl_file_read(f, *bytes + from, *n - from, from, NULL) : BL_OK;
        } else {
            read_member(f, how == 1, *bytes, &s);
        }
        if (again && how) {
            bl_spool_done(bl_file_spool(f), bl_file_base(f) + from, *n - from);
        }
        bl_status end = bl_archive_finish(a, NULL);
        BL_MUST(end == BL_OK || end == BL_E_INPUT);
        s = s == BL_OK ? end : s;
    }
    bl_file_close(&f);
    bl_archive_close(&a);
    return s;
}

/* However a shard is read, it has the same bytes. */
static void compare_readings(void)
{
    uint8_t *whole, *again;
    uint64_t n, m;
    bl_status s = read_shard(MOST, 0, &whole, &n);
    for (int how = 0; how < 3; how++) {
        bl_status t = read_shard(0, how, &again, &m);
        BL_MUST(s != BL_OK || t != BL_OK || n == m);
        uint64_t from = how == 2 ? n / 3 * 2 : 0;
        BL_MUST(s != BL_OK || t != BL_OK || !whole || memcmp(whole + from, again + from, n - from) == 0);
        free(again);
    }
    free(whole);
}

/* An archive: nothing is made outside the temporary folder, and nothing of it stays. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_archive *a;
    bl_file *f;
    bl_error err = {0};
    if (!folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/bl-fuzz-XXXXXX", base ? base : "/tmp");
        BL_MUST(mkdtemp(folder) != NULL);
        snprintf(input, sizeof input, "%s/in.tar", folder);
        atexit(remove_folder);
    }
    FILE *out = fopen(input, "wb");
    BL_MUST(out && fwrite(data, 1, size, out) == size && fclose(out) == 0);
    const bl_archive_options o = {.spill = folder, .spill_max = data && size && data[size - 1] % 2 ? MOST : 0};
    bl_status s = bl_archive_open(&a, input, &o, &err);
    BL_MUST(s == BL_OK || s == BL_E_INPUT || s == BL_E_NOMEM);
    BL_MUST((a != NULL) == (s == BL_OK) && (err.code == BL_OK) == (s == BL_OK));
    BL_MUST(entries(folder) == (a ? 4 : 3));
    if (a && bl_archive_file(a, "model.safetensors", &f, NULL) == BL_OK) {
        char byte;
        uint64_t n = bl_file_size(f);
        bl_status last = n ? bl_file_read(f, &byte, 1, n - 1, NULL) : BL_OK;
        BL_MUST(last == BL_OK || last == BL_E_INPUT);
        BL_MUST(bl_file_read(f, &byte, 1, n, NULL) == BL_E_INPUT);
        bl_file_close(&f);
    }
    bl_archive_close(&a);
    BL_MUST(entries(folder) == 3);
    compare_readings();
    BL_MUST(entries(folder) == 3);
    return 0;
}
