/* For the unit tests of checkpoints: files of a folder, ways to break one, and what must be said of each. */
#ifndef BL_TESTS_UNIT_BREAKAGE_H
#define BL_TESTS_UNIT_BREAKAGE_H

#include "tests/unit/scratch.h"
#include "tests/unit/tiny_config.h"

#include <stdbool.h>

#define T4(name, begin) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" begin "]}"

static inline void shard(const char *folder, const char *name, const char *header, size_t data)
{
    scratch_safetensors(scratch_path("%s/%s", folder, name), header, strlen(header), data);
}

/* One way to break a folder, and what must be said of it. */
typedef struct breakage {
    const char *name;
    void (*apply)(const char *folder);
    const char *fragments;
} breakage;

static inline void bad_config(const char *f)
{
    scratch_text(scratch_path("%s/config.json", f), "{\"model_type\":\"llama\"}");
}
typedef struct seen {
    const char *fragments;
    size_t count, matches;
} seen;

/* Does the line of e hold every fragment? */
static inline bool matches(const bl_error *e, const char *fragments)
{
    char line[2400], want[256];
    bl_error_line(e, line, sizeof line);
    snprintf(want, sizeof want, "%s", fragments);
    for (char *part = strtok(want, "|"); part; part = strtok(NULL, "|")) {
        if (!strstr(line, part)) {
            return false;
        }
    }
    return true;
}

static inline void collect(void *arg, const bl_error *e)
{
    seen *s = arg;
    assert_int_equal(e->code, BL_E_INPUT);
    s->count++;
    s->matches += matches(e, s->fragments);
}

#endif
