/* Products of up to eight tokens, where reading the weight is all there is to do: one or two blocks on each multiprocessor walk over tiles
 * of 16 rows; a warp has its own ring of segments in shared memory, filled ahead by asynchronous copies, so that reading never waits for
 * arithmetic or for the end of a tile. Segment sums go to shared memory and are added there ascending (dot.h: the order). */
#include "kernels/cuda/few.h"
#include "kernels/cuda/device.cuh"

namespace bl {

enum {
    ROWS = 16, SEGMENT = 256, STEPS = SEGMENT / 16, WARPS = 16, THREADS = WARPS * WARP, TOKENS = BL_CUDA_FEW,
    BATCH = 64 /* tiles whose descriptions are in shared memory */, PITCH = ROWS + 1,
    SUM_BYTES = 24 << 10 /* of segment sums, two rounds of them */
};

template <bl_weight_kind KIND> struct ring {
    enum {
        ROW = KIND == BL_W_FP8 ? 256 : 128, STRIDE = ROW + 16 /* rows begin in different banks */, SCALES = KIND == BL_W_FP8 ? 16 : 128,
        BLOCKS = KIND == BL_W_FP8 ? 1 : 2 /* on a multiprocessor: decoding fp4 wants many warps */,
        STAGE = ROWS * STRIDE + SCALES, STAGES = 2, BYTES = WARPS * STAGES * STAGE
    };
};

struct few_tile {
    const uint8_t *codes, *scale;
    const uint16_t *x;
    uint16_t *y16;
    float *y32;
    int rows, tokens;
    int row[TOKENS]; /* of x */
};

struct few_args {
    int segments, cols, per_round, magic; /* tiles summed together; u * magic >> 16 = u / segments */
    int64_t ldx, ld;
};

/* Which tiles there are. */
struct dense_tiles {
    enum { KNOWN = 1 /* before the kernel that runs before this one has ended */ };
    bl_matrix w;
    const uint16_t *x;
    uint16_t *y16;
    float *y32;
    int64_t row0, rows, x_step, row_step, y_step, ld;
    int tokens, tiles, groups; /* tiles of a group */
    __device__ __forceinline__ int count(void) const { return tiles * groups; }
    template <bl_weight_kind KIND> __device__ __forceinline__ few_tile at(int i) const
    {
        const int64_t group = i / tiles, in = (int64_t)(i % tiles) * ROWS, row = row0 + group * row_step + in;
        few_tile t;
        t.codes = (const uint8_t *)w.codes + (KIND == BL_W_FP8 ? row * w.cols : row * w.cols / 2);
        t.scale = w.scale + (KIND == BL_W_FP8 ? row / 32 : row) * (w.cols / 32);
        t.x = x + group * x_step;
        t.y16 = y16 ? y16 + group * y_step + in : NULL;
        t.y32 = y32 ? y32 + group * y_step + in : NULL;
        t.rows = (int)(rows - in);
        t.tokens = tokens;
        for (int n = 0; n < TOKENS; n++) t.row[n] = n < tokens ? n : 0;
        return t;
    }
};

struct expert_tiles {
    enum { KNOWN = 0 };
    const bl_cuda_expert *experts;
    const int32_t *units, *unit_count, *token;
    const uint16_t *x;
    uint16_t *y[2];
    int which[2], weights, tiles;
    int64_t rows, cols;
    bool by_token;
    __device__ __forceinline__ int count(void) const { return *unit_count * tiles * weights; }
    template <bl_weight_kind KIND> __device__ __forceinline__ few_tile at(int i) const
    {
        const int32_t *unit = units + 3 * (i / (tiles * weights));
        const int second = i / tiles % weights, k = second ? which[1] : which[0];
        const int64_t row = (int64_t)(i % tiles) * ROWS, slot = unit[1];
        const bl_cuda_expert *e = experts + unit[0];
        few_tile t;
        t.codes = (const uint8_t *)e->codes[k] + (KIND == BL_W_FP8 ? row * cols : row * cols / 2);
        t.scale = e->scale[k] + (KIND == BL_W_FP8 ? row / 32 : row) * (cols / 32);
        t.x = x;
        t.y16 = (second ? y[1] : y[0]) + slot * rows + row;
        t.y32 = NULL;
        t.rows = (int)(rows - row);
        t.tokens = unit[2];
        for (int n = 0; n < TOKENS; n++) {
            const int64_t s = slot + (n < unit[2] ? n : 0);
            t.row[n] = by_token ? token[s] : (int)s;
        }
        return t;
    }
};

/* ---- filling the ring */

template <int N> __device__ __forceinline__ void copy_async(uint32_t to, const uint8_t *from)
{
    if (N == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

template <int LEFT> __device__ __forceinline__ void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* A warp's next pieces of work: segment of a tile of the batch. */
struct cursor {
    int base, unit; /* first tile of the round; a unit is a segment of one of its tiles */
};

/* To the first unit at or behind c that exists; false at the end of the batch. */
__device__ __forceinline__ bool settle_on(cursor &c, const few_args &p, int tiles)
{
    while (c.base < tiles) {
        const int left = tiles - c.base, here = (left < p.per_round ? left : p.per_round) * p.segments;
        if (c.unit < here) return true;
        c.base += p.per_round;
        c.unit = threadIdx.x / WARP;
    }
    return false;
}

template <bl_weight_kind KIND> __device__ __forceinline__ void fetch(uint32_t to, const few_tile &t, int segment, int cols)
{
    enum { CHUNKS = ring<KIND>::ROW / 16, STEP = WARP / CHUNKS };
    const int lane = threadIdx.x % WARP, pitch = KIND == BL_W_FP8 ? cols : cols / 2;
    const uint8_t *from = t.codes + segment * ring<KIND>::ROW + lane % CHUNKS * 16;
    const uint32_t at = to + lane % CHUNKS * 16;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP) {
        const int row = r + lane / CHUNKS, there = row < t.rows ? row : t.rows - 1;
        copy_async<16>(at + row * ring<KIND>::STRIDE, from + (int64_t)there * pitch);
    }
    const uint32_t scales = to + ROWS * ring<KIND>::STRIDE;
    if (KIND == BL_W_FP8) {
        if (lane == 0) copy_async<8>(scales, t.scale + segment * 8);
    } else if (lane < ROWS) {
        copy_async<8>(scales + lane * 8, t.scale + (int64_t)(lane < t.rows ? lane : t.rows - 1) * (cols / 32) + segment * 8);
    }
}

/* ---- a segment's chain: c of rows g, g + 8 and tokens 2 t, 2 t + 1 */

__device__ __forceinline__ uint32_t shared_word(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 shared_pair(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 x_at(const uint16_t *x, int step)
{
    return *(const uint2 *)(x + 16 * step);
}

template <bool SMALL> __device__ __forceinline__ void chain_fp8(float c[4], uint32_t codes, uint2 scale, const uint16_t *x)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint32_t low = shared_word(codes + 16 * s), high = shared_word(codes + 8 * ring<BL_W_FP8>::STRIDE + 16 * s);
        const uint2 a = block_fp8<SMALL>(low, scale, s / 2), b = block_fp8<SMALL>(high, scale, s / 2);
        const fragment_a f = {{a.x, b.x, a.y, b.y}};
        mma(c, f, x_at(x, s));
    }
}

/* A lane's four codes of two steps, one above the other in each half, as four pairs of bf16 (first and third, second and fourth element
 * of a step) that are their values times 2^-126: the codes' bits in their place. */
__device__ __forceinline__ void place_fp4(uint32_t v[4], uint32_t w)
{
    v[0] = (w << 12 & 0x80008000) | (w << 6 & 0x01c001c0);
    v[1] = (w << 8 & 0x80008000) | (w << 2 & 0x01c001c0);
    v[2] = (w << 4 & 0x80008000) | (w >> 2 & 0x01c001c0);
    v[3] = (w & 0x80008000) | (w >> 6 & 0x01c001c0);
}

/* Scales up to here leave room for the factor 2^126. */
enum { SMALL_FP4 = 128 };

template <bool SMALL> __device__ __forceinline__ uint32_t scaled_fp4(uint32_t v, uint2 scale, int b)
{
    if (SMALL) return mul_bf16x2(v, block_byte(scale, b) * 0x00800080u + 0x3f003f00u); /* 2^126 in the exponent */
    return mul_bf16x2(mul_bf16x2(v, 0x7e807e80), block_scale(scale, b));
}

template <bool SMALL>
__device__ __forceinline__ void chain_fp4(float c[4], uint32_t codes, const uint2 scale[2], const uint16_t *x)
{
    const uint32_t pick = threadIdx.x & 1 ? 0x7362 : 0x5140;
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        uint32_t v[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t at = codes + 8 * h * ring<BL_W_FP4>::STRIDE + 8 * s;
            place_fp4(v[h], __byte_perm(shared_word(at), shared_word(at + 8), pick));
#pragma unroll
            for (int i = 0; i < 4; i++) v[h][i] = scaled_fp4<SMALL>(v[h][i], scale[h], s / 2);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint2 b = x_at(x, s + i);
            const fragment_a f = {{v[0][2 * i], v[1][2 * i], v[0][2 * i + 1], v[1][2 * i + 1]}};
            mma(c, f, make_uint2(__byte_perm(b.x, b.y, 0x5410), __byte_perm(b.x, b.y, 0x7632)));
        }
    }
}

__device__ __forceinline__ bool at_most(uint2 v, uint32_t most)
{
    return (__vcmpgtu4(v.x, most * 0x01010101u) | __vcmpgtu4(v.y, most * 0x01010101u)) == 0;
}

template <bl_weight_kind KIND> __device__ __forceinline__ void chain(float c[4], uint32_t stage, const uint16_t *x)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t scales = stage + ROWS * ring<KIND>::STRIDE;
    for (int i = 0; i < 4; i++) c[i] = 0;
    if (KIND == BL_W_FP8) {
        const uint2 scale = shared_pair(scales);
        const uint32_t codes = stage + g * ring<KIND>::STRIDE + 4 * t;
        if (at_most(scale, SMALL_SCALE)) chain_fp8<true>(c, codes, scale, x);
        else chain_fp8<false>(c, codes, scale, x);
    } else {
        const uint2 scale[2] = {shared_pair(scales + 8 * g), shared_pair(scales + 8 * (g + 8))};
        const uint32_t codes = stage + g * ring<KIND>::STRIDE + t / 2 * 4;
        if (__all_sync(~0u, at_most(scale[0], SMALL_FP4) && at_most(scale[1], SMALL_FP4))) chain_fp4<true>(c, codes, scale, x);
        else chain_fp4<false>(c, codes, scale, x);
    }
}

