/* Threads cancelled in the midst of calls on files of the current directory, compiled with -fexceptions: cleanup is by destructors, for
 * which the unwinder must find its way from wherever the thread was. Argument: how many of each kind. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
enum { KINDS = 6 };
struct victim { int file, pipe, kind; atomic_int started, cleaned; };
static void clean(void *a) { struct victim *v = a; atomic_fetch_add(&v->cleaned, 1); }
__attribute__((noinline)) static void inner(struct victim *v) { char text[64]; pthread_cleanup_push(clean, v); v->started = 1;
    for (unsigned i = 0;; i++) switch (v->kind) {
        case 0: pread(v->file, text, 6, 0); break;
        case 1: read(v->pipe, text, 1); break;
        case 2: { struct stat st; fstat(v->file, &st); if (i % 16 == 0) pthread_testcancel(); break; }
        case 3: pwrite(v->file, text, 6, 0); break;
        case 4: fsync(v->file); break;
        default: { int f = openat(AT_FDCWD, "x", O_RDONLY); pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, 0); close(f); pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, 0); }
    }
    pthread_cleanup_pop(0); }
static void *victim(void *a) { struct victim *v = a; pthread_cleanup_push(clean, v); inner(v); pthread_cleanup_pop(0); return 0; }
int main(int argc, char **argv) {
    int bad[KINDS] = {0}, n = atoi(argv[1]); unsigned random = 1; if (argc != 2 || mkfifo("p", 0600)) return 2;
    for (int i = 0; i < n * KINDS; i++) {
        struct victim v = {.kind = i % KINDS}; v.file = open("x", O_RDWR | O_CREAT, 0644); v.pipe = open("p", O_RDWR); pthread_t t; if (pthread_create(&t, 0, victim, &v)) return 3; while (!v.started) sched_yield();
        random = random * 1103515245 + 12345; for (volatile unsigned k = (random >> 16) % 3000; k; k--) ; void *r; pthread_cancel(t); pthread_join(t, &r); bad[i % KINDS] += v.cleaned != 2 || r != PTHREAD_CANCELED; close(v.file); close(v.pipe);
    }
    for (int i = 0; i < KINDS; i++) if (bad[i]) printf("kind %d: %d of %d were not cleaned up\n", i, bad[i], n);
    printf("done\n"); return 0;
}
