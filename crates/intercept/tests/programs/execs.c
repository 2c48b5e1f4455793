/* What processes that execute programs, or fail to, must not notice or leave behind, in the current directory.
 *
 *   execs numbers    after an execve that failed the lowest free numbers are what they were
 *   execs settled    what a thread's failed execve kept is given back although the thread does nothing more
 *   execs many       more threads than a list has room for wait for children that share their memory and have executed a program
 *   execs crowd      many threads spawn at once
 *   execs signals    programs that execute themselves while a timer's handler looks at files
 *   execs alternate  a handler on an alternate stack executes a program, which has the mask that the handler had
 *   execs both       two threads execute something at once; the new program has nothing of the other's
 *   execs dropped    who gave up its rights executes a program with files open (root)
 *   execs writer     writes to the standard error
 *
 * Prints what it saw. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { printf("FAILED %s:%d %s (errno %d)\n", __func__, __LINE__, #x, errno); exit(1); } } while (0)

static char *nothing[] = {"nothing", 0};
extern char **environ;

enum { NUMBERS = 1024 };
static char is_open[NUMBERS];

static void numbers(void) {
    int file = open("file", O_CREAT | O_RDWR, 0600), ends[2];
    CHECK(file >= 0);
    const char *bad[] = {"/etc/passwd", "/etc/passwd/x", "file", "no such file"};
    for (int i = 0; i < 4; i++) {
        int lowest = dup(file);
        close(lowest);
        for (int number = 0; number < NUMBERS; number++) is_open[number] = fcntl(number, F_GETFD) >= 0;
        CHECK(execve(bad[i], nothing, environ) == -1);
        printf("%s: %s", bad[i], strerror(errno));
        CHECK(pipe(ends) == 0);
        int more = socket(AF_UNIX, SOCK_STREAM, 0);
        printf(", %d %d %d\n", ends[0] - lowest, ends[1] - lowest, more - lowest);
        close(ends[0]), close(ends[1]), close(more);
        for (int number = 0; number < NUMBERS; number++) CHECK(is_open[number] == (fcntl(number, F_GETFD) >= 0));
    }
}

static int from_main[2], to_main[2];

static void *fails(void *argument) {
    char byte;
    CHECK(execve("/etc/passwd", nothing, environ) == -1);
    CHECK(write(to_main[1], "x", 1) == 1);
    CHECK(read(from_main[0], &byte, 1) == 1);
    return argument;
}

static void settled(void) {
    pthread_t thread;
    char byte;
    int file = open("file", O_CREAT | O_RDWR, 0600), status;
    CHECK(file >= 0 && flock(file, LOCK_EX) == 0 && pipe(from_main) == 0 && pipe(to_main) == 0);
    CHECK(pthread_create(&thread, 0, fails, 0) == 0 && read(to_main[0], &byte, 1) == 1);
    CHECK(close(file) == 0);
    int child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        file = open("file", O_RDWR);
        _exit(file < 0 || flock(file, LOCK_EX | LOCK_NB) ? 1 : 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(from_main[1], "x", 1) == 1 && pthread_join(thread, 0) == 0);
    printf("ok\n");
}

enum { MANY = 100 };
static atomic_int executed;

static void *waits(void *argument) {
    int status;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/cat", "cat", (char *)0);
        _exit(9);
    }
    executed++;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return argument;
}

static void many(void) {
    pthread_t threads[MANY];
    pthread_attr_t small;
    int ends[2], file = open("file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[0], 0) == 0);
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 65536) == 0);
    alarm(400);
    for (int i = 0; i < MANY; i++) CHECK(pthread_create(&threads[i], &small, waits, 0) == 0);
    while (executed < MANY) usleep(1000);
    close(ends[1]);
    for (int i = 0; i < MANY; i++) CHECK(pthread_join(threads[i], 0) == 0);
    printf("ok\n");
}

static void *spawns(void *argument) {
    for (int i = 0; i < 4; i++) {
        int status;
        pid_t child;
        char *arguments[] = {"true", 0};
        CHECK(posix_spawn(&child, "/bin/true", 0, 0, arguments, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return argument;
}

static void crowd(void) {
    enum { CROWD = 200 };
    pthread_t threads[CROWD];
    pthread_attr_t small;
    CHECK(open("file", O_CREAT | O_RDWR, 0600) >= 0);
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 65536) == 0);
    for (int i = 0; i < CROWD; i++) CHECK(pthread_create(&threads[i], &small, spawns, 0) == 0);
    for (int i = 0; i < CROWD; i++) CHECK(pthread_join(threads[i], 0) == 0);
    printf("ok\n");
}

static int looked_at;

static void looks(int signal) {
    struct stat status;
    (void)signal;
    CHECK(fstat(looked_at, &status) == 0 && status.st_size == 5);
}

static void nothing_is_blocked(void) {
    sigset_t mask;
    CHECK(sigprocmask(0, 0, &mask) == 0);
    for (int signal = 1; signal < 65; signal++) CHECK(sigismember(&mask, signal) != 1);
}

static void signals(char *program, int left, char *number) {
    char left_after[20], number_after[20];
    struct flock whole = {.l_type = F_WRLCK};
    if (number) {
        looked_at = atoi(number);
        nothing_is_blocked();
        looks(0);
    } else {
        CHECK((looked_at = open("file", O_CREAT | O_RDWR, 0600)) >= 0 && write(looked_at, "bytes", 5) == 5);
        CHECK(fcntl(looked_at, F_SETLK, &whole) == 0);
    }
    if (left == 0) {
        int child = fork(), status;
        CHECK(child >= 0);
        if (child == 0) _exit(fcntl(looked_at, F_GETLK, &whole) || whole.l_type != F_WRLCK);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        printf("ok\n");
        return;
    }
    /* Whoever has no handler for it ignores it. */
    struct sigaction action = {.sa_handler = looks, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG};
    struct itimerspec often = {{0, 40000}, {0, 20000 + left % 60 * 1000}};
    timer_t timer;
    snprintf(left_after, sizeof left_after, "%d", left - 1);
    snprintf(number_after, sizeof number_after, "%d", looked_at);
    CHECK(sigaction(SIGURG, &action, 0) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &often, 0) == 0);
    execl(program, program, "signals", left_after, number_after, (char *)0);
    CHECK(!"executed");
}

