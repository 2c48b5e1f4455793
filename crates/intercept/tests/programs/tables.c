// Threads that want a table of descriptors of their own: refused, so that what they write goes where it belongs. With a file of the host.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNSHARE 2

static pthread_barrier_t both;
static const char *host;

static void try(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
    fflush(stdout);
}

static void *thread(void *unused) {
    try("unshare in a thread", unshare(CLONE_FILES));
    try("close_range in a thread", syscall(SYS_close_range, 100, 120, UNSHARE));
    try("unshare of something else", unshare(CLONE_SYSVSEM));
    int file = open(host, O_CREAT | O_RDWR | O_TRUNC, 0600);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    if (write(file, "host\n", 5) != 5) perror("write");
    return NULL;
}

static int nothing(void *unused) { return 0; }

static void *kept(void *unused) {
    pthread_barrier_wait(&both);
    return NULL;
}

int main(int count, char **arguments) {
    static char stack[65536];
    pthread_t other;
    host = arguments[1];
    pthread_barrier_init(&both, NULL, 2);
    int first = open("first", O_CREAT | O_RDWR, 0600);
    try("unshare alone", unshare(CLONE_FILES));
    try("close_range alone", syscall(SYS_close_range, 100, 120, UNSHARE));
    pthread_create(&other, NULL, thread, NULL);
    pthread_barrier_wait(&both);
    int file = open("second", O_CREAT | O_RDWR | O_TRUNC, 0600);
    pthread_barrier_wait(&both);
    pthread_join(other, NULL);
    if (write(file, "volume\n", 7) != 7 || write(first, "first\n", 6) != 6) perror("write");
    try("unshare once the thread has ended", unshare(CLONE_FILES));
    pthread_create(&other, NULL, kept, NULL);
    int thread_flags = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_FS;
    try("a thread with descriptors of its own", clone(nothing, stack + sizeof stack, thread_flags, NULL));
    int child = fork();
    if (child == 0) {
        try("unshare in a forked child", unshare(CLONE_FILES));
        _exit(0);
    }
    waitpid(child, NULL, 0);
    pthread_barrier_wait(&both);
    pthread_join(other, NULL);
    return 0;
}
