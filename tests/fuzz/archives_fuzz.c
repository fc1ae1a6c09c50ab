#include "tests/fuzz/fuzz.h"

#include "formats/archives.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    const bl_archive_options o = {.spill = folder};
    bl_status s = bl_archive_open(&a, input, &o, &err);
    BL_MUST(s == BL_OK || s == BL_E_INPUT || s == BL_E_NOMEM);
    BL_MUST((a != NULL) == (s == BL_OK) && (err.code == BL_OK) == (s == BL_OK));
    BL_MUST(entries(folder) == (a ? 4 : 3));
    if (a && bl_archive_file(a, "model.safetensors", &f, NULL) == BL_OK) {
        char byte;
        uint64_t n = bl_file_size(f);
        BL_MUST(n == 0 || bl_file_read(f, &byte, 1, n - 1, NULL) == BL_OK);
        BL_MUST(bl_file_read(f, &byte, 1, n, NULL) == BL_E_INPUT);
        bl_file_close(&f);
    }
    bl_archive_close(&a);
    BL_MUST(entries(folder) == 3);
    return 0;
}
