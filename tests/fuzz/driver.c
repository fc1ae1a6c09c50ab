/* Run a fuzz target on the files of the folders (or the files) named on the command line: the regression test
 * of its corpus. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    size_t cap = 1 << 16, n = 0;
    uint8_t *data = malloc(cap);
    while (data && (n += fread(data + n, 1, cap - n, f)) == cap) {
        data = realloc(data, cap *= 2);
    }
    fclose(f);
    if (!data) {
        return 1;
    }
    /* Exactly sized, so that the address sanitizer sees a read past the end. */
    uint8_t *exact = malloc(n ? n : 1);
    for (size_t i = 0; exact && i < n; i++) {
        exact[i] = data[i];
    }
    free(data);
    if (exact) {
        LLVMFuzzerTestOneInput(exact, n);
    }
    free(exact);
    return !exact;
}

static int run(const char *path, int *count)
{
    DIR *d = opendir(path);
    int bad = 0;
    if (!d) {
        *count += 1;
        return run_file(path);
    }
    for (struct dirent *e; (e = readdir(d));) {
        char file[4096];
        if (e->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", path, e->d_name);
            *count += 1;
            bad |= run_file(file);
        }
    }
    closedir(d);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0, count = 0;
    for (int i = 1; i < argc; i++) {
        bad |= run(argv[i], &count);
    }
    printf("%d inputs\n", count);
    return bad || count == 0;
}
