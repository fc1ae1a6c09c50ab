#include "tools/weight_sync.h"

#include <stdlib.h>
#include <string.h>

#include "formats/foreign.h"
#include "formats/names.h"
#include "tools/class_table.h"
#include "tools/generation.h"
#include "tools/receipt.h"
#include "verify/buckets.h"
#include "verify/digest.h"

#define MAX_CONFIG ((uint64_t)16 << 20)

/* What is told of buckets: those of the folder, or those that a delta leads to. */
typedef struct facts {
    const bl_place *place;
    bl_arena arena;
    bl_config config;
    bl_buckets buckets;
    bl_delta delta; /* of a delta */
    size_t groups, tensors, oversize, sliced, digests; /* tensors and sliced: whole ones */
    uint64_t bytes, padding, largest, host_bytes;
    bool covered;         /* sent and kept are the tensors of the model */
    size_t model_tensors; /* sent and kept */
    size_t changed;       /* of a delta: tensors and slices */
    size_t ranges;        /* of them those whose streams hold ranges */
    uint64_t changed_bytes, stream_bytes;
    class_table classes;  /* of what is sent, or has changed */
} facts;

bool weight_sync_is(const bl_place *p)
{
    return bl_buckets_recognise(p->folder) || bl_delta_recognise(p->folder);
}

/* ---- gathering */

static bl_status read_config(facts *f, bl_error *err)
{
    char *text;
    size_t n;
    const char *path = bl_path_join(&f->arena, f->place->folder, "config.json");
    BL_TRY(path ? bl_foreign_slurp(path, MAX_CONFIG, &text, &n, err) : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory"));
    bl_status s = bl_config_parse_any(text, n, path, &f->arena, &f->config, err);
    free(text);
    return s;
}

static bool is_first(const bl_bucket_tensor *t)
{
    return !t->of || t->row == 0;
}

static void count_class(facts *f, const bl_bucket_tensor *t)
{
    class_table_add(&f->classes, &f->config, t->of ? t->of : t->tensor.name, t->tensor.dtype, t->tensor.nbytes, !is_first(t));
}

static void count_buckets(facts *f)
{
    const bl_buckets *b = &f->buckets;
    for (size_t i = 0; i < b->count; i++) {
        const bl_bucket *k = &b->buckets[i];
        uint64_t bytes = 0;
        for (size_t t = 0; t < k->count; t++) {
            const bl_bucket_tensor *e = &k->tensors[t];
            bytes += e->tensor.nbytes;
            f->tensors += is_first(e);
            f->sliced += e->of && is_first(e);
            f->groups = e->group + 1 > f->groups ? (size_t)e->group + 1 : f->groups;
        }
        f->bytes += bytes;
        f->padding += k->nbytes - bytes;
        f->largest = k->nbytes > f->largest ? k->nbytes : f->largest;
        f->oversize += k->nbytes > b->size;
    }
    for (size_t i = 0; i < b->host_count; i++) {
        f->host_bytes += b->host[i].tensor.nbytes;
        f->digests += b->host[i].value_class != BL_VALUE_NONE;
    }
}

static bl_status check_coverage(facts *f, bl_error *err)
{
    const char **names;
    bl_digest d;
    BL_TRY(bl_buckets_names(&f->buckets, &f->arena, &names, &f->model_tensors, err));
    BL_TRY(bl_names_digest(names, f->model_tensors, &d, err));
    f->covered = bl_digest_equal(&d, &f->buckets.names);
    return BL_OK;
}

static bl_status read_buckets(facts *f, bl_error *err)
{
    BL_TRY(bl_buckets_read(f->place->folder, &f->arena, &f->buckets, NULL, NULL, err));
    for (size_t i = 0; i < f->buckets.count; i++)
        for (size_t t = 0; t < f->buckets.buckets[i].count; t++) count_class(f, &f->buckets.buckets[i].tensors[t]);
    return BL_OK;
}

/* A file of the delta: its tensors are some of the bucket's, in order. */
static bl_status count_changed(facts *f, const bl_delta_file *d, bl_error *err)
{
    const bl_bucket *b = d->bucket < f->buckets.count ? &f->buckets.buckets[d->bucket] : NULL;
    f->stream_bytes += d->nbytes;
    for (size_t k = 0, at = 0; k < d->count; k++, at++) {
        while (b && at < b->count && strcmp(b->tensors[at].tensor.name, d->tensors[k].name) != 0) at++;
        if (!b || at == b->count)
            return bl_fail(err, BL_E_INPUT, f->place->name, d->tensors[k].name, -1, "is in " BL_DELTA_NAME ", but not in " BL_DELTA_TARGET_NAME);
        f->changed++;
        f->ranges += d->tensors[k].encoding == BL_DELTA_RANGES;
        f->changed_bytes += b->tensors[at].tensor.nbytes;
        count_class(f, &b->tensors[at]);
    }
    return BL_OK;
}

static bl_status read_delta(facts *f, bl_error *err)
{
    BL_TRY(bl_delta_read(f->place->folder, &f->arena, &f->delta, err));
    BL_TRY(bl_delta_target(f->place->folder, &f->delta, &f->arena, &f->buckets, NULL, NULL, err));
    for (size_t i = 0; i < f->delta.count; i++) BL_TRY(count_changed(f, &f->delta.files[i], err));
    return BL_OK;
}

/* ---- telling */

static void print_coverage(const facts *f)
{
    const char *s = bl_plural(f->model_tensors);
    if (f->covered) printf("coverage: sent and kept are all %zu tensor%s of the model, by the digest of their names\n", f->model_tensors, s);
    else printf("coverage: the %zu tensor%s sent and kept are NOT those of the model, by the digest of their names\n", f->model_tensors, s);
}

static void print_buckets(const facts *f)
{
    const bl_buckets *b = &f->buckets;
    char size[32], other[32];
    printf("%s: weight-sync buckets\n", f->place->name);
    generation_model(&f->config);
    printf("buckets: %zu of at most %s, the largest has %s", b->count, class_bytes(b->size, size, sizeof size),
           class_bytes(f->largest, other, sizeof other));
    if (f->oversize) printf(", %zu above the size", f->oversize);
    printf("; %zu group%s, tensors at multiples of %llu bytes, larger ones %s\n", f->groups, bl_plural(f->groups), (unsigned long long)b->align,
           b->slice ? "in slices" : "alone");
    printf("sent: %zu tensor%s", f->tensors, bl_plural(f->tensors));
    if (f->sliced) printf(" (%zu in slices)", f->sliced);
    printf(", %llu bytes (%s), padding of %s\n", (unsigned long long)f->bytes, class_bytes(f->bytes, size, sizeof size),
           class_bytes(f->padding, other, sizeof other));
    class_table_print(&f->classes);
    if (b->host_count)
        printf("kept by the receiver: %zu tensor%s, %s, %zu value digest%s\n", b->host_count, bl_plural(b->host_count),
               class_bytes(f->host_bytes, size, sizeof size), f->digests, bl_plural(f->digests));
    print_coverage(f);
}

static void print_delta(const facts *f)
{
    char old[40], new[40], changed[32], all[32], streams[32];
    printf("%s: delta of weight-sync buckets, %s", f->place->name, bl_delta_encoding_name(f->delta.encoding));
    if (f->delta.encoding == BL_DELTA_AUTO) {
        printf(": xor for %zu, ranges for %zu", f->changed - f->ranges, f->ranges);
    }
    printf("\n");
    generation_model(&f->config);
    printf("base: the buckets whose " BL_BUCKETS_NAME " has XXH3-128 %s, target: %s\n",
           bl_hex_encode(old, f->delta.base.b, sizeof f->delta.base.b), bl_hex_encode(new, f->delta.target.b, sizeof f->delta.target.b));
    printf("changed: %zu tensor%s (or slices) in %zu of %zu bucket%s, %s of %s, as %s of streams\n", f->changed, bl_plural(f->changed),
           f->delta.count, f->buckets.count, bl_plural(f->buckets.count), class_bytes(f->changed_bytes, changed, sizeof changed),
           class_bytes(f->bytes, all, sizeof all), class_bytes(f->stream_bytes, streams, sizeof streams));
    class_table_print(&f->classes);
    print_coverage(f);
}

static json_t *common_json(const facts *f, const char *kind)
{
    const bl_buckets *b = &f->buckets;
    json_t *j = json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "path", receipt_text(f->place->name), "kind", kind, "buckets",
                          (json_int_t)b->count, "size", (json_int_t)b->size, "align", (json_int_t)b->align, "groups", (json_int_t)f->groups,
                          "tensors", (json_int_t)f->tensors, "tensor_bytes", (json_int_t)f->bytes);
    json_object_update_new(j, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "oversize", b->slice ? "slice" : "alone", "largest_bucket",
                                        (json_int_t)f->largest, "oversize_buckets", (json_int_t)f->oversize, "sliced_tensors",
                                        (json_int_t)f->sliced, "padding_bytes", (json_int_t)f->padding, "host_owned_tensors",
                                        (json_int_t)b->host_count, "host_owned_bytes", (json_int_t)f->host_bytes, "host_owned_digests",
                                        (json_int_t)f->digests));
    json_object_update_new(j, json_pack("{s:I, s:b, s:o}", "model_tensors", (json_int_t)f->model_tensors, "covers_model", f->covered, "classes",
                                        class_table_json(&f->classes)));
    return j;
}

