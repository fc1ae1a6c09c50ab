#include "convert/synth.h"

#include "convert/synth_fill.h"
#include "convert/synth_shape.h"
#include "convert/synth_tokenizer.h"
#include "convert/writer.h"
#include "formats/archive_write.h"
#include "formats/names.h"
#include "verify/stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct shard {
    char name[64];
    bl_tensor *tensors; /* in data order */
    size_t *sources;    /* [count] index of each */
    size_t count;
    bl_st_head head;
    bl_writer *writer;
} shard;

typedef struct synth {
    const bl_synth_options *o;
    bl_folder *folder;
    bl_config config;
    bl_slots slots;
    bl_synth_normal normal;
    bl_synth_source *sources; /* [count] tensors in model order */
    bl_tensor *tensors;
    size_t count;
    shard *shards;
    bl_lane *lanes;
    pthread_mutex_t lock; /* of opening files */
    bl_arena arena;
} synth;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

/* ---- what to write */

static bl_status add_tensor(synth *y, const bl_slot *s, bool scale, bl_error *err)
{
    char name[192];
    snprintf(name, sizeof name, "%s", s->name);
    if (scale) {
        bl_scale_name(name, sizeof name, s->name);
    }
    bl_tensor *t = &y->tensors[y->count];
    uint64_t *shape = bl_arena_array(&y->arena, 2, sizeof *shape);
    char *copy = bl_arena_strndup(&y->arena, name, strlen(name));
    if (!shape || !copy) {
        return nomem(err);
    }
    static const bl_dtype dtypes[] = {BL_DT_NONE, BL_DT_F32, BL_DT_BF16, BL_DT_F8_E4M3, BL_DT_I8, BL_DT_F8_E4M3};
    bool fp4 = s->kind == BL_SLOT_EXPERT;
    shape[0] = scale && s->kind == BL_SLOT_DENSE ? bl_pieces(s->shape[0], 32) : s->shape[0];
    shape[1] = scale ? bl_pieces(s->shape[1], 32) : fp4 ? s->shape[1] / 2 : s->shape[1];
    *t = (bl_tensor){.name = copy, .shape = shape, .ndim = s->ndim, .dtype = scale ? BL_DT_F8_E8M0 : dtypes[s->kind]};
    y->sources[y->count++] = bl_synth_source_of(s, scale, y->o->seed, s->order);
    return BL_OK;
}

static bl_status list_tensors(synth *y, bl_error *err)
{
    BL_TRY(bl_slots_build(&y->config, "the shape", &y->arena, &y->slots, err));
    y->tensors = bl_arena_array(&y->arena, 2 * y->slots.count, sizeof *y->tensors);
    y->sources = bl_arena_array(&y->arena, 2 * y->slots.count, sizeof *y->sources);
    if (!y->tensors || !y->sources) {
        return nomem(err);
    }
    for (size_t i = 0; i < y->slots.count; i++) {
        const bl_slot *s = &y->slots.slots[i];
        BL_TRY(add_tensor(y, s, false, err));
        if (s->kind == BL_SLOT_DENSE || s->kind == BL_SLOT_EXPERT || s->kind == BL_SLOT_TABLE) {
            BL_TRY(add_tensor(y, s, true, err));
        }
    }
    return BL_OK;
}

static bl_status deal(synth *y, bl_error *err)
{
    size_t shards = (size_t)y->o->shards;
    y->shards = bl_arena_array(&y->arena, shards, sizeof *y->shards);
    y->lanes = bl_arena_array(&y->arena, shards, sizeof *y->lanes);
    if (!y->shards || !y->lanes) {
        return nomem(err);
    }
    for (size_t k = 0; k < shards; k++) {
        shard *s = &y->shards[k];
        size_t room = y->count / shards + 1;
        snprintf(s->name, sizeof s->name, "model-%05zu-of-%05zu.safetensors", k + 1, shards);
        s->tensors = bl_arena_array(&y->arena, room, sizeof *s->tensors);
        s->sources = bl_arena_array(&y->arena, room, sizeof *s->sources);
        bl_part *parts = bl_arena_array(&y->arena, room + 1, sizeof *parts);
        if (!s->tensors || !s->sources || !parts) {
            return nomem(err);
        }
        for (size_t i = k; i < y->count; i += shards) {
            y->tensors[i].file = (uint32_t)k;
            s->tensors[s->count] = y->tensors[i];
            s->sources[s->count++] = i;
        }
        BL_TRY(bl_st_layout(s->tensors, s->count, bl_st_metadata, 1, 8, 1, &y->arena, &s->head, err));
        parts[0] = (bl_part){.nbytes = s->head.header_bytes, .granule = BL_IO_ALIGN};
        for (size_t i = 0; i < s->count; i++) {
            parts[i + 1] = (bl_part){.nbytes = s->tensors[i].nbytes, .granule = BL_SYNTH_GRANULE};
        }
        y->lanes[k] = (bl_lane){.parts = parts, .count = s->count + 1};
    }
    return BL_OK;
}

