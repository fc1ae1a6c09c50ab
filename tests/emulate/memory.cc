/* Shared memory: what a block's addresses are, and what it begins with. */
#include "tests/emulate/blocks.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

enum : size_t { MEMORY = 1 << 18, FIRST = 1024, STATICS = 1 << 20, RANK_SHIFT = 24 };

/* The program's thread_local variables, its first part of a thread's. */
static size_t variables_bytes, variables_aligned;

static int read_header(struct dl_phdr_info *program, size_t, void *)
{
    for (int i = 0; i < program->dlpi_phnum; i++)
        if (program->dlpi_phdr[i].p_type == PT_TLS) {
            variables_bytes = program->dlpi_phdr[i].p_memsz;
            variables_aligned = program->dlpi_phdr[i].p_align;
        }
    return 1; /* the program is the first */
}

static void find_variables(running_block &b)
{
    alignas(1024) static thread_local char anchor;
    char *const self_at = (char *)(b.thread = __builtin_thread_pointer());
    if (!variables_bytes) dl_iterate_phdr(read_header, NULL);
    const size_t up = variables_aligned - 1;
#if defined(__x86_64__)
    b.variables = self_at - ((variables_bytes + up) & ~up);
#else
    b.variables = self_at + ((16 + up) & ~up);
#endif
    b.statics = (char *)((uintptr_t)&anchor - STATICS / 2);
    if ((size_t)(&anchor - b.variables) >= variables_bytes) abort();
}

void find_memory(running_block &b)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = (char *)mmap(NULL, MEMORY + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + MEMORY, page, PROT_NONE)) abort();
    b.dynamic = p + MEMORY;
    find_variables(b);
}

/* The end of dynamic memory is, but for what alignment needs, that of the mapping. */
void prepare_memory(running_block &b, unsigned bytes)
{
    char *end = (char *)(((uintptr_t)b.dynamic + b.dynamic_bytes + 1023) & ~(uintptr_t)1023);
    b.dynamic = end - (bytes + 1023) / 1024 * 1024;
    b.dynamic_bytes = bytes;
    memset(b.dynamic, 0xa5, bytes);
    if (below(4) == 0) memset(b.variables, 0xa5, variables_bytes); /* all are kernels'; else the last block's are left */
    b.begun = false;
}

uint32_t shared_address(const void *p)
{
    const running_block &b = blocks[here.rank];
    const size_t in_dynamic = (size_t)((const char *)p - b.dynamic), in_statics = (size_t)((const char *)p - b.statics);
    if (in_dynamic <= b.dynamic_bytes) return (uint32_t)(here.rank << RANK_SHIFT | (FIRST + in_dynamic));
    if (in_statics >= STATICS) fail("takes the shared address of what is not shared");
    return (uint32_t)(here.rank << RANK_SHIFT | (STATICS + in_statics));
}

void *at(uint32_t address)
{
    const uint32_t rank = address >> RANK_SHIFT, offset = address & ((1 << RANK_SHIFT) - 1);
    if (rank >= here.cluster) fail("uses an address of no block");
    const running_block &b = blocks[rank];
    if (!b.begun) fail("or its copy uses shared memory of a block that has not begun");
    if (b.living == 0) fail("or its copy uses shared memory of a block that has ended");
    if (offset >= STATICS) return b.statics + (offset - STATICS);
    if (offset < FIRST || offset - FIRST >= b.dynamic_bytes) fail("uses an address outside of shared memory");
    return b.dynamic + (offset - FIRST);
}

uint32_t map_address(uint32_t address, unsigned rank)
{
    if (rank >= here.cluster) fail("maps to no block of the cluster");
    return (address & ((1 << RANK_SHIFT) - 1)) | rank << RANK_SHIFT;
}

void *dynamic_memory()
{
    return blocks[here.rank].dynamic;
}

} // namespace emu
