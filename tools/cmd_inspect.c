/* baleen inspect: what is in a checkpoint, a packed model, a safetensors file or a tokenizer. */
#include "tools/cli.h"
#include "tools/receipt.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "runtime/engram.h"
#include "tools/check.h"
#include "tools/class_table.h"
#include "tools/exponents.h"
#include "tools/fit.h"
#include "tools/generation.h"
#include "tools/weight_sync.h"
#include "verify/stats.h"

static class_table count_classes(const bl_checkpoint *c)
{
    class_table k = {0};
    for (size_t i = 0; i < c->tensor_count; i++)
        class_table_add(&k, c->has_config ? &c->config : NULL, c->tensors[i].name, c->tensors[i].dtype, c->tensors[i].nbytes, false);
    return k;
}

static const char *kind_name(const bl_checkpoint *c)
{
    if (c->kind == BL_SOURCE_FILE) return "safetensors file";
    if (c->kind == BL_SOURCE_PACKED) return "packed model";
    if (!c->has_config) return "checkpoint folder";
    if (c->config.earlier) return c->config.quantized ? "checkpoint folder, released form" : "checkpoint folder, BF16";
    return c->config.quantized ? "checkpoint folder, released form (fp8, fp4)" : "checkpoint folder, BF16 cast";
}

/* What a layer does, in a few words. */
static void layer_role(const bl_config *c, int layer, char *buf, size_t cap)
{
    int ratio = c->compress_ratios[layer], e = bl_config_engram_index(c, layer);
    int n = ratio ? snprintf(buf, cap, "window + latents of %d (ratio %d)", bl_config_kv_source(c, layer), ratio)
                  : snprintf(buf, cap, "window only");
    if (ratio && bl_config_is_index_source(c, layer)) n += snprintf(buf + n, cap - (size_t)n, ", selects");
    else if (ratio) n += snprintf(buf + n, cap - (size_t)n, ", selection of %d", bl_config_index_source(c, layer));
    if (bl_config_is_kv_source(c, layer)) n += snprintf(buf + n, cap - (size_t)n, ", compresses");
    if (layer == c->candidate_source_layer_id) n += snprintf(buf + n, cap - (size_t)n, ", publishes candidates");
    if (e >= 0) snprintf(buf + n, cap - (size_t)n, ", Engram (%lld rows)", (long long)c->engram_num_embeddings[e]);
}

static void role_of(const bl_checkpoint *c, const generation_facts *f, int layer, char *buf, size_t cap)
{
    if (c->config.earlier) generation_role(c, f, layer, buf, cap);
    else layer_role(&c->config, layer, buf, cap);
}

/* Layers with a role: draft layers have one in earlier generations. */
static int roles(const bl_config *c)
{
    return c->num_hidden_layers + (c->earlier ? c->num_nextn_predict_layers : 0);
}

static void print_roles(const bl_checkpoint *checkpoint, const generation_facts *f)
{
    const bl_config *c = &checkpoint->config;
    char role[256], previous[256] = "";
    int first = 0, count = roles(c);
    for (int i = 0; i <= count; i++) {
        if (i < count) role_of(checkpoint, f, i, role, sizeof role);
        if (i == count || (i && strcmp(role, previous) != 0)) {
            if (first == i - 1) printf("  layer  %-7d %s\n", first, previous);
            else printf("  layers %3d-%-3d %s\n", first, i - 1, previous);
            first = i;
        }
        memcpy(previous, role, sizeof role);
    }
}

static void print_checkpoint(const bl_checkpoint *c, const generation_facts *f)
{
    char b[32];
    printf("%s: %s", c->name, kind_name(c));
    if (c->manifest && c->manifest->layout.ranks > 1) {
        const bl_layout *l = &c->manifest->layout;
        printf(" of %d ranks (tp %d, ep %d, pp %d%s%s)", l->ranks, l->tp, l->ep, l->pp, l->split ? ", split " : "",
               l->split ? bl_split_name(l->split) : "");
    }
    printf("\n");
    if (c->has_config) {
        generation_print(f);
        generation_model(&c->config);
        print_roles(c, f);
    }
    printf("files: %zu, tensors: %zu, bytes of tensors: %llu (%s)\n", c->file_count, c->tensor_count,
           (unsigned long long)c->tensor_bytes, class_bytes(c->tensor_bytes, b, sizeof b));
    class_table k = count_classes(c);
    class_table_print(&k);
}

