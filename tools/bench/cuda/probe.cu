/* What one GPU can do, measured plainly: the ceilings that GPU benchmarks are held against, whether the arithmetic of the tensor
 * cores is what kernels/cuda/dot.h says, and what pinning and registering host memory costs. Prints a table. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "kernels/cuda/dot.h"

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "cuda_probe: %s: %s\n", what, cudaGetErrorString(e));
    exit(e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver ? 77 : 1);
}
#define CHECK(x) check((x), #x)

/* Milliseconds of one run: the median of several, by events. */
template <class F> static float milliseconds(F run, int rounds = 11)
{
    cudaEvent_t a, b;
    std::vector<float> t;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    for (int i = 0; i < rounds + 2; i++) {
        float ms;
        CHECK(cudaEventRecord(a));
        run();
        CHECK(cudaEventRecord(b));
        CHECK(cudaEventSynchronize(b));
        CHECK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2) t.push_back(ms);
    }
    CHECK(cudaGetLastError());
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
}

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* ---- memory */

__global__ void copy_kernel(uint4 *out, const uint4 *in, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
        uint4 v[4];
        for (int k = 0; k < 4; k++)
            if (i + k * step < n) v[k] = __ldcs(in + i + k * step);
        for (int k = 0; k < 4; k++)
            if (i + k * step < n) __stcs(out + i + k * step, v[k]);
    }
}

__global__ void read_kernel(uint32_t *out, const uint4 *in, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 8 * step)
        for (int k = 0; k < 8; k++)
            if (i + k * step < n) {
                const uint4 v = __ldcs(in + i + k * step);
                sum += v.x ^ v.y ^ v.z ^ v.w;
            }
    if (sum == 0x12345678) *out = sum;
}

__global__ void fill_kernel(uint32_t *p, size_t n, uint32_t mask, uint32_t set)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        p[i] = (x & mask) | set;
    }
}

/* Rows of 544 bytes picked by a generator, one warp each. */
__global__ void gather_kernel(uint32_t *out, const uint8_t *table, size_t rows, int picks)
{
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    uint64_t at = warp * 0x9E3779B97F4A7C15ull;
    uint32_t sum = 0;
    for (int i = 0; i < picks; i++) {
        at = at * 6364136223846793005ull + 1442695040888963407ull;
        const uint4 *row = (const uint4 *)(table + (at >> 20) % rows * 544);
        for (int k = lane; k < 34; k += 32) sum += row[k].x;
    }
    if (sum == 0x12345678) *out = sum;
}

static void memory()
{
    uint8_t *a, *b;
    const size_t bytes = (size_t)4 << 30, n = bytes / 16;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    fill_kernel<<<1024, 256>>>((uint32_t *)a, bytes / 4, ~0u, 0);
    float ms = milliseconds([&] { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice)); });
    printf("copy, cudaMemcpy             %8.0f GB/s read + written\n", 2 * bytes / ms / 1e6);
    ms = milliseconds([&] { copy_kernel<<<132 * 8, 512>>>((uint4 *)b, (const uint4 *)a, n); });
    printf("copy, kernel                 %8.0f GB/s\n", 2 * bytes / ms / 1e6);
    ms = milliseconds([&] { read_kernel<<<132 * 4, 512>>>((uint32_t *)b, (const uint4 *)a, n); });
    printf("read                         %8.0f GB/s\n", bytes / ms / 1e6);
    cudaFree(a);
    cudaFree(b);
}

