#include "verify/companions.h"

#include "formats/foreign.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/safetensors.h"
#include "verify/scales.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Never an index: whoever writes shards writes it anew. */
const char *const bl_companions[BL_COMPANIONS] = {
    "config.source.json",      "tokenizer.json",    "tokenizer_config.json",    "generation_config.json", "special_tokens_map.json",
    "added_tokens.json",       "chat_template.jinja", "chat_template.json",     "preprocessor_config.json", "processor_config.json",
    "configuration_deepseek.py", "modeling_deepseek.py"};

static bl_status check(const char *path, bl_error *err)
{
    struct stat st;
    char *text;
    size_t n, length = strlen(path), tail = strlen(".json");
    if (lstat(path, &st) != 0 && errno == ENOENT) {
        return BL_OK;
    }
    BL_TRY(bl_foreign_slurp(path, BL_COMPANION_MAX, &text, &n, err));
    bl_json root;
    bl_status s = BL_OK;
    if (!strcmp(path + length - tail, ".json")) {
        s = bl_json_parse(text, n, NULL, path, &root, err);
    }
    free(text);
    return s;
}

bl_status bl_companions_check(const char *folder, bl_problem_fn on_problem, void *arg, bl_error *err)
{
    for (size_t i = 0; i < BL_COMPANIONS; i++) {
        char path[4096];
        bl_error e;
        bl_error_clear(&e);
        snprintf(path, sizeof path, "%s/%s", folder, bl_companions[i]);
        bl_status s = check(path, &e);
        if (s == BL_E_INPUT && on_problem) {
            on_problem(arg, &e);
        } else if (s != BL_OK) {
            if (err && err->code == BL_OK) {
                *err = e;
            }
            return s;
        }
    }
    return BL_OK;
}

bl_status bl_companion_scales_check(const bl_checkpoint *c, bl_error *err)
{
    bl_arena arena = {0};
    bl_st_header header;
    bl_file *file = NULL;
    struct stat st;
    const char *path = bl_path_join(&arena, c->path, BL_SCALES_NAME);
    bl_status s = BL_OK;
    if (!path) {
        s = bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    } else if (!c->archive && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        s = bl_file_open(&file, path, err);
        s = s == BL_OK ? bl_st_read(file, 0, &arena, &header, err) : s;
    }
    bl_file_close(&file);
    bl_arena_reset(&arena);
    return s;
}
