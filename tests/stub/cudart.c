#include "tests/stub/cudart.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS = 4096, NODES = 65536, FUNCTIONS = 512 };

typedef struct block {
    uint8_t *at;
    size_t bytes;
    bool pinned;
} block;

typedef struct node {
    const char *kernel; /* NULL: a copy */
    void *to;
    const void *from;
    size_t bytes;
} node;

struct CUgraph_st {
    node *nodes;
    long count;
};

cuda_stub cuda_stub_seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block blocks[BLOCKS];
static struct {
    const void *host;
    const char *name;
} functions[FUNCTIONS];
static int function_count;
static const char *kernels[NODES];
static int kernel_count;
static uint64_t memory = (uint64_t)8 << 30;
static struct {
    const char *function;
    long nth;
    int code;
} failure;
static cudaError_t last, lasting;
static bool none; /* no GPU */
static cudaGraph_t capture;

static bool lasts(int code)
{
    return code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure || code == cudaErrorECCUncorrectable;
}

static void read_environment(void)
{
    static char function[64];
    static bool done;
    const char *fail = getenv("CUDA_STUB_FAIL"), *bytes = getenv("CUDA_STUB_MEMORY");
    if (done) return;
    done = true;
    none = getenv("CUDA_STUB_NONE") != NULL;
    if (bytes) memory = strtoull(bytes, NULL, 10);
    if (fail && sscanf(fail, "%63s %ld %d", function, &failure.nth, &failure.code) == 3) failure.function = function;
}

/* The result of a call that has nothing else against it; locked. */
static cudaError_t enter(const char *function)
{
    read_environment();
    cuda_stub_seen.calls++;
    if (none) return last = cudaErrorNoDevice;
    if (lasting) return last = lasting;
    if (failure.function && (!strcmp(failure.function, "any") || !strcmp(failure.function, function)) && --failure.nth == 0) {
        if (lasts(failure.code)) lasting = (cudaError_t)failure.code;
        return last = (cudaError_t)failure.code;
    }
    return cudaSuccess;
}

/* A call that does nothing but succeed or fail. */
static cudaError_t call(const char *function)
{
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter(function);
    pthread_mutex_unlock(&lock);
    return e;
}

/* The host waits for the device. */
static cudaError_t wait_call(const char *function)
{
    pthread_mutex_lock(&lock);
    cuda_stub_seen.waits++;
    const cudaError_t e = enter(function);
    pthread_mutex_unlock(&lock);
    return e;
}

void cuda_stub_reset(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    cuda_stub_seen = (cuda_stub){.live = cuda_stub_seen.live, .pinned = cuda_stub_seen.pinned};
    failure.function = NULL;
    last = lasting = cudaSuccess;
    memory = bytes;
    pthread_mutex_unlock(&lock);
}

void cuda_stub_fail(const char *function, long nth, int code)
{
    failure.function = function;
    failure.nth = nth;
    failure.code = code;
}

const char *cuda_stub_kernel(int i)
{
    return i < kernel_count ? kernels[i] : NULL;
}

/* ---- memory */

static block *block_at(const void *p, size_t bytes, bool exact)
{
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &blocks[i];
        const uint8_t *at = p;
        if (b->at && (exact ? at == b->at : at >= b->at && at + bytes <= b->at + b->bytes)) return b;
    }
    return NULL;
}

