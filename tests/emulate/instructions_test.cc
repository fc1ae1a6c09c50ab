/* The emulated instructions against plain references: products against the model of a step, tiles and matrices against where their elements
 * are said to lie. What waits for nothing must be seen. */
#include "kernels/cuda/dot.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "tests/emulate/tensor.h"

#include <stdio.h>

using namespace bl;

static int failures;

static void check(const char *what, bool right)
{
    if (!right) printf("%s: wrong\n", what);
    failures += !right;
}

static uint32_t any(void)
{
    static uint64_t s = 88172645463325252ull;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (uint32_t)(s >> 16);
}

/* A finite bf16 whose exponent is within spread of `middle`; zeros and subnormal ones among them. */
static uint16_t any_bf16(int middle, int spread)
{
    int e = middle + (int)(any() % (2 * (unsigned)spread + 1)) - spread;
    if (any() % 16 == 0) e = 0;
    e = e < 0 ? 0 : e > 254 ? 254 : e;
    return (uint16_t)((any() % 16 ? any() & 0x807f : any() & 0x8000) | (uint32_t)e << 7);
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* ---- steps */

static bool check_steps(int middle, int spread)
{
    for (int n = 0; n < 2000; n++) {
        emu::row_of_a a;
        emu::columns_of_b b;
        uint16_t x[16], y[8][16];
        float c[8], want[8];
        for (int k = 0; k < 16; k++) {
            emu::set_element(a, k, x[k] = any_bf16(middle, spread), emu::BF16);
            for (int j = 0; j < 8; j++) emu::set_element(b, k, j, y[j][k] = any_bf16(middle, spread), emu::BF16);
        }
        for (int j = 0; j < 8; j++) {
            c[j] = emu::float_of((uint32_t)any_bf16(2 * middle - 127, 2 * spread) << 16 | (any() & 0xffff));
            want[j] = bl_dot_step(c[j], x, y[j], 16, 25);
        }
        emu::step(c, a, b, emu::BF16);
        if (memcmp(c, want, sizeof c)) return false;
    }
    return true;
}

/* ---- numbers: every code, and products next to ties, against sums of exact halves */

static bool nearest(double x, double below, double above, bool below_is_even, double got)
{
    const double low = fabs(x - below), high = fabs(above - x);
    return got == (low < high || (low == high && below_is_even) ? below : above);
}

static bool check_rounding(void)
{
    for (uint32_t i = 0; i + 1 < 0x7f80; i++) {
        const double a = emu::from_bf16((uint16_t)i), b = emu::from_bf16((uint16_t)(i + 1));
        for (const double at : {0.25, 0.5, 0.75}) {
            const double x = a + (b - a) * at;
            if (!nearest(x, a, b, i % 2 == 0, emu::from_bf16(emu::to_bf16(x))) || emu::to_bf16(-x) != (emu::to_bf16(x) | 0x8000)) return false;
        }
    }
    for (uint32_t i = 0; i + 1 < 0x7c00; i++) {
        const double a = emu::from_f16((uint16_t)i), b = emu::from_f16((uint16_t)(i + 1)), x = (a + b) / 2;
        if (!nearest(x, a, b, i % 2 == 0, emu::from_f16(emu::to_f16(x)))) return false;
    }
    for (int n = 0; n < 100000; n++) {
        const uint32_t x = any_bf16(127 - n % 64, 20), y = any_bf16(127 - n % 80, 60), one = mul_bf16x2(x | y << 16, y | x << 16);
        if (one != emu::to_bf16(emu::from_bf16((uint16_t)x) * emu::from_bf16((uint16_t)y)) * 0x10001u) return false;
    }
    return convert_e4m3x2(448, -464) == 0x7efe && convert_e4m3x2(0x1p-10f, 0x1.8p-10f) == 0x0001 && convert_e4m3x2(NAN, 1e9f) == 0x7f7e;
}

/* ---- instructions of a warp */

static uint16_t A[64][64], B[192][64]; /* rows of K, columns of K */
static float C[64][192], D[64][192];

static void fill(int spread)
{
    for (auto &row : A)
        for (uint16_t &x : row) x = any_bf16(127, spread);
    for (auto &row : B)
        for (uint16_t &x : row) x = any_bf16(127, spread);
    for (auto &row : C)
        for (float &x : row) x = emu::float_of((uint32_t)any_bf16(127, spread) << 16 | (any() & 0xffff));
}

static uint32_t pair(const uint16_t *p) { return p[0] | (uint32_t)p[1] << 16; }

/* 16 x 8 by one step: operands from registers, or from shared memory as matrices. */
static void warp_kernel(bool matrices)
{
    BL_DYNAMIC_SHARED(uint16_t, memory, 16);
    uint16_t(*const a)[16] = (uint16_t(*)[16])memory, (*const b)[8] = (uint16_t(*)[8])(memory + 256);
    const int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 256; i += 32) a[i / 16][i % 16] = A[i / 16][i % 16];
    for (int i = lane; i < 128; i += 32) b[i / 8][i % 8] = B[i % 8][i / 8]; /* by k */
    __syncwarp();
    fragment_a x = {{pair(&A[g][2 * t]), pair(&A[g + 8][2 * t]), pair(&A[g][2 * t + 8]), pair(&A[g + 8][2 * t + 8])}};
    uint2 y = make_uint2(pair(&B[g][2 * t]), pair(&B[g][2 * t + 8]));
    if (matrices) {
        load_matrices(x.r, shared_address(&a[lane % 16][lane / 16 * 8]));
        y = load_transposed(shared_address(b[lane % 16]));
        check("movmatrix", transpose_matrix(transpose_matrix(y.x)) == y.x);
    }
    float c[4] = {C[g][2 * t], C[g][2 * t + 1], C[g + 8][2 * t], C[g + 8][2 * t + 1]};
    mma(c, x, y);
    for (int i = 0; i < 4; i++) D[g + i / 2 * 8][2 * t + i % 2] = c[i];
}

