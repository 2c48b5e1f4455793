// System calls made with instructions of the program's own, in the program and in a library that it loads.
//   inline FILE [LIBRARY TIMES]
// Compiled with -DLIBRARY it is that library.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

static inline long call4(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

// Not inlined, so that vector registers live across calls are this function's to keep.
__attribute__((noinline)) int work(const char *path) {
    char bytes[64];
    double a[8];
    for (int i = 0; i < 8; i++) a[i] = i * 1.5;
    int file = call4(SYS_open, (long)path, O_RDWR | O_CREAT, 0644, 0);
    if (file < 0) return file;
    double sum = 0;
    for (int i = 0; i < 8; i++) sum += a[i];
    if (call4(SYS_write, file, (long)"inline", 6, 0) != 6) return -1000;
    if (call4(SYS_pread64, file, (long)bytes, 64, 0) != 6 || memcmp(bytes, "inline", 6)) return -2000;
    if (call4(SYS_lseek, file, 0, 1, 0) != 6) return -3000;
    int copy = call4(SYS_fcntl, file, F_DUPFD, 40, 0);
    if (copy < 40 || call4(SYS_close, copy, 0, 0, 0) != 0) return -4000;
    if (call4(SYS_close, file, 0, 0, 0) != 0 || call4(SYS_close, file, 0, 0, 0) != -9) return -5000;
    return sum == 42.0 ? 0 : -6000;
}

#ifndef LIBRARY
int main(int count, char **arguments) {
    printf("program %d\n", work(arguments[1]));
    int times = count > 3 ? atoi(arguments[3]) : 0;
    for (int i = 0; i < times; i++) {
        void *library = dlopen(arguments[2], RTLD_NOW);
        if (!library) { puts(dlerror()); return 1; }
        int result = ((int (*)(const char *))dlsym(library, "work"))(arguments[1]);
        if (i == 0 || result) printf("library %d\n", result);
        dlclose(library);
    }
    return 0;
}
#endif
