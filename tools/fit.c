#include "tools/fit.h"

#include "tools/receipt.h"

#include <stdlib.h>
#include <string.h>

#define UNKNOWN_SCRATCH 2000000000u /* of generations that the runtime does not run */

typedef struct request {
    bl_fit_options o;
    int64_t tp, ep, pp; /* 0: not given */
} request;

typedef struct problems {
    size_t count;
    bl_error first;
} problems;

static void note_problem(void *arg, const bl_error *problem)
{
    problems *p = arg;
    if (!p->count++) p->first = *problem;
}

/* ---- the argument */

/* -1, or the exit status of a wrong one. */
static int read_request(const cli_command *cmd, const char *text, request *r)
{
    static const char *const engrams[] = {"host", "device", NULL};
    static const char *const drops[] = {"dspark", "vision", "dspark+vision", NULL}; /* at BL_DROP_ bits, less 1 */
    int engram = 0, drop = -1;
    *r = (request){.o = {.reserve = CLI_UNSET_SIZE, .batch = 1}};
    char *copy = strdup(text);
    const cli_option keys[] = {
        {"tp", CLI_INT(1, BL_MAX_RANKS), &r->tp, "N", NULL},
        {"ep", CLI_INT(1, BL_MAX_RANKS), &r->ep, "N", NULL},
        {"pp", CLI_INT(1, BL_MAX_RANKS), &r->pp, "N", NULL},
        {"hbm", CLI_SIZE(1, CLI_SIZE_MOST), &r->o.memory, "SIZE", NULL},
        {"context", CLI_COUNT(1, 1000000000), &r->o.context, "N", NULL},
        {"batch", CLI_COUNT(1, 1000000), &r->o.batch, "N", NULL},
        {"reserve", CLI_SIZE(0, CLI_SIZE_MOST), &r->o.reserve, "SIZE", NULL},
        {"engram", CLI_WORD(engrams), &engram, "host|device", NULL},
        {"drop", CLI_WORD(drops), &drop, "dspark|vision|dspark+vision", NULL},
        CLI_END};
    if (!copy) return cli_report(cmd->program, BL_E_NOMEM, NULL);
    int rc = cli_parse_keys(cmd, "fit", copy, keys);
    free(copy); /* only numbers and words were taken from it */
    r->o.engram_device = engram == 1;
    r->o.drop = (unsigned)(drop + 1);
    if (rc < 0 && !r->o.memory) rc = cli_usage_error(cmd, "--fit needs hbm=SIZE, the memory of one device, such as hbm=141G");
    return rc;
}

/* ---- text */

static double gb(uint64_t bytes)
{
    return (double)bytes * 1e-9;
}

static void print_memory(const bl_fit_options *o)
{
    printf("%.3f GB (%.1f GiB)", gb(o->memory), (double)o->memory / (1 << 30));
    if (o->reserve) printf(", %.3f GB of each kept in reserve", gb(o->reserve));
}

static void print_devices(const bl_fit *f, const bl_fit_options *o)
{
    const bl_layout *l = &f->layout;
    printf("fit: tp %d, ep %d, pp %d: %d device%s of ", l->tp, l->ep, l->pp, l->ranks, bl_plural((uint64_t)l->ranks));
    print_memory(o);
    printf("\n");
}

/* A column for each stage, the fullest alone when there are many. */
static void print_row(const bl_fit *f, const char *name, uint64_t (*value)(const bl_fit_stage *s, int k), int k)
{
    bool some = false;
    int first = f->layout.pp > 8 ? f->fullest : 0, last = f->layout.pp > 8 ? f->fullest : f->layout.pp - 1;
    for (int i = first; i <= last; i++) some = some || value(&f->stages[i], k);
    if (!some) return;
    printf("  %-28s", name);
    for (int i = first; i <= last; i++) printf(" %11.3f", gb(value(&f->stages[i], k)));
    printf(" GB\n");
}

static uint64_t class_bytes(const bl_fit_stage *s, int k)
{
    return s->classes[k];
}

static uint64_t weight_bytes(const bl_fit_stage *s, int k)
{
    (void)k;
    return s->weights;
}

static uint64_t scratch_bytes(const bl_fit_stage *s, int k)
{
    (void)k;
    return s->scratch;
}

static uint64_t cache_bytes(const bl_fit_stage *s, int batch)
{
    return s->cache * (uint64_t)batch;
}