static char *self;

static void executes(int signal) {
    (void)signal;
    execl(self, self, "mask", (char *)0);
    _exit(9);
}

static void mask(void) {
    sigset_t mask;
    CHECK(sigprocmask(0, 0, &mask) == 0);
    for (int signal = 1; signal < 65; signal++) if (sigismember(&mask, signal) == 1) printf("%d ", signal);
    printf("blocked\n");
}

static void alternate(char *program) {
    static char room[65536];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction action = {.sa_handler = executes, .sa_flags = SA_ONSTACK};
    self = program;
    CHECK(open("file", O_CREAT | O_RDWR, 0600) >= 0);
    CHECK(sigaltstack(&stack, 0) == 0 && sigaction(SIGUSR1, &action, 0) == 0 && raise(SIGUSR1) == 0);
    CHECK(!"executed");
}

static pthread_barrier_t start;

static void *counts(void *program) {
    pthread_barrier_wait(&start);
    execl(program, program, "count", (char *)0);
    return 0;
}

static void count(void) {
    char name[64], target[256];
    for (int number = 0; number < NUMBERS; number++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", number);
        ssize_t length = readlink(name, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (strstr(target, "/dev/shm/gannet-0") || strstr(target, "/dev/shm/gannet-1")) exit(1);
    }
}

static void both(char *program) {
    CHECK(open("file", O_CREAT | O_RDWR, 0600) >= 0);
    for (int i = 0; i < 60; i++) {
        int child = fork(), status;
        CHECK(child >= 0);
        if (child == 0) {
            pthread_t thread;
            pthread_barrier_init(&start, 0, 2);
            CHECK(pthread_create(&thread, 0, counts, program) == 0);
            counts(program);
            _exit(2);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    printf("ok\n");
}

static void dropped(void) {
    int file = open("file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    execl("/bin/echo", "echo", "ok", (char *)0);
    CHECK(!"executed");
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    if (!strcmp(argv[1], "numbers")) numbers();
    else if (!strcmp(argv[1], "crowd")) crowd();
    else if (!strcmp(argv[1], "signals")) signals(argv[0], argc > 2 ? atoi(argv[2]) : 200, argc > 3 ? argv[3] : 0);
    else if (!strcmp(argv[1], "alternate")) alternate(argv[0]);
    else if (!strcmp(argv[1], "mask")) mask();
    else if (!strcmp(argv[1], "both")) both(argv[0]);
    else if (!strcmp(argv[1], "count")) count();
    else if (!strcmp(argv[1], "settled")) settled();
    else if (!strcmp(argv[1], "many")) many();
    else if (!strcmp(argv[1], "dropped")) dropped();
    else return write(2, "text\n", 5) == 5 ? 0 : errno;
    return 0;
}
