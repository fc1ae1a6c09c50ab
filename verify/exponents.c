#include "verify/exponents.h"

#include "formats/pool.h"
#include "kernels/cast.h"
#include "verify/reader.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((uint64_t)1 << 20) /* bytes read at once; a multiple of every scale's size */

void bl_exponents_add(bl_exponents *e, const uint8_t *p, uint64_t n, bool f32)
{
    e->scales += n;
    for (uint64_t i = 0; i < n && !f32; i++) {
        e->count[p[i]]++;
    }
    for (uint64_t i = 0; i < n && f32; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * i, 4);
        unsigned field = v >> 23 & 255;
        e->count[field]++;
        e->odd += (v & 0x7fffff) != 0 && field != 255;
    }
}

void bl_exponents_sum(bl_exponents *into, const bl_exponents *more)
{
    for (int i = 0; i < 256; i++) {
        into->count[i] += more->count[i];
    }
    into->scales += more->scales;
    into->odd += more->odd;
}

const char *bl_exponent_class_name(const bl_exponent_class *k, char *buf, size_t cap)
{
    const char *form = k->form == BL_FORM_FP8 ? "fp8" : k->form == BL_FORM_FP4 ? "fp4" : "Engram";
    snprintf(buf, cap, "%s %ux%u%s", form, k->block_rows, k->block_cols, k->f32 ? ", float32 scales" : "");
    return buf;
}

/* Some scales of a weight. */
typedef struct piece {
    const bl_weight *weight;
    size_t class;
    uint64_t offset, nbytes; /* in its grid */
} piece;

typedef struct gatherer {
    const bl_checkpoint *c;
    const bl_exponent_options *o;
    bl_exponent_class *classes;
    size_t class_count;
    piece *pieces;
    size_t count;
    bl_reader **readers; /* [files] */
    uint8_t **buffers;   /* [threads] PIECE and whole pages around it, aligned to BL_IO_ALIGN */
    uint64_t done, total;
    bl_status status;
    bl_error err;
    pthread_mutex_t lock; /* of the classes, done and what failed */
} gatherer;

/* ---- what to read */

static size_t class_of(gatherer *g, const bl_weight *w)
{
    bool f32 = bl_weight_f32_scaled(w);
    size_t i = 0;
    for (; i < g->class_count; i++) {
        const bl_exponent_class *k = &g->classes[i];
        if (k->form == w->form && k->block_rows == w->block_rows && k->block_cols == w->block_cols && k->f32 == f32) {
            return i;
        }
    }
    if (i < BL_EXPONENT_CLASSES) {
        g->classes[g->class_count++] =
            (bl_exponent_class){.form = w->form, .block_rows = w->block_rows, .block_cols = w->block_cols, .f32 = f32};
    }
    return i;
}

