/* Everything at once, in the current directory: threads on small stacks that write and check their files and count under locks, while
 * signals arrive (restarting and not, on alternate stacks, with handlers that use files, that jump away), threads are
 * cancelled, and others fork, vfork, clone onto tiny stacks, spawn and execute with a cleared environment.
 *
 *   storm SEED ROUNDS [KINDS]
 *
 * No call on a file may be interrupted, fail or be done by halves; no count may be lost; each cleanup runs once; no descriptor stays.
 * Prints "ok", or says what was wrong. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { char text[300]; int n = snprintf(text, sizeof text, "FAILED %s:%d %s (errno %d)\n", __func__, __LINE__, #x, errno); write(1, text, n); _exit(1); } } while (0)
#ifdef __EXCEPTIONS
enum { VICTIMS = 3 }; /* cleanup is by destructors */
#else
enum { VICTIMS = 4 };
#endif
enum { WORKERS = 4, FILE_BYTES = 20000, STACK_BYTES = 32768, ALTERNATE_BYTES = 16384, TINY_BYTES = 8192 };

static int rounds, common; /* a file that never changes */
static const char *kinds = "012345"; /* of children */
static atomic_int running, handled, jumped, cleaned, cancelled, counted[2];
static __thread struct { sigjmp_buf jump; volatile sig_atomic_t may_jump; unsigned random; } own;

static unsigned next(unsigned *state) { *state ^= *state << 13; *state ^= *state >> 17; *state ^= *state << 5; return *state; }
static void make(const char *name, const char *text) { int f = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644); CHECK(f >= 0); CHECK(write(f, text, strlen(text)) == (ssize_t)strlen(text)); CHECK(close(f) == 0); }

static void on_restarting(int s) { (void)s;
    int before = errno, f = open("handled", O_CREAT | O_WRONLY | O_APPEND, 0644); CHECK(f >= 0); CHECK(write(f, "h", 1) == 1); CHECK(close(f) == 0);
    atomic_fetch_add(&handled, 1); errno = before;
    if (own.may_jump && next(&own.random) % 4 == 0) { own.may_jump = 0; atomic_fetch_add(&jumped, 1); siglongjmp(own.jump, 1); }
}
static void on_plain(int s) { (void)s; int before = errno; char text[6]; struct stat st; CHECK(pread(common, text, 6, 0) == 6 && !memcmp(text, "common", 6)); CHECK(fstat(common, &st) == 0 && st.st_size == 6); errno = before; }

/* One more, under a lock that processes share. Waiting for it may be interrupted. */
static void count(int kind) {
    int f = open(kind ? "counter1" : "counter0", O_RDWR); CHECK(f >= 0); struct flock lock = {F_WRLCK, SEEK_SET, 0, 1, 0};
    for (;;) { int r = kind ? fcntl(f, F_OFD_SETLKW, &lock) : flock(f, LOCK_EX); if (r == 0) break; CHECK(errno == EINTR); }
    long n = 0; CHECK(pread(f, &n, sizeof n, 0) == sizeof n); n++; CHECK(pwrite(f, &n, sizeof n, 0) == sizeof n);
    /* A child that was forked meanwhile has the description, and with it the lock, until it ends: so not by closing. */
    lock.l_type = F_UNLCK; CHECK((kind ? fcntl(f, F_OFD_SETLK, &lock) : flock(f, LOCK_UN)) == 0);
    CHECK(close(f) == 0);
}

static void *worker(void *argument) {
    int number = (int)(long)argument; own.random = (unsigned)number * 2654435761u + (unsigned)rounds; unsigned random = own.random ^ 77;
    char *alternate = mmap(0, ALTERNATE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); stack_t stack = {.ss_sp = alternate, .ss_size = ALTERNATE_BYTES}; CHECK(sigaltstack(&stack, 0) == 0);
    char *model = calloc(1, FILE_BYTES), *bytes = malloc(FILE_BYTES), name[2][20]; snprintf(name[0], 20, "w%d", number); snprintf(name[1], 20, "v%d", number); int which = 0; volatile int file = open(name[0], O_CREAT | O_RDWR | O_TRUNC, 0644); CHECK(file >= 0); CHECK(ftruncate(file, FILE_BYTES) == 0);
    for (volatile int i = 0; i < rounds; i++) {
        volatile unsigned kind = next(&random) % 8, at = next(&random) % FILE_BYTES, length = 1 + next(&random) % 5000; if (at + length > FILE_BYTES) length = FILE_BYTES - at;
        volatile int r = -1;
        if (kind < 3) { memset(bytes, (int)(next(&random) & 255), length); memcpy(model + at, bytes, length);
            /* What a handler jumped out of is done again: it was done or not. */
            sigsetjmp(own.jump, 1); own.may_jump = 1; r = (int)pwrite(file, bytes, length, at); own.may_jump = 0; CHECK(r == (int)length);
        } else if (kind < 5) {
            sigsetjmp(own.jump, 1); own.may_jump = 1; r = (int)pread(file, bytes, length, at); own.may_jump = 0; CHECK(r == (int)length); CHECK(!memcmp(bytes, model + at, length));
        } else if (kind == 5) {
            CHECK(rename(name[which], name[!which]) == 0); which = !which; CHECK(close(file) == 0); file = open(name[which], O_RDWR | O_CLOEXEC); CHECK(file >= 0);
            struct stat st; sigsetjmp(own.jump, 1); own.may_jump = 1; r = fstat(file, &st); own.may_jump = 0; CHECK(r == 0 && st.st_size == FILE_BYTES);
        } else if (kind == 6) { count(i & 1); atomic_fetch_add(&counted[i & 1], 1);
        } else { char *m = mmap(0, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); CHECK(m != MAP_FAILED); CHECK(!memcmp(m, model, FILE_BYTES)); m[at] = model[at] = (char)i; CHECK(munmap(m, FILE_BYTES) == 0); }
    }
    CHECK(pread(file, bytes, FILE_BYTES, 0) == FILE_BYTES && !memcmp(bytes, model, FILE_BYTES)); CHECK(close(file) == 0); free(model); free(bytes);
    stack.ss_flags = SS_DISABLE; CHECK(sigaltstack(&stack, 0) == 0); munmap(alternate, ALTERNATE_BYTES); atomic_fetch_sub(&running, 1); return 0;
}

