#include "tools/check.h"

#include <inttypes.h>
#include <time.h>

#include "kernels/cpu.h"
#include "tools/receipt.h"
#include "verify/survey.h"

enum { SHOWN = 8 }; /* weights of a kind */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_item(const bl_survey_item *i)
{
    printf("  %s: ", i->name);
    switch (i->kind) {
    case BL_ODD_EMPTY:
        printf("all of its %" PRIu64 " rows\n", i->of);
        break;
    case BL_ODD_ZERO_ROWS:
    case BL_ODD_CONSTANT_ROWS:
    case BL_ODD_REPEATED_ROWS:
    case BL_ODD_UNSCALED:
        printf("%" PRIu64 " of %" PRIu64 ", the first is row %" PRIu64 "\n", i->count, i->of, i->row);
        break;
    case BL_ODD_EQUAL:
        printf("those of %s\n", i->other);
        break;
    case BL_ODD_FLAW:
    case BL_ODD_SCALE_FLAW:
        printf("%" PRIu64 " of %" PRIu64 " %s, the first at [%" PRIu64 ", %" PRIu64 "]\n", i->count, i->of, i->what, i->row, i->col);
        break;
    default:
        printf("%" PRIu64 " of %" PRIu64 ", the first at [%" PRIu64 ", %" PRIu64 "]\n", i->count, i->of, i->row, i->col);
    }
}

static void print_text(const bl_checkpoint *c, const bl_survey *s, double seconds)
{
    printf("%s: %zu weight%s, %.3f GB in %.1f s: ", c->name, s->weights, bl_plural(s->weights), (double)s->bytes * 1e-9, seconds);
    printf(s->count ? "something looks wrong\n" : "nothing looks wrong\n");
    for (size_t i = 0, in_kind = 0; i < s->count; i++) {
        bl_oddity kind = s->items[i].kind;
        in_kind = i && s->items[i - 1].kind == kind ? in_kind + 1 : 0;
        if (in_kind == 0)
            printf("%s: %s in %zu weight%s\n", bl_oddity_is_wrong(kind) ? "wrong" : "odd", bl_oddity_name(kind), s->kinds[kind],
                   bl_plural(s->kinds[kind]));
        if (in_kind < SHOWN) print_item(&s->items[i]);
        else if (in_kind == SHOWN) printf("  and %zu more\n", s->kinds[kind] - SHOWN);
    }
    if (s->problems)
        printf("note: %zu problem%s with files or tensors, which were not looked at: 'baleen verify' names them\n", s->problems,
               bl_plural(s->problems));
}

static int print_json(const cli_command *cmd, const bl_checkpoint *c, const bl_survey *s, double seconds)
{
    json_t *items = json_array(), *kinds = json_object();
    for (int k = 0; k < BL_ODDITIES; k++)
        if (s->kinds[k]) json_object_set_new(kinds, bl_oddity_name((bl_oddity)k), json_integer((json_int_t)s->kinds[k]));
    for (size_t i = 0; i < s->count; i++) {
        const bl_survey_item *t = &s->items[i];
        json_t *j = json_pack("{s:s, s:s, s:o, s:s, s:o, s:s, s:I, s:I, s:I, s:I}", "level",
                              bl_oddity_is_wrong(t->kind) ? "wrong" : "odd", "kind", bl_oddity_name(t->kind), "weight",
                              receipt_text(t->name), "class", bl_class_name(t->class), "file", receipt_text(t->path), "what", t->what,
                              "count", (json_int_t)t->count, "of", (json_int_t)t->of, "row", (json_int_t)t->row, "col",
                              (json_int_t)t->col);
        if (t->other) json_object_set_new(j, "same_as", receipt_text(t->other));
        json_array_append_new(items, j);
    }
    json_t *j = json_pack("{s:o, s:b, s:I, s:I, s:f, s:I, s:o, s:o}", "path", receipt_text(c->name), "clean", s->count == 0, "weights",
                          (json_int_t)s->weights, "bytes", (json_int_t)s->bytes, "seconds", seconds, "problems", (json_int_t)s->problems,
                          "kinds", kinds, "items", items);
    return receipt_print(cmd->program, j);
}

int check_run(const cli_command *cmd, const bl_checkpoint *c, int jobs, bool json)
{
    bl_survey s;
    bl_arena arena = {0};
    bl_error err = {0};
    bl_survey_options o = {.jobs = jobs, .cpu = bl_cpu_detect(), .cancelled = cli_interrupted, .progress = cli_progress_update};
    int rc = 0;
    double begin = now();
    cli_progress *progress = cli_progress_begin("looking", json);
    o.progress_arg = progress;
    bl_status st = bl_survey_run(c, &o, &arena, &s, &err);
    cli_progress_end(&progress);
    if (st != BL_OK) rc = cli_report(cmd->program, st, &err);
    else if (json) rc = print_json(cmd, c, &s, now() - begin);
    else print_text(c, &s, now() - begin);
    if (st == BL_OK) rc = rc ? rc : s.count ? 1 : 0;
    bl_arena_reset(&arena);
    return rc;
}
