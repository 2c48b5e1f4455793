/* Which functions of libgannet_preload.so a program and its descendants reach, in the order of their first calls.
 *
 *   reached FUNCTIONS FOUND PROGRAM ARGUMENTS...
 *
 * FUNCTIONS has a line for each: its address in the library and its name, sorted; FOUND gets addresses. Where the library is mapped, each
 * function's first byte is made a breakpoint, which goes when it is reached. Several times the same where several processes reach it. */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FUNCTIONS_MAX = 1 << 16, PROCESSES_MAX = 1 << 12, BREAKPOINT = 0xcc, SYSCALL_STOP = SIGTRAP | 0x80 };

static unsigned long functions[FUNCTIONS_MAX];
static int function_count;
static unsigned char *text; /* as it was, from the first function to behind the last's first byte */
static size_t text_bytes;

/* `base` is 0 where the library is not there; `waits`: executed something, and it may come. */
static struct process { pid_t id; unsigned long base; int waits; } processes[PROCESSES_MAX];
static int process_count;

static struct process *process(pid_t id) {
    for (int i = 0; i < process_count; i++)
        if (processes[i].id == id) return processes + i;
    if (process_count == PROCESSES_MAX) errx(1, "too many processes");
    processes[process_count] = (struct process){ .id = id };
    return processes + process_count++;
}

/* Where the library is, once all of it is mapped: when something behind its code is. */
static unsigned long library(pid_t id) {
    char path[64], line[512];
    unsigned long base = 0, start;
    int has_code = 0, is_whole = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", id);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char access[8];
        if (!strstr(line, "libgannet_preload.so") || sscanf(line, "%lx-%*x %7s", &start, access) != 2) continue;
        if (!base) base = start;
        if (access[2] == 'x') has_code = 1;
        else if (has_code && access[1] == 'w') is_whole = 1;
    }
    if (maps) fclose(maps);
    return is_whole ? base : 0;
}

static void memory(pid_t id, unsigned long address, unsigned char *bytes, size_t length, int is_write) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", id);
    int file = open(path, O_RDWR);
    ssize_t done = file < 0 ? -1 : is_write ? pwrite(file, bytes, length, address) : pread(file, bytes, length, address);
    if (done != (ssize_t)length) err(1, "memory of %d", id);
    close(file);
}

static void set_breakpoints(struct process *in) {
    if (!text) {
        text = malloc(text_bytes);
        memory(in->id, in->base + functions[0], text, text_bytes, 0);
    }
    unsigned char *changed = malloc(text_bytes);
    memcpy(changed, text, text_bytes);
    for (int i = 0; i < function_count; i++) changed[functions[i] - functions[0]] = BREAKPOINT;
    memory(in->id, in->base + functions[0], changed, text_bytes, 1);
    free(changed);
}

/* Whether the process stopped at one, which is then gone. */
static int reached(struct process *in, FILE *found) {
    const size_t ip = offsetof(struct user_regs_struct, rip);
    unsigned long address = ptrace(PTRACE_PEEKUSER, in->id, ip, 0) - 1, function = address - in->base;
    if (!in->base || function < functions[0] || function >= functions[0] + text_bytes) return 0;
    memory(in->id, address, text + (function - functions[0]), 1, 1);
    ptrace(PTRACE_POKEUSER, in->id, ip, address);
    fprintf(found, "%lx\n", function);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    FILE *list = fopen(argv[1], "r"), *found = fopen(argv[2], "w");
    if (!list || !found) err(1, "files");
    while (function_count < FUNCTIONS_MAX && fscanf(list, "%lx %*s", functions + function_count) == 1) function_count++;
    if (!function_count) errx(1, "no functions");
    text_bytes = functions[function_count - 1] - functions[0] + 1;
    pid_t id = fork();
    if (id == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execvp(argv[3], argv + 3);
        _exit(127);
    }
    int status;
    waitpid(id, &status, 0);
    ptrace(PTRACE_SETOPTIONS, id, 0, PTRACE_O_TRACEEXEC | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE
        | PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
    process(id);
    ptrace(PTRACE_CONT, id, 0, 0);
    while ((id = waitpid(-1, &status, __WALL)) > 0) {
        int before = process_count;
        struct process *in = process(id);
        if (!WIFSTOPPED(status)) { in->id = 0; continue; }
        if (process_count > before) continue;
        int signal = WSTOPSIG(status), event = status >> 16, passed = 0;
        if (event == PTRACE_EVENT_EXEC) {
            in->base = 0;
            in->waits = 1;
        } else if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) {
            unsigned long child;
            ptrace(PTRACE_GETEVENTMSG, id, 0, &child);
            unsigned long base = in->base;
            before = process_count;
            process(child)->base = base;
            /* Where it stopped before this was told, it goes on now; else when it stops. */
            if (process_count == before) ptrace(PTRACE_CONT, child, 0, 0);
        } else if (signal == SYSCALL_STOP) {
            if (in->waits && (in->base = library(id))) {
                in->waits = 0;
                set_breakpoints(in);
            }
        } else if (!event && signal != SIGSTOP && !(signal == SIGTRAP && reached(in, found))) {
            passed = signal;
        }
        ptrace(in->waits ? PTRACE_SYSCALL : PTRACE_CONT, id, 0, passed);
    }
    return 0;
}