static int inspect_checkpoint(const cli_command *cmd, const bl_checkpoint *c, bool json)
{
    generation_facts f = {0};
    bl_error err = {0};
    bl_status st = c->has_config ? generation_find(c, &f, &err) : BL_OK;
    if (st != BL_OK || !json) {
        if (st == BL_OK) print_checkpoint(c, &f);
        bl_arena_reset(&f.arena);
        return cli_report(cmd->program, st, &err);
    }
    class_table k = count_classes(c);
    json_t *j = json_pack("{s:o, s:s, s:I, s:I, s:I, s:o}", "path", receipt_text(c->name), "kind", kind_name(c), "files",
                          (json_int_t)c->file_count, "tensors", (json_int_t)c->tensor_count, "tensor_bytes",
                          (json_int_t)c->tensor_bytes, "classes", class_table_json(&k));
    if (c->has_config) {
        json_t *layers = json_array();
        char role[256];
        for (int i = 0; i < roles(&c->config); i++) {
            role_of(c, &f, i, role, sizeof role);
            json_array_append_new(layers, json_string(role));
        }
        json_object_set_new(j, "layers", layers);
        generation_json(&f, j);
    }
    bl_arena_reset(&f.arena);
    return receipt_print("baleen inspect", j);
}

/* ---- a folder whose shards are still to come */

/* Tensors by class as the index names them, and their bytes where the config tells (V4.1; else all 0). */
static bl_status count_index(const bl_checkpoint *c, class_table *k, bl_error *err)
{
    bl_arena arena = {0};
    bl_fit_model m;
    bl_fit whole;
    *k = (class_table){.names_only = true};
    for (size_t i = 0; i < c->unread_count; i++) k->rows[bl_class_of(&c->config, c->unread[i])].tensors++;
    if (c->config.earlier) return BL_OK;
    const bl_fit_options all = {.context = 1, .engram_device = true};
    bl_status s = bl_fit_open(&m, c, &arena, err);
    if (s == BL_OK) s = bl_fit_try(&m, &all, 1, 1, 1, &arena, &whole, err);
    for (int i = 0; s == BL_OK && i < BL_CLASSES; i++) k->rows[i].bytes = whole.stages[0].classes[i];
    bl_arena_reset(&arena);
    return s;
}

static void print_index(const bl_checkpoint *c, const class_table *k)
{
    static const generation_facts none;
    char b[32];
    uint64_t bytes = 0;
    for (int i = 0; i < BL_CLASSES; i++) bytes += k->rows[i].bytes;
    printf(c->problems == 1 ? "%s: config and index, the %zu shard is not here\n" : "%s: config and index, none of the %zu shards is here\n",
           c->name, c->problems);
    generation_model(&c->config);
    if (!c->config.earlier) print_roles(c, &none);
    printf("tensors: %zu", c->unread_count);
    printf(bytes ? ", bytes that config.json calls for: %llu (%s)\n" : "\n", (unsigned long long)bytes, class_bytes(bytes, b, sizeof b));
    class_table_print(k);
}

static int inspect_index(const cli_command *cmd, const bl_checkpoint *c, bool json)
{
    bl_error err = {0};
    class_table k;
    bl_status st = count_index(c, &k, &err);
    if (st != BL_OK || !json) {
        if (st == BL_OK) print_index(c, &k);
        return cli_report(cmd->program, st, &err);
    }
    return receipt_print(cmd->program, json_pack("{s:o, s:s, s:I, s:I, s:I, s:o}", "path", receipt_text(c->name), "kind",
                                                 "config and index", "files", (json_int_t)0, "shards_missing",
                                                 (json_int_t)c->problems, "tensors", (json_int_t)c->unread_count, "classes",
                                                 class_table_json(&k)));
}

