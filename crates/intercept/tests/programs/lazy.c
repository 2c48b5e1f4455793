/* Sparse files that are mapped whole, shared and for writing: what is used gets blocks, the rest stays a hole; whatever it is that uses it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MIB (1L << 20)
#define SIZE (4096 * MIB)
#define CHECK(what) do { errno = 0; if (!(what)) printf("%d: %s: %s\n", __LINE__, #what, strerror(errno)); } while (0)
static int file;
static char *map;

static long held(void) {
    struct stat status;
    fstat(file, &status);
    return status.st_blocks * 512;
}
static char at(long offset) {
    char byte = 0;
    return pread(file, &byte, 1, offset) == 1 ? byte : -1;
}
static void open_new(const char *name, long size) {
    file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(ftruncate(file, size) == 0);
    map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(map != MAP_FAILED);
}

/* Loads, stores and calls, ours and the host's. */
static void uses(void) {
    open_new("sparse", SIZE);
    CHECK(held() == 0);
    map[0] = 1;
    map[SIZE - 1] = 2;
    CHECK(map[SIZE / 2] == 0);
    CHECK(at(0) == 1 && at(SIZE - 1) == 2 && held() < 8 * MIB);
    CHECK(msync(map, SIZE, MS_SYNC) == 0);
    /* By calls on the host's descriptors. */
    int ends[2], pair[2];
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    CHECK(write(ends[1], "pipe", 4) == 4 && read(ends[0], map + 100 * MIB, 4) == 4 && !memcmp(map + 100 * MIB, "pipe", 4));
    CHECK(write(ends[1], map + 200 * MIB, 1000) == 1000 && read(ends[0], map + 200 * MIB + 5 * MIB, 1000) == 1000);
    struct iovec parts[2] = {{map + 300 * MIB, 3}, {map + 301 * MIB, 3}};
    CHECK(write(ends[1], "vector", 6) == 6 && readv(ends[0], parts, 2) == 6 && map[301 * MIB] == 't');
    CHECK(send(pair[0], "message", 7, 0) == 7 && recv(pair[1], map + 400 * MIB, 100, 0) == 7 && map[400 * MIB + 6] == 'e');
    struct msghdr *message = (void *)(map + 500 * MIB);
    *message = (struct msghdr){.msg_iov = (void *)(map + 510 * MIB), .msg_iovlen = 1};
    message->msg_iov[0] = (struct iovec){map + 520 * MIB, 100};
    CHECK(send(pair[0], "another", 7, 0) == 7 && recvmsg(pair[1], message, 0) == 7 && map[520 * MIB] == 'a');
    CHECK(fstat(0, (void *)(map + 650 * MIB)) == 0);
    /* By calls on a volume's. */
    int other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(write(other, "content", 7) == 7 && pread(other, map + 700 * MIB, 7, 0) == 7 && map[700 * MIB + 6] == 't');
    CHECK(pwrite(other, map + 800 * MIB, 3 * MIB, 0) == 3 * MIB);
    strcpy(map + 900 * MIB, "other");
    CHECK(stat(map + 900 * MIB, (void *)(map + 910 * MIB)) == 0);
    parts[0].iov_base = map + 1000 * MIB;
    parts[1].iov_base = map + 1001 * MIB;
    CHECK(preadv(other, parts, 2, 0) == 6);
    CHECK(read(file, map + 1100 * MIB, 5) == 5 && map[1100 * MIB] == 1);
    CHECK(madvise(map + 1300 * MIB, MIB, 23 /* MADV_POPULATE_WRITE */) == 0);
    /* Into large buffers, of which little is filled. */
    long before = held();
    CHECK(write(ends[1], "pipe", 4) == 4 && read(ends[0], map + 2000 * MIB, 1000 * MIB) == 4 && map[2000 * MIB] == 'p');
    CHECK(pwrite(other, "content", 7, 0) == 7 && pread(other, map + 3000 * MIB, 1000 * MIB, 0) == 3 * MIB && map[3000 * MIB + 3] == 't');
    parts[0] = (struct iovec){map + 2010 * MIB, MIB}, parts[1] = (struct iovec){map + 2012 * MIB, 900 * MIB};
    CHECK(preadv(other, parts, 2, 0) == 3 * MIB && send(pair[0], "message", 7, 0) == 7 && recv(pair[1], map + 2500 * MIB, 500 * MIB, 0) == 7);
    CHECK(held() < before + 24 * MIB);
    /* Structures that lie across the end of a piece, and what the last arguments name. */
    for (long i = 0; i < 4; i++) map[(2600 + i) * MIB] = 0;
    CHECK(fstat(0, (void *)(map + 2600 * MIB + 65536 - 64)) == 0);
    int named = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un name = {AF_UNIX, "\0gannet-lazy-"}, *from = (void *)(map + 2620 * MIB);
    socklen_t *length = (void *)(map + 2630 * MIB);
    sprintf(name.sun_path + 13, "%d", getpid());
    CHECK(bind(named, (void *)&name, sizeof name) == 0 && sendto(named, "own", 3, 0, (void *)&name, sizeof name) == 3);
    *length = sizeof name;
    CHECK(recvfrom(named, map + 2601 * MIB + 65536 - 2, 3, 0, (void *)from, length) == 3 && map[2601 * MIB + 65536] == 'n' && from->sun_family == AF_UNIX);
    CHECK(setxattr("other", "user.name", "value", 5, 0) == 0 || errno == EOPNOTSUPP);
    CHECK(fgetxattr(other, "user.name", map + 2602 * MIB + 65536 - 2, 5) == 5 ? map[2602 * MIB + 65536] == 'l' : errno == EOPNOTSUPP || errno == ENODATA);
    CHECK(flistxattr(other, map + 2603 * MIB + 65536 - 2, 4096) >= 0 || errno == EOPNOTSUPP);
    close(named);
    CHECK(held() < 64 * MIB);
    /* What others put into holes is seen, and what is stored in them. */
    CHECK(pwrite(file, "written", 7, 1400 * MIB) == 7 && !memcmp(map + 1400 * MIB, "written", 7));
    char *reader = mmap(0, SIZE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(reader != MAP_FAILED && reader[1500 * MIB] == 0);
    map[1500 * MIB] = 3;
    CHECK(reader[1500 * MIB] == 3);
    pid_t child = fork();
    if (child == 0) {
        int again = open("sparse", O_RDWR);
        char *own = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        own[1600 * MIB] = 4;
        map[1700 * MIB] = 5;
        _exit(own == MAP_FAILED);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(map[1600 * MIB] == 4 && map[1700 * MIB] == 5);
    /* What the map becomes. */
    char *moved = mremap(map, SIZE, SIZE + 64 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved[1600 * MIB] == 4);
    map = moved;
    CHECK(mprotect(map, SIZE, PROT_READ) == 0 && map[1800 * MIB] == 0 && mprotect(map, SIZE, PROT_READ | PROT_WRITE) == 0);
    map[1800 * MIB] = 6;
    CHECK(at(1800 * MIB) == 6);
    CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1000 * MIB) == 0 && map[0] == 0 && map[400 * MIB] == 0);
    CHECK(map[SIZE - 1] == 2 && held() < 64 * MIB);
    CHECK(ftruncate(file, 10 * MIB) == 0 && ftruncate(file, SIZE) == 0 && map[1800 * MIB] == 0);
    map[1800 * MIB] = 7;
    CHECK(at(1800 * MIB) == 7);
    CHECK(munmap(map, SIZE + 64 * MIB) == 0 && munmap(reader, SIZE) == 0 && held() < 64 * MIB);
    close(other), close(file), close(ends[0]), close(ends[1]), close(pair[0]), close(pair[1]);
}

