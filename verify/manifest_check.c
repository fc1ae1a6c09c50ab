#include "verify/manifest_check.h"

#include "formats/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *file_in(bl_arena *arena, const bl_checkpoint *c, const char *name)
{
    const char *path = bl_path_join(arena, c->path, name);
    return path ? path : c->path;
}

static void check_file(bl_finder *f, const bl_manifest_file *file, const char *path, const bl_witness *w)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        bl_find_absent(f, 1, path, errno, "manifest.json");
    } else if ((uint64_t)st.st_size != file->bytes) {
        bl_find(f, 1, path, NULL, 0, (int64_t)st.st_size, "has %llu byte%s, manifest.json says %llu", (unsigned long long)st.st_size,
                bl_plural((uint64_t)st.st_size), (unsigned long long)file->bytes);
    }
    if (f->o->level >= 3 && file->has_sha256 && w && w->listed && memcmp(w->sums, file->sha256, 32) != 0) {
        bl_find(f, 3, path, NULL, -1, -1, "manifest.json and SHA256SUMS record different SHA-256");
    }
}

static void check_dropped(bl_finder *f, const bl_checkpoint *c, const char *path)
{
    unsigned dropped = c->manifest->dropped;
    if ((dropped & BL_DROP_DSPARK) && c->config.num_nextn_predict_layers > 0) {
        bl_find(f, 2, path, NULL, -1, -1, "lists dspark as dropped, but config.json has %d draft layer%s", c->config.num_nextn_predict_layers,
                bl_plural((uint64_t)c->config.num_nextn_predict_layers));
    }
    if ((dropped & BL_DROP_VISION) && c->config.has_vision) {
        bl_find(f, 2, path, NULL, -1, -1, "lists vision as dropped, but config.json has it");
    }
}

static bl_status check_multipliers(bl_finder *f, const bl_checkpoint *c, const bl_manifest_engram *e, const char *path, bl_error *err)
{
    size_t n = (size_t)c->config.engram_max_ngram_size, i = 0;
    int64_t *want = f->o->engram_multipliers ? calloc(n + 1, sizeof *want) : NULL;
    if (!want) {
        return f->o->engram_multipliers ? bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory") : BL_OK;
    }
    f->o->engram_multipliers(want, (int)n, e->layer, c->config.engram_compressed_vocab_size);
    while (i < n && i < e->multiplier_count && e->multipliers[i] == want[i]) {
        i++;
    }
    if (i < n || e->multiplier_count != n) {
        bl_find(f, 2, path, NULL, -1, -1, "Engram multipliers of layer %d: not the %zu that the config gives, from number %zu on", e->layer, n, i + 1);
    }
    free(want);
    return BL_OK;
}

static bl_status check_engram(bl_finder *f, const bl_checkpoint *c, const char *path, bl_error *err)
{
    const bl_manifest *m = c->manifest;
    if (m->engram_count != (size_t)c->config.engram_count) {
        bl_find(f, 2, path, NULL, -1, -1, "lists %zu Engram layer%s, config.json %d", m->engram_count, bl_plural(m->engram_count),
                c->config.engram_count);
        return BL_OK;
    }
    for (size_t i = 0; i < m->engram_count; i++) {
        const bl_manifest_engram *e = &m->engram[i];
        if (e->layer != c->config.engram_layer_ids[i]) {
            bl_find(f, 2, path, NULL, -1, -1, "Engram layer %d: config.json has layer %d", e->layer, c->config.engram_layer_ids[i]);
            continue;
        }
        if (e->rows != (uint64_t)c->config.engram_num_embeddings[i]) {
            bl_find(f, 2, path, NULL, -1, -1, "Engram layer %d: %" PRIu64 " rows, config.json has %" PRId64, e->layer, e->rows,
                    c->config.engram_num_embeddings[i]);
        }
        BL_TRY(check_multipliers(f, c, e, path, err));
    }
    return BL_OK;
}

bl_status bl_manifest_check(bl_finder *f, const bl_checkpoint *c, const bl_witnesses *w, bl_error *err)
{
    struct stat st;
    bl_arena arena = {0};
    const bl_manifest *m = c->manifest;
    for (size_t i = 0; m && i < m->file_count; i++) {
        if (bl_checkpoint_covers(c, m->files[i].name)) {
            const char *path = file_in(&arena, c, m->files[i].name);
            check_file(f, &m->files[i], path, bl_witness_of(w, path));
        }
    }
    const char *source = file_in(&arena, c, "config.source.json"), *manifest = file_in(&arena, c, "manifest.json");
    if (c->kind == BL_SOURCE_PACKED && stat(source, &st) != 0) {
        bl_find(f, 1, source, NULL, -1, -1, "is missing: a packed model keeps the config of its source");
    }
    bl_status s = BL_OK;
    if (m && c->has_config && f->o->level >= 2) {
        check_dropped(f, c, manifest);
        s = check_engram(f, c, manifest, err);
    }
    bl_arena_reset(&arena);
    return s;
}
