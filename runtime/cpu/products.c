/* Linear products on the pool: activations packed once, weight rows dealt in tiles. */
#include "runtime/cpu/cpu.h"

enum {
    TILE_BYTES = 512 << 10 /* of weights, for few tokens: long enough to stream, short enough to balance */
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t align_up(size_t n)
{
    return (n + CPU_ALIGN - 1) & ~(size_t)(CPU_ALIGN - 1);
}

/* Tokens of a block when n are cut evenly into the fewest blocks. A multiple of 3 where there are several: kernels take three
 * tokens at a time. */
static int64_t block_tokens(int64_t n)
{
    const int64_t blocks = (n + CPU_BLOCK - 1) / CPU_BLOCK;
    return blocks <= 1 ? n : ((n + blocks - 1) / blocks + 2) / 3 * 3;
}

cpu_packed bl_cpu_blocks(const bl_cpu *c, void *data, int64_t n, int64_t cols)
{
    const int64_t block = block_tokens(n);
    return (cpu_packed){.data = data,
                        .tokens = n,
                        .cols = cols,
                        .block = block,
                        .blocks = block ? (n + block - 1) / block : 0,
                        .stride = align_up(c->linear.packed_bytes(block, cols))};
}

size_t bl_cpu_packed_bytes(const bl_linear_kernels *k, int64_t n, int64_t cols)
{
    return align_up(k->packed_bytes(CPU_BLOCK, cols)) * (size_t)((n + CPU_BLOCK - 1) / CPU_BLOCK);
}

typedef struct pack_job {
    bl_cpu *c;
    const cpu_packed *out;
    const uint16_t *x;
    int64_t ldx;
    bool round;
} pack_job;

static void pack_block(void *arg, int64_t item, int worker)
{
    const pack_job *j = arg;
    bl_cpu *c = j->c;
    const cpu_packed *out = j->out;
    const int64_t from = item * out->block, n = min64(out->block, out->tokens - from);
    const uint16_t *x = j->x + from * j->ldx;
    int64_t ldx = j->ldx;
    (void)worker;
    if (j->round) {
        uint16_t *y = c->rounded + from * out->cols;
        for (int64_t t = 0; t < n; t++) c->ops.round_fp8(y + t * out->cols, x + t * ldx, out->cols);
        x = y;
        ldx = out->cols;
    }
    c->linear.pack(out->data + (size_t)item * out->stride, x, ldx, n, out->cols);
}

void bl_cpu_pack_into(bl_cpu *c, const cpu_packed *out, const uint16_t *x, int64_t ldx, bool round)
{
    pack_job job = {c, out, x, ldx, round};
    bl_cpu_run(c, out->tokens * out->cols * (int64_t)sizeof(float), out->blocks, pack_block, &job);
}

cpu_packed bl_cpu_pack(bl_cpu *c, const uint16_t *x, int64_t ldx, int64_t n, int64_t cols, bool round)
{
    const cpu_packed out = bl_cpu_blocks(c, round ? c->rounded_pack : c->plain_pack, n, cols);
    bl_cpu_pack_into(c, &out, x, ldx, round);
    return out;
}

/* ---- tiles */

int64_t bl_cpu_work(const bl_matrix *w, int64_t rows, int64_t tokens)
{
    return rows * bl_matrix_row_bytes(w) * ((tokens + CPU_FEW - 1) / CPU_FEW);
}

int64_t bl_cpu_tile_rows(const bl_cpu *c, const bl_matrix *w, int64_t rows, int64_t tokens, int64_t multiple)
{
    int64_t tile = tokens <= CPU_FEW ? min64(TILE_BYTES / bl_matrix_row_bytes(w) + 1, CPU_TILE_MAX) : CPU_TILE;
    tile = min64(tile, rows / (4 * c->threads));
    if (w->kind == BL_W_FP8 && multiple < BL_SCALE_ROWS) multiple = BL_SCALE_ROWS; /* and what kernels prepare from scales */
    tile = (tile + multiple - 1) / multiple * multiple;
    return tile ? tile : multiple;
}

/* Floats of a tile's fp32 result: rows of a few tokens or of a block; multiples are at most 32. */
static int64_t tile_floats(void)
{
    const int64_t many = (int64_t)(CPU_BLOCK) * CPU_TILE, few = (int64_t)CPU_FEW * (CPU_TILE_MAX + 32);
    return many > few ? many : few;
}

size_t bl_cpu_tile_bytes(const bl_cpu *c, int64_t cols)
{
    size_t most = 0;
    for (int64_t n = 1; n <= CPU_BLOCK; n++) {
        size_t bytes = c->linear.scratch_bytes(n, cols);
        if (bytes > most) most = bytes;
    }
    return align_up((size_t)tile_floats() * sizeof(float)) + align_up(most);
}

void bl_cpu_tile(bl_cpu *c, const bl_matrix *w, int64_t row0, int64_t row1, const cpu_packed *x, int64_t block, uint16_t *y,
                 int64_t ld, void *scratch)
{
    const int64_t rows = row1 - row0, n = min64(x->block, x->tokens - block * x->block);
    float *out = scratch;
    void *rest = (uint8_t *)scratch + align_up((size_t)tile_floats() * sizeof(float));
    c->linear.rows(out, rows, x->data + (size_t)block * x->stride, n, w, row0, row1, rest);
    for (int64_t t = 0; t < n; t++) c->ops.to_bf16(y + t * ld, out + t * rows, rows);
}

typedef struct product_job {
    bl_cpu *c;
    const cpu_product *list;
    int n;
} product_job;

static void product_item(void *arg, int64_t item, int worker)
{
    const product_job *j = arg;
    bl_cpu *c = j->c;
    int i = j->n - 1;
    while (j->list[i].first_item > item) i--;
    const cpu_product *p = &j->list[i];
    const cpu_packed *x = p->x;
    const int64_t tile = (item - p->first_item) / x->blocks, block = (item - p->first_item) % x->blocks;
    const int64_t row0 = p->row0 + tile * p->tile, row1 = min64(row0 + p->tile, p->row0 + p->rows);
    const int64_t from = block * x->block, n = min64(x->block, x->tokens - from), at = from * p->ld + (row0 - p->row0);
    if (p->y16) bl_cpu_tile(c, p->w, row0, row1, x, block, p->y16 + at, p->ld, cpu_worker(c, worker));
    else c->linear.rows(p->y32 + at, p->ld, x->data + (size_t)block * x->stride, n, p->w, row0, row1, cpu_worker(c, worker));
}

void bl_cpu_products(bl_cpu *c, cpu_product *list, int n)
{
    int64_t items = 0, work = 0;
    for (int i = 0; i < n; i++) {
        cpu_product *p = &list[i];
        work += bl_cpu_work(p->w, p->rows, p->x->tokens);
        p->tile = bl_cpu_tile_rows(c, p->w, p->rows, p->x->tokens, 8);
        p->first_item = items;
        items += (p->rows + p->tile - 1) / p->tile * p->x->blocks;
    }
    product_job job = {c, list, n};
    bl_cpu_run(c, work, items, product_item, &job);
}