static void host()
{
    const size_t bytes = (size_t)4 << 30;
    uint8_t *pinned, *mapped, *device;
    CHECK(cudaMalloc(&device, bytes));
    double t = now();
    CHECK(cudaHostAlloc((void **)&pinned, bytes, cudaHostAllocMapped));
    printf("pin 4 GiB (cudaHostAlloc)    %8.2f s\n", now() - t);
    memset(pinned, 1, bytes);
    float ms = milliseconds([&] { CHECK(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice)); }, 5);
    printf("host to device, pinned       %8.1f GB/s\n", bytes / ms / 1e6);
    ms = milliseconds([&] { CHECK(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost)); }, 5);
    printf("device to host, pinned       %8.1f GB/s\n", bytes / ms / 1e6);
    CHECK(cudaHostGetDevicePointer((void **)&mapped, pinned, 0));
    for (int picks = 1; picks <= 64; picks *= 8) {
        ms = milliseconds([&] { gather_kernel<<<132 * 8, 256>>>((uint32_t *)device, mapped, bytes / 544, picks); }, 5);
        const double rows = 132.0 * 8 * 8 * picks;
        printf("rows of 544 B from pinned    %8.1f GB/s, %.0f rows in %.1f us\n", rows * 544 / ms / 1e6, rows, ms * 1e3);
    }
    ms = milliseconds([&] { gather_kernel<<<3, 256>>>((uint32_t *)device, mapped, bytes / 544, 1); }, 5);
    printf("  24 rows                    %8.1f us\n", ms * 1e3);
    CHECK(cudaFreeHost(pinned));

    uint8_t *anonymous = (uint8_t *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    t = now();
    cudaError_t e = cudaHostRegister(anonymous, bytes, cudaHostRegisterMapped);
    printf("register 4 GiB of memory     %8.2f s (%s)\n", now() - t, cudaGetErrorName(e));
    if (e == cudaSuccess) cudaHostUnregister(anonymous);
    munmap(anonymous, bytes);

}

static void files()
{
    double t;
    cudaError_t e;
    int read_only = 0, pageable = 0;
    cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, 0);
    cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0);
    printf("attributes: read-only registration %d, pageable access %d\n", read_only, pageable);
    char name[] = "/tmp/cuda_probe.XXXXXX";
    const int file = mkstemp(name);
    unlink(name);
    const size_t size = (size_t)256 << 20;
    std::vector<char> junk(size, 3);
    if (write(file, junk.data(), size) != (ssize_t)size) return;
    for (int shared = 0; shared < 2; shared++)
        for (int writable = 0; writable < 2; writable++) {
            void *m = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, shared ? MAP_SHARED : MAP_PRIVATE, file, 0);
            t = now();
            e = cudaHostRegister(m, size, cudaHostRegisterMapped | (writable ? 0 : cudaHostRegisterReadOnly));
            printf("register a file mapping, %s, %s: %s (%.2f s)\n", shared ? "shared" : "private",
                   writable ? "writable" : "read-only", cudaGetErrorName(e), now() - t);
            if (e == cudaSuccess) cudaHostUnregister(m);
            cudaGetLastError();
            munmap(m, size);
        }
    close(file);
}

/* ---- products of a library */

static void product(const char *name, cudaDataType type, uint8_t *a, uint8_t *b, uint8_t *d, void *work, size_t work_bytes)
{
    const int64_t n = 8192;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[1];
    int count = 0;
    const cublasOperation_t t = CUBLAS_OP_T;
    cublasLtCreate(&lt);
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    cublasLtMatrixLayoutCreate(&la, type, n, n, n);
    cublasLtMatrixLayoutCreate(&lb, type, n, n, n);
    cublasLtMatrixLayoutCreate(&ld, CUDA_R_16BF, n, n, n);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work_bytes, sizeof work_bytes);
    if (cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, ld, ld, pref, 1, found, &count) || !count) {
        printf("%-28s no algorithm\n", name);
        return;
    }
    const float one = 1, zero = 0;
    const float ms = milliseconds([&] {
        cublasLtMatmul(lt, op, &one, a, la, b, lb, &zero, d, ld, d, ld, &found[0].algo, work, work_bytes, 0);
    });
    printf("%-28s %8.0f TFLOP/s (8192 cubed, random data)\n", name, 2.0 * n * n * n / ms / 1e9);
    cublasLtDestroy(lt);
}

/* ---- edges of a graph */

__global__ void edge_kernel(bool wait)
{
#if __CUDA_ARCH__ >= 900
    if (wait) cudaGridDependencySynchronize();
#endif
}

