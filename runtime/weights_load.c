/* From tensors found to addresses: mapping, and the few weights whose stored form no kernel takes. */
#include "runtime/backend.h"

#include "kernels/cast.h"
#include "verify/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tensors of a file that are closer than this share a region. Between the small Engram tensors lie whole tables. */
#define MERGE_GAP ((uint64_t)16 << 20)

typedef struct loader {
    bl_weights *w;
    const bl_checkpoint *c;
    bl_backend *b;
    bl_load *loads; /* [load_count] what goes from files to device memory, or is only checked */
    size_t load_count;
    bool check;     /* against digests, where there are any */
    bl_error *err;
} loader;

static bl_status out_of_memory(const loader *l)
{
    return bl_fail(l->err, BL_E_NOMEM, l->c->path, NULL, -1, "out of memory while loading weights");
}

static int by_place(const void *a, const void *b)
{
    const bl_handle *h = a, *k = b;
    if (h->host != k->host) return h->host - k->host;
    return bl_tensor_by_place(h->tensor, k->tensor);
}

/* Where its bytes are in the file. */
static uint64_t begin_of(const bl_handle *h)
{
    return h->tensor->offset + h->first;
}

/* Map a file up to end for the handles [first, last). */
static bl_status open_region(loader *l, size_t first, size_t last, uint64_t end, bl_access access)
{
    bl_weights *w = l->w;
    const bl_tensor *t = w->handles[first].tensor;
    bl_region **p = realloc(w->regions, (w->region_count + 1) * sizeof(bl_region *));
    if (!p) return out_of_memory(l);
    w->regions = p;
    bl_region *r;
    const uint64_t begin = begin_of(&w->handles[first]);
    BL_TRY(bl_region_open(&r, l->c->files[t->file].file, begin, end - begin, access, l->err));
    w->regions[w->region_count++] = r;
    for (size_t i = first; i < last; i++) w->handles[i].stored = bl_region_data(r) + (begin_of(&w->handles[i]) - begin);
    return BL_OK;
}

static bl_status map_files(loader *l, bl_access access)
{
    bl_weights *w = l->w;
    qsort(w->handles, w->handle_count, sizeof *w->handles, by_place);
    for (size_t i = 0, next; i < w->handle_count; i = next) {
        const bl_handle *h = &w->handles[i];
        next = i + 1;
        if (l->b->load && (!h->host || l->b->place_table)) continue;
        uint64_t end = begin_of(h) + h->bytes;
        for (next = i + 1; next < w->handle_count && !h->host; next++) {
            const bl_handle *k = &w->handles[next];
            if (k->host || k->tensor->file != h->tensor->file || k->tensor->offset > end + MERGE_GAP) break;
            if (begin_of(k) + k->bytes > end) end = begin_of(k) + k->bytes;
        }
        BL_TRY(open_region(l, i, next, end, h->host ? BL_ACCESS_MMAP : access));
    }
    return BL_OK;
}

/* Engram tables are read a row here and a row there: reading ahead would only fill memory. Failure costs speed, no more. */
static void expect_random_reads(const bl_handle *h)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)h->stored / page * page;
    (void)madvise((void *)from, (uintptr_t)h->stored + h->bytes - from, MADV_RANDOM);
}

static size_t alignment(bl_weight_kind kind)
{
    return kind == BL_W_BF16 ? sizeof(uint16_t) : kind == BL_W_F32 ? sizeof(float) : 1;
}

static void set_views(const bl_handle *h, const void *address)
{
    const uint64_t stride = h->bytes / (uint64_t)h->count;
    for (int i = 0; i < h->count; i++) {
        bl_matrix *m = (bl_matrix *)((char *)h->view + (size_t)i * h->view_step);
        const uint8_t *at = (const uint8_t *)address + (uint64_t)i * stride;
        if (h->scale) m->scale = at;
        else m->codes = at;
    }
}

/* The recorded digests of a tensor's chunks; NULL where nothing is recorded. */
static const bl_digest *chunks_of(const loader *l, const bl_tensor *t)
{
    const bl_rank_manifest *m = l->c->files[t->file].rank;
    const bl_manifest_tensor *recorded = m ? bl_rank_manifest_find(m, t->name) : NULL;
    return recorded ? recorded->chunks : NULL;
}

static bl_load *add_load(loader *l, const bl_tensor *t, void *to)
{
    bl_load *load = &l->loads[l->load_count++];
    *load = (bl_load){.file = l->c->files[t->file].file, .offset = t->offset, .bytes = t->nbytes, .to = to,
                      .chunks = l->check ? chunks_of(l, t) : NULL, .name = t->name};
    return load;
}

