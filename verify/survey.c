#include "verify/survey.h"

#include "verify/bind_names.h"
#include "verify/scan.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 16 }; /* one row in so many */

/* What is known of a weight. */
typedef struct record {
    bl_odd_count odd[BL_ODDITIES];
    const char *what[2]; /* flaws of codes, of scales */
    bl_sum codes;        /* of whole rows: equal for equal codes */
} record;

typedef struct surveyor {
    const bl_checkpoint *c;
    const bl_binding *binding;
    record *records; /* [binding weights] */
    bl_cast_kernels kernels;
    pthread_mutex_t lock; /* of the records */
} surveyor;

const char *bl_oddity_name(bl_oddity kind)
{
    static const char *const names[BL_ODDITIES] = {"flawed values",
                                                   "flawed scales",
                                                   "all zero",
                                                   "all-zero rows",
                                                   "constant rows",
                                                   "rows equal to the one before",
                                                   "scale bytes 0 or 254",
                                                   "scales far from their neighbours",
                                                   "values far above the others",
                                                   "fp8 codes without their scale",
                                                   "the same codes as another weight"};
    return names[kind];
}

bool bl_oddity_is_wrong(bl_oddity kind)
{
    return kind <= BL_ODD_EMPTY;
}

static bl_status nomem(const bl_checkpoint *c, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, c->path, NULL, -1, "out of memory");
}

/* ---- the pass */

static void look(void *arg, const bl_weight *w, bool scale, uint64_t offset, uint64_t n, const uint8_t *data)
{
    surveyor *x = arg;
    bl_odd_count odd[BL_ODDITIES] = {{0}};
    bl_sum codes = {0};
    const char *what = NULL;
    bl_odd_look(&x->kernels, w, scale, offset, n, data, odd, &what);
    uint64_t row = bl_weight_row_bytes(w);
    if (!scale && bl_odd_has_rows(w) && bl_odd_group(w, false)) {
        bl_value_rows(&codes, data, offset / row, n / row, row, false);
    }
    record *r = &x->records[w - x->binding->weights];
    pthread_mutex_lock(&x->lock);
    for (int k = 0; k < BL_ODDITIES; k++) {
        bl_odd_add(&r->odd[k], odd[k]);
    }
    r->what[scale] = what ? what : r->what[scale];
    bl_sum_add(&r->codes, codes);
    pthread_mutex_unlock(&x->lock);
}

/* ---- the report */

static bool is_scale_kind(int kind)
{
    return kind == BL_ODD_SCALE_FLAW || kind == BL_ODD_SCALE_ENDS || kind == BL_ODD_SCALE_FAR;
}

static bool is_row_kind(int kind)
{
    return (kind >= BL_ODD_EMPTY && kind <= BL_ODD_REPEATED_ROWS) || kind == BL_ODD_UNSCALED || kind == BL_ODD_EQUAL;
}

/* Has it a row for every token, or n-gram of tokens: embeddings, Engram tables, heads? */
static bool has_token_rows(const bl_weight *w)
{
    return strstr(w->slot->name, "embed") || strstr(w->slot->name, "head.");
}

/* Take away what means nothing: rows that training has hardly met may be alike, as long as they are few. */
static void excuse(const bl_weight *w, record *r)
{
    uint64_t rows = bl_weight_rows(w);
    if (r->odd[BL_ODD_ZERO_ROWS].count == rows && rows) {
        r->odd[BL_ODD_EMPTY] = r->odd[BL_ODD_ZERO_ROWS];
        r->odd[BL_ODD_ZERO_ROWS].count = 0;
    }
    if (w->form == BL_FORM_OTHER) {
        r->odd[BL_ODD_ZERO_ROWS].count = 0; /* a token may well have expert 0 alone */
    }
    for (int k = BL_ODD_ZERO_ROWS; k <= BL_ODD_REPEATED_ROWS && has_token_rows(w); k++) {
        r->odd[k].count = r->odd[k].count < rows / FEW ? 0 : r->odd[k].count;
    }
}

static void add_item(const surveyor *x, bl_survey *out, size_t weight, int kind, const char *other)
{
    const bl_weight *w = &x->binding->weights[weight];
    const record *r = &x->records[weight];
    bool scale = is_scale_kind(kind), rows = is_row_kind(kind);
    uint64_t cols = scale ? bl_weight_scale_cols(w) : bl_weight_cols(w), all = scale ? bl_weight_scale_rows(w) : bl_weight_rows(w);
    const bl_odd_count *n = &r->odd[kind];
    out->kinds[kind]++;
    out->items[out->count++] = (bl_survey_item){.kind = (bl_oddity)kind,
                                                .class = bl_class_of(x->c->has_config ? &x->c->config : NULL, w->slot->name),
                                                .name = w->slot->name,
                                                .path = bl_checkpoint_file(x->c, scale ? w->scale : w->tensor)->path,
                                                .what = kind <= BL_ODD_SCALE_FLAW ? r->what[scale] : bl_oddity_name((bl_oddity)kind),
                                                .other = other,
                                                .count = rows && !n->count ? all : n->count,
                                                .of = rows ? all : all * cols,
                                                .row = rows ? n->first : n->first / cols,
                                                .col = rows ? 0 : n->first % cols};
}

