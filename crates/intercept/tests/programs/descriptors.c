// Random calls on descriptors, seeded; prints what each returned. Run in a volume and beside it, the output must be the same.
// descriptors DIRECTORY SEED STEPS
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static uint64_t state;
static unsigned next(unsigned limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % limit;
}

enum { TOP = 24 };
static char out[1 << 20];
static size_t used;
static int log_descriptor;
static void say(const char *what, long result) {
    used += (size_t)snprintf(out + used, sizeof out - used, "%s %ld %d\n", what, result, result < 0 ? errno : 0);
}

// Numbers that are not looked at are given back.
static void made(const char *what, int descriptor) {
    say(what, descriptor);
    if (descriptor >= TOP) close(descriptor);
}

// Which descriptors are open, and which of them close on exec.
static void look(void) {
    for (int i = 0; i < TOP; i++) {
        int flags = fcntl(i, F_GETFD);
        used += (size_t)snprintf(out + used, sizeof out - used, "%c", flags < 0 ? '.' : flags ? 'c' : 'o');
    }
    out[used++] = '\n';
}

static void *idle(void *argument) { return argument; }

static volatile int from_handler = -1;
static char handler_path[4096];
static void handler(int number) {
    (void)number;
    from_handler = open(handler_path, O_RDONLY);
    close(from_handler);
}

int main(int count, char **arguments) {
    if (count == 2) {  // Executed by ourselves: what was inherited?
        state = 0;
        look();
        return (int)(write(1, out, used) != (ssize_t)used);
    }
    const char *directory = arguments[1];
    state = (uint64_t)atoi(arguments[2]);
    int steps = atoi(arguments[3]), result;
    char paths[4][4096], buffer[64];
    // Beyond what is looked at.
    log_descriptor = fcntl(1, F_DUPFD_CLOEXEC, 100);
    close(0);
    for (int i = 1; i < TOP; i++)
        if (i != 2) close(i);
    for (int i = 0; i < 4; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/file-%d", directory, i);
        int made = open(paths[i], O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (write(made, "some bytes", 10) != 10) return 9;
        close(made);
    }
    strcpy(handler_path, paths[0]);
    signal(SIGUSR1, handler);
    for (int step = 0; step < steps; step++) {
        const char *path = paths[next(4)];
        int a = (int)next(TOP), b = (int)next(TOP), flag = next(3) ? 0 : O_CLOEXEC;
        // The program's own error output stays.
        if (a == 2) a = 3;
        if (b == 2) b = 4;
        struct stat status;
        struct pollfd polled = {a, POLLIN, 0};
        int two[2];
        switch (next(34)) {
        case 0: case 1: case 2: case 3: case 4: case 5:
            made("open", open(path, O_RDWR | flag));
            break;
        case 6: case 7: case 8: case 9: case 10: case 11:
            say("close", close(a));
            break;
        case 12: made("host", open(next(2) ? "/dev/null" : "/etc/passwd", O_RDONLY | flag)); break;
        case 13: made("dup", dup(a)); break;
        case 14: say("dup2", dup2(a, b)); break;
        case 15: say("dup3", dup3(a, b, flag)); break;
        case 16: made("dupfd", fcntl(a, flag ? F_DUPFD_CLOEXEC : F_DUPFD, b)); break;
        case 17:
            result = pipe2(two, flag);
            say("pipe", result);
            if (!result) made("ends", two[0]), made("ends", two[1]);
            break;
        case 18: made("socket", socket(AF_UNIX, SOCK_STREAM | (flag ? SOCK_CLOEXEC : 0), 0)); break;
        case 19: made("eventfd", eventfd(0, flag ? EFD_CLOEXEC : 0)); break;
        case 20: say("getfd", fcntl(a, F_GETFD)); break;
        case 21: say("setfd", fcntl(a, F_SETFD, flag ? FD_CLOEXEC : 0)); break;
        case 22: say("cloex", ioctl(a, flag ? FIOCLEX : FIONCLEX)); break;
        case 23:
            result = poll(&polled, 1, 0);
            say("poll", result < 0 ? result : polled.revents & POLLNVAL);
            break;
        case 24: say("fstat", fstat(a, &status)); break;
        case 25: {
            // Not what blocks: pipes, sockets and counters.
            int regular = fstat(a, &status) == 0 && (S_ISREG(status.st_mode) || S_ISCHR(status.st_mode));
            if (regular || fcntl(a, F_GETFD) < 0) say("read", read(a, buffer, 4) < 0 ? -1 : 0);
            break;
        }
        case 26: say("lseek", lseek(a, 0, SEEK_SET) < 0 ? -1 : 0); break;
        case 27: say("range", (long)syscall(SYS_close_range, b, b + 2 < TOP ? b + 2 : b, next(3) ? 0 : 4)); break;
        case 28: {
            char name[64];
            snprintf(name, sizeof name, "/proc/self/fd/%d", a);
            say("stat", stat(name, &status));
            break;
        }
        case 29: {
            used = used > sizeof out / 2 ? (write(log_descriptor, out, used), (size_t)0) : used;
            pid_t child = fork();
            if (child == 0) {
                made("child opens", open(path, O_RDONLY));
                close(a);
                made("child opens", open(path, O_RDONLY));
                look();
                _exit(write(log_descriptor, out, used) != (ssize_t)used);
            }
            // The child has told all.
            waitpid(child, &result, 0);
            used = 0;
            say("child", result);
            break;
        }
        case 30: {
            if (next(4)) break;
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, log_descriptor, 1);
            char *words[] = {arguments[0], "look", NULL};
            pid_t child;
            if (write(log_descriptor, out, used) != (ssize_t)used) return 8;
            used = 0;
            result = posix_spawn(&child, "/proc/self/exe", &actions, NULL, words, environ);
            if (result == 0) waitpid(child, &result, 0);
            posix_spawn_file_actions_destroy(&actions);
            say("spawn", result);
            break;
        }
        case 31:
            raise(SIGUSR1);
            say("handler", from_handler);
            break;
        case 32: {
            pthread_t thread;
            if (next(40) == 0) {
                result = pthread_create(&thread, NULL, idle, NULL);
                if (result == 0) pthread_join(thread, NULL);
                say("thread", result);
            }
            break;
        }
        case 33: {
            void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, a, 0);
            if (map == MAP_FAILED && errno == EBADF) say("map", -1);
            if (map != MAP_FAILED) munmap(map, 4096);
            break;
        }
        }
        if (next(4) == 0) look();
        if (used > sizeof out / 2) {
            if (write(log_descriptor, out, used) != (ssize_t)used) return 8;
            used = 0;
        }
    }
    look();
    return (int)(write(log_descriptor, out, used) != (ssize_t)used);
}
