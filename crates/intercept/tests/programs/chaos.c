/* Processes of several threads that work with files, fork, spawn and execute in the current directory are killed, and a bystander works
 * beside them.
 *
 *   chaos SEED KILLS
 *
 * No call of anybody may fail, and no append be lost or torn. Prints "ok" or what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
enum { FAILED = 77, NO_PROGRAM = 66 };
#define BAD(...) do { dprintf(1, "BAD " __VA_ARGS__); dprintf(1, " errno %d pid %d\n", errno, getpid()); _exit(FAILED); } while (0)
#define OK(x) do { if (!(x)) BAD("%s:%d %s", __func__, __LINE__, #x); } while (0)
static int id; static char **envp0;
static void filework(unsigned *s, int who, int n) {
    char name[40], other[40], buf[9000], back[9000]; struct stat st;
    for (int i = 0; i < n; i++) {
        snprintf(name, 40, "d%d/f%d.%d", who % 4, id, who); snprintf(other, 40, "d%d/g%d.%d", (who + i) % 4, id, who);
        int len = 1 + rand_r(s) % 8999; memset(buf, rand_r(s), len);
        int f = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600); OK(f >= 0);
        OK(write(f, buf, len) == len); OK(pread(f, back, len, 0) == len && !memcmp(buf, back, len));
        OK(ftruncate(f, len / 2) == 0); OK(fstat(f, &st) == 0 && st.st_size == len / 2);
        if (i % 3 == 0) { char *m = mmap(0, 8192, 3, MAP_SHARED, f, 0); OK(m != MAP_FAILED); if (len > 1) OK(m[0] == buf[0]); OK(munmap(m, 8192) == 0); }
        OK(close(f) == 0); OK(rename(name, other) == 0);
        OK(stat(other, &st) == 0 && st.st_size == len / 2);
        f = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600); OK(f >= 0); OK(write(f, "0123456\n", 8) == 8); OK(close(f) == 0);
        if (i % 5 == 0) { f = open("lock", O_CREAT | O_RDWR, 0600); OK(f >= 0); struct flock l = {F_WRLCK, 0, who, 1, 0}; int r = i % 2 ? flock(f, LOCK_EX) : fcntl(f, F_OFD_SETLKW, &l); OK(r == 0 || errno == EINTR); OK(close(f) == 0); }
        OK(unlink(other) == 0);
    }
}
static void *worker(void *x) { unsigned s = (long)x * 7919 + id; for (;;) filework(&s, (int)(long)x, 50); }
static void *spawner(void *x) { unsigned s = (long)x * 104729 + id;
    for (;;) { pid_t p; int st; switch (rand_r(&s) % 4) {
        case 0: { posix_spawn_file_actions_t a; posix_spawn_file_actions_init(&a); posix_spawn_file_actions_addopen(&a, 1, "out", O_CREAT | O_WRONLY | O_APPEND, 0600); char *v[] = {"sh", "-c", "echo spawned; echo 0123456 >> log", 0}; OK(posix_spawn(&p, "/bin/sh", &a, 0, v, envp0) == 0); posix_spawn_file_actions_destroy(&a); break; }
        case 1: p = fork(); OK(p >= 0); if (!p) { unsigned t = s; filework(&t, 100 + (int)(long)x, 3); _exit(0); } break;
        case 2: p = fork(); OK(p >= 0); if (!p) { char *v[] = {"./tool", "child", 0}; execv("./tool", v); _exit(NO_PROGRAM); } break;
        default: p = vfork(); OK(p >= 0); if (!p) { int f = open("vout", O_CREAT | O_WRONLY | O_APPEND, 0600); if (f >= 0) { dup2(f, 1); close(f); } execl("./tool", "tool", "child", (char *)0); _exit(NO_PROGRAM); } break; }
        pid_t w; while ((w = waitpid(p, &st, 0)) < 0) OK(errno == EINTR);
        if (!(WIFEXITED(st) && WEXITSTATUS(st) == 0) && !WIFSIGNALED(st)) BAD("child of spawner status %x", st);
        if (WIFSIGNALED(st) && WTERMSIG(st) != 9) BAD("child of spawner signal %x", st);
    } }
static void victim(int n) { id = n; prctl(PR_SET_PDEATHSIG, SIGKILL); pthread_t t; for (long i = 1; i <= 2; i++) OK(pthread_create(&t, 0, worker, (void *)i) == 0); OK(pthread_create(&t, 0, spawner, (void *)(long)(10 + n)) == 0); spawner((void *)(long)(20 + n)); }
int main(int argc, char **argv, char **e) {
    if (argc == 2) return 0; /* what children execute */
    envp0 = e; int kills = atoi(argv[2]); srand(atoi(argv[1])); prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < 4; i++) { char d[4] = {'d', '0' + i, 0}; mkdir(d, 0700); }
    char cmd[300]; snprintf(cmd, 300, "cp %s ./tool", argv[0]); if (system(cmd)) return 1;
    int by = fork(); if (!by) { prctl(PR_SET_PDEATHSIG, 9); id = -1; unsigned s = 5; for (;;) filework(&s, 1, 100); }
    int v[2] = {0, 0}, st, bad = 0; pid_t w;
    for (int k = 0; k < kills && !bad; k++) {
        int i = k & 1; if (v[i]) { kill(v[i], 9); waitpid(v[i], &st, 0); if (WIFEXITED(st)) { printf("victim %x\n", st); bad = 1; } }
        /* A number of its own: what one that was killed has forked goes on, on a busy machine beside many later ones, with files named by it. */
        v[i] = fork(); if (!v[i]) victim(k);
        usleep(2000 + rand() % 30000);
        while ((w = waitpid(-1, &st, WNOHANG)) > 0) { if (w == by) { printf("bystander %x\n", st); bad = 1; } else if (w == v[0] || w == v[1]) { printf("victim %x\n", st); bad = 1; v[w == v[1]] = 0; } else if (WIFEXITED(st) && WEXITSTATUS(st) == FAILED) { printf("orphan %x\n", st); bad = 1; } }
    }
    for (int i = 0; i < 2; i++) if (v[i]) kill(v[i], 9);
    kill(by, 9); while (wait(&st) > 0) ;
    struct stat s; if (!stat("log", &s) && s.st_size % 8) { printf("log %ld\n", (long)s.st_size); bad = 1; }
    FILE *f = fopen("log", "r"); char line[100]; long lines = 0; while (f && fgets(line, 100, f)) { lines++; if (strcmp(line, "0123456\n")) { printf("line %ld is %s\n", lines, line); bad = 1; break; } }
    if (!bad) printf("ok\n"); return bad;
}