/* A file that is filled from its beginning on, and one that is filled here and there: every byte is as it was stored. */
static void fills(void) {
    open_new("filled", SIZE);
    for (long i = 0; i < 48 * MIB / 8; i++) ((long *)map)[i] = i * 7;
    long wrong = 0, value;
    for (long i = 0; i < 48 * MIB / 8; i += 511) wrong += pread(file, &value, 8, i * 8) != 8 || value != i * 7;
    CHECK(wrong == 0 && held() >= 48 * MIB && held() < 52 * MIB);
    munmap(map, SIZE), close(file), unlink("filled");
    open_new("random", SIZE);
    unsigned long x = 1;
    for (int i = 0; i < 300; i++) x = x * 6364136223846793005 + 1, *(unsigned long *)(map + x % SIZE / 8 * 8) = x;
    x = 1;
    for (int i = 0; i < 300; i++) x = x * 6364136223846793005 + 1, wrong += pread(file, &value, 8, x % SIZE / 8 * 8) != 8 || value != (long)x;
    CHECK(wrong == 0);
    munmap(map, SIZE), close(file);
}

/* Threads that use the same pages first; handlers of signals for which all others are blocked. */
static pthread_barrier_t barrier;
static void *counts(void *unused) {
    for (long piece = 0; piece < 200; piece++) {
        pthread_barrier_wait(&barrier);
        for (int page = 0; page < 8; page++) __atomic_fetch_add((int *)(map + piece * MIB + page * 4096), 1, __ATOMIC_RELAXED);
    }
    return unused;
}
static void on_signal(int number) {
    map[(3000 + number) * MIB] = 9;
}
static void threads(void) {
    pthread_t others[3];
    open_new("threads", SIZE);
    pthread_barrier_init(&barrier, 0, 4);
    for (int i = 0; i < 3; i++) pthread_create(&others[i], 0, counts, 0);
    counts(0);
    for (int i = 0; i < 3; i++) pthread_join(others[i], 0);
    long wrong = 0;
    for (long piece = 0; piece < 200; piece++) for (int page = 0; page < 8; page++) wrong += *(int *)(map + piece * MIB + page * 4096) != 4;
    CHECK(wrong == 0);
    struct sigaction action = {.sa_handler = on_signal};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && raise(SIGUSR1) == 0);
    CHECK(map[(3000 + SIGUSR1) * MIB] == 9);
    munmap(map, SIZE), close(file);
}

