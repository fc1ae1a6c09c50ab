/* Calls and how they fail; device, streams and events. */
#include "tests/stub/cudart_impl.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cuda_stub cuda_stub_seen;
pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;
uint64_t stub_memory = (uint64_t)8 << 30;
static struct {
    const char *function;
    long nth;
    int code;
} failure;
static cudaError_t last, lasting;
static bool none; /* no GPU */

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
    if (bytes) stub_memory = strtoull(bytes, NULL, 10);
    if (fail && sscanf(fail, "%63s %ld %d", function, &failure.nth, &failure.code) == 3) failure.function = function;
}

int stub_enter(const char *function)
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

int stub_refuse(int e)
{
    return last = (cudaError_t)e;
}

int stub_call(const char *function)
{
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter(function);
    pthread_mutex_unlock(&stub_lock);
    return e;
}

/* The host waits for the device. */
static cudaError_t wait_call(const char *function)
{
    pthread_mutex_lock(&stub_lock);
    cuda_stub_seen.waits++;
    const cudaError_t e = stub_enter(function);
    pthread_mutex_unlock(&stub_lock);
    return e;
}

void cuda_stub_reset(uint64_t bytes)
{
    pthread_mutex_lock(&stub_lock);
    cuda_stub_seen = (cuda_stub){.live = cuda_stub_seen.live, .pinned = cuda_stub_seen.pinned};
    failure.function = NULL;
    last = lasting = cudaSuccess;
    stub_memory = bytes;
    pthread_mutex_unlock(&stub_lock);
}

void cuda_stub_fail(const char *function, long nth, int code)
{
    failure.function = function;
    failure.nth = nth;
    failure.code = code;
}

/* ---- device, streams, events: handles are never followed */

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return stub_call("cudaGetDevice");
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return stub_call("cudaSetDevice");
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "a stub");
    p->major = 9;
    return stub_call("cudaGetDeviceProperties");
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device)
{
    (void)device;
    *value = a == cudaDevAttrComputeCapabilityMajor ? 9 : a == cudaDevAttrMultiProcessorCount ? 132 : 0;
    return stub_call("cudaDeviceGetAttribute");
}

/* Of the driver's functions kernels need one: that which describes a matrix to the copy engine. */
static int describe_matrix(void)
{
    return stub_call("cuTensorMapEncodeTiled") == cudaSuccess ? 0 : 1;
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
    return stub_call("cudaGetDriverEntryPointByVersion");
}

static cudaError_t make(const char *function, void **handle)
{
    static char any;
    const cudaError_t e = stub_call(function);
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
    return stub_call("cudaEventRecord");
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t v, unsigned flags)
{
    (void)s;
    (void)v;
    (void)flags;
    return stub_call("cudaStreamWaitEvent");
}

cudaError_t cudaEventSynchronize(cudaEvent_t v)
{
    (void)v;
    return stub_call("cudaEventSynchronize");
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
