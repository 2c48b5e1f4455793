/* What a process must not lose to another that runs in its memory beside it (CLONE_VM without CLONE_VFORK and CLONE_THREAD), in the
 * current directory.
 *
 *   beside ends      the other ends in each way: the first keeps files, record locks, maps and its working directory
 *
 * Prints "ok" or what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { char text[200]; int n = snprintf(text, sizeof text, "FAILED %s:%d %s (errno %d, variant %d)\n", __func__, __LINE__, #x, errno, variant); write(1, text, n); _exit(1); } } while (0)

static volatile int variant = -1;
static char stack[1 << 17] __attribute__((aligned(16)));

/* Thread-local storage of nobody's: zeros, and what the C library's functions need to find it. */
static void *new_thread_locals(void) {
    enum { BELOW = 1 << 17, ABOVE = 8192 };
    char *memory = mmap(0, BELOW + ABOVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    char *own, *pointer = memory + BELOW;
    __asm__("mov %%fs:0, %0" : "=r"(own));
    memcpy(pointer, own, 0x40);
    ((char **)pointer)[0] = ((char **)pointer)[2] = pointer;
    return pointer;
}

static int make(int (*work)(void *), int flags, void *argument) {
    void *locals = flags & CLONE_SETTLS ? new_thread_locals() : 0;
    return clone(work, stack + sizeof stack, CLONE_VM | flags | SIGCHLD, argument, 0, locals, 0);
}

static int await(int child) {
    int status = -1;
    CHECK(waitpid(child, &status, __WALL) == child);
    return status;
}

enum { EXITS, RETURNS, EXITS_ALONE, KILLED, EXECUTES, USES_THE_VOLUME, WAYS };

static int ends(void *argument) {
    switch ((int)(long)argument) {
        case EXITS: _exit(0);
        case RETURNS: return 0;
        case EXITS_ALONE: syscall(SYS_exit, 0); break;
        case KILLED: kill(getpid(), SIGKILL); break;
        case EXECUTES: execl("/bin/true", "true", (char *)0); _exit(7);
        case USES_THE_VOLUME: {
            int file = open("its", O_CREAT | O_RDWR | O_TRUNC, 0600);
            if (file < 0 || write(file, "its\n", 4) != 4 || close(file)) _exit(8);
            _exit(0);
        }
    }
    return 9;
}

/* Another process cannot lock what this one has locked. */
static void is_locked(const char *path) {
    int child = fork();
    if (!child) {
        struct flock lock = {.l_type = F_WRLCK};
        int file = open(path, O_RDWR);
        _exit(file < 0 ? 2 : fcntl(file, F_SETLK, &lock) == 0 ? 1 : 0);
    }
    CHECK(await(child) == 0);
}

static const int FLAGS[] = {0, CLONE_FILES, CLONE_SETTLS, CLONE_FILES | CLONE_SETTLS, CLONE_FS | CLONE_FILES | CLONE_SIGHAND, CLONE_FS};
enum { FLAG_SETS = sizeof FLAGS / sizeof *FLAGS };

static void all_ways_to_end(void) {
    CHECK(mkdir("directory", 0700) == 0 && chdir("directory") == 0);
    int file = open("file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && write(file, "hello", 5) == 5 && ftruncate(file, 4096) == 0);
    char *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), text[8] = {0};
    CHECK(map != MAP_FAILED);
    struct flock lock = {.l_type = F_WRLCK};
    CHECK(fcntl(file, F_SETLK, &lock) == 0);
    for (int i = 0; i < 2 * WAYS * FLAG_SETS; i++) {
        variant = i % (WAYS * FLAG_SETS);
        int way = variant / FLAG_SETS, child = make(ends, FLAGS[variant % FLAG_SETS], (void *)(long)way);
        CHECK(child > 0);
        int status = await(child);
        CHECK(way == KILLED ? WIFSIGNALED(status) : status == 0);
        CHECK(pread(file, text, 5, 0) == 5 && !strcmp(text, "hello") && pwrite(file, "x", 1, 9) == 1);
        map[10] = (char)i;
        CHECK(pread(file, text + 6, 1, 10) == 1 && text[6] == (char)i);
        text[6] = 0;
        CHECK(access("file", F_OK) == 0 && access("../directory/file", F_OK) == 0);
        is_locked("file");
    }
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "ends")) all_ways_to_end();
    else return 2;
    puts("ok");
    return 0;
}
