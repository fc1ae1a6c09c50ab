#include "tests/fuzz/fuzz.h"

#include "formats/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[256];

static void write_file(const char *name, const void *data, size_t n)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    BL_MUST(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

static void remove_folder(void)
{
    static const char *const names[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors", "model.safetensors.index.json"};
    char path[320];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void)
{
    static const char a[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}  ";
    static const char b[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}  ";
    unsigned char file[8 + sizeof a - 1] = {sizeof a - 1};
    const char *base = getenv("TMPDIR"); /* a memory file system makes this target ten times faster */
    snprintf(folder, sizeof folder, "%s/bl-fuzz-XXXXXX", base ? base : "/tmp");
    BL_MUST(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    memcpy(file + 8, a, sizeof a - 1);
    write_file("model-00001-of-00002.safetensors", file, sizeof file);
    memcpy(file + 8, b, sizeof b - 1);
    write_file("model-00002-of-00002.safetensors", file, sizeof file);
}

static void count_problem(void *arg, const bl_error *problem)
{
    BL_MUST(problem->code == BL_E_INPUT);
    ++*(size_t *)arg;
}

/* The index of a folder with tensors a and b in two shards (and no config). */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t problems = 0;
    const bl_checkpoint_options options = {.tolerate = true, .on_problem = count_problem, .arg = &problems};
    bl_checkpoint *c;
    bl_error err = {0};
    if (!folder[0]) {
        make_folder();
    }
    write_file("model.safetensors.index.json", data, size);
    BL_MUST(bl_checkpoint_open(&c, folder, &options, &err) == BL_OK);
    BL_MUST(c->problems == problems && problems >= 1);
    for (size_t i = 0; i < c->tensor_count; i++) {
        BL_MUST(bl_checkpoint_find(c, c->tensors[i].name) == &c->tensors[i] &&
                c->tensors[i].file < c->file_count);
    }
    bl_checkpoint_close(&c);
    return 0;
}