static float edge_time(int blocks, bool programmatic)
{
    const int nodes = 400;
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t x;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < nodes; i++) {
        cudaLaunchAttribute at = {};
        at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t c = {};
        c.gridDim = blocks;
        c.blockDim = 256;
        c.stream = s;
        c.attrs = &at;
        c.numAttrs = programmatic ? 1 : 0;
        CHECK(cudaLaunchKernelEx(&c, edge_kernel, programmatic));
    }
    CHECK(cudaStreamEndCapture(s, &g));
    CHECK(cudaGraphInstantiate(&x, g, 0));
    const float ms = milliseconds([&] { CHECK(cudaGraphLaunch(x, 0)); });
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(g));
    CHECK(cudaStreamDestroy(s));
    return ms * 1e3f / nodes;
}

/* ---- bits of the tensor cores: rows of A [64, K] times columns of B [8, K], one chain over K */

enum { K = 256 };

__global__ void mma_kernel(float *d, const uint16_t *a, const uint16_t *b, int steps)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float c[4] = {0, 0, 0, 0};
    for (int s = 0; s < steps; s++) {
        const uint16_t *x = a + (16 * warp + g) * K + 16 * s + 2 * t, *y = b + g * K + 16 * s + 2 * t;
        const uint32_t a0 = *(const uint32_t *)x, a1 = *(const uint32_t *)(x + 8 * K), a2 = *(const uint32_t *)(x + 8);
        const uint32_t a3 = *(const uint32_t *)(x + 8 * K + 8), b0 = *(const uint32_t *)y, b1 = *(const uint32_t *)(y + 8);
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    for (int i = 0; i < 4; i++) d[(16 * warp + g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

__global__ void wgmma_kernel(float *d, const uint16_t *a, const uint16_t *b, int steps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ alignas(128) uint16_t tile[K / 16][2][8][8]; /* core matrices: 8 columns of B by 8 of K */
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = threadIdx.x; i < 8 * K; i += blockDim.x) tile[i % K / 16][i % 16 / 8][i / K][i % 8] = b[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float c[4] = {0, 0, 0, 0};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int s = 0; s < steps; s++) {
        const uint16_t *x = a + (16 * warp + g) * K + 16 * s + 2 * t;
        const uint32_t a0 = *(const uint32_t *)x, a1 = *(const uint32_t *)(x + 8 * K), a2 = *(const uint32_t *)(x + 8);
        const uint32_t a3 = *(const uint32_t *)(x + 8 * K + 8);
        const uint64_t at = (uint32_t)__cvta_generic_to_shared(&tile[s][0][0][0]);
        const uint64_t desc = (at & 0x3ffff) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
        asm volatile("wgmma.fence.sync.aligned;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;\n"
                     "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc)
                     : "memory");
    }
    for (int i = 0; i < 4; i++) d[(16 * warp + g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
#endif
}

static uint32_t random_bits()
{
    static uint64_t s = 88172645463325252ull;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (uint32_t)(s >> 16);
}

/* bf16 with exponents spread over `spread` powers of two below 2^0; now and then zero or subnormal when asked. */
static uint16_t random_bf16(int spread, bool odd)
{
    const uint32_t r = random_bits();
    if (odd && r % 13 == 0) return (r >> 8) & 0x8000;
    if (odd && r % 13 == 1) return (r >> 8) & 0x807f;
    return (uint16_t)((r & 0x807f) | (127 - (r >> 16) % (unsigned)spread) << 7);
}

static void tensor_bits()
{
    static const struct {
        int spread;
        bool odd;
    } kinds[] = {{1, false}, {4, false}, {12, false}, {30, false}, {60, true}, {120, true}};
    std::vector<uint16_t> a(64 * K), b(8 * K);
    std::vector<float> m(512), w(512);
    uint16_t *da, *db;
    float *dm;
    long same_w = 0, total = 0, model[5][3] = {};
    CHECK(cudaMalloc(&da, a.size() * 2));
    CHECK(cudaMalloc(&db, b.size() * 2));
    CHECK(cudaMalloc(&dm, 512 * 4));
    for (int round = 0; round < 120; round++) {
        const auto kind = kinds[round % 6];
        const int steps = round % 3 == 0 ? 1 : round % 3 == 1 ? 4 : 16;
        for (auto &x : a) x = random_bf16(kind.spread, kind.odd);
        for (auto &x : b) x = random_bf16(kind.spread, kind.odd);
        CHECK(cudaMemcpy(da, a.data(), a.size() * 2, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(db, b.data(), b.size() * 2, cudaMemcpyHostToDevice));
        mma_kernel<<<1, 128>>>(dm, da, db, steps);
        CHECK(cudaMemcpy(m.data(), dm, 512 * 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemset(dm, 0xff, 512 * 4));
        wgmma_kernel<<<1, 128>>>(dm, da, db, steps);
        CHECK(cudaMemcpy(w.data(), dm, 512 * 4, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 512; i++) {
            same_w += !memcmp(&m[i], &w[i], 4);
            total++;
            for (int f = 0; f < 5; f++)
                for (int l = 0; l < 3; l++) {
                    float c = 0;
                    const int n = 16 >> l;
                    for (int k = 0; k < 16 * steps; k += n) c = bl_dot_step(c, &a[i / 8 * K + k], &b[i % 8 * K + k], n, 23 + f);
                    model[f][l] += !memcmp(&c, &m[i], 4) || (c == 0 && m[i] == 0);
                }
        }
    }
    printf("tensor core bits: wgmma equals mma.sync in %ld of %ld\n", same_w, total);
    for (int l = 0; l < 3; l++)
        for (int f = 0; f < 5; f++) printf("  model, %2d products a step, %d bits: %ld equal\n", 16 >> l, 23 + f, model[f][l]);
    cudaFree(da);
    cudaFree(db);
    cudaFree(dm);
}

static void products()
{
    uint8_t *a, *b, *d;
    const size_t bytes = (size_t)256 << 20, work = 64 << 20;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMalloc(&d, work + bytes));
    /* random bf16 of magnitudes 1 to 2, random e4m3 codes below NaN */
    fill_kernel<<<1024, 256>>>((uint32_t *)a, bytes / 4, 0x807f807f, 0x3f803f80);
    fill_kernel<<<1024, 256>>>((uint32_t *)b, bytes / 4, 0x807f807f, 0x3f803f80);
    product("bf16 product (cublasLt)", CUDA_R_16BF, a, b, d + work, d, work);
    fill_kernel<<<1024, 256>>>((uint32_t *)a, bytes / 4, 0xbfbfbfbf, 0);
    fill_kernel<<<1024, 256>>>((uint32_t *)b, bytes / 4, 0xbfbfbfbf, 0);
    product("fp8 product (cublasLt)", CUDA_R_8F_E4M3, a, b, d + work, d, work);
}

static void edges()
{
    for (int blocks : {1, 132})
        for (bool programmatic : {false, true})
            printf("graph edge, %3d blocks, %s %6.2f us\n", blocks, programmatic ? "programmatic" : "plain       ",
                   edge_time(blocks, programmatic));
}

static void device()
{
    cudaDeviceProp p;
    int driver = 0, runtime = 0;
    CHECK(cudaGetDeviceProperties(&p, 0));
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    printf("%s, %d multiprocessors, L2 %d MiB, %.1f GiB, shared %zu KiB a block; driver %d, runtime %d\n", p.name,
           p.multiProcessorCount, p.l2CacheSize >> 20, p.totalGlobalMem / 1073741824.0, p.sharedMemPerBlockOptin >> 10, driver, runtime);
}

/* cuda_probe [PART ...]: all parts, or those named. */
int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)();
    } parts[] = {{"device", device}, {"bits", tensor_bits}, {"edges", edges}, {"memory", memory}, {"products", products},
                 {"host", host}, {"files", files}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const auto &part : parts) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted = wanted || !strcmp(argv[i], part.name);
        if (wanted) part.run();
    }
    return 0;
}