struct victim { int file, pipe, kind; atomic_int started; };
static void clean(void *argument) { struct victim *v = argument; char c; CHECK(pread(v->file, &c, 1, 0) == 1); if (next(&own.random) % 2) make("cleaned", "x"); atomic_fetch_add(&cleaned, 1); }
static void inner(struct victim *v) { char text[64]; pthread_cleanup_push(clean, v); v->started = 1;
    for (unsigned i = 0;; i++) switch (v->kind) {
        case 0: CHECK(pread(v->file, text, 6, 0) == 6); break;
        case 1: read(v->pipe, text, 1); break; /* blocks in a named pipe of the directory */
        case 2: { struct stat st; CHECK(fstat(v->file, &st) == 0); if (i % 16 == 0) pthread_testcancel(); break; }
        default: { struct stat st; CHECK(stat("common", &st) == 0); } /* asynchronously: at any instruction, which destructors do not cover */
    }
    pthread_cleanup_pop(0); }
static void *victim(void *argument) { struct victim *v = argument; own.random = (unsigned)v->kind + 5; if (v->kind == 3) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0); pthread_cleanup_push(clean, v); inner(v); pthread_cleanup_pop(0); return 0; }
static void *canceller(void *argument) { (void)argument; own.random = 99;
    /* The C library waits for ever where a handler that meets a cancelled thread makes a call that is a cancellation point. */
    sigset_t all; sigfillset(&all); CHECK(pthread_sigmask(SIG_SETMASK, &all, 0) == 0);
    for (int i = 0; i < rounds / 12 + 4; i++) {
        struct victim v = {.kind = i % VICTIMS}; v.file = open("common", O_RDONLY | O_CLOEXEC); v.pipe = open("pipe", O_RDWR | O_CLOEXEC); CHECK(v.file >= 0 && v.pipe >= 0);
        pthread_t t; CHECK(pthread_create(&t, 0, victim, &v) == 0); while (!v.started) sched_yield(); for (unsigned k = next(&own.random) % 30; k; k--) sched_yield();
        void *r; CHECK(pthread_cancel(t) == 0); CHECK(pthread_join(t, &r) == 0); CHECK(r == PTHREAD_CANCELED); atomic_fetch_add(&cancelled, 1); CHECK(close(v.file) == 0 && close(v.pipe) == 0);
    }
    atomic_fetch_sub(&running, 1); return 0; }

