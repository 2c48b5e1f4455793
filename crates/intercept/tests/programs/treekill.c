/* A tree of processes that use files of the current directory while random ones are killed: what they had been told is done is there,
 * nothing is there twice or in part, the others go on, locks are released.
 *
 *   treekill SEED KILLS [RECORD_BYTES]
 *
 * Each child appends records to a file of its own and counts in a common file under a lock (flock, or a record lock); it also
 * renames, makes and removes files, maps one, forks and executes. What it has done it says in memory that its parent shares.
 * A record is appended whole or not at all, wherever it lies; Linux's own file systems keep that within a page only, so that there its
 * length (104 unless told) must divide a page's.
 * Prints "ok", or says what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { char text[300]; int n = snprintf(text, sizeof text, "FAILED %s:%d %s (errno %d)\n", __func__, __LINE__, #x, errno); write(1, text, n); shared->failed = 1; _exit(1); } } while (0)
enum { CHILDREN = 5, RECORD_BYTES_MAX = 128, DEADLINE_SECONDS = 60 };
struct record { unsigned child, sequence; unsigned char fill[RECORD_BYTES_MAX - 8]; };
static int record_bytes = 104;
static struct shared { volatile int failed; struct { volatile unsigned written, rounds; } child[CHILDREN]; volatile long counted[2]; } *shared;

static unsigned next(unsigned *state) { *state ^= *state << 13; *state ^= *state >> 17; *state ^= *state << 5; return *state; }
static void fill(struct record *r, unsigned child, unsigned sequence) { r->child = child; r->sequence = sequence; memset(r->fill, (int)(child * 31 + sequence), sizeof r->fill); }

static void count(int kind) {
    int f = open(kind ? "counter1" : "counter0", O_RDWR); CHECK(f >= 0); struct flock lock = {F_WRLCK, SEEK_SET, 5, 10, 0};
    int r; do r = kind ? fcntl(f, F_SETLKW, &lock) : flock(f, LOCK_EX); while (r && errno == EINTR); CHECK(r == 0);
    long n = -1; CHECK(pread(f, &n, sizeof n, 0) == sizeof n); CHECK(n >= shared->counted[kind]); n++; CHECK(pwrite(f, &n, sizeof n, 0) == sizeof n); shared->counted[kind]++; CHECK(close(f) == 0);
}

static void child(unsigned number, unsigned random) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody else would end it */
    char own[20], other[20], text[40]; snprintf(own, 20, "own%u", number); snprintf(other, 20, "other%u", number);
    int f = open(own, O_CREAT | O_WRONLY | O_APPEND, 0644); CHECK(f >= 0); struct stat st; CHECK(fstat(f, &st) == 0);
    /* One more than it said, if it was killed between the two. */
    unsigned written = (unsigned)(st.st_size / record_bytes); CHECK(st.st_size % record_bytes == 0 && written >= shared->child[number].written && written <= shared->child[number].written + 1); shared->child[number].written = written;
    for (;;) {
        switch (next(&random) % 8) {
        case 0: case 1: { struct record r; fill(&r, number, shared->child[number].written); CHECK(write(f, &r, record_bytes) == record_bytes); if (next(&random) % 4 == 0) CHECK(fsync(f) == 0); shared->child[number].written++; break; }
        case 2: case 3: count(next(&random) % 2); break;
        case 4: { int t = open(other, O_CREAT | O_RDWR | O_TRUNC, 0600); CHECK(t >= 0); CHECK(write(t, "temporary", 9) == 9); snprintf(text, 40, "moved%u", number); CHECK(rename(other, text) == 0); CHECK(unlink(text) == 0); char c; CHECK(pread(t, &c, 1, 3) == 1 && c == 'p'); CHECK(close(t) == 0); break; }
        case 5: { snprintf(text, 40, "map%u", number); int t = open(text, O_CREAT | O_RDWR, 0600); CHECK(t >= 0); CHECK(ftruncate(t, 30000) == 0); char *m = mmap(0, 30000, PROT_READ | PROT_WRITE, MAP_SHARED, t, 0); CHECK(m != MAP_FAILED); CHECK(close(t) == 0); memset(m + next(&random) % 20000, 7, 9000); CHECK(munmap(m, 30000) == 0); break; }
        case 6: { snprintf(text, 40, "d%u-%d", number, getpid()); CHECK(mkdir(text, 0700) == 0); CHECK(rmdir(text) == 0); break; }
        default: { if (next(&random) % 4) break; pid_t p = fork(); CHECK(p >= 0);
            if (p == 0) { if (next(&random) % 2) execl("/bin/sh", "sh", "-c", "echo x > e$$ && rm e$$", (char *)0); for (int i = 0; i < 20; i++) count(i % 2); _exit(0); }
            if (next(&random) % 2) while (waitpid(p, 0, 0) < 0 && errno == EINTR) ; }
        }
        shared->child[number].rounds++; while (waitpid(-1, 0, WNOHANG) > 0) ;
    }
}