/* Where the volume has no room left a use is SIGBUS, and what was stored before stays. */
static sigjmp_buf back;
static void no_room(int number) {
    siglongjmp(back, number);
}
static void full(void) {
    struct sigaction action = {.sa_handler = no_room}, before;
    open_new("full", SIZE);
    CHECK(sigaction(SIGBUS, &action, &before) == 0);
    volatile long page = 0;
    if (sigsetjmp(back, 1) == 0) for (; page < SIZE / MIB; page++) memset(map + page * MIB, 1, MIB);
    CHECK(sigaction(SIGBUS, &before, 0) == 0);
    CHECK(page > 16 && page < 1024);
    /* The last blocks, too, were for use. */
    struct statvfs left;
    CHECK(statvfs(".", &left) == 0 && left.f_bavail * left.f_frsize < 65536);
    long wrong = 0;
    for (long i = 0; i < page; i++) wrong += at(i * MIB) != 1;
    CHECK(wrong == 0 && munmap(map, SIZE) == 0 && close(file) == 0 && unlink("full") == 0);
}

/* A thread that blocks SIGBUS could not use such a map: it is made with all its blocks, or not at all. */
static int ends[2];
static void *waits(void *unused) {
    char byte = 1;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    CHECK(write(ends[1], &byte, 1) == 1);
    CHECK(read(ends[0], &byte, 1) >= 0);
    return unused;
}
static void blocked(void) {
    pthread_t thread;
    int other[2];
    CHECK(pipe(ends) == 0 && pipe(other) == 0);
    int first = ends[0];
    ends[0] = other[0];
    pthread_create(&thread, 0, waits, 0);
    char byte;
    CHECK(read(first, &byte, 1) == 1);
    file = open("blocked", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(ftruncate(file, SIZE) == 0);
    CHECK(mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED && errno == ENOSPC && held() == 0);
    close(other[1]);
    pthread_join(thread, 0);
    map = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(map != MAP_FAILED);
    map[0] = 1;
    munmap(map, SIZE), close(file);
}

int main(int count, char **arguments) {
    (void)arguments;
    uses();
    fills();
    threads();
    /* In a volume only. */
    if (count == 1) full(), blocked();
    puts("done");
}