/* Memory of the device is gigabytes that nobody touches: malloc's settings for tests (MALLOC_PERTURB_) would. */
static void *take(size_t bytes, bool pinned)
{
    if (pinned) return calloc(1, bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static cudaError_t allocate(const char *function, void **out, size_t bytes, bool pinned)
{
    pthread_mutex_lock(&lock);
    cudaError_t e = enter(function);
    int i = 0;
    while (i < BLOCKS && blocks[i].at) i++;
    if (e == cudaSuccess && (i == BLOCKS || (!pinned && cuda_stub_seen.live + bytes > memory))) e = last = cudaErrorMemoryAllocation;
    if (e == cudaSuccess && !(*out = take(bytes, pinned))) e = last = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        blocks[i] = (block){*out, bytes, pinned};
        if (!pinned) cuda_stub_seen.allocated += bytes;
        *(pinned ? &cuda_stub_seen.pinned : &cuda_stub_seen.live) += bytes;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

static cudaError_t release(void *p, bool pinned)
{
    if (!p) return cudaSuccess;
    pthread_mutex_lock(&lock);
    block *b = block_at(p, 0, true);
    if (b && b->pinned == pinned) {
        *(pinned ? &cuda_stub_seen.pinned : &cuda_stub_seen.live) -= b->bytes;
        b->at = NULL;
        if (pinned) free(p);
        else munmap(p, b->bytes);
    } else {
        cuda_stub_seen.faults++;
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return allocate("cudaMalloc", p, bytes, false);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate("cudaHostAlloc", p, bytes, true);
}

cudaError_t cudaFree(void *p)
{
    return release(p, false);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, true);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)p;
    (void)bytes;
    (void)flags;
    const cudaError_t e = call("cudaHostRegister");
    cuda_stub_seen.registered += e == cudaSuccess;
    return e;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    *device = host;
    return call("cudaHostGetDevicePointer");
}

cudaError_t cudaHostUnregister(void *p)
{
    (void)p;
    cuda_stub_seen.registered--;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const cudaError_t e = call("cudaMemGetInfo");
    if (e != cudaSuccess) return e;
    *left = memory > cuda_stub_seen.live ? memory - cuda_stub_seen.live : 0;
    *all = memory;
    return cudaSuccess;
}

/* Both ends of a copy: device memory must be allocated. */
static void check_copy(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyDeviceToHost && !block_at(to, bytes, false)) cuda_stub_seen.faults++;
    if (kind != cudaMemcpyHostToDevice && !block_at(from, bytes, false)) cuda_stub_seen.faults++;
    if (kind == cudaMemcpyHostToDevice) cuda_stub_seen.copies_in++;
    if (kind == cudaMemcpyDeviceToHost) cuda_stub_seen.copies_out++;
}

static void add_node(node n)
{
    if (capture->count == NODES) abort();
    capture->nodes[capture->count++] = n;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)s;
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter("cudaMemcpyAsync");
    if (e == cudaSuccess) {
        check_copy(to, from, bytes, kind);
        if (capture) add_node((node){NULL, to, from, bytes});
        else if (kind != cudaMemcpyDeviceToDevice) memcpy(to, from, bytes); /* else what kernels have not made, gigabytes of it */
    }
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)s;
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter("cudaMemcpy2DAsync");
    if (e == cudaSuccess && height > 0) {
        check_copy(to, from, 1, kind);
        check_copy((char *)to + to_pitch * (height - 1), (const char *)from + from_pitch * (height - 1), width, kind);
    }
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    (void)s;
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter("cudaMemsetAsync");
    if (e == cudaSuccess && !block_at(p, bytes, false)) cuda_stub_seen.faults++;
    else if (e == cudaSuccess && value) memset(p, value, bytes); /* it begins as zeros: nothing is touched for them */
    pthread_mutex_unlock(&lock);
    return e;
}

/* Only benchmarks, gigabytes that nobody reads. */
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    (void)value;
    return cudaMemsetAsync(p, 0, bytes, NULL);
}

/* ---- device, streams, events: handles are never followed */

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return call("cudaGetDevice");
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return call("cudaSetDevice");
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "a stub");
    p->major = 9;
    return call("cudaGetDeviceProperties");
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device)
{
    (void)device;
    *value = a == cudaDevAttrComputeCapabilityMajor ? 9 : a == cudaDevAttrMultiProcessorCount ? 132 : 0;
    return call("cudaDeviceGetAttribute");
}

/* Of the driver's functions kernels need one: that which describes a matrix to the copy engine. */
static int describe_matrix(void)
{
    return call("cuTensorMapEncodeTiled") == cudaSuccess ? 0 : 1;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    int (*const f)(void) = describe_matrix;
    (void)name;
    (void)version;
    (void)flags;
    memcpy(function, &f, sizeof f);
    if (result) *result = cudaDriverEntryPointSuccess;
    return call("cudaGetDriverEntryPointByVersion");
}

static cudaError_t make(const char *function, void **handle)
{
    static char any;
    const cudaError_t e = call(function);
    if (e == cudaSuccess) *handle = &any;
    return e;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    return make("cudaStreamCreateWithFlags", (void **)s);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *v, unsigned flags)
{
    (void)flags;
    return make("cudaEventCreateWithFlags", (void **)v);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t v)
{
    (void)v;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t v, cudaStream_t s)
{
    (void)v;
    (void)s;
    return call("cudaEventRecord");
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t v, unsigned flags)
{
    (void)s;
    (void)v;
    (void)flags;
    return call("cudaStreamWaitEvent");
}

cudaError_t cudaEventSynchronize(cudaEvent_t v)
{
    (void)v;
    return call("cudaEventSynchronize");
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return wait_call("cudaStreamSynchronize");
}

cudaError_t cudaDeviceSynchronize(void)
{
    return wait_call("cudaDeviceSynchronize");
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = lasting ? lasting : last;
    last = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return lasting ? lasting : last;
}