static bool right_product(int rows, int cols, int k, bool keep)
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < cols; j++) {
            float want = keep ? C[r][j] : 0;
            for (int s = 0; s < k; s += 16) want = bl_dot_step(want, A[r] + s, B[j] + s, 16, 25);
            if (!same(want, D[r][j])) return false;
        }
    return true;
}

/* ---- instructions of a warpgroup */

enum mode { BY_ROWS, BY_COLUMNS, REGISTERS, NO_WAIT, NO_BARRIER };
enum { TILE = 64 * 128 };

/* 64 x N x 64: A and B copied as tiles of 64 columns. by columns: B's tiles have rows of one k. */
template <int N, mode M> static void group_kernel(CUtensorMap a_map, CUtensorMap b_map)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 1);
    __shared__ uint64_t bar;
    const uint32_t a = shared_address(memory), b = a + TILE, full = shared_address(&bar);
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init_done();
        barrier_expect(full, TILE + N * 128);
        load_tile(a, &a_map, full, 0, 0);
        if (M == BY_COLUMNS)
            for (int n = 0; n < N; n += 64) load_tile(b + (uint32_t)(n / 64 * TILE), &b_map, full, n, 0);
        else load_tile(b, &b_map, full, 0, 0);
    }
    __syncthreads();
    if (M != NO_BARRIER) barrier_wait(full, 0);
    float d[N / 2];
    for (int i = 0; i < N / 2; i++) d[i] = C[16 * warp + g + i / 2 % 2 * 8][i / 4 * 8 + 2 * t + i % 2];
    wgmma_begin();
    for (int s = 0; s < 4; s++) {
        const uint64_t x = operand_by_rows(a) + 2 * s;
        if (M == BY_COLUMNS) {
            wgmma_ss<N, 1>::run(d, x, operand_by_columns(b, 1024, TILE) + (s * 2048 >> 4), 1);
        } else if (M == REGISTERS) {
            const uint16_t *const at = &A[16 * warp + g][16 * s + 2 * t];
            wgmma_rs<N>::run(d, {{pair(at), pair(at + 8 * 64), pair(at + 8), pair(at + 8 * 64 + 8)}}, operand_by_rows(b) + 2 * s, s > 0);
        } else {
            wgmma_ss<N, 0>::run(d, x, operand_by_rows(b) + 2 * s, 1);
        }
    }
    wgmma_commit();
    if (M != NO_WAIT) wgmma_wait<0>();
    settle(d);
    for (int i = 0; i < N / 2; i++) D[16 * warp + g + i / 2 % 2 * 8][i / 4 * 8 + 2 * t + i % 2] = d[i];
    if (M == NO_WAIT) wgmma_wait<0>();
    barrier_wait(full, 0);
}

