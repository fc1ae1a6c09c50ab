/* The small files of a converted checkpoint. */
#include "convert/job.h"
#include "convert/rewrite.h"

#include "formats/names.h"
#include "verify/companions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *source_path(bl_job *j, const char *name)
{
    return bl_path_join(&j->arena, j->source->path, name);
}

/* Copy a file of the source; *found tells whether it is there. */
static bl_status copy_file(bl_job *j, const char *name, bool *found, bl_error *err)
{
    const char *path = source_path(j, name);
    char *data;
    size_t n;
    if (!path) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    *found = access(path, F_OK) == 0;
    if (!*found) {
        return BL_OK;
    }
    BL_TRY(bl_file_slurp(path, BL_COMPANION_MAX, &data, &n, err));
    bl_status s = bl_job_small_file(j, name, data, n, err);
    free(data);
    return s;
}

/* Is the original config that the source kept the config that it has? */
static bool is_config(bl_job *j, const bl_config *c)
{
    const char *path = source_path(j, "config.source.json");
    char *data = NULL;
    size_t n = 0;
    bool same = path && bl_file_slurp(path, BL_COMPANION_MAX, &data, &n, NULL) == BL_OK && n == c->text_bytes &&
                memcmp(data, c->text, n) == 0;
    free(data);
    return same;
}

bl_status bl_job_extras(bl_job *j, bl_error *err)
{
    const bl_config *c = &j->source->config;
    bool released = j->plan.target == BL_TO_RELEASED;
    const char *config = released ? j->restored.path : source_path(j, "config.json");
    char *text;
    size_t n;
    bool found = false;
    if (!config) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    BL_TRY(bl_config_rewrite(released ? &j->restored.config : c, config, &j->plan, &text, &n, err));
    bl_status s = bl_job_small_file(j, "config.json", text, n, err);
    free(text);
    BL_TRY(s);
    /* The original is the one the source itself kept, if it was converted before. */
    for (size_t i = 0; i < BL_COMPANIONS; i++) {
        if (released && !strcmp(bl_companions[i], "config.source.json")) {
            continue; /* it is config.json now */
        }
        if (!strcmp(bl_companions[i], "config.source.json") && j->plan.target == BL_TO_MERGED && is_config(j, c)) {
            continue; /* it came with packing */
        }
        BL_TRY(copy_file(j, bl_companions[i], &found, err));
        if (!found && !strcmp(bl_companions[i], "config.source.json")) {
            BL_TRY(bl_job_small_file(j, bl_companions[i], c->text, c->text_bytes, err));
        }
    }
    return BL_OK;
}

static int by_name(const void *a, const void *b)
{
    const bl_plan_tensor *s = *(bl_plan_tensor *const *)a, *t = *(bl_plan_tensor *const *)b;
    return strcmp(s->tensor.name, t->tensor.name);
}

bl_status bl_job_index(bl_job *j, bl_error *err)
{
    const bl_plan *plan = &j->plan;
    char *text = NULL;
    size_t n = 0;
    bl_plan_tensor **order = malloc((plan->tensor_count + 1) * sizeof *order);
    FILE *f = order ? open_memstream(&text, &n) : NULL;
    if (!f) {
        free(order);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the index");
    }
    size_t count = 0;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        order[count] = &plan->tensors[i];
        count += !plan->tensors[i].aside;
    }
    qsort(order, count, sizeof *order, by_name);
    fprintf(f, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {", (unsigned long long)plan->tensor_bytes);
    for (size_t i = 0; i < count; i++) {
        fputs(i ? ",\n    " : "\n    ", f);
        bl_json_put(f, order[i]->tensor.name);
        fprintf(f, ": \"%s\"", plan->files[order[i]->tensor.file].name);
    }
    fputs("\n  }\n}\n", f);
    free(order);
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    bl_status s = bad ? bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the index")
                      : bl_job_small_file(j, "model.safetensors.index.json", text, n, err);
    free(text);
    return s;
}
