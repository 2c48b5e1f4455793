// Puts a filter of system calls on itself that ends whoever calls what programs do not call by themselves (openat2, futex_waitv), and forbids
// umask; then uses files, with children that wait for each other's locks, and once more in a program that it executes.
//   filter DIRECTORY [seccomp | prctl | executed]
#include "say.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#define ON(number, action) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)

static void install(int by_prctl) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), ON(437 /* openat2 */, SECCOMP_RET_KILL_PROCESS), ON(449 /* futex_waitv */, SECCOMP_RET_KILL_PROCESS),
        ON(SYS_umask, SECCOMP_RET_ERRNO | ENOSYS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long made = by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) : S(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    say("filter: %ld", made);
}

static void use(void) {
    struct stat status;
    char line[64];
    int missing = open("/gannet-none/x", O_RDONLY);
    say("missing: %s", missing < 0 ? strerrorname_np(errno) : "there");
    int made = open("made", O_CREAT | O_EXCL | O_RDWR, 0666);
    fstat(made, &status);
    say("made: %o, wrote %ld", status.st_mode & 0777, (long)write(made, "12345", 5));
    close(made);
    unlink("made");
    // The lock of the directory, and of one file.
    for (int child = 0; child < 4; child++)
        if (!fork()) {
            for (int times = 0; times < 2000; times++) {
                int shared = open("shared", O_CREAT | O_WRONLY | O_APPEND, 0600);
                write(shared, "x", 1);
                close(shared);
                snprintf(line, sizeof line, "of-%d", child);
                close(open(line, O_CREAT | O_WRONLY, 0600));
                unlink(line);
            }
            _exit(0);
        }
    int all = 0, how;
    while (wait(&how) > 0) all += how == 0;
    stat("shared", &status);
    say("children: %d, bytes %ld", all, (long)status.st_size);
    unlink("shared");
}

int main(int count, char **arguments) {
    const char *what = count > 2 ? arguments[2] : "";
    if (chdir(arguments[1])) return 1;
    if (strcmp(what, "executed")) {
        umask(027);
        install(!strcmp(what, "prctl"));
    }
    use();
    if (strcmp(what, "executed")) execl("/proc/self/exe", "filter", arguments[1], "executed", (char *)0);
    return 0;
}
