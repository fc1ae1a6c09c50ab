/* Products for any number of tokens: y = x Wt on weights in their stored codes (dot.h: the order). A block takes 16 rows of the
 * weight and up to 32 tokens; its warps take segments of K in turn, straight from global memory into tensor core fragments, and
 * the block adds the segments' sums ascending. Nothing of that depends on how many tokens there are. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/few.h"
#include "kernels/cuda/sm90/many.h"

namespace bl {

enum {
    ROWS = 16, SEGMENT = BL_DOT_SEGMENT, STEPS = SEGMENT / BL_DOT_STEP,
    MANY = 5,  /* warps of a block where there are many blocks: K of 1280, 2304 and 5120 leave few of them idle */
    FEW = 20,  /* where there are few: a segment of K = 5120 for each */
    FEW_BLOCKS = 200
};

struct rows_of {
    const uint8_t *codes[2], *scale[2]; /* of rows g and g + 8 of the tile; NULL behind the last row */
    int64_t cols;
};

__device__ __forceinline__ int64_t row_bytes(bl_weight_kind kind, int64_t cols)
{
    return kind == BL_W_FP4 ? cols / 2 : kind == BL_W_FP8 ? cols : kind == BL_W_BF16 ? cols * 2 : cols * 4;
}

template <bl_weight_kind KIND>
__device__ __forceinline__ rows_of tile_rows(const uint8_t *codes, const uint8_t *scale, int64_t cols, int64_t row, int64_t end)
{
    rows_of w;
    w.cols = cols;
    for (int h = 0; h < 2; h++) {
        const int64_t r = row + threadIdx.x % WARP / 4 + 8 * h;
        w.codes[h] = r < end ? codes + r * row_bytes(KIND, cols) : NULL;
        w.scale[h] = r >= end ? NULL : KIND == BL_W_FP8 ? scale + r / 32 * (cols / 32) : KIND == BL_W_FP4 ? scale + r * (cols / 32) : NULL;
    }
    return w;
}

__device__ __forceinline__ uint4 load16(const uint8_t *p, bool there)
{
    return there ? __ldg((const uint4 *)p) : make_uint4(0, 0, 0, 0);
}

/* No __ldg: in a kernel that begins early it could move above the wait. */
__device__ __forceinline__ uint2 load_x(const uint16_t *x, int k, int cols)
{
    return x && k < cols ? *(const uint2 *)(x + k) : make_uint2(0, 0);
}

/* One step with each of the token tiles; k is the thread's first element. */
template <int NT>
__device__ __forceinline__ void step(float c[NT][4], const fragment_a &a, const uint16_t *const x[NT], int k, int cols)
{
    for (int n = 0; n < NT; n++) mma(c[n], a, load_x(x[n], k, cols));
}

/* The scale bytes of a segment's blocks, zeros behind the end. */
__device__ __forceinline__ uint2 load_scales(const uint8_t *scale, int64_t k, int64_t cols)
{
    const uint8_t *first = scale + k / 32;
    uint2 v = make_uint2(0, 0);
    if (scale && k + SEGMENT <= cols && ((uintptr_t)first & 7) == 0) return __ldg((const uint2 *)first);
    for (int b = 0; b < 8; b++)
        if (scale && k + 32 * b < cols) (b < 4 ? v.x : v.y) |= (uint32_t)__ldg(first + b) << b % 4 * 8;
    return v;
}

/* What a thread loads of a segment: codes and scales of rows g and g + 8, sixteen bytes at a time. Other kinds load as they go. */
template <bl_weight_kind KIND> struct raw {
    enum { CODED = KIND == BL_W_FP8 || KIND == BL_W_FP4, EACH = KIND == BL_W_FP4 ? 32 : 16 /* elements of a load */,
           LOADS = CODED ? SEGMENT / 4 / EACH : 1 };
    uint4 codes[2][LOADS];
    uint2 scale[2];
    __device__ __forceinline__ void load(const rows_of &w, int64_t k0)
    {
        if constexpr (CODED) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int j = 0; j < LOADS; j++) {
                    const int64_t k = k0 + EACH * (4 * j + threadIdx.x % 4);
                    codes[h][j] = load16(w.codes[h] + row_bytes(KIND, k), w.codes[h] && k < w.cols);
                }
                scale[h] = load_scales(w.scale[h], k0, w.cols);
            }
        }
    }
};

