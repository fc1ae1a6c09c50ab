/* manifest.json, and the small things that both manifests use. */
#include "formats/manifest.h"

#include "formats/config.h"
#include "formats/manifest_read.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *bl_value_class_name(bl_value_class c)
{
    static const char *const names[] = {"none", "matrix", "rows", "elements", "bytes"};
    return names[(unsigned)c < sizeof names / sizeof *names ? c : 0];
}

const char *bl_split_name(bl_split s)
{
    static const char *const names[] = {"none", "pad", "expand1x32", "bf16"};
    return names[(unsigned)s < sizeof names / sizeof *names ? s : 0];
}

char *bl_rank_folder(char *buf, int rank)
{
    snprintf(buf, 16, "rank-%04d", rank);
    return buf;
}

size_t bl_chunk_count(uint64_t nbytes)
{
    return (size_t)(nbytes / BL_CHUNK_BYTES + (nbytes % BL_CHUNK_BYTES != 0));
}

static bl_status read_source(const bl_mreader *r, bl_json v, bl_manifest *m)
{
    bl_json tensors = {0}, bytes = {0}, config = {0}, index = {0};
    const bl_mread_slot slots[] = {{"tensors", &tensors, false},
                                   {"tensor_bytes", &bytes, false},
                                   {"config_sha256", &config, false},
                                   {"index_sha256", &index, false}};
    BL_TRY(BL_MREAD_TAKE(r, v, "'source'", slots));
    BL_TRY(bl_mread_to_u64(r, tensors, "'tensors'", INT64_MAX, &m->source_tensors));
    BL_TRY(bl_mread_to_u64(r, bytes, "'tensor_bytes'", INT64_MAX, &m->source_tensor_bytes));
    BL_TRY(bl_mread_to_hex(r, config, sizeof m->source_config_sha256, m->source_config_sha256));
    m->has_source_index_sha256 = index.kind != BL_JSON_NULL;
    return m->has_source_index_sha256
               ? bl_mread_to_hex(r, index, sizeof m->source_index_sha256, m->source_index_sha256)
               : BL_OK;
}

static bl_status read_stages(const bl_mreader *r, bl_json at, bl_json v, bl_layout *l)
{
    bl_json k, e;
    if (v.kind == BL_JSON_NONE) {
        return l->pp == 1 ? BL_OK : bl_mread_bad(r, at, "'layers' is needed: the backbone layers of each stage");
    }
    if (v.kind != BL_JSON_ARRAY || bl_json_count(v) != (size_t)l->pp) {
        return bl_mread_bad(r, v, "'layers' is not an array with an entry for each stage");
    }
    int *layers = bl_arena_array(r->arena, (size_t)l->pp, sizeof *layers);
    if (!layers) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(bl_mread_to_int(r, e, "'layers'", 0, BL_MAX_LAYERS, &layers[i]));
    }
    l->stage_layers = layers;
    return BL_OK;
}

static bl_status read_split(const bl_mreader *r, bl_json v, bl_layout *l)
{
    for (int s = BL_SPLIT_PAD; s < BL_SPLITS; s++) {
        if (bl_json_equals(v, bl_split_name((bl_split)s))) {
            l->split = (bl_split)s;
        }
    }
    return l->split || v.kind == BL_JSON_NONE ? BL_OK : bl_mread_bad(r, v, "'split' is not \"pad\", \"expand1x32\" or \"bf16\"");
}

static bl_status read_layout(const bl_mreader *r, bl_json v, bl_manifest *m)
{
    bl_layout *l = &m->layout;
    bl_json tp = {0}, ep = {0}, pp = {0}, ranks = {0}, layers = {0}, vocab = {0}, split = {0}, shared = {0};
    const bl_mread_slot slots[] = {{"tp", &tp, false},         {"ep", &ep, false},
                                   {"pp", &pp, false},         {"ranks", &ranks, false},
                                   {"layers", &layers, true},  {"vocab_rows", &vocab, true},
                                   {"split", &split, true},   {"engram_shared", &shared, true}};
    BL_TRY(BL_MREAD_TAKE(r, v, "'layout'", slots));
    BL_TRY(bl_mread_to_int(r, tp, "'tp'", 1, BL_MAX_RANKS, &l->tp));
    BL_TRY(bl_mread_to_int(r, ep, "'ep'", 1, BL_MAX_RANKS, &l->ep));
    BL_TRY(bl_mread_to_int(r, pp, "'pp'", 1, BL_MAX_RANKS, &l->pp));
    BL_TRY(bl_mread_to_int(r, ranks, "'ranks'", 1, BL_MAX_RANKS, &l->ranks));
    int64_t width = l->tp > l->ep ? l->tp : l->ep;
    if (width * l->pp != l->ranks || (l->tp % l->ep != 0 && l->ep % l->tp != 0)) {
        return bl_mread_bad(
            r, v, "'layout' does not add up: ranks = pp * max(tp, ep), one of tp and ep divides the other");
    }
    if (vocab.kind != BL_JSON_NONE) {
        BL_TRY(bl_mread_to_u64(r, vocab, "'vocab_rows'", INT32_MAX, &l->vocab_rows));
    }
    BL_TRY(read_split(r, split, l));
    if (shared.kind != BL_JSON_NONE && !bl_json_bool(shared, &l->engram_shared)) {
        return bl_mread_bad(r, shared, "'engram_shared' is not true or false");
    }
    return read_stages(r, v, layers, l);
}

