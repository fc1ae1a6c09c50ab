#include "tests/emulate/fibers.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <vector>
#if defined __x86_64__
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace emu {

enum : size_t { STACK = 256 << 10, PAGE = 4096, SPREAD = 8192 };

#if defined __x86_64__
enum { SAVED = 6 }; /* registers, below the address where a stack goes on */
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emu_switch, . - emu_switch
)");
enum { WORDS = SAVED + 2, GOES_ON = SAVED }; /* the last word: as if start had been called */
#elif defined __aarch64__
asm(R"(
.text
.globl emu_switch
.type emu_switch, %function
emu_switch:
    stp x19, x20, [sp, -160]!
    stp x21, x22, [sp, 16]
    stp x23, x24, [sp, 32]
    stp x25, x26, [sp, 48]
    stp x27, x28, [sp, 64]
    stp x29, x30, [sp, 80]
    stp d8, d9, [sp, 96]
    stp d10, d11, [sp, 112]
    stp d12, d13, [sp, 128]
    stp d14, d15, [sp, 144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, 16]
    ldp x23, x24, [sp, 32]
    ldp x25, x26, [sp, 48]
    ldp x27, x28, [sp, 64]
    ldp x29, x30, [sp, 80]
    ldp d8, d9, [sp, 96]
    ldp d10, d11, [sp, 112]
    ldp d12, d13, [sp, 128]
    ldp d14, d15, [sp, 144]
    ldp x19, x20, [sp], 160
    ret
.size emu_switch, . - emu_switch
)");
enum { WORDS = 20, GOES_ON = 11 };
#endif

static std::vector<void *> unused;

void *begin_stack(void *stack, void (*start)())
{
    void **sp = (void **)stack - WORDS;
    memset(sp, 0, WORDS * sizeof *sp);
    sp[GOES_ON] = (void *)start;
    return sp;
}

/* Where stacks begin differs, lest they all meet in the same lines of the cache. */
void *take_stack()
{
    static unsigned made;
    if (unused.empty()) {
        char *p = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE)) {
            fprintf(stderr, "emulation: no memory for stacks\n");
            exit(1);
        }
        unused.push_back(p + STACK - made++ * 1088 % SPREAD / 64 * 64);
    }
    void *stack = unused.back();
    unused.pop_back();
    return stack;
}

void give_stack(void *stack)
{
    unused.push_back(stack);
}

void borrow_variables(void *of)
{
#if defined __x86_64__
    enum { HAS_INSTRUCTION = 2 }; /* of AT_HWCAP2: the kernel lets programs use it */
    static const bool has_instruction = getauxval(AT_HWCAP2) & HAS_INSTRUCTION;
    if (has_instruction) asm volatile("wrfsbase %0" : : "r"(of) : "memory");
    else syscall(SYS_arch_prctl, ARCH_SET_FS, of);
#elif defined __aarch64__
    asm volatile("msr tpidr_el0, %0" : : "r"(of) : "memory");
#endif
}

} // namespace emu