/* The chains of one segment that begins at k0. */
template <int NT, bool SMALL>
__device__ __forceinline__ void segment_fp8(float c[NT][4], const raw<BL_W_FP8> &w, const uint16_t *const x[NT], int k0, int cols)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t words[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            words[h][0] = w.codes[h][j].x, words[h][1] = w.codes[h][j].y, words[h][2] = w.codes[h][j].z, words[h][3] = w.codes[h][j].w;
            transpose4(words[h]);
        }
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int b = 2 * j + s / 2;
            const uint2 low = block_fp8<SMALL>(words[0][s], w.scale[0], b), high = block_fp8<SMALL>(words[1][s], w.scale[1], b);
            const fragment_a a = {{low.x, high.x, low.y, high.y}};
            step<NT>(c, a, x, k0 + 64 * j + 16 * s + 4 * (threadIdx.x % 4), cols);
        }
    }
}

template <int NT>
__device__ __forceinline__ void segment_fp4(float c[NT][4], const raw<BL_W_FP4> &w, const uint16_t *const x[NT], int k0, int cols)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t words[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* two steps: their quarters are paired, so that a word holds both of one lane */
            const uint4 v = w.codes[h][j];
            words[h][0] = __byte_perm(v.x, v.z, 0x5410);
            words[h][1] = __byte_perm(v.x, v.z, 0x7632);
            words[h][2] = __byte_perm(v.y, v.w, 0x5410);
            words[h][3] = __byte_perm(v.y, v.w, 0x7632);
            transpose4(words[h]);
        }
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const int shift = s % 2 * 16, b = 4 * j + s / 2;
            const uint2 low = decode_fp4(words[0][s / 2] >> shift, block_scale(w.scale[0], b));
            const uint2 high = decode_fp4(words[1][s / 2] >> shift, block_scale(w.scale[1], b));
            const fragment_a a = {{low.x, high.x, low.y, high.y}};
            step<NT>(c, a, x, k0 + 128 * j + 16 * s + 4 * (threadIdx.x % 4), cols);
        }
    }
}

template <int NT> __device__ __forceinline__ void segment_bf16(float c[NT][4], const rows_of &w, const uint16_t *const x[NT], int64_t k0)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int k = (int)k0 + 16 * s + 4 * t;
        const uint2 low = load_x((const uint16_t *)w.codes[0], k, (int)w.cols), high = load_x((const uint16_t *)w.codes[1], k, (int)w.cols);
        const fragment_a a = {{low.x, high.x, low.y, high.y}};
        step<NT>(c, a, x, k, (int)w.cols);
    }
}

/* The leading 16 bits of two floats, cut; both become what is left. */
__device__ __forceinline__ uint32_t split_pair(float &a, float &b)
{
    const uint32_t u = __float_as_uint(a) & 0xffff0000, v = __float_as_uint(b) & 0xffff0000;
    a -= __uint_as_float(u);
    b -= __uint_as_float(v);
    return u >> 16 | v;
}