static int on_tiny_stack(void *argument) { int f = open("tiny", O_CREAT | O_WRONLY | O_APPEND, 0644); if (f < 0 || write(f, "t", 1) != 1 || close(f)) syscall(SYS_exit, 9); struct stat st; if (stat("common", &st)) syscall(SYS_exit, 8); syscall(SYS_exit, (int)(long)argument); return 0; }
static void await(pid_t child, int wanted) { int status; CHECK(child > 0); while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR); if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted) { printf("child: status %x instead of exit %d\n", status, wanted); fflush(stdout); } CHECK(WIFEXITED(status) && WEXITSTATUS(status) == wanted); }
static void *forker(void *argument) { own.random = (unsigned)(long)argument; char *none[] = {0}, *truth[] = {"true", 0}, *tiny = mmap(0, TINY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(tiny != MAP_FAILED);
    for (int i = 0; i < rounds / 8 + 8; i++) { pid_t p; switch (kinds[next(&own.random) % strlen(kinds)] - '0') {
        case 0: p = fork(); if (p == 0) { char name[20] = "c0"; name[1] += (char)(getpid() % 64); for (int k = 0; k < 5; k++) { int f = open(name, O_CREAT | O_RDWR | O_TRUNC, 0644); if (f < 0 || write(f, "abc", 3) != 3 || close(f)) _exit(7); } count(0); count(1); _exit(3); } await(p, 3); atomic_fetch_add(&counted[0], 1); atomic_fetch_add(&counted[1], 1); break;
        case 1: p = fork(); if (p == 0) { execve("/bin/true", truth, none); _exit(7); } await(p, 0); break;
        case 2: p = vfork(); if (p == 0) { close(common); execve(i % 2 ? "/bin/true" : "./nothing", truth, none); _exit(5); } await(p, i % 2 ? 0 : 5); { char c; CHECK(pread(common, &c, 1, 0) == 1); } break;
        case 3: p = clone(on_tiny_stack, tiny + TINY_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)(long)(i % 7)); await(p, i % 7); break;
        case 4: p = clone(on_tiny_stack, tiny + TINY_BYTES, SIGCHLD, (void *)(long)(i % 7)); await(p, i % 7); break;
        default: { posix_spawn_file_actions_t actions; char *sh[] = {"sh", "-c", "echo spawned; exec echo more", 0}; posix_spawn_file_actions_init(&actions); posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY | O_APPEND, 0644); posix_spawn_file_actions_addclose(&actions, common); CHECK(posix_spawn(&p, "/bin/sh", &actions, 0, sh, none) == 0); posix_spawn_file_actions_destroy(&actions); await(p, 0); }
    } }
    munmap(tiny, TINY_BYTES); atomic_fetch_sub(&running, 1); return 0; }

static int descriptors(void) { int n = 0; DIR *d = opendir("/proc/self/fd"); while (readdir(d)) n++; closedir(d); return n; }
static long number_in(const char *name) { long n = -1; int f = open(name, O_RDONLY); CHECK(read(f, &n, sizeof n) == sizeof n); close(f); return n; }

int main(int argc, char **argv) {
    CHECK(argc >= 3); if (argc > 3) kinds = argv[3]; unsigned random = (unsigned)atoi(argv[1]) * 2654435761u + 1; rounds = atoi(argv[2]);
    make("common", "common"); long zero = 0; for (int k = 0; k < 2; k++) { int f = open(k ? "counter1" : "counter0", O_CREAT | O_RDWR | O_TRUNC, 0644); CHECK(write(f, &zero, sizeof zero) == sizeof zero); close(f); }
    unlink("pipe"); CHECK(mkfifo("pipe", 0600) == 0); common = open("common", O_RDONLY); CHECK(common >= 0); int before = descriptors();
    struct sigaction restarting = {.sa_handler = on_restarting, .sa_flags = SA_RESTART | SA_ONSTACK}, plain = {.sa_handler = on_plain, .sa_flags = SA_ONSTACK}; CHECK(sigaction(SIGUSR1, &restarting, 0) == 0 && sigaction(SIGUSR2, &plain, 0) == 0 && sigaction(SIGALRM, &plain, 0) == 0);
    pthread_attr_t small; pthread_attr_init(&small); CHECK(pthread_attr_setstacksize(&small, STACK_BYTES) == 0);
    pthread_t all[WORKERS + 3]; running = WORKERS + 3;
    for (int i = 0; i < WORKERS; i++) CHECK(pthread_create(&all[i], &small, worker, (void *)(long)(next(&random) % 10000 * WORKERS + (unsigned)i)) == 0);
    CHECK(pthread_create(&all[WORKERS], 0, forker, (void *)(long)(next(&random) | 1)) == 0); CHECK(pthread_create(&all[WORKERS + 1], 0, forker, (void *)(long)(next(&random) | 1)) == 0); CHECK(pthread_create(&all[WORKERS + 2], 0, canceller, 0) == 0);
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}}; CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
    while (running > 0) { for (int k = 0; k < 4; k++) pthread_kill(all[next(&random) % (k ? WORKERS : WORKERS + 2)], next(&random) % 3 ? SIGUSR1 : SIGUSR2); usleep(20 + next(&random) % 100); }
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0); for (int i = 0; i < WORKERS + 3; i++) CHECK(pthread_join(all[i], 0) == 0);
    struct stat st; CHECK(stat("handled", &st) == 0); if (st.st_size != handled) printf("%ld bytes of %d handlers\n", (long)st.st_size, handled); fflush(stdout); CHECK(st.st_size == handled); CHECK(cleaned == 2 * cancelled);
    for (int k = 0; k < 2; k++) CHECK(number_in(k ? "counter1" : "counter0") == counted[k]);
    CHECK(descriptors() == before); sigset_t mask; CHECK(sigprocmask(SIG_BLOCK, 0, &mask) == 0 && !sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGUSR2));
    if (getenv("STORM_SAYS")) printf("%d handled, %d jumped, %d cancelled, %d + %d counted\n", handled, jumped, cancelled, counted[0], counted[1]);
    printf("ok\n"); return 0;
}