static void print_stages(const bl_fit *f, const bl_fit_options *o)
{
    if (f->layout.pp > 1) {
        printf("  each rank of stage          ");
        for (int i = f->layout.pp > 8 ? f->fullest : 0; i < f->layout.pp && (f->layout.pp <= 8 || i == f->fullest); i++)
            printf(" %11d", i);
        printf("\n");
    }
    for (int k = 0; k < BL_CLASSES; k++) print_row(f, bl_class_name((bl_class)k), class_bytes, k);
    print_row(f, "weights of each rank", weight_bytes, 0);
    char name[64];
    snprintf(name, sizeof name, "cache of %lld x %lld tokens", (long long)o->batch, (long long)o->context);
    print_row(f, name, cache_bytes, (int)o->batch);
    print_row(f, "scratch of passes", scratch_bytes, 0);
}

static void print_verdict(const bl_fit_model *m, const bl_fit *f)
{
    const bl_fit_stage *s = &f->stages[f->fullest];
    if (f->fits) printf("  yes: %.3f GB remain", gb((uint64_t)s->remains));
    else printf("  no: %.3f GB are missing", gb((uint64_t)-s->remains));
    if (f->layout.pp > 1) printf(" on a rank of stage %d", f->fullest);
    if (f->sequences) printf("; room for %lld such sequence%s", (long long)f->sequences, bl_plural((uint64_t)f->sequences));
    printf("\n");
    if (f->host)
        printf("  besides, %.3f GB of Engram tables in the memory of every host that serves their layers (engram=device: on the devices)\n",
               gb(f->host));
    if (m->serves && f->fits && f->layout.ranks > 1)
        printf("  packed so by: baleen convert %s DST --to packed --tp %d --ep %d --pp %d%s\n", m->path, f->layout.tp, f->layout.ep,
               f->layout.pp, f->host ? " --engram shared" : "");
}

static void print_note(const bl_fit_model *m, const problems *p)
{
    if (!m->serves)
        printf("note: an estimate, of weights alone: this generation is not packed here, whether its shapes allow the cut is not\n"
               "      looked at, servers differ in what they cut and what they keep whole, and context and batch do not count\n");
    if (m->assumed)
        printf("note: %zu of %zu weights are not here: their sizes are those that config.json calls for\n", m->assumed, m->count);
    else if (p->count)
        printf("note: %zu problem%s with the files: 'baleen verify' names them\n", p->count, bl_plural(p->count));
}

static void print_list(const bl_fit_model *m, const bl_fit *list, size_t count, const bl_fit_options *o)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) any = any || list[i].fits;
    printf("fit: devices of ");
    print_memory(o);
    if (m->serves) printf("; cache of %lld x %lld tokens", (long long)o->batch, (long long)o->context);
    printf("\n");
    printf("  devices   tp   ep   pp   weights      cache    scratch    remains  sequences\n");
    for (size_t i = 0; i < count; i++) {
        const bl_fit *f = &list[i];
        const bl_fit_stage *s = &f->stages[f->fullest];
        char room[24] = "-";
        if (any && !f->fits) continue;
        if (s->cache) snprintf(room, sizeof room, "%lld", (long long)f->sequences);
        printf("  %-7d %4d %4d %4d %9.3f  %9.3f  %9.3f %10.3f  %9s\n", f->layout.ranks, f->layout.tp, f->layout.ep, f->layout.pp,
               gb(s->weights), gb(s->cache * (uint64_t)o->batch), gb(s->scratch), (double)s->remains * 1e-9, room);
    }
    printf("  GB on the fullest rank; %s\n", any ? "layouts that do not fit are left out" : "none of these fits");
}

/* ---- JSON */

static json_t *fit_json(const bl_fit *f)
{
    json_t *stages = json_array();
    for (int i = 0; i < f->layout.pp; i++) {
        const bl_fit_stage *s = &f->stages[i];
        json_t *classes = json_object();
        for (int k = 0; k < BL_CLASSES; k++)
            if (s->classes[k]) json_object_set_new(classes, bl_class_name((bl_class)k), json_integer((json_int_t)s->classes[k]));
        json_array_append_new(stages, json_pack("{s:i, s:i, s:o, s:I, s:I, s:I, s:I}", "first_layer", s->first_layer, "layers", s->layers,
                                                "classes", classes, "weights", (json_int_t)s->weights, "cache", (json_int_t)s->cache,
                                                "scratch", (json_int_t)s->scratch, "remains", (json_int_t)s->remains));
    }
    return json_pack("{s:b, s:i, s:i, s:i, s:i, s:I, s:I, s:o}", "fits", f->fits, "devices", f->layout.ranks, "tp", f->layout.tp, "ep",
                     f->layout.ep, "pp", f->layout.pp, "host", (json_int_t)f->host, "sequences", (json_int_t)f->sequences, "stages",
                     stages);
}