template <int NT> __device__ __forceinline__ void segment_f32(float c[NT][4], const rows_of &w, const uint16_t *const x[NT], int64_t k0)
{
    enum { AHEAD = NT == 1 ? 4 : 2 /* steps whose loads are under way together */ };
    const int t = threadIdx.x % 4;
#pragma unroll 2
    for (int s0 = 0; s0 < STEPS; s0 += AHEAD) {
        uint4 v[AHEAD][2];
        uint2 b[AHEAD][NT];
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const int64_t k = k0 + 16 * (s0 + s) + 4 * t;
            for (int h = 0; h < 2; h++) v[s][h] = load16(w.codes[h] + 4 * k, w.codes[h] && k < w.cols);
            for (int n = 0; n < NT; n++) b[s][n] = load_x(x[n], (int)k, (int)w.cols);
        }
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            fragment_a a[3];
            for (int h = 0; h < 2; h++) {
                float f[4] = {__uint_as_float(v[s][h].x), __uint_as_float(v[s][h].y), __uint_as_float(v[s][h].z),
                              __uint_as_float(v[s][h].w)};
                for (int p = 0; p < 3; p++) {
                    a[p].r[h] = split_pair(f[0], f[1]);
                    a[p].r[h + 2] = split_pair(f[2], f[3]);
                }
            }
            for (int n = 0; n < NT; n++)
                for (int p = 2; p >= 0; p--) mma(c[n], a[p], b[s][n]);
        }
    }
}

__device__ __forceinline__ void zero(float *c, int n)
{
    for (int i = 0; i < n; i++) c[i] = 0;
}

/* By kind of weights; `loaded` holds the segment's codes where the kind has any to hold. */
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_FP8> &loaded, const rows_of &w, const uint16_t *const x[NT],
                                        int64_t k0)
{
    const bool small = __all_sync(~0u, all_small(loaded.scale[0]) && all_small(loaded.scale[1]));
    if (small) segment_fp8<NT, true>(c, loaded, x, (int)k0, (int)w.cols);
    else segment_fp8<NT, false>(c, loaded, x, (int)k0, (int)w.cols);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_FP4> &loaded, const rows_of &w, const uint16_t *const x[NT],
                                        int64_t k0)
{
    segment_fp4<NT>(c, loaded, x, (int)k0, (int)w.cols);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_BF16> &, const rows_of &w, const uint16_t *const x[NT], int64_t k0)
{
    segment_bf16<NT>(c, w, x, k0);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_F32> &, const rows_of &w, const uint16_t *const x[NT], int64_t k0)
{
    segment_f32<NT>(c, w, x, k0);
}

/* Results that a thread of a block of W warps has. */
template <int NT, int W> struct share {
    enum { COUNT = (NT * 8 * ROWS + W * WARP - 1) / (W * WARP) };
};

/* Sums of the block's tile over all segments, ascending: thread i gets elements i, i + 32 W, ... of [NT * 8 tokens][16 rows]. */
template <bl_weight_kind KIND, int NT, int WARPS>
__device__ __forceinline__ void tile_sums(float total[share<NT, WARPS>::COUNT], const rows_of &w, const uint16_t *const x[NT])
{
    enum { COUNT = share<NT, WARPS>::COUNT };
    __shared__ float sums[WARPS][NT * 8][ROWS + 1];
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int segments = (int)((w.cols + SEGMENT - 1) / SEGMENT);
    for (int i = 0; i < COUNT; i++) total[i] = 0;
    for (int base = 0; base < segments; base += WARPS) {
        if (base + warp < segments) {
            float c[NT][4];
            const int64_t k0 = (int64_t)(base + warp) * SEGMENT;
            raw<KIND> loaded; /* loading the next one ahead takes more in registers than it gives */
            loaded.load(w, k0);
            zero(c[0], NT * 4);
            segment<NT>(c, loaded, w, x, k0);
            for (int n = 0; n < NT; n++)
                for (int i = 0; i < 4; i++) sums[warp][8 * n + 2 * t + i % 2][g + i / 2 * 8] = c[n][i];
        }
        __syncthreads();
        const int count = segments - base < WARPS ? segments - base : WARPS;
        for (int i = 0; i < COUNT; i++) {
            const int at = threadIdx.x + WARPS * WARP * i;
            if (at < NT * 8 * ROWS)
                for (int k = 0; k < count; k++) total[i] += sums[k][at / ROWS][at % ROWS];
        }
        __syncthreads();
    }
}

struct dense_args {
    bl_matrix w;
    int64_t row0, rows, ldx, tokens, ld, x_step, row_step, y_step;
    const uint16_t *x;
    uint16_t *y16;
    float *y32;
};