/* ---- the kernel */

template <bl_weight_kind KIND, class TILES> 
__global__ void __launch_bounds__(THREADS, ring<KIND>::BLOCKS) few_kernel(few_args p, TILES source)
{
    typedef ring<KIND> R;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ few_tile tile[BATCH];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t stages = (uint32_t)__cvta_generic_to_shared(memory) + warp * R::STAGES * R::STAGE;
    float *const sums = (float *)(memory + R::BYTES);
    start_next();
    if (!TILES::KNOWN) wait_for_last();
    const int all = source.count(), mine = all > (int)blockIdx.x ? (all - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0;
    int parity = 0;
    for (int first = 0; first < mine; first += BATCH) {
        const int tiles = mine - first < BATCH ? mine - first : BATCH;
        __syncthreads();
        const int own = first + (int)threadIdx.x;
        if (own < first + tiles) tile[threadIdx.x] = source.template at<KIND>((int)blockIdx.x + own * (int)gridDim.x);
        __syncthreads();
        cursor ahead = {0, warp}, now = {0, warp};
        const auto fetch_next = [&](int stage) {
            if (settle_on(ahead, p, tiles)) {
                const int in = ahead.unit * p.magic >> 16;
                fetch<KIND>(stages + stage * R::STAGE, tile[ahead.base + in], ahead.unit - in * p.segments, p.cols);
                ahead.unit += WARPS;
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
#pragma unroll
        for (int i = 0; i < R::STAGES - 1; i++) fetch_next(i);
        if (TILES::KNOWN && first == 0) wait_for_last(); /* until here: weights only */
        int stage = 0;
        for (int base = 0; base < tiles; base += p.per_round, parity ^= 1) {
            const int left = tiles - base, round = left < p.per_round ? left : p.per_round;
            float *const out = sums + (parity ? SUM_BYTES / 8 : 0);
            for (int u = warp; u < round * p.segments; u += WARPS) {
                fetch_next(stage == 0 ? R::STAGES - 1 : stage - 1);
                copies_wait<R::STAGES - 1>();
                __syncwarp();
                const int in = u * p.magic >> 16, segment = u - in * p.segments;
                const few_tile &here = tile[base + in];
                float c[4];
                chain<KIND>(c, stages + stage * R::STAGE, here.x + here.row[g] * p.ldx + segment * SEGMENT + 4 * t);
                for (int i = 0; i < 4; i++)
                    if (2 * t + i % 2 < here.tokens) out[((2 * t + i % 2) * p.per_round * p.segments + u) * PITCH + g + i / 2 * 8] = c[i];
                __syncwarp();
                if (++stage == R::STAGES) stage = 0;
            }
            __syncthreads();
            for (int i = threadIdx.x; i < TOKENS * ROWS * round; i += THREADS) {
                const int token = i / (ROWS * round), in = i / ROWS % round, row = i % ROWS;
                const few_tile &here = tile[base + in];
                if (token >= here.tokens) break;
                const float *from = out + (token * p.per_round * p.segments + in * p.segments) * PITCH + row;
                float total = 0;
#pragma unroll 4
                for (int k = 0; k < p.segments; k++) total += from[k * PITCH];
                if (row >= here.rows) continue;
                if (here.y16) here.y16[token * p.ld + row] = to_bf16(total);
                else here.y32[token * p.ld + row] = total;
            }
        }
        copies_wait<0>();
    }
    if (TILES::KNOWN && mine == 0) wait_for_last();
}

/* ---- host */

/* Tiles of a round: enough that warps share its segments evenly, where sums of so many find room. */
static int round_tiles(int segments, int64_t tokens)
{
    const int most = (int)(SUM_BYTES / 2 / (tokens * PITCH * sizeof(float)) / segments);
    int best = 1, best_left = WARPS;
    for (int r = 1; r <= most && r <= BATCH; r++) {
        const int left = (WARPS - r * segments % WARPS) % WARPS; /* idle in the last turn, of r * segments */
        if (left * best < best_left * r) best = r, best_left = left;
    }
    return best;
}

template <bl_weight_kind KIND, class TILES>
static void launch(cudaStream_t s, const few_args &a, const TILES &tiles, int64_t most, bool early)
{
    enum { BYTES = ring<KIND>::BYTES + SUM_BYTES };
    const int64_t blocks = processor_count() * ring<KIND>::BLOCKS;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(most < blocks ? most : blocks));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = BYTES;
    config.stream = s;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    cudaFuncSetAttribute(few_kernel<KIND, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    cudaLaunchKernelEx(&config, few_kernel<KIND, TILES>, a, tiles);
}

static few_args args_of(int64_t cols, int64_t tokens, int64_t ldx, int64_t ld)
{
    const int segments = (int)(cols / SEGMENT);
    return {segments, (int)cols, round_tiles(segments, tokens), (65536 + segments - 1) / segments, ldx, ld};
}

/* Whole segments, and rows whose vectors are aligned. */
static bool fits(bl_weight_kind kind, int64_t cols, int64_t tokens)
{
    const int64_t segments = cols / SEGMENT;
    return (kind == BL_W_FP8 || kind == BL_W_FP4) && cols % SEGMENT == 0 && tokens <= TOKENS &&
           segments * tokens * PITCH * (int64_t)sizeof(float) <= SUM_BYTES / 2;
}

} // namespace bl

using namespace bl;

bool bl_cuda_multiply_few(bl_cuda_stream s, const bl_cuda_product *p)
{
    const int64_t groups = p->groups > 1 ? p->groups : 1, tiles = (p->rows + ROWS - 1) / ROWS;
    if (!fits(p->w.kind, p->w.cols, p->tokens) || p->row0 % ROWS || (groups > 1 && p->row_step % ROWS)) return false;
    const few_args a = args_of(p->w.cols, p->tokens, p->ldx, p->ld);
    const dense_tiles t = {p->w, p->x, p->y16, p->y32, p->row0, p->rows, p->x_step, p->row_step, p->y_step, p->ld, (int)p->tokens,
                           (int)tiles, (int)groups};
    if (p->w.kind == BL_W_FP8) launch<BL_W_FP8>(s, a, t, tiles * groups, p->early);
    else launch<BL_W_FP4>(s, a, t, tiles * groups, p->early);
    return true;
}

bool bl_cuda_multiply_experts_few(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    const int64_t most = p->T < TOKENS ? p->T : TOKENS, tiles = (p->rows + ROWS - 1) / ROWS; /* a unit holds eight slots at most */
    if (p->T > BL_CUDA_FEW || !fits(p->kind, p->cols, most)) return false;
    const few_args a = args_of(p->cols, most, p->cols, p->rows);
    const expert_tiles t = {p->experts, p->groups->units, p->groups->count, p->groups->token, p->x, {p->y[0], p->y[1]},
                            {p->which[0], p->which[1]}, p->count, (int)tiles, p->rows, p->cols, p->by_token};
    const int64_t all = tiles * p->count * bl_cuda_max_units(p->T, p->k, p->E, false);
    if (p->kind == BL_W_FP8) launch<BL_W_FP8>(s, a, t, all, true);
    else launch<BL_W_FP4>(s, a, t, all, true);
    return true;
}