/* Room on the device now, the bytes with all others later. */
static bl_status plan_load(loader *l, const bl_handle *h)
{
    const bl_tensor *t = h->tensor;
    void *to = l->b->place(l->b, t->nbytes);
    if (!to)
        return bl_fail(l->err, BL_E_NOMEM, l->c->path, t->name, -1, "out of device memory for %llu bytes", (unsigned long long)t->nbytes);
    add_load(l, t, to);
    set_views(h, to);
    return BL_OK;
}

static bl_status plan_table(loader *l, const bl_handle *h)
{
    const bl_tensor *t = h->tensor;
    bl_table_room room;
    BL_TRY(l->b->place_table(l->b, h->bytes, &room, l->err));
    bl_load *load = add_load(l, t, room.to);
    if (h->bytes != t->nbytes) { /* digests are of whole pieces: all of the tensor is read for them */
        load->offset = begin_of(h);
        load->bytes = h->bytes;
        load->chunks = NULL;
        if (l->check && chunks_of(l, t)) add_load(l, t, NULL);
    }
    load->host = room.host;
    load->there = room.filled;
    set_views(h, room.address);
    return BL_OK;
}

static bl_status load_handle(loader *l, const bl_handle *h)
{
    const void *address = h->stored;
    const size_t align = h->scale ? 1 : alignment(h->view->kind);
    if (!h->host && l->b->load) return plan_load(l, h);
    if (h->host && l->b->place_table) return plan_table(l, h);
    if (h->host && l->b->load && l->check && chunks_of(l, h->tensor)) add_load(l, h->tensor, NULL);
    if (h->host) expect_random_reads(h);
    else BL_TRY(l->b->import(l->b, &address, h->stored, h->tensor->nbytes, align, l->err));
    set_views(h, address);
    return BL_OK;
}

/* Host memory that lives as long as the weights. */
static bl_status keep_copy(loader *l, uint64_t bytes, void **out)
{
    bl_weights *w = l->w;
    void **p = realloc(w->copies, (w->copy_count + 1) * sizeof *p);
    if (!p) return out_of_memory(l);
    w->copies = p;
    *out = calloc(1, bytes);
    if (!*out) return out_of_memory(l);
    w->copies[w->copy_count++] = *out;
    return BL_OK;
}

/* Stored codes of a weight in host memory: mapped, or read here. */
static bl_status stored_bytes(loader *l, const bl_matrix *view, const uint8_t **bytes)
{
    const bl_handle *h = l->w->handles;
    while (h->view != view || h->scale) h++; /* every weight has one */
    *bytes = h->stored;
    if (h->stored) return BL_OK;
    void *copy;
    BL_TRY(keep_copy(l, h->tensor->nbytes, &copy));
    *bytes = copy;
    return bl_file_read(l->c->files[h->tensor->file].file, copy, h->tensor->nbytes, h->tensor->offset, l->err);
}

/* A matrix whose rows are no multiple of 32 long gets zeros at their ends. Scales have a byte for the partial block already. */
static bl_status pad_columns(loader *l, bl_matrix *m)
{
    const int64_t cols = m->cols, padded = bl_weights_padded(m);
    const size_t size = m->kind == BL_W_BF16 ? sizeof(uint16_t) : 1;
    if (padded == cols) return BL_OK;
    void *copy;
    BL_TRY(keep_copy(l, (uint64_t)m->rows * (uint64_t)padded * size, &copy));
    const uint8_t *from;
    BL_TRY(stored_bytes(l, m, &from));
    for (int64_t r = 0; r < m->rows; r++)
        memcpy((uint8_t *)copy + (size_t)(r * padded) * size, from + (size_t)(r * cols) * size, (size_t)cols * size);
    BL_TRY(l->b->import(l->b, &m->codes, copy, (uint64_t)m->rows * (uint64_t)padded * size, size, l->err));
    m->cols = padded;
    return BL_OK;
}