/* Rows from `row` and tokens from `token` on. */
template <bl_weight_kind KIND, int NT, int W>
__device__ __forceinline__ void dense_tile(const dense_args &p, int64_t row, int64_t token, int64_t group)
{
    const int64_t begin = p.row0 + group * p.row_step;
    const rows_of w = tile_rows<KIND>((const uint8_t *)p.w.codes, p.w.scale, p.w.cols, begin + row, begin + p.rows);
    const uint16_t *x[NT];
    for (int n = 0; n < NT; n++) {
        const int64_t i = token + 8 * n + threadIdx.x % WARP / 4;
        x[n] = i < p.tokens ? p.x + group * p.x_step + i * p.ldx : NULL;
    }
    float total[share<NT, W>::COUNT];
    tile_sums<KIND, NT, W>(total, w, x);
    for (int i = 0; i < share<NT, W>::COUNT; i++) {
        const int at = threadIdx.x + W * WARP * i;
        const int64_t t = token + at / ROWS, r = row + at % ROWS;
        if (at >= NT * 8 * ROWS || t >= p.tokens || r >= p.rows) continue;
        const int64_t y = group * p.y_step + t * p.ld + r;
        if (p.y16) p.y16[y] = to_bf16(total[i]);
        else p.y32[y] = total[i];
    }
}

template <bl_weight_kind KIND, int NT, int W> __global__ void __launch_bounds__(W * WARP) dense_kernel(dense_args p)
{
    dense_tile<KIND, NT, W>(p, (int64_t)blockIdx.x * ROWS, (int64_t)blockIdx.y * NT * 8, blockIdx.z);
}

/* A warp's segment: its sums as they are. */
template <bl_weight_kind KIND, int NT>
__device__ __forceinline__ void segment_parts(const dense_args &p, float *parts, int64_t row, int64_t token, int64_t index)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const rows_of w = tile_rows<KIND>((const uint8_t *)p.w.codes, p.w.scale, p.w.cols, p.row0 + row, p.row0 + p.rows);
    const uint16_t *x[NT];
    float c[NT][4];
    for (int n = 0; n < NT; n++) x[n] = token + 8 * n + g < p.tokens ? p.x + (token + 8 * n + g) * p.ldx : NULL;
    zero(c[0], NT * 4);
    segment<NT>(c, raw<KIND>(), w, x, index * SEGMENT);
    for (int n = 0; n < NT; n++)
        for (int i = 0; i < 4; i++) {
            const int64_t at = token + 8 * n + 2 * t + i % 2, r = row + g + i / 2 * 8;
            if (at < p.tokens && r < p.rows) parts[(index * p.tokens + at) * p.rows + r] = c[n][i];
        }
}

template <bl_weight_kind KIND, int NT> __global__ void __launch_bounds__(WARP) parts_kernel(dense_args p, float *parts)
{
    segment_parts<KIND, NT>(p, parts, (int64_t)blockIdx.x * ROWS, (int64_t)blockIdx.y * NT * 8, blockIdx.z);
}

/* Has a warp's segment of a tile's rows, each of `bytes` bytes, brought to the L2 cache. */
__device__ __forceinline__ void call_in(const rows_of &w, int64_t at, int bytes)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        for (int i = threadIdx.x % 4 * 128; w.codes[h] && i < bytes; i += 4 * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(w.codes[h] + at + i));
}

template <bl_weight_kind KIND> __device__ __forceinline__ void call_segment(const dense_args &p, int64_t row, int64_t segment)
{
    if (segment * SEGMENT >= p.w.cols) return;
    const rows_of w = tile_rows<KIND>((const uint8_t *)p.w.codes, p.w.scale, p.w.cols, p.row0 + row, p.row0 + p.rows);
    call_in(w, row_bytes(KIND, segment * SEGMENT), (int)row_bytes(KIND, p.w.cols < SEGMENT ? p.w.cols : SEGMENT));
}