static int by_codes(const void *a, const void *b, void *arg)
{
    const surveyor *x = arg;
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    const bl_sum s = x->records[i].codes, t = x->records[k].codes;
    if (s.hi != t.hi || s.lo != t.lo) {
        return s.hi < t.hi || (s.hi == t.hi && s.lo < t.lo) ? -1 : 1;
    }
    return i < k ? -1 : i > k;
}

/* May another weight not have its codes? Not what is empty or constant, copies on other ranks, or embeddings, which draft layers repeat. */
static bool is_own(const surveyor *x, size_t i)
{
    const bl_weight *w = &x->binding->weights[i];
    const record *r = &x->records[i];
    bool alike = r->odd[BL_ODD_EMPTY].count || r->odd[BL_ODD_CONSTANT_ROWS].count + r->odd[BL_ODD_ZERO_ROWS].count == bl_weight_rows(w);
    return bl_odd_has_rows(w) && bl_odd_group(w, false) && !w->replica && !has_token_rows(w) && !alike;
}

static bl_status add_equal(const surveyor *x, bl_survey *out, bl_error *err)
{
    size_t n = 0, *order = malloc((x->binding->count + 1) * sizeof *order);
    if (!order) {
        return nomem(x->c, err);
    }
    for (size_t i = 0; i < x->binding->count; i++) {
        order[n] = i;
        n += is_own(x, i);
    }
    qsort_r(order, n, sizeof *order, by_codes, (void *)x);
    for (size_t i = 1, first = 0; i < n; i++) {
        const bl_weight *v = &x->binding->weights[order[first]], *w = &x->binding->weights[order[i]];
        bl_digest a = bl_sum_digest(x->records[order[first]].codes), b = bl_sum_digest(x->records[order[i]].codes);
        if (v->nbytes == w->nbytes && bl_digest_equal(&a, &b)) {
            add_item(x, out, order[i], BL_ODD_EQUAL, v->slot->name);
        } else {
            first = i;
        }
    }
    free(order);
    return BL_OK;
}

static int by_kind(const void *a, const void *b)
{
    const bl_survey_item *i = a, *k = b;
    if (i->kind != k->kind) {
        return i->kind < k->kind ? -1 : 1;
    }
    if (i->count != k->count) {
        return i->count > k->count ? -1 : 1;
    }
    int order = strcmp(i->name, k->name);
    return order ? order : strcmp(i->path, k->path);
}

static bl_status report(surveyor *x, bl_arena *arena, bl_survey *out, bl_error *err)
{
    size_t room = x->binding->count; /* at most one BL_ODD_EQUAL of each */
    for (size_t i = 0; i < x->binding->count; i++) {
        const bl_weight *w = &x->binding->weights[i];
        excuse(w, &x->records[i]);
        for (int k = 0; k < BL_ODDITIES; k++) {
            room += x->records[i].odd[k].count != 0;
        }
    }
    out->items = bl_arena_array(arena, room, sizeof *out->items);
    if (!out->items) {
        return nomem(x->c, err);
    }
    for (size_t i = 0; i < x->binding->count; i++) {
        for (int k = 0; k < BL_ODDITIES; k++) {
            if (x->records[i].odd[k].count) {
                add_item(x, out, i, k, NULL);
            }
        }
    }
    BL_TRY(add_equal(x, out, err));
    if (out->count) {
        qsort(out->items, out->count, sizeof *out->items, by_kind);
    }
    return BL_OK;
}

/* ---- the whole */

static void count_problem(void *arg, const bl_error *problem)
{
    (void)problem;
    ++*(size_t *)arg;
}

static bl_status run(surveyor *x, const bl_survey_options *o, bl_arena *arena, bl_survey *out, bl_error *err)
{
    bl_verify_options options = {.jobs = o->jobs, .cpu = o->cpu, .cancelled = o->cancelled, .progress = o->progress,
                                 .progress_arg = o->progress_arg};
    bl_finder f = {.o = &options, .archives = {x->c->archive}};
    bl_scan scan = {.c = x->c, .binding = x->binding, .granule = bl_odd_group, .look = look, .arg = x};
    x->records = bl_arena_array(arena, x->binding->count, sizeof *x->records);
    if (!x->records) {
        return nomem(x->c, err);
    }
    bl_cast_init(&x->kernels, o->cpu);
    pthread_mutex_init(&f.lock, NULL);
    pthread_mutex_init(&x->lock, NULL);
    bl_status s = bl_scan_run(&scan, &f, arena, err);
    pthread_mutex_destroy(&f.lock);
    pthread_mutex_destroy(&x->lock);
    out->problems += f.count;
    out->bytes = scan.bytes;
    return s;
}

bl_status bl_survey_run(const bl_checkpoint *c, const bl_survey_options *o, bl_arena *arena, bl_survey *out, bl_error *err)
{
    *out = (bl_survey){.problems = c->problems};
    bl_binding b = {0};
    surveyor x = {.c = c, .binding = &b};
    if (c->has_config) {
        BL_TRY(bl_bind(c, arena, count_problem, &out->problems, &b, err));
    } else {
        BL_TRY(bl_bind_names(c, arena, &b, err));
    }
    out->weights = b.count;
    BL_TRY(run(&x, o, arena, out, err));
    return report(&x, arena, out, err);
}
