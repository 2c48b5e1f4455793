// Random work on one file by several processes, each operation by one of them in turn, compared with a copy in memory.
//   exercise FILE SEED OPERATIONS PROCESSES
// Every process has descriptors of its own and keeps maps: of the first part of the file, which is never cut, for the whole run.
// fallocate's modes, copy_file_range and sendfile included. The last line is "same"; the first difference ends it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 20, KEPT_BYTES = 1 << 17, STEP_BYTES = 1 << 16, BLOCK = 4096, PROCESSES = 8 };

static struct shared {
    unsigned long long random;
    long operation, operations;
    size_t size;
    int failed;
    unsigned char bytes[FILE_BYTES + STEP_BYTES];
} *shared;
static int file, number, processes;
static unsigned char *kept;
static const char *path;
static unsigned char buffer[STEP_BYTES * 2];

static unsigned long long draw(void) { // xorshift
    unsigned long long x = shared->random;
    x ^= x << 13; x ^= x >> 7; x ^= x << 17;
    return shared->random = x;
}
static size_t below(size_t bound) { return bound ? draw() % bound : 0; }

static void fail(const char *form, ...) {
    va_list list;
    va_start(list, form);
    printf("process %d, operation %ld, size %zu: ", number, shared->operation, shared->size);
    vprintf(form, list);
    printf(" (%s)\n", strerror(errno));
    fflush(stdout);
    shared->failed = 1;
    _exit(1);
}
static void compare(const char *what, const unsigned char *seen, size_t at, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (seen[i] != shared->bytes[at + i]) fail("%s: byte %zu (of %zu+%zu) is %d, not %d", what, at + i, at, length, seen[i], shared->bytes[at + i]);
}
static void grow(size_t end) {
    if (end > shared->size) {
        memset(shared->bytes + shared->size, 0, end - shared->size);
        shared->size = end;
    }
}
static void fill(size_t length) {
    unsigned char first = draw();
    for (size_t i = 0; i < length; i++) buffer[i] = first + i * 7;
}