static int inspect_tensor(const cli_command *cmd, const bl_checkpoint *c, const char *name, bool json)
{
    bl_error err = {0};
    bl_stats s;
    const bl_tensor *t = bl_checkpoint_find(c, name);
    bl_status st = t ? bl_tensor_stats(c, t, &s, &err) : bl_fail(&err, BL_E_INPUT, c->name, name, -1, "there is no such tensor");
    if (st != BL_OK) return cli_report(cmd->program, st, &err);
    json_t *shape = json_array();
    for (uint32_t i = 0; i < t->ndim; i++) json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    bool finite = s.min <= s.max, f32 = s.scale_low <= s.scale_high;
    bool scaled = (s.scale != NULL && s.scale->dtype == BL_DT_F8_E8M0) || t->dtype == BL_DT_F8_E8M0;
    if (json) {
        json_t *j = json_pack("{s:o, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "tensor", receipt_text(name), "dtype",
                              bl_dtype_name(t->dtype), "shape", shape, "file", receipt_text(bl_checkpoint_file(c, t)->name), "offset",
                              (json_int_t)t->offset, "bytes", (json_int_t)t->nbytes, "elements", (json_int_t)s.elements, "zeros",
                              (json_int_t)s.zeros, "negative_zeros", (json_int_t)s.negative_zeros, "nan", (json_int_t)s.nans,
                              "infinite", (json_int_t)s.infinities, "rows", (json_int_t)s.rows, "zero_rows",
                              (json_int_t)s.zero_rows);
        if (finite)
            json_object_update_new(j, json_pack("{s:f, s:f, s:o, s:o}", "min", s.min, "max", s.max, "mean", receipt_real(s.mean), "rms",
                                                receipt_real(s.rms)));
        if (s.scale) json_object_set_new(j, "scale", receipt_text(s.scale->name));
        if (scaled) json_object_update_new(j, json_pack("{s:i, s:i}", "scale_min", (int)s.scale_min, "scale_max", (int)s.scale_max));
        if (f32)
            json_object_update_new(j, json_pack("{s:o, s:o, s:I}", "scale_low", receipt_real(s.scale_low), "scale_high",
                                                receipt_real(s.scale_high), "scale_odd", (json_int_t)s.exponents.odd));
        if (s.exponents.scales) json_object_set_new(j, "scale_exponents", exponents_json(&s.exponents, f32));
        return receipt_print(cmd->program, j);
    }
    char *dims = json_dumps(shape, 0);
    json_decref(shape);
    printf("%s: %s %s in %s at byte %llu, %llu byte%s\n", name, bl_dtype_name(t->dtype), dims ? dims : "",
           bl_checkpoint_file(c, t)->name, (unsigned long long)t->offset, (unsigned long long)t->nbytes,
           bl_plural(t->nbytes));
    free(dims);
    printf("  elements %llu, zeros %llu (%llu negative), NaN %llu, infinite %llu, all-zero rows %llu of %llu\n",
           (unsigned long long)s.elements, (unsigned long long)s.zeros, (unsigned long long)s.negative_zeros,
           (unsigned long long)s.nans, (unsigned long long)s.infinities, (unsigned long long)s.zero_rows, (unsigned long long)s.rows);
    if (finite) printf("  min %.9g, max %.9g, mean %.9g, rms %.9g\n", s.min, s.max, s.mean, s.rms);
    if (s.scale)
        printf("  scale %s: one %s per %lldx%lld elements\n", s.scale->name, s.scale->dtype == BL_DT_F32 ? "float32" : "byte",
               (long long)s.block_rows, (long long)s.block_cols);
    if (f32)
        printf("  scales %.9g..%.9g, %llu of them no powers of two\n", s.scale_low, s.scale_high, (unsigned long long)s.exponents.odd);
    if (scaled && s.scale_min <= s.scale_max)
        printf("  scale bytes %u..%u (2^%d..2^%d)\n", s.scale_min, s.scale_max, (int)s.scale_min - 127, (int)s.scale_max - 127);
    if (s.exponents.scales) exponents_print(&s.exponents, f32);
    return 0;
}

