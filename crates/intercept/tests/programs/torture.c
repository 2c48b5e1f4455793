/* What a rewritten C library must not break: signals, cancellation, vfork, clone, tiny stacks, jumps, vector registers.
 * Prints "ok NAME" for each part and exits with 0, or says what was wrong and exits with 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { printf("FAILED %s:%d %s (errno %d)\n", __func__, __LINE__, #x, errno); fflush(stdout); _exit(1); } } while (0)
extern char **environ;
static const char *file = "/etc/passwd";
static volatile int got;
static void count(int s) { (void)s; got++; }
static void install(int sig, void (*f)(int), int flags) {
    struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = f; a.sa_flags = flags; CHECK(sigaction(sig, &a, 0) == 0);
}

static void signals_old_actions(void) {
    struct sigaction a, o; memset(&a, 0, sizeof a); a.sa_handler = count; a.sa_flags = SA_RESTART | SA_NODEFER;
    sigaddset(&a.sa_mask, SIGUSR2);
    CHECK(sigaction(SIGUSR1, &a, &o) == 0 && o.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGUSR1, 0, &o) == 0 && o.sa_handler == count && (o.sa_flags & ~0x04000000) == (SA_RESTART | SA_NODEFER));
    CHECK(sigismember(&o.sa_mask, SIGUSR2));
    got = 0; raise(SIGUSR1); CHECK(got == 1);
    CHECK(signal(SIGUSR1, SIG_IGN) == count); raise(SIGUSR1); CHECK(got == 1);
    CHECK(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    CHECK(sigaction(SIGKILL, &a, 0) == -1 && errno == EINVAL);
    CHECK(sigaction(SIGSEGV, 0, &o) == 0 && o.sa_handler == SIG_DFL);
    errno = 0; CHECK(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, 0, 8) == -1 && errno == EFAULT);
    install(SIGUSR1, count, SA_RESETHAND); got = 0; raise(SIGUSR1); CHECK(got == 1);
    CHECK(sigaction(SIGUSR1, 0, &o) == 0 && o.sa_handler == SIG_DFL);
}

static void signals_interrupt(void) {
    int p[2]; char c; CHECK(pipe(p) == 0);
    install(SIGALRM, count, 0);
    /* Again and again: the first can come before the call waits. */
    struct itimerval t = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}}; got = 0; setitimer(ITIMER_REAL, &t, 0);
    CHECK(read(p[0], &c, 1) == -1 && errno == EINTR && got >= 1);
    setitimer(ITIMER_REAL, &off, 0);
    close(p[0]); close(p[1]);
}

static sigjmp_buf jump;
static void jump_out(int s) { siglongjmp(jump, s); }
static void signals_jump_out_of_a_blocked_call(void) {
    int p[2]; char c; CHECK(pipe(p) == 0); install(SIGALRM, jump_out, SA_RESTART);
    struct itimerval t = {{0, 0}, {0, 10000}};
    for (volatile int i = 0; i < 3; i++) if (sigsetjmp(jump, 1) == 0) { setitimer(ITIMER_REAL, &t, 0); read(p[0], &c, 1); CHECK(0); }
    /* and afterwards everything still works */
    struct stat st; CHECK(stat(file, &st) == 0);
    close(p[0]); close(p[1]);
}

static void signals_storm(void) {
    install(SIGALRM, count, SA_RESTART); got = 0;
    struct itimerval t = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &t, 0);
    for (int i = 0; i < 60000 || (got <= 50 && i < 6000000); i++) {
        char b[64]; int f = open(file, O_RDONLY); CHECK(f >= 0); CHECK(read(f, b, 64) == 64); struct stat st; CHECK(fstat(f, &st) == 0); CHECK(close(f) == 0);
    }
    setitimer(ITIMER_REAL, &off, 0); CHECK(got > 50);
    sigset_t m; CHECK(sigprocmask(0, 0, &m) == 0 && !sigismember(&m, SIGALRM));
}

static void fault_in_handler(int s, siginfo_t *i, void *c) { (void)c; CHECK(s == SIGSEGV && i->si_addr == (void *)0x10); siglongjmp(jump, 1); }
static void signals_own_fault(void) {
    struct sigaction a; memset(&a, 0, sizeof a); a.sa_sigaction = fault_in_handler; a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    static char stack[65536]; stack_t ss = {stack, 0, sizeof stack}, old; CHECK(sigaltstack(&ss, 0) == 0);
    CHECK(sigaltstack(0, &old) == 0 && old.ss_sp == stack && old.ss_size == sizeof stack);
    CHECK(sigaction(SIGSEGV, &a, 0) == 0);
    for (volatile int i = 0; i < 3; i++) if (sigsetjmp(jump, 1) == 0) { *(volatile int *)0x10 = 1; CHECK(0); }
    signal(SIGSEGV, SIG_DFL);
    pid_t p = fork(); if (p == 0) { *(volatile int *)0x10 = 1; _exit(0); }
    int st; CHECK(waitpid(p, &st, 0) == p && WIFSIGNALED(st) && WTERMSIG(st) == SIGSEGV);
    p = fork(); if (p == 0) { raise(SIGSEGV); _exit(0); }
    CHECK(waitpid(p, &st, 0) == p && WIFSIGNALED(st) && WTERMSIG(st) == SIGSEGV);
}

