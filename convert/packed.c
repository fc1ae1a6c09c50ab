/* The manifests of a packed model. */
#include "convert/job.h"

#include "verify/sha256.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the manifest");
}

/* The value record of a tensor: one digest, or one for each stacked expert. */
static bl_status value_record(bl_job *j, const bl_plan_tensor *t, bl_manifest_tensor *m, bl_error *err)
{
    const bl_weight *w = t->members[0].pieces;
    if (t->scale) {
        return BL_OK;
    }
    bl_digest *values = bl_arena_array(&j->arena, t->member_count, sizeof *values);
    if (!values) {
        return nomem(err);
    }
    for (size_t i = 0; i < t->member_count; i++) {
        values[i] = bl_sum_digest(j->producer.sums[t->members[i].sum]);
    }
    m->value_class = bl_weight_class(w);
    m->value_shape = w->slot->shape;
    m->value_ndim = w->slot->ndim;
    if (t->fine_rows || t->fine_cols) {
        m->value_unit[0] = BL_VALUE_TILE >> t->fine_rows;
        m->value_unit[1] = BL_VALUE_TILE >> t->fine_cols;
    }
    m->values = values;
    m->value_count = t->member_count;
    return BL_OK;
}

static bl_status tensor_record(bl_job *j, const bl_plan_tensor *t, uint32_t file, bl_manifest_tensor *m, bl_error *err)
{
    *m = (bl_manifest_tensor){.tensor = t->tensor,
                              .start = t->start,
                              .global_shape = t->global_shape,
                              .chunks = j->chunks[t - j->plan.tensors],
                              .chunk_count = bl_chunk_count(t->tensor.nbytes)};
    m->tensor.file = file;
    return value_record(j, t, m, err);
}

/* The files and tensors of a rank, those included that it shares with another. */
static bl_status rank_records(bl_job *j, int rank, bl_rank_manifest *m, bl_error *err)
{
    const bl_plan *plan = &j->plan;
    size_t files = 0, tensors = 0;
    for (size_t i = 0; i < plan->file_count; i++) {
        bool named = bl_plan_names(plan, plan->files[i].tensors, rank);
        files += named;
        tensors += named ? plan->files[i].count : 0;
    }
    bl_manifest_file *f = bl_arena_array(&j->arena, files, sizeof *f);
    bl_manifest_tensor *t = bl_arena_array(&j->arena, tensors, sizeof *t);
    *m = (bl_rank_manifest){.rank = rank, .files = f, .tensors = t};
    if (!f || !t) {
        return nomem(err);
    }
    for (size_t i = 0; i < plan->file_count; i++) {
        const bl_plan_file *pf = &plan->files[i];
        if (!bl_plan_names(plan, pf->tensors, rank)) {
            continue;
        }
        for (size_t k = 0; k < pf->count; k++) {
            BL_TRY(tensor_record(j, &pf->tensors[k], (uint32_t)m->file_count, &t[m->tensor_count++], err));
        }
        f[m->file_count++] =
            (bl_manifest_file){.name = strchr(pf->name, '/') + 1, .bytes = pf->head.file_bytes, .linked = pf->linked, .rank = pf->tensors->rank};
    }
    return BL_OK;
}

static bl_status rank_manifest(bl_job *j, int rank, bl_error *err)
{
    char name[40], folder[16];
    bl_rank_manifest m;
    uint8_t sha256[32];
    snprintf(name, sizeof name, "%s/manifest.json", bl_rank_folder(folder, rank));
    const char *path = bl_job_path(j, name);
    if (!path) {
        return nomem(err);
    }
    BL_TRY(rank_records(j, rank, &m, err));
    BL_TRY(bl_rank_manifest_write(&m, path, err));
    BL_TRY(bl_job_put_file(j, name, err));
    BL_TRY(bl_sha256_file(path, sha256, err));
    return bl_job_sum(j, name, sha256, err);
}