static CUtensorMap map_of(const uint16_t *x, int rows, int cols, int stride, int box_rows)
{
    typedef CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                               CUtensorMapFloatOOBfill);
    CUtensorMap map;
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, bytes[1] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, step[2] = {1, 1};
    check("map", ((encode)emu::tile_map_encoder())(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x, size, bytes, box, step,
                                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
}

/* How often of so many schedules the product is right. */
template <int N, mode M> static int count_right(int times)
{
    static uint16_t by_k[64][192];
    int right = 0;
    for (int n = 0; n < times; n++) {
        fill(6);
        for (int i = 0; i < 64 * 192; i++) by_k[i / 192][i % 192] = B[i % 192][i / 192];
        const CUtensorMap b = M == BY_COLUMNS ? map_of(by_k[0], 64, 192, 192, 64) : map_of(B[0], 192, 64, 64, N);
        launch_plain(0, 1, 128, TILE + N * 128, group_kernel<N, M>, map_of(A[0], 64, 64, 64, 64), b);
        right += right_product(64, N, 64, M != REGISTERS);
    }
    return right;
}

/* ---- copies */

static uint16_t tile[64][64];

/* A box that begins at row -3 and column 20 of the 10 x 40 that the map says; read back without the swizzle. */
static void box_kernel(const CUtensorMap map)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 1);
    __shared__ uint64_t bar;
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&bar), 1);
        barrier_init_done();
        barrier_expect(shared_address(&bar), 16 * 128);
        load_tile(shared_address(memory), &map, shared_address(&bar), 20, -3);
    }
    __syncwarp();
    barrier_wait(shared_address(&bar), 0);
    for (int i = (int)threadIdx.x; i < 16 * 64; i += 32)
        memcpy(&tile[i / 64][i % 64], memory + i / 64 * 128 + ((i % 64 / 8 ^ i / 64 % 8) * 16) + i % 8 * 2, 2);
}

static bool right_box(void)
{
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 64; c++)
            if (tile[r][c] != (r >= 3 && r < 13 && c < 20 ? A[r - 3][c + 20] : 0)) return false;
    return true;
}

/* Each block sends to the next, which takes it where its barrier has counted it; a remote arrival says that it has. */
static void ring_kernel(int *wrong, bool wait)
{
    __shared__ float4 got[32];
    __shared__ uint64_t full, empty;
    const uint32_t next = (cluster_rank() + 1) % cluster_size(), before = (cluster_rank() + cluster_size() - 1) % cluster_size();
    const uint32_t to = address_at(shared_address(&got[threadIdx.x]), next), its = address_at(shared_address(&full), next);
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&full), 1);
        barrier_init(shared_address(&empty), 1);
        barrier_init_done();
    }
    cluster_sync();
    for (int n = 0; n < 3; n++) {
        if (threadIdx.x == 0) barrier_expect(shared_address(&full), sizeof got);
        if (n && wait) barrier_wait(shared_address(&empty), (n - 1) % 2);
        send(to, its, (float)n, (float)threadIdx.x, (float)cluster_rank(), 0);
        barrier_wait(shared_address(&full), n % 2);
        const float4 v = got[threadIdx.x];
        *wrong += v.x != (float)n || v.y != (float)threadIdx.x || v.z != (float)before;
        __syncwarp();
        if (threadIdx.x == 0) barrier_arrive_at(shared_address(&empty), (int)before);
    }
    cluster_sync(); /* the last arrivals have come, too */
}

/* Copies of a thread's own in two groups; the wait for the first only, or none. */
static void copy_kernel(int *wrong, bool wait)
{
    BL_DYNAMIC_SHARED(uint16_t, memory, 16);
    for (int i = 0; i < 2; i++) {
        copy_sixteen(shared_address(memory + 8 * i), A[i], true);
        copies_end_group();
    }
    if (wait) copies_wait_for<1>();
    *wrong += memcmp(memory, A[0], 16) != 0;
    copies_wait_for<0>();
    check("cp.async", memcmp(memory + 8, A[1], 16) == 0);
}

int main(void)
{
    int wrong = 0;
    check("rounding", check_rounding());
    for (const int middle : {127, 64, 58, 190})
        for (const int spread : {0, 2, 5, 10, 20, 60}) check("steps", check_steps(middle, spread));
    for (int n = 0; n < 50; n++) {
        fill(n % 20);
        launch_plain(0, 1, 32, 1024, warp_kernel, n % 2 == 1);
        check("mma", right_product(16, 8, 16, true));
    }
    check("wgmma by rows", count_right<64, BY_ROWS>(5) == 5 && count_right<192, BY_ROWS>(2) == 2 && count_right<32, BY_ROWS>(5) == 5);
    check("wgmma by columns", count_right<128, BY_COLUMNS>(5) == 5);
    check("wgmma from registers", count_right<16, REGISTERS>(5) == 5 && count_right<160, REGISTERS>(2) == 2);
    check("no wait for a product", count_right<32, NO_WAIT>(5) == 0);
    check("no wait for a tile", count_right<32, NO_BARRIER>(20) < 20);
    launch_plain(0, 1, 32, 16 * 128, box_kernel, map_of(A[0], 10, 40, 64, 16));
    check("tile", right_box());
    for (int n = 0; n < 20; n++) launch_declared(4, 0, 4, 32, 0, ring_kernel, &wrong, true);
    check("sending", wrong == 0);
    for (int n = 0; n < 20; n++) launch_plain(0, 1, 1, 64, copy_kernel, &wrong, true);
    check("copies", wrong == 0);
    for (int n = 0; n < 20; n++) launch_plain(0, 1, 1, 64, copy_kernel, &wrong, false);
    check("no wait for a copy", wrong > 0);
    return failures != 0;
}