/* ---- writing */

static const char *path_of(synth *y, const char *name)
{
    return bl_path_join(&y->arena, bl_folder_files(y->folder), name);
}

static bl_status small_file(synth *y, const char *name, const char *text, size_t n, bl_error *err)
{
    const char *path = path_of(y, name);
    return path ? bl_output_file(path, text, n, err) : nomem(err);
}

static bl_status work(void *arg, const bl_tile *t, bl_error *err)
{
    synth *y = arg;
    shard *s = &y->shards[t->lane];
    bl_status status = BL_OK;
    pthread_mutex_lock(&y->lock);
    if (!s->writer) {
        const char *path = path_of(y, s->name);
        status = path ? bl_writer_open(&s->writer, path, s->head.file_bytes, err) : nomem(err);
    }
    pthread_mutex_unlock(&y->lock);
    BL_TRY(status);
    uint8_t *dst = t->data;
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        if (g->part == 0) {
            bl_st_head_copy(&s->head, g->offset, g->nbytes, dst);
        } else {
            bl_synth_fill(&y->sources[s->sources[g->part - 1]], &y->normal, g->offset, g->nbytes, dst);
        }
        dst += g->nbytes;
    }
    return bl_writer_put(s->writer, t->data, t->nbytes, t->offset, err);
}

static bl_status in_order(void *arg, const bl_tile *t, bl_error *err)
{
    synth *y = arg;
    return t->last ? bl_writer_commit(&y->shards[t->lane].writer, err) : BL_OK;
}

/* A shard with a hole where its weights would be. */
static bl_status write_hollow(synth *y, const shard *s, bl_error *err)
{
    bl_output *out = NULL;
    const char *path = path_of(y, s->name);
    bl_status status = path ? bl_output_open(&out, path, 0, err) : nomem(err);
    if (status == BL_OK) {
        status = bl_st_head_write(&s->head, out, err);
    }
    if (status == BL_OK && ftruncate(bl_output_fd(out), (off_t)s->head.file_bytes) != 0) {
        status = bl_fail_errno(err, errno, 0, path, "cannot make a file with a hole");
    }
    if (status == BL_OK) {
        status = bl_output_commit(&out, err);
    }
    bl_output_abort(&out);
    return status;
}

static bl_status write_hollows(synth *y, bl_error *err)
{
    bl_status s = BL_OK;
    for (int k = 0; s == BL_OK && k < y->o->shards; k++) {
        s = write_hollow(y, &y->shards[k], err);
    }
    return s;
}

static int by_name(const void *a, const void *b)
{
    return bl_tensor_by_name(*(bl_tensor *const *)a, *(bl_tensor *const *)b);
}