/* Hash multipliers of every Engram layer in the output. */
static bl_status engram(bl_job *j, bl_manifest *m, bl_error *err)
{
    const bl_config *c = &j->source->config;
    bl_manifest_engram *list = bl_arena_array(&j->arena, (size_t)c->engram_count, sizeof *list);
    if (!list) {
        return nomem(err);
    }
    m->engram = list;
    for (int i = 0; i < c->engram_count && j->o->engram_multipliers; i++) {
        int64_t *values = bl_arena_array(&j->arena, (size_t)c->engram_max_ngram_size, sizeof *values);
        if (!values) {
            return nomem(err);
        }
        int layer = c->engram_layer_ids[i];
        j->o->engram_multipliers(values, c->engram_max_ngram_size, layer, c->engram_compressed_vocab_size);
        list[m->engram_count++] = (bl_manifest_engram){.layer = layer,
                                                       .rows = (uint64_t)c->engram_num_embeddings[i],
                                                       .multipliers = values,
                                                       .multiplier_count = (size_t)c->engram_max_ngram_size};
    }
    return BL_OK;
}

/* Identity of the source: its config and, for an HF folder, its index. */
static bl_status source(bl_job *j, bl_manifest *m, bl_error *err)
{
    const bl_checkpoint *c = j->source;
    m->source_tensors = c->tensor_count;
    m->source_tensor_bytes = c->tensor_bytes;
    BL_TRY(bl_sha256_bytes(c->config.text, c->config.text_bytes, m->source_config_sha256, err));
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", c->path);
    m->has_source_index_sha256 = c->kind == BL_SOURCE_HF && stat(path, &st) == 0;
    return m->has_source_index_sha256 ? bl_sha256_file(path, m->source_index_sha256, err) : BL_OK;
}

static const bl_sum_line *find_sum(const bl_job *j, const char *name)
{
    for (size_t i = 0; i < j->sum_count; i++) {
        if (!strcmp(j->sums[i].name, name)) {
            return &j->sums[i];
        }
    }
    return NULL;
}

static const bl_plan_file *find_payload(const bl_job *j, const char *name)
{
    for (size_t i = 0; i < j->plan.file_count; i++) {
        if (!strcmp(j->plan.files[i].name, name)) {
            return &j->plan.files[i];
        }
    }
    return NULL;
}

static bl_status add_file(bl_job *j, bl_manifest_file *f, const char *name, bl_error *err)
{
    struct stat st;
    const char *path = bl_job_path(j, name);
    const bl_sum_line *sum = find_sum(j, name);
    const bl_plan_file *pf = find_payload(j, name);
    if (!path) {
        return nomem(err);
    }
    if (!pf && stat(path, &st) != 0) {
        return bl_fail_errno(err, errno, 0, path, "cannot look at");
    }
    *f = (bl_manifest_file){.name = name, .bytes = pf ? pf->head.file_bytes : (uint64_t)st.st_size, .has_sha256 = sum != NULL};
    if (sum) {
        memcpy(f->sha256, sum->digest, 32);
    }
    return BL_OK;
}

/* Every file written so far: the payload, whether hashed or not, and the small ones. */
static bl_status list_files(bl_job *j, bl_manifest *m, bl_error *err)
{
    bl_manifest_file *files = bl_arena_array(&j->arena, j->sum_count + j->plan.file_count, sizeof *files);
    if (!files) {
        return nomem(err);
    }
    m->files = files;
    for (size_t i = 0; i < j->plan.file_count; i++) {
        BL_TRY(add_file(j, &files[m->file_count++], j->plan.files[i].name, err));
    }
    for (size_t i = 0; i < j->sum_count; i++) {
        if (!find_payload(j, j->sums[i].name)) {
            BL_TRY(add_file(j, &files[m->file_count++], j->sums[i].name, err));
        }
    }
    return BL_OK;
}

bl_status bl_job_manifests(bl_job *j, bl_error *err)
{
    uint8_t sha256[32];
    bl_manifest m = {.writer = "baleen " BL_VERSION, .layout = *j->plan.layout, .dropped = j->plan.dropped};
    const char *path = bl_job_path(j, "manifest.json");
    if (!path) {
        return nomem(err);
    }
    for (int rank = 0; rank < m.layout.ranks; rank++) {
        BL_TRY(rank_manifest(j, rank, err));
    }
    BL_TRY(source(j, &m, err));
    BL_TRY(engram(j, &m, err));
    BL_TRY(list_files(j, &m, err));
    BL_TRY(bl_manifest_write(&m, path, err));
    BL_TRY(bl_job_put_file(j, "manifest.json", err));
    BL_TRY(bl_sha256_file(path, sha256, err));
    return bl_job_sum(j, "manifest.json", sha256, err);
}
