/* Between attention's projections down and up, for a few tokens, in one launch: queries' norms and window rows; products of the sublayer's
 * input that only what is behind the projections up waits for; and segments of the mixing's products, which nothing waits for so soon. */
#include "kernels/cuda/held.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/window.cuh"

namespace bl {

enum { THREADS = 256, HELD_WARPS = 10 /* where there are products: two segments of K = 5120 for each */ };

struct norm_args {
    uint16_t *y, *rounded;
    const uint16_t *x, *w;
    int64_t n;
    float eps;
};

/* Products of one x: what they have in common, and what each has. */
struct held_weight {
    const void *codes;
    int64_t rows, ld;
    uint16_t *y16;
    float *y32;
};

struct held_args {
    dense_args all;
    held_weight a, b, c;
    int blocks, to_b, to_c; /* in all; before the second weight's, before the third's */
};

__device__ __forceinline__ void held_block(const held_args &h, int at)
{
    const bool second = at >= h.to_b, third = at >= h.to_c;
    const int64_t row = (int64_t)(at - (third ? h.to_c : second ? h.to_b : 0)) * HELD_ROWS;
    dense_args p = h.all;
    p.w.codes = third ? h.c.codes : second ? h.b.codes : h.a.codes;
    p.rows = third ? h.c.rows : second ? h.b.rows : h.a.rows;
    p.ld = third ? h.c.ld : second ? h.b.ld : h.a.ld;
    p.y16 = third ? h.c.y16 : second ? h.b.y16 : h.a.y16;
    p.y32 = third ? h.c.y32 : second ? h.b.y32 : h.a.y32;
    held_tile<HELD_WARPS>(p, row);
}

/* A block for each token's queries, then for each window row, for some rows of the products each, for some segments of the parts each. */
template <int W>
__global__ void __launch_bounds__(W *WARP) between_kernel(norm_args q, window_args window, held_args held, dense_args dots, float *parts)
{
    BL_DYNAMIC_SHARED(uint16_t, shared, 16); /* [2][n] */
    const int tokens = (int)window.tables.tokens, at = (int)blockIdx.x, warp = (int)threadIdx.x / WARP;
    const int rest = at - 2 * tokens - (W == HELD_WARPS ? held.blocks : 0);
    if (at < tokens) norm_new_row<W * WARP>(q.y + at * q.n, q.rounded + at * q.n, q.x + at * q.n, q.w, q.n, q.eps, shared);
    else if (at < 2 * tokens) make_window_row(window, at - tokens);
    else if (W == HELD_WARPS && rest < 0) held_block(held, at - 2 * tokens);
    else if (warp < PART_WARPS) part_of(dots, parts, rest * PART_WARPS + warp);
}

/* Can the products be done beside one another? */
static bool held_together(const bl_cuda_product *p, int n)
{
    for (int i = 0; i < n; i++)
        if (p[i].w.kind != BL_W_BF16 || p[i].tokens > BL_CUDA_FEW || p[i].groups > 1 || p[i].row0 || p[i].x != p->x || p[i].ldx != p->ldx ||
            p[i].w.cols != p->w.cols || p[i].w.cols % 32)
            return false;
    return n > 0;
}

static held_weight weight_of(const bl_cuda_product *p) { return {p->w.codes, p->rows, p->ld, p->y16, p->y32}; }

static held_args held_of(const bl_cuda_product *p, int n)
{
    held_args h = {};
    h.all = dense_of(p);
    h.a = weight_of(p);
    if (n > 1) h.b = weight_of(p + 1);
    if (n > 2) h.c = weight_of(p + 2);
    h.to_b = (int)blocks_of(h.a.rows, HELD_ROWS);
    h.to_c = h.to_b + (int)blocks_of(h.b.rows, HELD_ROWS);
    h.blocks = h.to_c + (int)blocks_of(h.c.rows, HELD_ROWS);
    return h;
}

template <int W>
static void launch_between(cudaStream_t s, unsigned blocks, const norm_args &q, const window_args &window, const held_args &held,
                           const dense_args &dots, float *parts)
{
    cudaFuncSetAttribute(between_kernel<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(q.n * 4));
    launch_early(true, s, dim3(blocks), W * WARP, q.n * 4, between_kernel<W>, q, window, held, dots, parts);
}

} // namespace bl

using namespace bl;

void bl_cuda_prepare_attention(bl_cuda_stream s, const bl_cuda_between *b)
{
    const norm_args q = {b->y, b->rounded, b->x, b->norm, b->n, b->eps};
    const window_args window = args_of(&b->window);
    const dense_args dots = b->dots ? dense_of(b->dots) : dense_args{};
    const unsigned blocks = (unsigned)(2 * b->window.t->tokens) + (b->dots ? part_blocks(dots.rows, dots.w.cols) : 0);
    if (held_together(b->with, b->with_count)) {
        const held_args held = held_of(b->with, b->with_count);
        launch_between<HELD_WARPS>(s, blocks + (unsigned)held.blocks, q, window, held, dots, b->parts);
        return;
    }
    launch_between<THREADS / WARP>(s, blocks, q, window, held_args{}, dots, b->parts);
    for (int i = 0; i < b->with_count; i++) bl_cuda_multiply(s, &b->with[i]);
}