/* A tile of p for each of the first blocks, a segment of q for each warp of the others. */
__global__ void __launch_bounds__(FEW *WARP) with_parts_kernel(dense_args p, dense_args q, float *parts, int tiles)
{
    const int warp = (int)threadIdx.x / WARP, unit = ((int)blockIdx.x - tiles) * FEW + warp, across = (int)((q.rows + ROWS - 1) / ROWS);
    if (unit < 0) {
        call_segment<BL_W_BF16>(p, (int64_t)blockIdx.x * ROWS, warp);
        take_over();
        dense_tile<BL_W_BF16, 1, FEW>(p, (int64_t)blockIdx.x * ROWS, 0, 0);
    } else {
        call_segment<BL_W_F32>(q, unit % across * ROWS, unit / across);
        take_over();
        if (unit / across * (int64_t)SEGMENT < q.w.cols) segment_parts<BL_W_F32, 1>(q, parts, unit % across * ROWS, 0, unit / across);
    }
}

struct expert_args {
    const bl_cuda_expert *experts;
    const int32_t *units, *unit_count, *token;
    int64_t rows, cols;
    int which[2];
    const uint16_t *x;
    bool by_token;
    uint16_t *y[2];
};

template <bl_weight_kind KIND, int NT, int W> __global__ void __launch_bounds__(W * WARP) expert_kernel(expert_args p)
{
    if ((int)blockIdx.y >= *p.unit_count) return;
    const int32_t *unit = p.units + 3 * blockIdx.y;
    const bl_cuda_expert *e = p.experts + unit[0];
    const int64_t slot = unit[1], count = unit[2], row = (int64_t)blockIdx.x * ROWS;
    const int which = blockIdx.z ? p.which[1] : p.which[0]; /* an index into the parameters would copy them to the stack */
    uint16_t *const y = blockIdx.z ? p.y[1] : p.y[0];
    const rows_of w = tile_rows<KIND>((const uint8_t *)e->codes[which], e->scale[which], p.cols, row, p.rows);
    const uint16_t *x[NT];
    for (int n = 0; n < NT; n++) {
        const int64_t i = 8 * n + threadIdx.x % WARP / 4;
        x[n] = i < count ? p.x + (p.by_token ? p.token[slot + i] : slot + i) * p.cols : NULL;
    }
    float total[share<NT, W>::COUNT];
    tile_sums<KIND, NT, W>(total, w, x);
    for (int i = 0; i < share<NT, W>::COUNT; i++) {
        const int at = threadIdx.x + W * WARP * i;
        if (at < NT * 8 * ROWS && at / ROWS < count && row + at % ROWS < p.rows)
            y[(slot + at / ROWS) * p.rows + row + at % ROWS] = to_bf16(total[i]);
    }
}

/* Token tiles of a block, by the number of tokens: any choice gives the same bits. */
static int tiles_for(int64_t tokens)
{
    return tokens <= 8 ? 1 : tokens <= 16 ? 2 : 4;
}

static dense_args dense_of(const bl_cuda_product *p)
{
    return {p->w, p->row0, p->rows, p->ldx, p->tokens, p->ld, p->x_step, p->row_step, p->y_step, p->x, p->y16, p->y32};
}

template <int NT, int W> static void launch_dense_by(cudaStream_t s, bl_weight_kind kind, const dense_args &a, dim3 grid)
{
    if (kind == BL_W_FP8) dense_kernel<BL_W_FP8, NT, W><<<grid, W * WARP, 0, s>>>(a);
    else if (kind == BL_W_FP4) dense_kernel<BL_W_FP4, NT, W><<<grid, W * WARP, 0, s>>>(a);
    else if (kind == BL_W_BF16) dense_kernel<BL_W_BF16, NT, W><<<grid, W * WARP, 0, s>>>(a);
    else dense_kernel<BL_W_F32, NT, W><<<grid, W * WARP, 0, s>>>(a);
}

