/* Answers CPUID as an older x86 processor does, so that a library chooses the kernels it has there.

Preloaded into a program whose libraries have a breakpoint (int3, nop) where CPUID was. EARLIER names
the processor: `haswell` has AVX2 only, `skylake` has AVX512 without VNNI. CPUINFO is the file that
stands for /proc/cpuinfo. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define HASWELL_EBX 0x000007a9u /* leaf 7: FSGSBASE, BMI1, AVX2, SMEP, BMI2, ERMS, INVPCID */
#define SKYLAKE_EBX (HASWELL_EBX | 0xd0030000u) /* AVX512 F, DQ, CD, BW, VL */

static unsigned int known_ebx = HASWELL_EBX;

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned int leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
    (void)number, (void)info;
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 7) {
        b = part ? 0 : b & known_ebx;
        a = c = d = 0; /* VNNI, AMX, AVX-VNNI, and further parts */
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
}

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("EARLIER");
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (name && !strcmp(name, "skylake")) known_ebx = SKYLAKE_EBX;
    sigaction(SIGTRAP, &action, NULL);
}

static int open_by(const char *symbol, const char *path, int flags, mode_t mode) {
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, symbol);
    const char *other = strcmp(path, "/proc/cpuinfo") ? NULL : getenv("CPUINFO");
    return next(other ? other : path, flags, mode);
}

#define OPEN(symbol)                                                   \
    int symbol(const char *path, int flags, ...) {                     \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
        va_end(rest);                                                  \
        return open_by(#symbol, path, flags, mode);                    \
    }

OPEN(open)
OPEN(open64)