static bl_status write_index(synth *y, uint64_t total, bl_error *err)
{
    char *text = NULL;
    size_t n = 0;
    bl_tensor **order = bl_arena_array(&y->arena, y->count, sizeof *order);
    FILE *f = order ? open_memstream(&text, &n) : NULL;
    if (!f) {
        return nomem(err);
    }
    for (size_t i = 0; i < y->count; i++) {
        order[i] = &y->tensors[i];
    }
    qsort(order, y->count, sizeof *order, by_name);
    fprintf(f, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {", (unsigned long long)total);
    for (size_t i = 0; i < y->count; i++) {
        fprintf(f, "%s\n    \"%s\": \"%s\"", i ? "," : "", order[i]->name, y->shards[order[i]->file].name);
    }
    fputs("\n  }\n}\n", f);
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    bl_status s = bad ? nomem(err) : small_file(y, "model.safetensors.index.json", text, n, err);
    free(text);
    return s;
}

static bl_status write_payload(synth *y, bl_synth_report *r, bl_error *err)
{
    bl_stream stream = {.lanes = y->lanes,
                        .lane_count = (size_t)y->o->shards,
                        .jobs = y->o->jobs,
                        .work = work,
                        .in_order = in_order,
                        .arg = y,
                        .cancelled = y->o->cancelled,
                        .progress = y->o->progress,
                        .progress_arg = y->o->progress_arg};
    bl_status s = y->o->headers ? write_hollows(y, err) : bl_stream_run(&stream, err);
    r->tensors = y->count;
    for (int k = 0; k < y->o->shards; k++) {
        bl_writer_abort(&y->shards[k].writer);
        r->file_bytes += y->shards[k].head.file_bytes;
        r->tensor_bytes += y->shards[k].head.file_bytes - y->shards[k].head.header_bytes;
    }
    return s;
}

/* Everything that can be wrong with the options shows here, before anything is written. */
static bl_status prepare(synth *y, char **tokenizer, size_t *tokenizer_bytes, char **config, size_t *config_bytes, bl_error *err)
{
    bl_synth_shape shape;
    int classes = 0, noise, image;
    if (y->o->shards < 1 || y->o->shards > 99999) {
        return bl_fail(err, BL_E_USAGE, NULL, "--shards", -1, "must be from 1 to 99999");
    }
    BL_TRY(bl_synth_shape_make(&shape, y->o, &y->arena, err));
    int64_t vocabulary = bl_synth_shape_int(&shape, "vocab_size");
    BL_TRY(bl_synth_tokenizer(vocabulary > 0 && vocabulary < INT32_MAX ? (int)vocabulary : 0, tokenizer, tokenizer_bytes, &noise,
                              &image, err));
    BL_TRY(y->o->token_classes(*tokenizer, *tokenizer_bytes, &classes, err));
    BL_TRY(bl_synth_config(&shape, classes, noise, image, config, config_bytes, err));
    bl_status s = bl_config_parse(*config, *config_bytes, "the shape", &y->arena, &y->config, err);
    if (s == BL_OK) {
        s = list_tensors(y, err);
    }
    if (s == BL_E_INPUT) { /* the caller asked for this shape */
        s = BL_E_USAGE;
        if (err) {
            err->code = s;
        }
    }
    BL_TRY(s);
    return deal(y, err);
}

static bl_status fill_folder(synth *y, const char *tokenizer, size_t tokenizer_bytes, const char *config, size_t config_bytes,
                             bl_synth_report *r, bl_error *err)
{
    const char *tc = bl_synth_tokenizer_config();
    bl_synth_normal_init(&y->normal);
    BL_TRY(write_payload(y, r, err));
    BL_TRY(write_index(y, r->tensor_bytes, err));
    BL_TRY(small_file(y, "config.json", config, config_bytes, err));
    BL_TRY(small_file(y, "tokenizer.json", tokenizer, tokenizer_bytes, err));
    return small_file(y, "tokenizer_config.json", tc, strlen(tc), err);
}

bl_status bl_synth(const char *dst, const bl_synth_options *o, bl_synth_report *report, bl_error *err)
{
    char *tokenizer = NULL, *config = NULL;
    size_t tokenizer_bytes = 0, config_bytes = 0;
    *report = (bl_synth_report){0};
    if (bl_archive_kind_of(dst) != BL_ARCHIVE_NONE) {
        return bl_fail(err, BL_E_USAGE, dst, NULL, -1, "is named like an archive, but a folder would be made: pack it afterwards (tar, zip)");
    }
    synth *y = calloc(1, sizeof *y);
    if (!y) {
        return nomem(err);
    }
    y->o = o;
    pthread_mutex_init(&y->lock, NULL);
    bl_status s = prepare(y, &tokenizer, &tokenizer_bytes, &config, &config_bytes, err);
    if (s == BL_OK) {
        s = bl_folder_begin(&y->folder, dst, false, err);
    }
    if (s == BL_OK) {
        s = fill_folder(y, tokenizer, tokenizer_bytes, config, config_bytes, report, err);
    }
    if (s == BL_OK) {
        s = bl_folder_commit(&y->folder, err);
    }
    bl_folder_abort(&y->folder, false);
    free(tokenizer);
    free(config);
    pthread_mutex_destroy(&y->lock);
    bl_arena_reset(&y->arena);
    free(y);
    return s;
}