static bl_status list_pieces(gatherer *g, const bl_binding *b, bl_arena *arena, bl_error *err)
{
    size_t room = 0;
    for (size_t i = 0; i < b->count; i++) {
        room += b->weights[i].scale ? bl_pieces(b->weights[i].scale_nbytes, PIECE) : 0;
    }
    g->pieces = bl_arena_array(arena, room, sizeof *g->pieces);
    if (!g->pieces) {
        return bl_fail(err, BL_E_NOMEM, g->c->path, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < b->count; i++) {
        const bl_weight *w = &b->weights[i];
        size_t class = w->scale && !w->replica ? class_of(g, w) : BL_EXPONENT_CLASSES;
        if (class == BL_EXPONENT_CLASSES) {
            continue; /* no scales, or more kinds of blocks than any model has */
        }
        g->classes[class].weights++;
        g->total += w->scale_nbytes;
        for (uint64_t at = 0; at < w->scale_nbytes; at += PIECE) {
            uint64_t n = w->scale_nbytes - at < PIECE ? w->scale_nbytes - at : PIECE;
            g->pieces[g->count++] = (piece){w, class, at, n};
        }
    }
    return BL_OK;
}

/* ---- reading it */

static bl_status add_piece(gatherer *g, const piece *p, uint8_t *buffer, bl_exponents *e, bl_error *err)
{
    const uint8_t *data;
    const bl_weight *w = p->weight;
    bool f32 = bl_weight_f32_scaled(w);
    if (g->o->cancelled && g->o->cancelled()) {
        return bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
    }
    BL_TRY(bl_reader_read(g->readers[w->scale->file], buffer, p->nbytes, w->scale_offset + p->offset, &data, err));
    bl_exponents_add(e, data, p->nbytes / (f32 ? 4 : 1), f32);
    return BL_OK;
}

static void read_piece(void *arg, int64_t item, int worker)
{
    gatherer *g = arg;
    const piece *p = &g->pieces[item];
    bl_exponents e = {0};
    bl_error err;
    bl_error_clear(&err);
    pthread_mutex_lock(&g->lock);
    bool over = g->status != BL_OK;
    pthread_mutex_unlock(&g->lock);
    bl_status s = over ? BL_OK : add_piece(g, p, g->buffers[worker], &e, &err);
    pthread_mutex_lock(&g->lock);
    if (s != BL_OK && g->status == BL_OK) {
        g->status = s;
        g->err = err;
    }
    bl_exponents_sum(&g->classes[p->class].exponents, &e);
    g->done += p->nbytes;
    uint64_t done = g->done;
    pthread_mutex_unlock(&g->lock);
    if (g->o->progress) {
        g->o->progress(g->o->progress_arg, done, g->total);
    }
}

static bl_status open_readers(gatherer *g, int threads, bl_arena *arena, bl_error *err)
{
    g->readers = bl_arena_array(arena, g->c->file_count, sizeof(bl_reader *));
    g->buffers = bl_arena_array(arena, (size_t)threads, sizeof(uint8_t *));
    bl_status s = g->readers && g->buffers ? BL_OK : BL_E_NOMEM;
    for (int i = 0; s == BL_OK && i < threads; i++) {
        g->buffers[i] = aligned_alloc(BL_IO_ALIGN, BL_READ_ROOM(PIECE));
        s = g->buffers[i] ? BL_OK : BL_E_NOMEM;
    }
    if (s != BL_OK) {
        return bl_fail(err, s, g->c->path, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < g->c->file_count; i++) {
        BL_TRY(bl_reader_open(&g->readers[i], g->c->files[i].file, err));
    }
    return BL_OK;
}

static int by_form(const void *a, const void *b)
{
    const bl_exponent_class *x = a, *y = b;
    return x->form != y->form ? (x->form < y->form ? -1 : 1) : (int)x->block_rows - (int)y->block_rows;
}

bl_status bl_exponents_survey(const bl_checkpoint *c, const bl_binding *b, const bl_exponent_options *o, bl_arena *arena,
                              bl_exponent_class *out, size_t *count, bl_error *err)
{
    gatherer g = {.c = c, .o = o, .classes = out};
    bl_pool *pool = NULL;
    *count = 0;
    BL_TRY(list_pieces(&g, b, arena, err));
    BL_TRY(bl_pool_create(&pool, o->jobs, err));
    int threads = bl_pool_threads(pool);
    pthread_mutex_init(&g.lock, NULL);
    bl_status s = open_readers(&g, threads, arena, err);
    if (s == BL_OK) {
        bl_pool_run(pool, (int64_t)g.count, read_piece, &g);
        s = g.status;
        if (s != BL_OK && err && err->code == BL_OK) {
            *err = g.err;
        }
    }
    for (size_t i = 0; g.readers && i < c->file_count; i++) {
        bl_reader_close(&g.readers[i]);
    }
    for (int i = 0; g.buffers && i < threads; i++) {
        free(g.buffers[i]);
    }
    pthread_mutex_destroy(&g.lock);
    bl_pool_destroy(&pool);
    *count = g.class_count;
    if (g.class_count) {
        qsort(out, g.class_count, sizeof *out, by_form);
    }
    return s;
}