static bl_status read_dropped(const bl_mreader *r, bl_json v, bl_manifest *m)
{
    bl_json k, e;
    if (v.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(r, v, "'dropped' is not an array");
    }
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &k, &e)) {
        unsigned bit = bl_json_equals(e, "dspark")   ? BL_DROP_DSPARK
                       : bl_json_equals(e, "vision") ? BL_DROP_VISION
                                                     : 0;
        if (!bit) {
            return bl_mread_bad(r, e, "'dropped' holds something that is not \"dspark\" or \"vision\"");
        }
        m->dropped |= bit;
    }
    return BL_OK;
}

/* A positive 64-bit integer in decimal digits, as a string. */
static bl_status to_multiplier(const bl_mreader *r, bl_json v, int64_t *out)
{
    bl_json digits = {v.p + 1, v.n - 2, BL_JSON_NUMBER};
    bool ok = v.kind == BL_JSON_STRING && v.n > 2 && bl_json_i64(digits, out) && *out > 0;
    return ok ? BL_OK
              : bl_mread_bad(r, v, "an Engram multiplier is not a positive decimal string below 2^63");
}

static bl_status read_engram(const bl_mreader *r, bl_json v, bl_manifest *m)
{
    bl_json k, e, f;
    if (v.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(r, v, "'engram' is not an array");
    }
    size_t count = bl_json_count(v);
    bl_manifest_engram *list = bl_arena_array(r->arena, count, sizeof *list);
    if (!list) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        bl_json layer = {0}, rows = {0}, multipliers = {0};
        const bl_mread_slot slots[] = {
            {"layer", &layer, false}, {"rows", &rows, false}, {"multipliers", &multipliers, false}};
        BL_TRY(BL_MREAD_TAKE(r, e, "an 'engram' entry", slots));
        BL_TRY(bl_mread_to_int(r, layer, "'layer'", 0, INT_MAX, &list[i].layer));
        BL_TRY(bl_mread_to_u64(r, rows, "'rows'", INT64_MAX, &list[i].rows));
        list[i].multiplier_count = bl_json_count(multipliers);
        int64_t *values = bl_arena_array(r->arena, list[i].multiplier_count, sizeof *values);
        if (multipliers.kind != BL_JSON_ARRAY || (i > 0 && list[i].layer <= list[i - 1].layer)) {
            return bl_mread_bad(r, e, "'engram' needs ascending layers, each with an array of multipliers");
        }
        if (!values) {
            return bl_mread_no_memory(r);
        }
        bl_json_iter inner = bl_json_begin(multipliers);
        for (size_t j = 0; bl_json_next(&inner, &k, &f); j++) {
            BL_TRY(to_multiplier(r, f, &values[j]));
        }
        list[i].multipliers = values;
    }
    m->engram = list;
    m->engram_count = count;
    return BL_OK;
}

bl_status bl_manifest_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_manifest *out,
                            bl_error *err)
{
    bl_mreader r = {text, path, NULL, arena, err};
    bl_json root, format = {0}, version = {0}, writer = {0}, source = {0}, layout = {0}, dropped = {0},
                  chunk = {0}, engram = {0}, files = {0};
    const bl_mread_slot slots[] = {
        {"format", &format, false},     {"version", &version, false}, {"writer", &writer, false},
        {"source", &source, false},     {"layout", &layout, false},   {"dropped", &dropped, false},
        {"chunk_bytes", &chunk, false}, {"engram", &engram, false},   {"files", &files, false}};
    size_t length;
    uint64_t bytes = 0;
    memset(out, 0, sizeof *out);
    BL_TRY(bl_mread_root(&r, n, "baleen-packed", &root));
    BL_TRY(BL_MREAD_TAKE(&r, root, "the manifest", slots));
    BL_TRY(bl_mread_to_text(&r, writer, "'writer'", &out->writer, &length));
    BL_TRY(read_source(&r, source, out));
    BL_TRY(read_layout(&r, layout, out));
    BL_TRY(read_dropped(&r, dropped, out));
    BL_TRY(bl_mread_to_u64(&r, chunk, "'chunk_bytes'", INT64_MAX, &bytes));
    if (bytes != BL_CHUNK_BYTES) {
        return bl_mread_bad(&r, chunk, "'chunk_bytes' is not 8388608");
    }
    BL_TRY(read_engram(&r, engram, out));
    return bl_mread_files(&r, files, -1, &out->files, &out->file_count);
}

bl_status bl_manifest_read(const char *folder, bl_arena *arena, bl_manifest *out, bl_error *err)
{
    const char *path = NULL;
    char *text;
    size_t n;
    BL_TRY(bl_mread_slurp(folder, "", arena, &path, &text, &n, err));
    bl_status s = bl_manifest_parse(text, n, path, arena, out, err);
    free(text);
    return s;
}