static void on_stack_calls(int s) {
    (void)s; char fill[1024]; memset(fill, 0x5a, sizeof fill);
    stack_t o; CHECK(sigaltstack(0, &o) == 0 && (o.ss_flags & SS_ONSTACK));
    for (int i = 0; i < 2000; i++) { int f = open(file, O_RDONLY); close(f); }
    for (unsigned i = 0; i < sizeof fill; i++) CHECK(fill[i] == 0x5a);
    got++;
}
static void signals_on_alternate_stack(void) {
    static char stack[65536]; stack_t ss = {stack, 0, sizeof stack}; CHECK(sigaltstack(&ss, 0) == 0);
    install(SIGUSR1, on_stack_calls, SA_ONSTACK); install(SIGALRM, count, SA_ONSTACK | SA_RESTART);
    struct itimerval t = {{0, 150}, {0, 150}}, off = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &t, 0);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    setitimer(ITIMER_REAL, &off, 0);
}

static int cleaned;
static volatile int started;
static void cleanup(void *a) { cleaned += (int)(long)a; }
static int blocked_pipe[2];
static void *blocked(void *a) {
    char c; (void)a; pthread_cleanup_push(cleanup, (void *)1); pthread_cleanup_push(cleanup, (void *)10);
    started = 1; read(blocked_pipe[0], &c, 1);
    pthread_cleanup_pop(0); pthread_cleanup_pop(0); return 0;
}
static void *blocked_open(void *a) {
    pthread_cleanup_push(cleanup, (void *)1); pthread_cleanup_push(cleanup, (void *)10);
    started = 1; open(a, O_RDONLY);
    pthread_cleanup_pop(0); pthread_cleanup_pop(0); return 0;
}
static void *spinning(void *a) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0); pthread_cleanup_push(cleanup, (void *)11);
    started = 1; for (;;) { int f = open(a, O_RDONLY); if (f >= 0) close(f); }
    pthread_cleanup_pop(0); return 0;
}
static void cancellation(void) {
    CHECK(pipe(blocked_pipe) == 0);
    char name[64]; snprintf(name, 64, "/tmp/torture-fifo-%d", getpid()); unlink(name); CHECK(mkfifo(name, 0600) == 0);
    struct { void *(*f)(void *); void *a; } kinds[] = {{blocked, 0}, {blocked_open, name}, {spinning, "/nonexistent"}};
    for (int k = 0; k < 3; k++) for (int i = 0; i < 5; i++) {
        pthread_t t; void *r; cleaned = started = 0; CHECK(pthread_create(&t, 0, kinds[k].f, kinds[k].a) == 0);
        while (!started) usleep(500); usleep(2000); CHECK(pthread_cancel(t) == 0); CHECK(pthread_join(t, &r) == 0);
        CHECK(r == PTHREAD_CANCELED); CHECK(cleaned == 11);
    }
    unlink(name);
}

static void *opener(void *a) {
    for (int i = 0; i < 300; i++) { int f = open(file, O_RDONLY | O_CLOEXEC); CHECK(f >= 0); char b[16]; CHECK(pread(f, b, 16, 0) == 16); close(f); }
    return a;
}
static void threads_small_stacks(void) {
    pthread_attr_t at; pthread_attr_init(&at); CHECK(pthread_attr_setstacksize(&at, 16384) == 0);
    for (int round = 0; round < 20; round++) {
        pthread_t t[8]; for (int i = 0; i < 8; i++) CHECK(pthread_create(&t[i], &at, opener, 0) == 0);
        for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
    }
}

static int clone_child(void *a) { (void)a; struct stat st; if (stat(file, &st)) _exit(9); syscall(SYS_exit, 7); return 0; }
static void clone_on_new_stack(void) {
    char *s = mmap(0, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); int st; CHECK(s != MAP_FAILED);
    int p = clone(clone_child, s + 65536, SIGCHLD, 0); CHECK(p > 0); CHECK(waitpid(p, &st, 0) == p && WIFEXITED(st) && WEXITSTATUS(st) == 7);
    p = clone(clone_child, s + 65536, CLONE_VM | CLONE_VFORK | SIGCHLD, 0); CHECK(p > 0); CHECK(waitpid(p, &st, 0) == p && WEXITSTATUS(st) == 7);
    struct stat sb; CHECK(stat(file, &sb) == 0);
}

