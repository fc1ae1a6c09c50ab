#include "tools/exponents.h"

#include <string.h>

#include "verify/bind_names.h"

enum { BAR = 50 };

static const char *label(int i, bool f32, char *buf, size_t cap)
{
    if (i == 255) snprintf(buf, cap, "%s", f32 ? "infinite" : "NaN");
    else if (i == 0 && f32) snprintf(buf, cap, "zero");
    else snprintf(buf, cap, "2^%d", i - 127);
    return buf;
}

void exponents_print(const bl_exponents *e, bool f32)
{
    uint64_t most = 1;
    for (int i = 0; i < 256; i++) most = e->count[i] > most ? e->count[i] : most;
    for (int i = 0, last = -1; i < 256; i++) {
        char name[16], bar[BAR + 1];
        if (!e->count[i]) continue;
        if (last >= 0 && i > last + 1) printf("    ...\n");
        last = i;
        int n = (int)((double)e->count[i] / (double)most * BAR + 0.5);
        memset(bar, '#', (size_t)n);
        bar[n] = 0;
        printf("    %-9s %14llu %6.2f%%  %s\n", label(i, f32, name, sizeof name), (unsigned long long)e->count[i],
               100 * (double)e->count[i] / (double)e->scales, n ? bar : ".");
    }
}

json_t *exponents_json(const bl_exponents *e, bool f32)
{
    json_t *j = json_object();
    for (int i = 0; i < 256; i++) {
        char name[16];
        if (!e->count[i]) continue;
        label(i, f32, name, sizeof name);
        json_object_set_new(j, i == 255 ? "nan" : name[0] == '2' ? name + 2 : name, json_integer((json_int_t)e->count[i]));
    }
    return j;
}

static bool powers_of_two(const bl_exponents *e, bool f32)
{
    return !e->odd && !e->count[255] && !(f32 && e->count[0]);
}

static void print_class(const bl_exponent_class *k)
{
    char name[64];
    const bl_exponents *e = &k->exponents;
    printf("%s: %zu weight%s, %llu scale%s", bl_exponent_class_name(k, name, sizeof name), k->weights, bl_plural(k->weights),
           (unsigned long long)e->scales, bl_plural(e->scales));
    if (k->f32 && e->odd) printf(", %llu of them no powers of two", (unsigned long long)e->odd);
    else if (k->f32 && powers_of_two(e, true)) printf(", all powers of two");
    printf("\n");
    exponents_print(e, k->f32);
}

static json_t *class_json(const bl_exponent_class *k)
{
    char name[64];
    return json_pack("{s:s, s:I, s:I, s:I, s:b, s:b, s:o}", "class", bl_exponent_class_name(k, name, sizeof name), "weights",
                     (json_int_t)k->weights, "scales", (json_int_t)k->exponents.scales, "no_powers_of_two", (json_int_t)k->exponents.odd,
                     "powers_of_two", powers_of_two(&k->exponents, k->f32), "float32", k->f32, "exponents",
                     exponents_json(&k->exponents, k->f32));
}

static bl_status gather(const bl_checkpoint *c, const bl_exponent_options *o, bl_arena *arena, bl_exponent_class *k, size_t *count,
                        bl_error *err)
{
    bl_binding b = {0};
    BL_TRY(c->has_config ? bl_bind(c, arena, NULL, NULL, &b, err) : bl_bind_names(c, arena, &b, err));
    return bl_exponents_survey(c, &b, o, arena, k, count, err);
}

int scales_run(const cli_command *cmd, const bl_checkpoint *c, int jobs, bool json)
{
    static bl_exponent_class k[BL_EXPONENT_CLASSES];
    size_t count = 0;
    bl_arena arena = {0};
    bl_error err = {0};
    bl_exponent_options o = {.jobs = jobs, .cancelled = cli_interrupted, .progress = cli_progress_update};
    cli_progress *progress = cli_progress_begin("reading scales", json);
    o.progress_arg = progress;
    bl_status s = gather(c, &o, &arena, k, &count, &err);
    cli_progress_end(&progress);
    bl_arena_reset(&arena);
    if (s != BL_OK) return cli_report(cmd->program, s, &err);
    json_t *classes = json ? json_array() : NULL;
    for (size_t i = 0; i < count; i++) {
        if (json) json_array_append_new(classes, class_json(&k[i]));
        else print_class(&k[i]);
    }
    if (json) return receipt_print(cmd->program, json_pack("{s:o, s:o}", "path", receipt_text(c->name), "scales", classes));
    if (!count) printf("%s: no weight has scales\n", c->name);
    return 0;
}