static int print_json(const cli_command *cmd, const bl_fit_model *m, const bl_fit_options *o, const problems *p, const bl_fit *asked,
                      const bl_fit *list, size_t count)
{
    json_t *layouts = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(layouts, fit_json(&list[i]));
    json_t *j = json_pack("{s:o, s:I, s:I, s:I, s:I, s:b, s:b, s:I, s:I, s:o}", "path", receipt_text(m->path), "memory",
                          (json_int_t)o->memory, "reserve", (json_int_t)o->reserve, "context", (json_int_t)o->context, "batch",
                          (json_int_t)o->batch, "cache_known", m->serves, "estimate", !m->serves, "assumed",
                          (json_int_t)m->assumed, "problems", (json_int_t)p->count, "layouts", layouts);
    if (asked) json_object_set_new(j, "asked", fit_json(asked));
    return receipt_print(cmd->program, j);
}

/* ---- the whole */

static const bl_fit *smallest(const bl_fit *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].fits) return &list[i];
    return NULL;
}

static void print_text(const bl_fit_model *m, const bl_fit_options *o, const problems *p, const bl_fit *asked, const bl_fit *list,
                       size_t count)
{
    const bl_fit *least = smallest(list, count);
    if (asked) {
        print_devices(asked, o);
        print_stages(asked, o);
        print_verdict(m, asked);
        if (!asked->fits && least)
            printf("  the smallest of the usual layouts that fits: tp=%d,ep=%d,pp=%d, %d device%s\n", least->layout.tp, least->layout.ep,
                   least->layout.pp, least->layout.ranks, bl_plural((uint64_t)least->layout.ranks));
        else if (!asked->fits)
            printf("  nor does any of the usual layouts of up to 64 devices\n");
    } else {
        print_list(m, list, count, o);
    }
    print_note(m, p);
}

static int answer(const cli_command *cmd, const bl_checkpoint *c, request *r, const problems *p, bool json, bl_arena *arena)
{
    bl_error err = {0};
    bl_fit_model m;
    bl_fit asked, *list;
    size_t count;
    bool one = r->tp || r->ep || r->pp;
    if (!c->has_config && p->count) return cli_report(cmd->program, BL_E_INPUT, &p->first);
    bl_status s = bl_fit_open(&m, c, arena, &err);
    if (s == BL_OK && !r->o.context) r->o.context = m.serves ? c->config.max_position_embeddings : 1;
    if (s == BL_OK && r->o.reserve == CLI_UNSET_SIZE) r->o.reserve = m.serves ? 0 : UNKNOWN_SCRATCH;
    if (s == BL_OK && one) s = bl_fit_try(&m, &r->o, (int)r->tp, (int)r->ep, (int)r->pp, arena, &asked, &err);
    if (s == BL_OK) s = bl_fit_search(&m, &r->o, arena, &list, &count, &err);
    if (s != BL_OK) return cli_report(cmd->program, s, &err);
    bool fits = one ? asked.fits : smallest(list, count) != NULL;
    int rc = 0;
    if (json) rc = print_json(cmd, &m, &r->o, p, one ? &asked : NULL, list, count);
    else print_text(&m, &r->o, p, one ? &asked : NULL, list, count);
    return rc ? rc : fits ? 0 : 1;
}

int fit_run(const cli_command *cmd, const char *path, const char *text, bool json)
{
    request r;
    problems p = {0};
    bl_error err = {0};
    bl_arena arena = {0};
    bl_checkpoint *c = NULL;
    int rc = read_request(cmd, text, &r);
    if (rc >= 0) return rc;
    char *spill = bl_archive_spill(path);
    const bl_archive_options archives = {.spill = spill, .cancelled = cli_interrupted};
    const bl_checkpoint_options o = {.tolerate = true, .on_problem = note_problem, .arg = &p, .any_generation = true,
                                     .archives = spill ? &archives : NULL};
    bl_status s = bl_checkpoint_open(&c, path, &o, &err);
    free(spill);
    rc = s == BL_OK ? answer(cmd, c, &r, &p, json, &arena) : cli_report(cmd->program, s, &err);
    bl_arena_reset(&arena);
    bl_checkpoint_close(&c);
    return rc;
}
