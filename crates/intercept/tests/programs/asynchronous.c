/* Asynchronous requests (io_submit): who waits already, who looks at the ring in memory, errors, signals, crowds of threads. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct ring { unsigned id, nr, head, tail, magic, compat, incompat, header; struct io_event events[]; };
static long call(long result) { return result < 0 ? -errno : result; }
static long setup(unsigned n, aio_context_t *c) { *c = 0; return call(syscall(SYS_io_setup, n, c)); }
static long submit(aio_context_t c, long n, struct iocb **list) { return call(syscall(SYS_io_submit, c, n, list)); }
static long get(aio_context_t c, long least, long most, struct io_event *events, struct timespec *time) {
    return call(syscall(SYS_io_getevents, c, least, most, events, time));
}
static struct iocb make(int op, int fd, void *buffer, size_t count, long offset, uint64_t data) {
    return (struct iocb){ .aio_data = data, .aio_lio_opcode = op, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer, .aio_nbytes = count, .aio_offset = offset };
}
static void say(const char *what, long got, struct io_event *events, struct iocb *first) {
    printf("%s: %ld", what, got);
    for (long i = 0; i < got; i++)
        printf(" (%llu %s %lld %lld)", events[i].data, events[i].obj == (uintptr_t)(first + i) ? "its request" : "another", events[i].res, events[i].res2);
    puts("");
}

static aio_context_t shared;
static struct iocb requests[8];
static volatile int begun;
static void *waits(void *what) {
    struct io_event events[8];
    begun = 1;
    long got = get(shared, 1, 1, events, 0);
    say(what, got, events, requests);
    return 0;
}
static pthread_t waiter(char *what) {
    pthread_t thread;
    begun = 0;
    pthread_create(&thread, 0, waits, what);
    while (!begun) sched_yield();
    usleep(150000);
    return thread;
}
static void nothing(int number) { (void)number; }

enum { EACH = 2000, THREADS = 3 };
static int fd;
static long sum, left = EACH * THREADS;
static void *takes(void *unused) {
    struct io_event events[16];
    while (__atomic_load_n(&left, __ATOMIC_SEQ_CST) > 0) {
        long got = get(shared, 1, 16, events, &(struct timespec){ 0, 20000000 });
        for (long i = 0; i < got; i++) {
            struct iocb *request = (void *)(uintptr_t)events[i].obj;
            if (events[i].res != 8 || request->aio_data != events[i].data) puts("wrong");
            __atomic_fetch_add(&sum, events[i].data, __ATOMIC_SEQ_CST);
            free(request);
            __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST);
        }
    }
    return unused;
}
static void *gives(void *number) {
    static char buffer[8];
    for (long i = 0; i < EACH; i++) {
        struct iocb *request = malloc(sizeof *request);
        *request = make(IOCB_CMD_PWRITE, fd, buffer, 8, (long)number * 4096, i);
        for (long done; (done = submit(shared, 1, &request)) != 1;) if (done != -EAGAIN) printf("submit: %ld\n", done); else sched_yield();
    }
    return 0;
}

int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    char buffer[64] = "some bytes of a file";
    struct io_event events[8];
    struct iocb *list[8];
    for (int i = 0; i < 8; i++) list[i] = requests + i;
    fd = open("f", O_RDWR | O_CREAT, 0644);
    printf("setup %ld\n", setup(8, &shared));

    pthread_t thread = waiter("a thread that waited");
    requests[0] = make(IOCB_CMD_PWRITE, fd, buffer, 20, 0, 11);
    /* Told when the other thread has told its own. */
    long submitted = submit(shared, 1, list);
    pthread_join(thread, 0);
    printf("submit %ld\n", submitted);

    /* In the ring itself, as those look who never call. */
    char back[64] = "";
    requests[0] = make(IOCB_CMD_PREAD, fd, back, 64, 5, 12), requests[1] = make(IOCB_CMD_FSYNC, fd, 0, 0, 0, 13);
    printf("submit %ld\n", submit(shared, 2, list));
    struct ring *ring = (void *)shared;
    for (int i = 0; i < 100 && (ring->tail + ring->nr - ring->head) % ring->nr < 2; i++) usleep(10000);
    printf("in the ring %u\n", (ring->tail + ring->nr - ring->head) % ring->nr);
    for (int i = 0; i < 2; i++) events[i] = ring->events[(ring->head + i) % ring->nr];
    ring->head = (ring->head + 2) % ring->nr;
    if (events[0].data == 13) { struct io_event other = events[0]; events[0] = events[1]; events[1] = other; }
    say(back, 2, events, requests);
    printf("nothing is left: %ld\n", get(shared, 0, 8, events, 0));

    /* Results that are errors, and what is refused at once. */
    requests[0] = make(IOCB_CMD_PREAD, fd, (void *)8, 10, 0, 14);
    printf("submit %ld\n", submit(shared, 1, list));
    say("a bad address", get(shared, 1, 1, events, 0), events, requests);
    requests[0] = make(IOCB_CMD_PREAD, fd, back, 10, 100, 15);
    printf("submit %ld\n", submit(shared, 1, list));
    say("behind the end", get(shared, 1, 1, events, 0), events, requests);
    printf("nothing to do: %ld\n", get(shared, 0, 8, events, 0));
    printf("more wanted than there is room for: %ld, less than none %ld\n", get(shared, 9, 8, events, 0), get(shared, -1, 8, events, 0));

    /* A time, and a signal. */
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    printf("for a time: %ld\n", get(shared, 1, 8, events, &(struct timespec){ 0, 250000000 }));
    clock_gettime(CLOCK_MONOTONIC, &after);
    double took = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9;
    puts(took >= 0.25 ? "not too short" : "too short");
    sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = nothing, .sa_flags = SA_RESTART }, 0);
    thread = waiter("a signal");
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, 0);

    /* By way of an event descriptor. */
    int event = eventfd(0, 0);
    requests[0] = make(IOCB_CMD_PWRITE, fd, buffer, 4, 0, 16), requests[0].aio_flags = IOCB_FLAG_RESFD, requests[0].aio_resfd = event;
    printf("submit %ld\n", submit(shared, 1, list));
    uint64_t count = 0;
    read(event, &count, 8);
    printf("told %lu\n", count);
    say("then", get(shared, 1, 8, events, 0), events, requests);

    /* Flags: RWF_APPEND, RWF_NOAPPEND, both, one that there is not. */
    ftruncate(fd, 10);
    int append = open("f", O_WRONLY | O_APPEND), flags[] = { 0, 0x10, 0x20, 0x30, 1 << 30 };
    for (int i = 0; i < 20; i++) {
        struct iovec part = { "part", 3 };
        int vector = i % 4 / 2;
        requests[0] = make(vector ? IOCB_CMD_PWRITEV : IOCB_CMD_PWRITE, i % 2 ? append : fd, vector ? (void *)&part : "part", vector ? 1 : 3, 1, 20 + i);
        requests[0].aio_rw_flags = flags[i / 4];
        long taken = submit(shared, 1, list);
        say("flags", taken == 1 ? get(shared, 1, 1, events, 0) : taken, events, requests);
        printf("%ld bytes\n", (long)lseek(fd, 0, SEEK_END));
    }
    memset(back, 0, sizeof back), pread(fd, back, 63, 0), puts(back);
    requests[0] = make(IOCB_CMD_PREAD, fd, back, 10, 0, 40), requests[0].aio_rw_flags = 0x30;
    printf("to read: %ld\n", submit(shared, 1, list));

    /* No event descriptor: nothing is done, and nothing written there. */
    int other = open("other", O_RDWR | O_CREAT, 0600), ends[2];
    pipe(ends);
    for (int i = 0; i < 6; i++) {
        requests[0] = make(IOCB_CMD_PWRITE, i == 5 ? 77 : fd, "nothing", 7, 0, 41), requests[0].aio_flags = IOCB_FLAG_RESFD;
        requests[0].aio_resfd = (int[]){ fd, other, ends[1], 77, 1, other }[i];
        printf("not told: %ld\n", submit(shared, 1, list));
    }
    printf("%ld and %ld bytes\n", (long)lseek(fd, 0, SEEK_END), (long)lseek(other, 0, SEEK_END));

    /* What cannot be is refused at once. */
    struct iovec parts[2] = { { back, 4 }, { back, 4 } }, too_long = { back, -1 }, nowhere = { (void *)-4096, 10 };
    struct { int op; void *buffer; size_t count; long offset; } wrong[] = {
        { IOCB_CMD_PREAD, back, -1, 0 }, { IOCB_CMD_PREAD, back, 10, -1 }, { IOCB_CMD_PREAD, back, 10, INT64_MAX - 5 }, { IOCB_CMD_PREAD, back, 10, INT64_MAX - 10 },
        { IOCB_CMD_PREAD, (void *)-4096, 10, 0 }, { IOCB_CMD_PREADV, parts, 2000, 0 }, { IOCB_CMD_PREADV, &too_long, 1, 0 }, { IOCB_CMD_PREADV, (void *)8, 1, 0 },
        { IOCB_CMD_PREADV, &nowhere, 1, 0 }, { IOCB_CMD_PREADV, parts, 2, INT64_MAX - 7 }, { IOCB_CMD_PREADV, parts, 2, 0 }, { IOCB_CMD_PWRITE, back, 10, -1 },
        { IOCB_CMD_FSYNC, back, 0, 0 }, { IOCB_CMD_FSYNC, 0, 1, 0 }, { IOCB_CMD_FDSYNC, 0, 0, 1 }, { IOCB_CMD_FSYNC, 0, 0, 0 }, { IOCB_CMD_NOOP, 0, 0, 0 }, { 99, 0, 0, 0 }, { IOCB_CMD_PREADV, parts, 0, 0 },
        { 5, (void *)0x1, 0, 0 }, { 5, (void *)0xffff, 0, 0 }, { 5, (void *)0x44, 0, 0 }, { 5, (void *)0x2, 0, 0 }, { 5, 0, 0, 0 }, { 5, (void *)0x10001, 0, 0 }, { 5, (void *)0x1, 1, 0 }, { 5, (void *)0x1, 0, 1 },
    };
    for (int i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        requests[0] = make(wrong[i].op, fd, wrong[i].buffer, wrong[i].count, wrong[i].offset, 42);
        long taken = submit(shared, 1, list);
        printf("%d: %ld", i, taken), taken == 1 ? say("", get(shared, 1, 1, events, 0), events, requests) : puts("");
    }
    requests[0] = make(IOCB_CMD_PREAD, append, back, 10, 0, 43);
    printf("not for reading: %ld\n", submit(shared, 1, list));
    requests[0] = make(IOCB_CMD_PREAD, open(".", O_RDONLY), back, 10, 0, 44);
    printf("a directory: %ld\n", submit(shared, 1, list));
    if (!fork()) {
        requests[0] = make(IOCB_CMD_PWRITE, fd, "child's", 7, 0, 45);
        printf("to its parent's: %ld\n", submit(shared, 1, list));
        fflush(stdout), _exit(0);
    }
    wait(0);
    printf("nothing is left: %ld, %ld bytes\n", get(shared, 0, 8, events, 0), (long)lseek(fd, 0, SEEK_END));

    /* More than the ring has room for. */
    long put = 0;
    requests[0] = make(IOCB_CMD_PWRITE, fd, buffer, 4, 0, 17);
    while (put < 3000 && submit(shared, 1, list) == 1) put++;
    long got = 0, once;
    while ((once = get(shared, 0, 8, events, 0)) > 0) got += once;
    puts(got == put && put >= 8 ? "all are back" : "some are lost");
    puts(put < 3000 ? "it was full" : "it has no end");

    /* What cannot be handed out stays, also of what the ring had no room for. */
    long taken;
    requests[0] = make(IOCB_CMD_PWRITE, fd, buffer, 4, 0, 17);
    for (int i = 0; i < 8; i++) list[i] = requests;
    for (int each = 2; each <= 8; each++) {
        for (put = 0; put < 3000 && (taken = submit(shared, each, list)) > 0;) put += taken;
        printf("to a bad address: %ld\n", get(shared, 1, 8, (void *)8, 0));
        for (got = 0; (once = get(shared, 0, 8, events, 0)) > 0;) got += once;
        puts(got == put ? "all are back" : "some are lost");
    }
    for (int i = 0; i < 8; i++) list[i] = requests + i;

    pthread_t givers[THREADS], takers[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(takers + i, 0, takes, 0), pthread_create(givers + i, 0, gives, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(givers[i], 0), pthread_join(takers[i], 0);
    printf("%ld\n", sum);

    /* A child has no contexts of its parent's, for which threads wait; its own may be at the same address. */
    thread = waiter("the context is gone");
    if (!fork()) {
        aio_context_t parents = shared;
        munmap((void *)shared, (ring->header + ring->nr * 32 + 4095) & ~4095);
        for (int i = 0; i < 500 && setup(8, &shared) == 0 && shared != parents; i++);
        puts(shared == parents ? "at the same address" : "at another address");
        requests[0] = make(IOCB_CMD_PREAD, fd, back, 4, 0, 18);
        printf("submit %ld\n", submit(shared, 1, list));
        ring = (void *)shared;
        for (int i = 0; i < 100 && ring->tail == ring->head; i++) usleep(10000);
        say("a child's", 1, ring->events + ring->head, requests);
        fflush(stdout), _exit(0);
    }
    wait(0);
    long destroyed = call(syscall(SYS_io_destroy, shared));
    pthread_join(thread, 0);
    printf("destroy %ld\n", destroyed);
    printf("%ld\n", get(shared, 0, 1, events, 0));
}