static int print_json(const cli_command *cmd, const facts *f, bool delta)
{
    char text[40];
    json_t *j = common_json(f, delta ? "delta of weight-sync buckets" : "weight-sync buckets");
    if (delta) {
        json_object_set_new(j, "base", json_string(bl_hex_encode(text, f->delta.base.b, sizeof f->delta.base.b)));
        json_object_set_new(j, "target", json_string(bl_hex_encode(text, f->delta.target.b, sizeof f->delta.target.b)));
        json_object_update_new(j, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "encoding", bl_delta_encoding_name(f->delta.encoding),
                                            "ranges_tensors", (json_int_t)f->ranges,
                                            "changed_buckets", (json_int_t)f->delta.count, "changed_tensors", (json_int_t)f->changed,
                                            "changed_bytes", (json_int_t)f->changed_bytes, "stream_bytes", (json_int_t)f->stream_bytes));
    }
    return receipt_print(cmd->program, j);
}

int weight_sync_inspect(const cli_command *cmd, const bl_place *p, bool json)
{
    facts f = {.place = p};
    bl_error err = {0};
    bool delta = !bl_buckets_recognise(p->folder);
    bl_status s = read_config(&f, &err);
    if (s == BL_OK) s = delta ? read_delta(&f, &err) : read_buckets(&f, &err);
    if (s == BL_OK) s = check_coverage(&f, &err);
    int rc = 0;
    if (s == BL_OK) {
        count_buckets(&f);
        if (json) rc = print_json(cmd, &f, delta);
        else (delta ? print_delta : print_buckets)(&f);
    }
    bl_archive_show(p->archive, s == BL_OK ? NULL : &err);
    bl_arena_reset(&f.arena);
    return s != BL_OK ? cli_report(cmd->program, s, &err) : rc ? rc : f.covered ? 0 : 1;
}