static uint16_t stored_bf16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The Engram gate's weight: q_weight * k_weight. */
static bl_status multiply_qk(loader *l, bl_layer *layer)
{
    const int64_t n = layer->engram.q_weight.rows * layer->engram.q_weight.cols;
    const uint8_t *q, *k;
    BL_TRY(stored_bytes(l, &layer->engram.q_weight, &q));
    BL_TRY(stored_bytes(l, &layer->engram.k_weight, &k));
    void *copy;
    const void *address;
    BL_TRY(keep_copy(l, (uint64_t)n * sizeof(float), &copy));
    float *qk = copy;
    for (int64_t i = 0; i < n; i++) qk[i] = bl_bf16_to_f32(stored_bf16(q + 2 * i)) * bl_bf16_to_f32(stored_bf16(k + 2 * i));
    BL_TRY(l->b->import(l->b, &address, qk, (uint64_t)n * sizeof(float), sizeof(float), l->err));
    layer->engram.qk = address;
    return BL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const bl_load *x = a, *y = b;
    if (x->file != y->file) return (uintptr_t)x->file < (uintptr_t)y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Tensors that the text model does not use (drafts, vision) are proven like the others. */
static bl_status prove_unused(loader *l)
{
    const size_t before = l->load_count;
    bool *used = calloc(l->c->tensor_count + 1, sizeof *used);
    if (!used) return out_of_memory(l);
    for (size_t i = 0; i < l->w->handle_count; i++) used[l->w->handles[i].tensor - l->c->tensors] = true;
    for (size_t i = 0; i < l->c->tensor_count; i++)
        if (!used[i] && chunks_of(l, &l->c->tensors[i])) add_load(l, &l->c->tensors[i], NULL);
    qsort(l->loads + before, l->load_count - before, sizeof *l->loads, by_offset);
    free(used);
    return BL_OK;
}

/* The experts' weights, whose codes and scales are both there now. */
static bl_status arrange_experts(const loader *l)
{
    for (size_t i = 0; l->b->arrange && i < l->w->handle_count; i++) {
        const bl_handle *h = &l->w->handles[i];
        if (h->scale || h->host || h->view->kind != BL_W_FP4) continue; /* nothing but experts is fp4 */
        for (int e = 0; e < h->count; e++)
            BL_TRY(l->b->arrange(l->b, (const bl_matrix *)((const char *)h->view + (size_t)e * h->view_step), l->err));
    }
    return BL_OK;
}

static bl_status load_all(loader *l, bl_access access)
{
    bl_weights *w = l->w;
    BL_TRY(map_files(l, access));
    for (size_t i = 0; i < w->handle_count; i++) BL_TRY(load_handle(l, &w->handles[i]));
    if (l->b->load && l->check) BL_TRY(prove_unused(l));
    if (l->load_count) BL_TRY(l->b->load(l->b, l->loads, l->load_count, access, l->err));
    BL_TRY(arrange_experts(l));
    for (int i = 0; i < w->layer_count; i++) {
        BL_TRY(pad_columns(l, &w->layers[i].wo_a));
        if (w->layers[i].engram_slot >= 0) BL_TRY(multiply_qk(l, &w->layers[i]));
    }
    w->version++;
    return BL_OK;
}

bl_status bl_weights_load(bl_weights *w, const bl_checkpoint *c, bl_access access, bool check, bl_backend *b, bl_error *err)
{
    loader l = {.w = w, .c = c, .b = b, .check = check, .err = err};
    if (b->load && !(l.loads = calloc(2 * w->handle_count + c->tensor_count + 1, sizeof *l.loads))) return out_of_memory(&l);
    const bl_status s = load_all(&l, access);
    free(l.loads);
    return s;
}

bl_status bl_weights_tables_key(bl_shared_key *out, const bl_weights *w, const bl_checkpoint *c, bl_error *err)
{
    bl_hasher *hash;
    *out = (bl_shared_key){0};
    BL_TRY(bl_hasher_create(&hash, err));
    for (size_t i = 0; i < w->handle_count; i++) {
        const bl_tensor *t = w->handles[i].tensor;
        struct stat st;
        if (!w->handles[i].host) continue;
        const bl_file *f = c->files[t->file].file;
        if (fstat(bl_file_fd(f), &st) != 0) {
            bl_hasher_destroy(&hash);
            return bl_fail_errno(err, errno, 1, bl_file_path(f), "looking at a file");
        }
        const uint64_t about[] = {(uint64_t)t->file, st.st_dev, st.st_ino, (uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
                                  (uint64_t)st.st_mtim.tv_nsec, bl_file_base(f) + begin_of(&w->handles[i]), w->handles[i].bytes};
        bl_hasher_update(hash, about, sizeof about);
        out->bytes += bl_line(w->handles[i].bytes);
    }
    out->contents = bl_hasher_final(hash);
    bl_hasher_destroy(&hash);
    return BL_OK;
}

void bl_weights_destroy(bl_weights *w)
{
    for (size_t i = 0; i < w->region_count; i++) bl_region_close(&w->regions[i]);
    for (size_t i = 0; i < w->copy_count; i++) free(w->copies[i]);
    free(w->regions);
    free(w->copies);
    free(w->handles);
    bl_arena_reset(&w->arena);
    *w = (bl_weights){0};
}
