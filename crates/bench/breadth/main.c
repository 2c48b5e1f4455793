/*
 * Every common call on files, in a volume and in another directory in turn: which of them is slower there, or scales worse.
 *
 *   breadth serve DIRECTORY                            does what it is asked to on standard input; not for people
 *   breadth DIRECTORY WORKERS MILLISECONDS ROUNDS PATTERN COMMAND…
 *
 * WORKERS is a number and `t` (threads) or `p` (processes). The second form runs itself as server, with DIRECTORY, and behind COMMAND (which ends with
 * the directory there), and prints for each operation whose name contains PATTERN the medians of both, of processor time and of time by the clock, a
 * call each in nanoseconds. What does not answer within a minute is said to hang.
 */
#include "breadth.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define WORKERS_MAX 8
#define ROUNDS_MAX 99
#define ANSWER_MS_MAX 60000
#define LEVEL 0.97 /* what is nearer than that is noise */

static const struct operation *operation_at(int index) {
    const struct operation *all[] = {data_operations, maps_operations, names_operations, attributes_operations, descriptors_operations};
    for (int table = 0; table < 5; table++)
        for (const struct operation *one = all[table]; one->name; one++)
            if (index-- == 0) return one;
    return NULL;
}

/* Shared by the workers, whatever they are. */
static struct {
    _Atomic int ready, go;
    struct { double wall_ns, cpu_ns; long calls; } result[WORKERS_MAX];
} *shared;
static const char *place;

static double now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void work(const struct operation *operation, int index, int milliseconds) {
    struct context c = {.idx = index, .fd = -1, .fd2 = -1, .fd3 = -1, .random = 88172645463325252u + index * 977};
    snprintf(c.dir, sizeof c.dir, "%s/w%d", place, index);
    snprintf(c.sh, sizeof c.sh, "%s/shared", place);
    mkdir(c.dir, 0755);
    mkdir(c.sh, 0755);
    c.buf = malloc(2 << 20);
    memset(c.buf, 7, 2 << 20);
    operation->setup(&c);
    if (operation->renew) operation->renew(&c, 0);
    shared->ready++;
    while (!shared->go) sched_yield();
    long at = 0, calls = 0, batch = 1;
    double wall = 0, cpu = 0, end = now_ns(CLOCK_MONOTONIC) + milliseconds * 1e6;
    for (;;) {
        long count = operation->series && batch > operation->series - at ? operation->series - at : batch;
        double began = now_ns(CLOCK_MONOTONIC), cpu_began = now_ns(CLOCK_THREAD_CPUTIME_ID);
        for (long i = 0; i < count; i++) operation->call(&c, at + i);
        cpu += now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_began;
        double ended = now_ns(CLOCK_MONOTONIC);
        wall += ended - began;
        calls += count;
        at += count;
        if ((ended - began) / 1e6 < milliseconds / 20.0) batch *= 2;
        if (ended >= end && calls > 1) break;
        if (operation->series && at == operation->series) {
            if (operation->renew) operation->renew(&c, at);
            at = 0;
        }
    }
    shared->result[index].wall_ns = wall;
    shared->result[index].cpu_ns = cpu;
    shared->result[index].calls = calls;
    if (c.map) munmap(c.map, c.maplen);
}

struct thread { const struct operation *operation; int index, milliseconds; };

static void *work_as_thread(void *given) {
    struct thread *one = given;
    work(one->operation, one->index, one->milliseconds);
    return NULL;
}

/* All workers of one measurement, in a process of their own: nothing of it stays. */
static int measure(const struct operation *operation, int workers, int kind, int milliseconds) {
    pthread_t threads[WORKERS_MAX];
    struct thread given[WORKERS_MAX];
    pid_t processes[WORKERS_MAX];
    int bad = 0, status;
    for (int i = 0; i < workers; i++) {
        given[i] = (struct thread){operation, i, milliseconds};
        if (kind == 't') pthread_create(&threads[i], NULL, work_as_thread, &given[i]);
        else if (!(processes[i] = fork())) work(operation, i, milliseconds), _exit(0);
    }
    while (shared->ready < workers && !bad) {
        if (kind == 'p' && waitpid(-1, &status, WNOHANG) > 0) bad = 1;
        sched_yield();
    }
    shared->go = 1;
    for (int i = 0; i < workers; i++) {
        if (kind == 't') pthread_join(threads[i], NULL);
        else if (waitpid(processes[i], &status, 0) > 0 && status) bad = 1;
    }
    return bad;
}

/* Removes what an operation left, by the calls that are measured anyway. */
static void clean(const char *directory) {
    DIR *list = opendir(directory);
    struct dirent *entry;
    while (list && (entry = readdir(list))) {
        char path[600];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (entry->d_type == DT_DIR) clean(path);
        else unlink(path);
    }
    if (list) closedir(list);
    rmdir(directory);
}