static void step(void) {
    size_t at = below(FILE_BYTES), length = 1 + below(STEP_BYTES);
    if (at + length > FILE_BYTES) length = FILE_BYTES - at;
    switch (below(17)) {
    case 0: case 1: { // read
        size_t wanted = at >= shared->size ? 0 : at + length > shared->size ? shared->size - at : length;
        if (pread(file, buffer, length, at) != (ssize_t)wanted) fail("pread %zu %zu", at, length);
        compare("pread", buffer, at, wanted);
        break;
    }
    case 2: case 3: // write
        fill(length);
        grow(at + length);
        memcpy(shared->bytes + at, buffer, length);
        if (pwrite(file, buffer, length, at) != (ssize_t)length) fail("pwrite %zu %zu", at, length);
        break;
    case 4: { // vectors, in three pieces
        fill(length);
        grow(at + length);
        memcpy(shared->bytes + at, buffer, length);
        size_t a = below(length), b = below(length - a);
        struct iovec pieces[3] = {{buffer, a}, {buffer + a, b}, {buffer + a + b, length - a - b}};
        if (pwritev(file, pieces, 3, at) != (ssize_t)length) fail("pwritev");
        break;
    }
    case 5: { // cut or grow
        size_t size = KEPT_BYTES + below(FILE_BYTES - KEPT_BYTES);
        if (size > shared->size) grow(size);
        shared->size = size;
        if (ftruncate(file, size)) fail("ftruncate %zu", size);
        break;
    }
    case 6: case 7: case 8: { // a map for a moment
        at &= ~(size_t)(BLOCK - 1);
        if (at >= shared->size) return;
        if (at + length > shared->size) length = shared->size - at;
        int writes = below(2);
        unsigned char *map = mmap(0, length, PROT_READ | (writes ? PROT_WRITE : 0), below(4) || writes ? MAP_SHARED : MAP_PRIVATE, file, at);
        if (map == MAP_FAILED) fail("mmap %zu %zu", at, length);
        compare("map", map, at, length);
        if (writes) {
            fill(length);
            memcpy(map, buffer, length);
            memcpy(shared->bytes + at, buffer, length);
            if (below(2) && msync(map, length, MS_SYNC)) fail("msync");
        }
        if (munmap(map, length)) fail("munmap");
        break;
    }
    case 9: case 10: { // the kept map
        at = below(KEPT_BYTES);
        length = 1 + below(KEPT_BYTES - at);
        if (length > STEP_BYTES) length = STEP_BYTES;
        compare("kept map", kept + at, at, length);
        fill(length);
        memcpy(kept + at, buffer, length);
        memcpy(shared->bytes + at, buffer, length);
        break;
    }
    case 11: { // holes and zeros
        if (at < KEPT_BYTES) at += KEPT_BYTES;
        if (at + length > FILE_BYTES) return;
        int zero = below(2);
        if (zero) grow(at + length);
        size_t end = at + length < shared->size ? at + length : shared->size;
        if (fallocate(file, zero ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, length)) {
            if (zero && errno == EOPNOTSUPP) { memset(buffer, 0, length); if (pwrite(file, buffer, length, at) != (ssize_t)length) fail("pwrite"); }
            else fail("fallocate");
        }
        if (end > at) memset(shared->bytes + at, 0, end - at);
        break;
    }
    case 12: // space
        grow(at + length);
        if (fallocate(file, 0, at, length)) fail("fallocate");
        break;
    case 13: { // copy within the file
        loff_t from = below(shared->size), to = at;
        if ((size_t)from + length > shared->size) length = shared->size - from;
        if ((size_t)(from > to ? from - to : to - from) < length || to + length > FILE_BYTES) return;
        ssize_t copied = copy_file_range(file, &from, file, &to, length, 0);
        if (copied <= 0) fail("copy_file_range");
        grow(to);
        memcpy(shared->bytes + to - copied, shared->bytes + from - copied, copied);
        break;
    }
    case 14: { // to a pipe and back
        if (at >= shared->size) return;
        int ends[2];
        off_t from = at;
        if (length > 30000) length = 30000;
        if (at + length > shared->size) length = shared->size - at;
        if (pipe(ends) || sendfile(ends[1], file, &from, length) != (ssize_t)length) fail("sendfile");
        if (read(ends[0], buffer, length) != (ssize_t)length) fail("read of the pipe");
        compare("sendfile", buffer, at, length);
        close(ends[0]); close(ends[1]);
        break;
    }
    case 15: { // size, sync
        struct stat status;
        if (fstat(file, &status) || (size_t)status.st_size != shared->size) fail("fstat says %ld", (long)status.st_size);
        if (below(2) ? fsync(file) : fdatasync(file)) fail("fsync");
        break;
    }
    case 16: // another descriptor
        close(file);
        if ((file = open(path, O_RDWR)) < 0) fail("open");
        break;
    }
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    path = arguments[1];
    processes = atoi(arguments[4]);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared->random = 0x9E3779B97F4A7C15ull * (atoi(arguments[2]) + 1);
    shared->operations = atol(arguments[3]);
    int turn[PROCESSES][2];
    if (processes < 1 || processes > PROCESSES) return 2;
    for (int i = 0; i < processes; i++) if (pipe(turn[i])) return 2;
    if ((file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) < 0) fail("open");
    fill(KEPT_BYTES < sizeof buffer ? KEPT_BYTES : sizeof buffer);
    if (write(file, buffer, KEPT_BYTES) != KEPT_BYTES) fail("write");
    memcpy(shared->bytes, buffer, KEPT_BYTES);
    shared->size = KEPT_BYTES;
    for (int i = 0; i < processes; i++) {
        if (fork()) continue;
        number = i;
        close(file);
        if ((file = open(path, O_RDWR)) < 0) fail("open");
        if ((kept = mmap(0, KEPT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED) fail("mmap");
        for (int j = 0; j < processes; j++) if (j != i) close(turn[j][0]);
        char token;
        while (read(turn[i][0], &token, 1) == 1 && token == 'g') {
            int next = i;
            // A few operations, then somebody else's turn.
            for (int run = 1 + below(20); run > 0 && shared->operation < shared->operations; run--, shared->operation++) step();
            next = below(processes);
            if (shared->operation >= shared->operations) break;
            if (write(turn[next][1], "g", 1) != 1) fail("the turn");
        }
        for (int j = 0; j < processes; j++) if (write(turn[j][1], "e", 1) != 1) break;
        _exit(0);
    }
    if (write(turn[0][1], "g", 1) != 1) return 2;
    int status, bad = 0;
    for (int i = 0; i < processes; i++) {
        wait(&status);
        if (status) { // the others wait for a turn that does not come
            bad = 1;
            printf("a process ended with %x\n", status);
            for (int j = 0; j < processes; j++) if (write(turn[j][1], "e", 1) != 1) break;
        }
    }
    struct stat all;
    if (fstat(file, &all) || (size_t)all.st_size != shared->size) bad = 1, puts("the size differs");
    for (size_t at = 0; at < shared->size && !bad; at += STEP_BYTES) {
        ssize_t length = pread(file, buffer, STEP_BYTES, at);
        if (length <= 0 || memcmp(buffer, shared->bytes + at, length)) bad = 1, printf("differs at %zu\n", at);
    }
    puts(bad || shared->failed ? "different" : "same");
    return bad || shared->failed;
}
