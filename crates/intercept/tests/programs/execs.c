/* What processes that execute programs, or fail to, must not notice or leave behind, in the current directory.
 *
 *   execs numbers    after an execve that failed the lowest free numbers are what they were
 *   execs settled    what a thread's failed execve kept is given back although the thread does nothing more
 *   execs many       more threads than a list has room for wait for children that share their memory and have executed a program
 *   execs dropped    who gave up its rights executes a program with files open (root)
 *   execs writer     writes to the standard error
 *
 * Prints what it saw. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
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
    alarm(100);
    for (int i = 0; i < MANY; i++) CHECK(pthread_create(&threads[i], &small, waits, 0) == 0);
    while (executed < MANY) usleep(1000);
    close(ends[1]);
    for (int i = 0; i < MANY; i++) CHECK(pthread_join(threads[i], 0) == 0);
    printf("ok\n");
}

static void dropped(void) {
    int file = open("file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    execl("/bin/echo", "echo", "ok", (char *)0);
    CHECK(!"executed");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (!strcmp(argv[1], "numbers")) numbers();
    else if (!strcmp(argv[1], "settled")) settled();
    else if (!strcmp(argv[1], "many")) many();
    else if (!strcmp(argv[1], "dropped")) dropped();
    else return write(2, "text\n", 5) == 5 ? 0 : errno;
    return 0;
}