static int serve(const char *directory) {
    int number, workers, milliseconds, status;
    char kind;
    place = directory;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    while (scanf("%d %d %c %d", &number, &workers, &kind, &milliseconds) == 4) {
        memset(shared, 0, sizeof *shared);
        mkdir(place, 0755);
        pid_t child = fork();
        if (!child) _exit(measure(operation_at(number), workers, kind, milliseconds));
        waitpid(child, &status, 0);
        double cpu = 0, wall = 0, calls = 0;
        for (int i = 0; i < workers; i++) {
            cpu += shared->result[i].cpu_ns;
            wall += shared->result[i].wall_ns;
            calls += shared->result[i].calls;
        }
        if ((child = fork()) == 0) clean(place), _exit(0);
        waitpid(child, NULL, 0);
        if (status) printf("failed\n");
        else printf("%f %f\n", cpu / calls, wall / calls);
        fflush(stdout);
    }
    return 0;
}

struct server { pid_t process; FILE *to, *from; };

static struct server start(char *const command[]) {
    int to[2], from[2];
    CHECK(pipe2(to, O_CLOEXEC));
    CHECK(pipe2(from, O_CLOEXEC));
    pid_t process = fork();
    if (!process) {
        setpgid(0, 0);
        dup2(to[0], 0);
        dup2(from[1], 1);
        execvp(command[0], command);
        fail(command[0]);
    }
    close(to[0]);
    close(from[1]);
    return (struct server){process, fdopen(to[1], "w"), fdopen(from[0], "r")};
}

/* 1: answered; 0: it failed; -1: it hangs, and has been killed. */
static int ask(struct server *server, int number, const char *workers, int milliseconds, double *cpu, double *wall) {
    char line[200];
    fprintf(server->to, "%d %d %c %d\n", number, atoi(workers), workers[strlen(workers) - 1], milliseconds);
    fflush(server->to);
    struct pollfd answer = {fileno(server->from), POLLIN, 0};
    if (poll(&answer, 1, ANSWER_MS_MAX) <= 0) {
        kill(-server->process, SIGKILL);
        waitpid(server->process, NULL, 0);
        return -1;
    }
    return fgets(line, sizeof line, server->from) && sscanf(line, "%lf %lf", cpu, wall) == 2;
}

static int less(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, less);
    return values[count / 2];
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "serve")) return serve(argv[2]);
    if (argc < 7) return fprintf(stderr, "DIRECTORY WORKERS MILLISECONDS ROUNDS PATTERN COMMAND…\n"), 2;
    const char *workers = argv[2], *pattern = argv[5];
    int milliseconds = atoi(argv[3]), rounds = atoi(argv[4]), slower = 0;
    if (rounds < 1 || rounds > ROUNDS_MAX || atoi(workers) < 1 || atoi(workers) > WORKERS_MAX) return 2;
    char *const plain[] = {"/proc/self/exe", "serve", argv[1], NULL};
    char *const *commands[] = {argv + 6, plain};
    struct server servers[] = {start(commands[0]), start(commands[1])};
    signal(SIGPIPE, SIG_IGN);
    printf("%-40s %10s %10s %6s %6s\n", workers, "volume", "other", "cpu", "clock");
    const struct operation *operation;
    for (int number = 0; (operation = operation_at(number)); number++) {
        double cpu[2][ROUNDS_MAX], wall[2][ROUNDS_MAX];
        int outcome = 1;
        if (!strstr(operation->name, pattern)) continue;
        for (int round = 0; round < rounds && outcome == 1; round++)
            for (int turn = 0; turn < 2 && outcome == 1; turn++) {
                /* Nobody is always the first. */
                int which = turn ^ (round & 1);
                outcome = ask(&servers[which], number, workers, milliseconds, &cpu[which][round], &wall[which][round]);
                if (outcome < 0) servers[which] = start(commands[which]);
                if (outcome != 1) printf("%-40s %s %s\n", operation->name, outcome ? "HANGS" : "FAILS", which ? "there" : "in the volume");
            }
        if (outcome == 1) {
            double here = median(cpu[0], rounds), there = median(cpu[1], rounds);
            double ratio = there / here, clock_ratio = median(wall[1], rounds) / median(wall[0], rounds);
            slower += ratio < LEVEL;
            printf("%-40s %10.0f %10.0f %6.2f %6.2f%s\n", operation->name, here, there, ratio, clock_ratio, ratio < LEVEL ? "  slower" : "");
        } else slower++;
        fflush(stdout);
    }
    printf("%d slower, failed or hanging\n", slower);
    return 0;
}
