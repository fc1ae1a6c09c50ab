/* As much of the CUDA runtime as checks of kernels need: device memory is memory, and what is launched has run when the launch returns. */
#include "tests/emulate/engine.h"

#include <algorithm>
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <string>
#include <unordered_map>

static std::unordered_map<void *, size_t> allocated; /* bytes mapped, from the pointer's page on */
enum : size_t { PAGE = 4096, ALIGNED = 256 };

static size_t number(const char *variable, size_t otherwise)
{
    const char *s = getenv(variable);
    return s ? strtoull(s, NULL, 10) : otherwise;
}

/* Whoever runs over the end of device memory meets a page that may not be touched; freed memory may not be touched either. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    const size_t used = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED, pages = (used + PAGE - 1) / PAGE * PAGE;
    char *at = (char *)mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + pages, PAGE, PROT_NONE)) return cudaErrorMemoryAllocation;
    *p = at + (pages - used);
    allocated[*p] = pages + PAGE;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p) return cudaSuccess;
    const auto found = allocated.find(p);
    if (found == allocated.end()) return cudaErrorInvalidValue;
    munmap((void *)((uintptr_t)p / PAGE * PAGE), found->second);
    allocated.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return cudaMalloc(p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    memset(p, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess ? "no error" : "some error";
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* EMULATE_MAJOR: 9 is Hopper; others have no kernels of their own. */
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int)
{
    *value = a == cudaDevAttrComputeCapabilityMajor ? (int)number("EMULATE_MAJOR", 9)
             : a == cudaDevAttrMultiProcessorCount  ? (int)number("EMULATE_PROCESSORS", 16)
                                                    : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **f, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *found)
{
    *f = emu::tile_map_encoder();
    *found = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

static std::unordered_map<const void *, unsigned> allowed; /* dynamic shared memory by kernel */

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute a, int value)
{
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) allowed[kernel] = (unsigned)value;
    return cudaSuccess;
}

void emu::check_dynamic(const void *kernel, unsigned bytes)
{
    const unsigned most = allowed.count(kernel) ? allowed[kernel] : 48 << 10;
    if (bytes <= most) return;
    fprintf(stderr, "emulation: %s: %u bytes of dynamic shared memory, %u allowed\n", kernel_name(kernel), bytes, most);
    exit(3);
}

/* The program exports its symbols for this. */
const char *emu::kernel_name(const void *kernel)
{
    static std::unordered_map<const void *, std::string> names;
    std::string &name = names[kernel];
    Dl_info info;
    if (!name.empty()) return name.c_str();
    name = "a kernel";
    if (!dladdr(kernel, &info) || !info.dli_sname) return name.c_str();
    char *text = abi::__cxa_demangle(info.dli_sname, NULL, NULL, NULL);
    name = text ? text : info.dli_sname;
    free(text);
    const size_t end = name.find(">("), parameters = end == std::string::npos ? name.find('(') : end + 1;
    return name.erase(std::min(parameters, name.size())).c_str();
}