const char *cudaGetErrorString(cudaError_t e)
{
    static const struct {
        cudaError_t code;
        const char *text;
    } texts[] = {
        {cudaErrorMemoryAllocation, "out of memory"},
        {cudaErrorNoDevice, "no CUDA-capable device is detected"},
        {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
        {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
        {cudaErrorLaunchFailure, "unspecified launch failure"},
        {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == e) return texts[i].text;
    return "some error";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

/* ---- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)s;
    (void)mode;
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter("cudaStreamBeginCapture");
    if (e == cudaSuccess) {
        capture = calloc(1, sizeof *capture);
        capture->nodes = calloc(NODES, sizeof *capture->nodes);
        kernel_count = 0;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    (void)s;
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter("cudaStreamEndCapture");
    *g = capture;
    capture = NULL;
    pthread_mutex_unlock(&lock);
    if (e == cudaSuccess) return e;
    if (*g) cudaGraphDestroy(*g);
    *g = NULL;
    return e;
}

/* An instance takes over what is in the graph. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    const cudaError_t e = call("cudaGraphInstantiate");
    if (e != cudaSuccess) return e;
    cudaGraph_t copy = malloc(sizeof *copy);
    *copy = *g;
    g->nodes = NULL;
    *x = (cudaGraphExec_t)copy;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *count)
{
    for (long i = 0; nodes && i < g->count; i++) nodes[i] = (cudaGraphNode_t)(void *)&g->nodes[i];
    *count = (size_t)g->count;
    return call("cudaGraphGetNodes");
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, enum cudaGraphNodeType *type)
{
    *type = ((const node *)(const void *)n)->kernel ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemcpy;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    if (g) free(g->nodes);
    free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    return cudaGraphDestroy((cudaGraph_t)x);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    const cudaGraph_t g = (cudaGraph_t)x;
    (void)s;
    pthread_mutex_lock(&lock);
    const cudaError_t e = enter("cudaGraphLaunch");
    cuda_stub_seen.graph_launches += e == cudaSuccess;
    for (long i = 0; e == cudaSuccess && i < g->count; i++) {
        const node *n = &g->nodes[i];
        if (n->kernel) cuda_stub_seen.kernels++;
        else memcpy(n->to, n->from, n->bytes);
    }
    pthread_mutex_unlock(&lock);
    return e;
}

/* ---- kernels, as nvcc's host code calls them */

typedef struct dim3 dim3;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, dim3 *threads,
                            dim3 *grid, int *shared);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, cudaStream_t s);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared, void *s);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void **args, size_t shared, cudaStream_t s);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, dim3 *threads,
                            dim3 *grid, int *shared)
{
    if (function_count == FUNCTIONS) abort();
    functions[function_count].host = host;
    functions[function_count++].name = name;
}

static __thread struct {
    dim3 grid, threads;
    size_t shared;
    cudaStream_t stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, cudaStream_t s)
{
    configuration.grid = grid;
    configuration.threads = threads;
    configuration.shared = shared;
    configuration.stream = s;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared, void *s)
{
    *grid = configuration.grid;
    *threads = configuration.threads;
    *shared = configuration.shared;
    memcpy(s, &configuration.stream, sizeof configuration.stream);
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    memcpy(kernel, &host, sizeof host);
    return cudaSuccess;
}

static bool is_launchable(const dim3 *n, uint64_t most)
{
    return n->x && n->y && n->z && (uint64_t)n->x * n->y * n->z <= most;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void **args, size_t shared, cudaStream_t s)
{
    const char *name = "?";
    (void)args;
    (void)shared;
    (void)s;
    for (int i = 0; i < function_count; i++)
        if (functions[i].host == (const void *)kernel) name = functions[i].name;
    pthread_mutex_lock(&lock);
    cudaError_t e = enter("cudaLaunchKernel");
    if (!is_launchable(&threads, 1024) || !is_launchable(&grid, UINT64_MAX) || grid.y > 65535 || grid.z > 65535) {
        cuda_stub_seen.faults++;
        if (e == cudaSuccess) e = last = cudaErrorInvalidConfiguration;
    }
    if (e == cudaSuccess && kernel_count < NODES) kernels[kernel_count++] = name;
    if (e == cudaSuccess && capture) {
        add_node((node){.kernel = name});
    } else if (e == cudaSuccess) {
        cuda_stub_seen.kernels++;
        cuda_stub_seen.direct++;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    cudaKernel_t kernel;
    __cudaGetKernel(&kernel, host);
    return __cudaLaunchKernel(kernel, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 threads, void **args, size_t shared, cudaStream_t s)
{
    cudaKernel_t kernel;
    __cudaGetKernel(&kernel, host);
    return __cudaLaunchKernel(kernel, grid, threads, args, shared, s);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute a, int value)
{
    (void)host;
    (void)a;
    (void)value;
    return call("cudaFuncSetAttribute");
}