template <int NT> static void launch_dense(cudaStream_t s, bl_weight_kind kind, const dense_args &a, int64_t groups)
{
    const dim3 grid(blocks_of(a.rows, ROWS), blocks_of(a.tokens, NT * 8), (unsigned)(groups > 1 ? groups : 1));
    const bool few = grid.x * grid.y * grid.z < FEW_BLOCKS && a.w.cols > MANY * SEGMENT;
    if (few && NT < 4) launch_dense_by<NT, NT < 4 ? FEW : MANY>(s, kind, a, grid); /* more tokens take too many registers */
    else launch_dense_by<NT, MANY>(s, kind, a, grid);
}

template <int NT> static void launch_experts(cudaStream_t s, bl_weight_kind kind, const expert_args &a, dim3 grid)
{
    if (kind == BL_W_FP8) expert_kernel<BL_W_FP8, NT, MANY><<<grid, MANY * WARP, 0, s>>>(a);
    else if (kind == BL_W_FP4) expert_kernel<BL_W_FP4, NT, MANY><<<grid, MANY * WARP, 0, s>>>(a);
    else expert_kernel<BL_W_BF16, NT, MANY><<<grid, MANY * WARP, 0, s>>>(a);
}

} // namespace bl

using namespace bl;

void bl_cuda_multiply(bl_cuda_stream s, const bl_cuda_product *p)
{
    const dense_args a = dense_of(p);
    if (p->tokens <= 0 || p->rows <= 0 || bl_cuda_multiply_many(s, p) || bl_cuda_multiply_few(s, p)) return;
    switch (tiles_for(p->tokens)) {
    case 1: launch_dense<1>(s, p->w.kind, a, p->groups); break;
    case 2: launch_dense<2>(s, p->w.kind, a, p->groups); break;
    default: launch_dense<4>(s, p->w.kind, a, p->groups);
    }
}

void bl_cuda_multiply_parts(bl_cuda_stream s, const bl_cuda_product *p, float *parts)
{
    const dense_args a = dense_of(p);
    const int nt = tiles_for(p->tokens);
    const dim3 grid(blocks_of(p->rows, ROWS), blocks_of(p->tokens, 8 * nt), blocks_of(p->w.cols, SEGMENT));
    if (p->tokens <= 0) return;
    if (nt == 1) parts_kernel<BL_W_F32, 1><<<grid, WARP, 0, s>>>(a, parts);
    else if (nt == 2) parts_kernel<BL_W_F32, 2><<<grid, WARP, 0, s>>>(a, parts);
    else parts_kernel<BL_W_F32, 4><<<grid, WARP, 0, s>>>(a, parts);
}

bool bl_cuda_multiply_with_parts(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q, float *parts)
{
    if (p->tokens != q->tokens || tiles_for(p->tokens) > 1 || p->w.kind != BL_W_BF16 || q->w.kind != BL_W_F32 || p->groups > 1 ||
        p->row0 > 0 || q->row0 > 0 || p->w.cols % 32 || q->w.cols % SEGMENT)
        return false;
    const int64_t tiles = blocks_of(p->rows, ROWS), units = blocks_of(q->rows, ROWS) * (q->w.cols / SEGMENT);
    launch_early(true, s, dim3((unsigned)(tiles + blocks_of(units, FEW))), FEW * WARP, 0, with_parts_kernel, dense_of(p), dense_of(q),
                 parts, (int)tiles);
    return true;
}

void bl_cuda_multiply_experts(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    const expert_args a = {p->experts, p->groups->units, p->groups->count, p->groups->token, p->rows, p->cols,
                           {p->which[0], p->which[1]}, p->x, p->by_token, {p->y[0], p->y[1]}};
    const dim3 grid(blocks_of(p->rows, ROWS), (unsigned)bl_cuda_max_units(p->T, p->k, p->E, false), (unsigned)p->count);
    if (p->T <= 0) return;
    if (p->many) {
        bl_cuda_multiply_experts_many(s, p);
        return;
    }
    if (bl_cuda_multiply_experts_few(s, p)) return;
    switch (bl_cuda_unit_slots(p->T, false)) {
    case 8: launch_experts<1>(s, p->kind, a, grid); break;
    case 16: launch_experts<2>(s, p->kind, a, grid); break;
    default: launch_experts<4>(s, p->kind, a, grid);
    }
}