/* Engram token classes of a tokenizer.json: their number, and the sha256 of the map as little-endian int32. */
static int inspect_token_map(const cli_command *cmd, const char *path, bool json)
{
    bl_error err = {0};
    bl_tokenizer *tok = NULL;
    int32_t *map = NULL;
    int classes = 0;
    bl_status st = bl_tokenizer_open(&tok, path, &err);
    if (st == BL_OK) st = bl_engram_token_map(tok, &map, &classes, &err);
    if (st == BL_OK) {
        unsigned char sum[32];
        char hex[65];
        unsigned n = 0;
        EVP_Digest(map, (size_t)bl_tokenizer_size(tok) * sizeof *map, sum, &n, EVP_sha256(), NULL);
        for (unsigned i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
        if (json)
            receipt_print(cmd->program, json_pack("{s:o, s:i, s:i, s:s}", "path", receipt_text(path), "tokens",
                                                  bl_tokenizer_size(tok), "classes", classes, "map_sha256", hex));
        else
            printf("%s: %d tokens, %d Engram classes, sha256 of the int32 map %s\n", path, bl_tokenizer_size(tok), classes, hex);
    }
    free(map);
    bl_tokenizer_close(&tok);
    return cli_report(cmd->program, st, &err);
}

/* The first problem of a tolerant opening. */
static void note_problem(void *arg, const bl_error *problem)
{
    bl_error *first = arg;
    if (first->code == BL_OK) *first = *problem;
}

/* What the options ask of an opened checkpoint. */
typedef struct inspect_options {
    const char *tensor, *fit;
    bool token_map, check, scales, json;
    int64_t rank, jobs;
} inspect_options;

static bool is_plain(const inspect_options *o)
{
    return !o->tensor && !o->check && !o->scales && o->rank < 0;
}

static void count_other(void *arg, const bl_error *problem)
{
    *(size_t *)arg += strcmp(problem->message, "shard is missing") != 0; /* a link to nothing says more */
}

/* Open a folder that has nothing wrong but that no shard is there yet; false for any other. */
static bool open_index(bl_checkpoint **c, const char *path)
{
    size_t others = 0;
    const bl_checkpoint_options how = {.tolerate = true, .on_problem = count_other, .arg = &others, .any_generation = true};
    bl_status s = bl_checkpoint_open(c, path, &how, NULL);
    if (s == BL_OK && (*c)->has_config && !(*c)->file_count && (*c)->unread_count && !others) return true;
    bl_checkpoint_close(c);
    return false;
}

static int inspect_place(const cli_command *cmd, bl_place *place, const inspect_options *o)
{
    const char *path = place->name;
    bl_checkpoint *c = NULL;
    bl_error err = {0}, problem = {0};
    const bl_checkpoint_options how = {.tolerate = o->check, .on_problem = note_problem, .arg = &problem, .any_generation = true,
                                       .one_rank = o->rank >= 0, .rank = (int)o->rank, .opened = &place->archive};
    if (is_plain(o) && weight_sync_is(place)) return weight_sync_inspect(cmd, place, o->json);
    bl_status st = bl_checkpoint_open(&c, path, &how, &err);
    if (st == BL_E_INPUT && is_plain(o) && open_index(&c, path)) {
        int rc = inspect_index(cmd, c, o->json);
        bl_checkpoint_close(&c);
        return rc;
    }
    if (st == BL_OK && problem.code != BL_OK && (!c->has_config || !c->tensor_count)) {
        st = problem.code;
        err = problem;
    }
    if (st == BL_OK && o->rank >= 0 && c->kind != BL_SOURCE_PACKED)
        st = bl_fail(&err, BL_E_USAGE, path, NULL, -1, "has no ranks: it is no packed model");
    int rc = st != BL_OK ? cli_report(cmd->program, st, &err)
             : o->tensor ? inspect_tensor(cmd, c, o->tensor, o->json)
             : o->check  ? check_run(cmd, c, (int)o->jobs, o->json)
             : o->scales ? scales_run(cmd, c, (int)o->jobs, o->json)
                         : inspect_checkpoint(cmd, c, o->json);
    bl_checkpoint_close(&c);
    return rc;
}

static int inspect_path(const cli_command *cmd, const char *path, const inspect_options *o)
{
    bl_place place;
    bl_error err = {0};
    const bl_archive_options archives = {.spill_max = BL_SPILL_MAX, .cancelled = cli_interrupted};
    bl_status st = bl_place_open(&place, path, &archives, &err);
    int rc = st == BL_OK ? inspect_place(cmd, &place, o) : cli_report(cmd->program, st, &err);
    bl_place_close(&place);
    return rc;
}

int cmd_inspect(int argc, char **argv)
{
    const char *args[1];
    inspect_options o = {.rank = CLI_UNSET};
    int count;
    const cli_option options[] = {
        {"tensor", CLI_STRING, &o.tensor, "NAME", "statistics of one tensor, decoded with its scale"},
        {"fit", CLI_STRING, &o.fit, "LIST", "what would fit where: tp=8,hbm=141G and more, see above"},
        {"check", CLI_FLAG, &o.check, NULL, "read all weights and name those that look wrong"},
        {"scales", CLI_FLAG, &o.scales, NULL, "histograms of the scales' exponents"},
        {"jobs", CLI_INT(1, CLI_JOBS_MAX), &o.jobs, "N", "threads of --check (default: twice the CPUs) and --scales (default: the CPUs)"},
        {"rank", CLI_INT(0, BL_MAX_RANKS - 1), &o.rank, "N",
         "packed: what rank N holds (default: all ranks; of a tensor that several have, the first part)"},
        {"token-map", CLI_FLAG, &o.token_map, NULL, "PATH is a tokenizer.json: print its Engram class count and map digest"},
        {"json", CLI_FLAG, &o.json, NULL, "machine-readable output"},
        CLI_END};
    const cli_command cmd = {"baleen inspect", "PATH [--check | --scales | --fit LIST | --tensor NAME] [options]",
                             "Show what a checkpoint folder, a packed model or one safetensors file holds: generation, config, layer "
                             "roles, tensors by class. Of a download that has not begun, config.json and the index are enough.\nOf "
                             "weight-sync buckets and their deltas: groups, sizes, what is kept back, whether all of the model is there.\n"
                             "PATH may be an archive. The demo model is shown when no PATH is given.",
                             CHECK_HELP SCALES_HELP FIT_HELP, options, 0, 1};
    int rc = cli_parse(&cmd, argc, argv, args, &count);
    if (rc >= 0) return rc;
    if (o.token_map + o.check + o.scales + (o.tensor != NULL) + (o.fit != NULL) > 1)
        return cli_usage_error(&cmd, "--check, --scales, --fit, --tensor and --token-map do not go together");
    if (o.fit && o.rank != CLI_UNSET) return cli_usage_error(&cmd, "--rank does not go with --fit, which is about the whole model");
    if (o.jobs && !o.check && !o.scales) return cli_usage_error(&cmd, "--jobs goes with --check and --scales");
    if (o.token_map && !count) return cli_usage_error(&cmd, "--token-map needs the path of a tokenizer.json");
    const char *path = count ? args[0] : cli_default_model();
    if (o.token_map) return inspect_token_map(&cmd, path, o.json);
    cli_catch_signals();
    return o.fit ? fit_run(&cmd, path, o.fit, o.json) : inspect_path(&cmd, path, &o);
}