static void vforks(void) {
    for (int i = 0; i < 50; i++) {
        int st; pid_t p = vfork();
        if (p == 0) { close(0); signal(SIGUSR1, SIG_DFL); char *av[] = {"true", 0}, *ev[] = {0}; execve(i % 2 ? "/bin/true" : "/nonexistent", av, ev); _exit(5); }
        CHECK(p > 0 && waitpid(p, &st, 0) == p && WIFEXITED(st) && WEXITSTATUS(st) == (i % 2 ? 0 : 5));
    }
    got = 0; install(SIGUSR1, count, 0); pid_t p = vfork(); int st;
    if (p == 0) { signal(SIGUSR1, SIG_IGN); _exit(0); }
    waitpid(p, &st, 0); raise(SIGUSR1); CHECK(got == 1);
}

static void spawns(void) {
    for (int i = 0; i < 30; i++) {
        posix_spawn_file_actions_t fa; posix_spawn_file_actions_init(&fa); posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
        char *av[] = {"sh", "-c", "test -n \"$LD_PRELOAD\" && exit 3; exit 4", 0}, *ev[] = {"A=b", 0}; pid_t p; int st;
        CHECK(posix_spawn(&p, "/bin/sh", &fa, 0, av, ev) == 0); CHECK(waitpid(p, &st, 0) == p);
        CHECK(WEXITSTATUS(st) == (getenv("GANNET_RUN_LIBRARY") ? 3 : 4)); posix_spawn_file_actions_destroy(&fa);
    }
    FILE *f = popen("echo hello", "r"); char b[16]; CHECK(f && fgets(b, 16, f) && !strcmp(b, "hello\n")); CHECK(pclose(f) == 0);
    CHECK(system("exit 3") == 3 << 8);
}

static void forks_among_threads(void) {
    pthread_t t[4]; for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, opener, 0);
    for (int i = 0; i < 50; i++) { pid_t p = fork(); int st; if (p == 0) { opener(0); _exit(0); } CHECK(p > 0 && waitpid(p, &st, 0) == p && st == 0); }
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
}

static void vector_registers(void) {
    long r; unsigned char in[512], out[512]; for (int i = 0; i < 512; i++) in[i] = (unsigned char)(i * 7 + 1);
    __asm__ volatile(
        "movups 0(%2),%%xmm0\n movups 16(%2),%%xmm1\n movups 32(%2),%%xmm2\n movups 48(%2),%%xmm3\n movups 64(%2),%%xmm4\n movups 80(%2),%%xmm5\n"
        "movups 96(%2),%%xmm6\n movups 112(%2),%%xmm7\n movups 128(%2),%%xmm8\n movups 144(%2),%%xmm9\n movups 160(%2),%%xmm10\n movups 176(%2),%%xmm11\n"
        "movups 192(%2),%%xmm12\n movups 208(%2),%%xmm13\n movups 224(%2),%%xmm14\n movups 240(%2),%%xmm15\n"
        "mov %2,%%rbx\n mov %3,%%r12\n mov %4,%%rdi\n mov %%rsp,%%r13\n sub $128,%%rsp\n and $-16,%%rsp\n xor %%esi,%%esi\n call open@PLT\n mov %%r13,%%rsp\n"
        "mov %%rax,%0\n"
        : "=m"(r), "=m"(out) : "r"(in), "r"(out), "r"(file) : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "memory", "cc",
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    CHECK(r >= 0); close((int)r);
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc > 1) file = argv[1];
    struct { const char *n; void (*f)(void); } parts[] = {
        {"signals_old_actions", signals_old_actions}, {"signals_interrupt", signals_interrupt}, {"signals_jump", signals_jump_out_of_a_blocked_call},
        {"signals_storm", signals_storm}, {"signals_own_fault", signals_own_fault}, {"signals_on_alternate_stack", signals_on_alternate_stack},
        {"cancellation", cancellation}, {"threads_small_stacks", threads_small_stacks}, {"clone_on_new_stack", clone_on_new_stack},
        {"vforks", vforks}, {"spawns", spawns}, {"forks_among_threads", forks_among_threads}, {"vector_registers", vector_registers}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) { if (argc > 2 && strcmp(argv[2], parts[i].n)) continue; alarm(0); parts[i].f(); printf("ok %s\n", parts[i].n); }
    return 0;
}