static void verify(unsigned number) {
    char own[20]; snprintf(own, 20, "own%u", number); int f = open(own, O_RDONLY); if (f < 0 && errno == ENOENT) { CHECK(shared->child[number].written == 0); return; } CHECK(f >= 0);
    struct record r, wanted; unsigned n = 0; ssize_t got; while ((got = read(f, &r, record_bytes)) > 0) { CHECK(got == record_bytes); fill(&wanted, number, n++); CHECK(!memcmp(&r, &wanted, record_bytes)); }
    CHECK(got == 0 && n >= shared->child[number].written && n <= shared->child[number].written + 1); CHECK(close(f) == 0);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2; if (argc > 3) record_bytes = atoi(argv[3]); unsigned random = (unsigned)atoi(argv[1]) * 2654435761u + 1; int kills = atoi(argv[2]);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); if (shared == MAP_FAILED) return 1;
    prctl(PR_SET_CHILD_SUBREAPER, 1); setpgid(0, 0); long zero = 0, n;
    for (int k = 0; k < 2; k++) { int f = open(k ? "counter1" : "counter0", O_CREAT | O_RDWR | O_TRUNC, 0644); CHECK(f >= 0 && write(f, &zero, sizeof zero) == sizeof zero); close(f); }
    pid_t all[CHILDREN]; for (unsigned i = 0; i < CHILDREN; i++) { unsigned seed = next(&random) | 1; CHECK((all[i] = fork()) >= 0); if (all[i] == 0) child(i, seed); }
    for (int k = 0; k < kills; k++) {
        /* The others go on: each has done something since the last kill. */
        unsigned before[CHILDREN]; for (int i = 0; i < CHILDREN; i++) before[i] = shared->child[i].rounds;
        time_t start = time(0); for (int i = 0; i < CHILDREN; i++) while (shared->child[i].rounds - before[i] < 2) { CHECK(!shared->failed); CHECK(time(0) - start < DEADLINE_SECONDS); usleep(200); while (waitpid(-1, 0, WNOHANG) > 0) ; }
        usleep(next(&random) % 2000); unsigned which = next(&random) % CHILDREN; CHECK(kill(all[which], SIGKILL) == 0); while (waitpid(all[which], 0, 0) < 0) if (errno == ECHILD) break;
        verify(which); count(k % 2); unsigned seed = next(&random) | 1; CHECK((all[which] = fork()) >= 0); if (all[which] == 0) child(which, seed);
    }
    for (int i = 0; i < CHILDREN; i++) kill(all[i], SIGKILL);
    while (waitpid(-1, 0, 0) > 0 || errno == EINTR) ; /* grandchildren end by themselves */
    CHECK(!shared->failed); for (unsigned i = 0; i < CHILDREN; i++) verify(i);
    for (int k = 0; k < 2; k++) { int f = open(k ? "counter1" : "counter0", O_RDONLY); CHECK(read(f, &n, sizeof n) == sizeof n); CHECK(n >= shared->counted[k] && n <= shared->counted[k] + kills + CHILDREN); close(f); struct flock lock = {F_WRLCK, SEEK_SET, 0, 0, 0}; f = open(k ? "counter1" : "counter0", O_RDWR); CHECK(fcntl(f, F_SETLK, &lock) == 0 && flock(f, LOCK_EX | LOCK_NB) == 0); }
    printf("ok\n"); return 0;
}
