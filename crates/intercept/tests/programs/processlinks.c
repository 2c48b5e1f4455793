// What paths lead to that go by the kernel's links of this process, told line by line: `/proc/self/fd/N`, `/proc/self/cwd` and what leads there, by symbolic links
// in the directory of its working directory and in one of the host's. Arguments: the working directory's path, and a directory for links on the host.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *here, *host;
static const char *told(long result) { return result < 0 ? strerrorname_np(errno) : "ok"; }

// A path without what differs from run to run.
static void tell_path(const char *path) {
    char pid[32], *at; snprintf(pid, sizeof pid, "/proc/%d", getpid());
    if (!strncmp(path, pid, strlen(pid))) { printf("/proc/PID"); path += strlen(pid); }
    else if (!strncmp(path, pid + 6, strlen(pid) - 6)) { printf("PID"); path += strlen(pid) - 6; }
    else if (!strncmp(path, here, strlen(here))) { printf("@"); path += strlen(here); }
    else if (!strncmp(path, host, strlen(host))) { printf("HOST"); path += strlen(host); }
    char rest[4096]; snprintf(rest, sizeof rest, "%s", path);
    while ((at = strstr(rest, pid + 6))) { memmove(at + 3, at + strlen(pid) - 6, strlen(at + strlen(pid) - 6) + 1); memcpy(at, "PID", 3); }
    printf("%s", rest);
}

static void content(const char *what, int file) {
    char text[64];
    printf(" %s=%s", what, told(file));
    if (file < 0) return;
    long length = pread(file, text, sizeof text - 1, 0);
    if (length < 0) printf("(%s)", strerrorname_np(errno));
    else { text[length] = 0; printf("(%s)", text); }
    close(file);
}

static int open2(const char *path, unsigned long long flags, unsigned long long resolve) {
    struct open_how how = {.flags = flags, .resolve = resolve};
    return syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

static void look(const char *path) {
    struct stat status; struct statx more; char text[4096];
    tell_path(strstr(path, here) ? strstr(path, here) : path); printf(":");
    content("open", open(path, O_RDONLY));
    content("write", open(path, O_RDWR | O_APPEND));
    content("nofollow", open(path, O_RDONLY | O_NOFOLLOW));
    content("path", open(path, O_PATH));
    content("pathnofollow", open(path, O_PATH | O_NOFOLLOW));
    content("exclusive", open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
    content("none", open2(path, O_RDONLY, 0));
    content("nomagic", open2(path, O_RDONLY, RESOLVE_NO_MAGICLINKS));
    content("nosymlinks", open2(path, O_RDONLY, RESOLVE_NO_SYMLINKS));
    content("beneath", open2(path, O_RDONLY, RESOLVE_BENEATH));
    content("inroot", open2(path, O_RDONLY, RESOLVE_IN_ROOT));
    content("noxdev", open2(path, O_RDONLY, RESOLVE_NO_XDEV));
    memset(&status, 0, sizeof status);
    long result = stat(path, &status); printf(" stat=%s", told(result));
    if (!result) printf("(%o %ld)", status.st_mode, S_ISDIR(status.st_mode) ? 0 : (long)status.st_size);
    result = statx(AT_FDCWD, path, 0, STATX_ALL, &more); printf(" statx=%s", told(result));
    if (!result) printf("(%o %ld)", more.stx_mode, S_ISDIR(more.stx_mode) ? 0 : (long)more.stx_size);
    result = lstat(path, &status); printf(" lstat=%s", told(result));
    if (!result) printf("(%o)", status.st_mode & S_IFMT);
    printf(" access=%s", told(access(path, R_OK)));
    printf("/%s", told(access(path, X_OK)));
    result = readlink(path, text, sizeof text - 1); printf(" readlink=%s", told(result));
    if (result >= 0) { text[result] = 0; printf("("); tell_path(text); printf(")"); }
    DIR *directory = opendir(path); printf(" opendir=%s", directory ? "ok" : strerrorname_np(errno));
    int entries = 0;
    if (directory) { for (struct dirent *entry; (entry = readdir(directory));) entries += !strcmp(entry->d_name, "marker"); printf("(%d)", entries); closedir(directory); }
    int before = open(".", O_RDONLY | O_DIRECTORY);
    result = chdir(path); printf(" chdir=%s", told(result));
    if (!result) { if (getcwd(text, sizeof text)) { printf("("); tell_path(text); printf(")"); } fchdir(before); }
    close(before);
    printf("\n");
}

// What changes something, under a directory that a path leads to.
static void change(const char *directory) {
    char one[4096], two[4096];
    tell_path(strstr(directory, here) ? strstr(directory, here) : directory); printf(":");
    snprintf(one, sizeof one, "%s/new", directory); snprintf(two, sizeof two, "%s/other", directory);
    content(" create", open(one, O_RDWR | O_CREAT | O_EXCL, 0644));
    printf(" here=%s", told(access("new", F_OK)));
    printf(" link=%s", told(link(one, two))); printf(" here=%s", told(access("other", F_OK)));
    printf(" unlink=%s", told(unlink(two))); printf(" rename=%s", told(rename(one, two)));
    printf(" here=%s", told(access("other", F_OK))); printf(" truncate=%s", told(truncate(two, 7)));
    printf(" chmod=%s", told(chmod(two, 0600))); printf(" mkdir=%s", told(mkdir(one, 0700)));
    printf(" rmdir=%s", told(rmdir(one))); printf(" symlink=%s", told(symlink("x", one)));
    printf(" unlink=%s", told(unlink(one))); printf(" mknod=%s", told(mknod(one, S_IFREG | 0600, 0)));
    printf(" unlink=%s", told(unlink(one))); printf(" unlink=%s", told(unlink(two)));
    printf(" left=%s %s\n", told(access("new", F_OK)), told(access("other", F_OK)));
    unlink("new"); unlink("other");
}

// What changes the file behind a link.
static void change_file(const char *path) {
    struct stat status; struct timespec times[2] = {{5, 0}, {6, 0}};
    tell_path(path); printf(":");
    int file = open(path, O_WRONLY); printf(" write=%s", told(file < 0 ? -1 : write(file, "HE", 2))); if (file >= 0) close(file);
    printf(" truncate=%s", told(truncate(path, 4))); printf(" chmod=%s", told(chmod(path, 0751)));
    printf(" utimes=%s", told(utimensat(AT_FDCWD, path, times, 0)));
    printf(" chown=%s", told(chown(path, -1, -1)));
    file = open("file", O_RDONLY); fstat(file, &status);
    printf(" (%o %ld %ld)", status.st_mode, (long)status.st_size, (long)status.st_mtime); content("now", file);
    file = open(path, O_WRONLY | O_TRUNC); printf(" cut=%s", told(file)); if (file >= 0) close(file);
    stat("file", &status); printf(" (%ld)\n", (long)status.st_size);
    file = open("file", O_WRONLY); write(file, "hello", 5); close(file); chmod("file", 0644);
}

static void execute(const char *path) {
    tell_path(path); printf(": "); fflush(stdout);
    pid_t child = fork(); int status;
    if (!child) { execl(path, path, (char *)0); printf("%s\n", strerrorname_np(errno)); fflush(stdout); _exit(1); }
    waitpid(child, &status, 0); printf("status %d\n", WEXITSTATUS(status));
}

static void make_links(const char *directory, int file, int folder) {
    char path[4096], target[128];
    struct { const char *name, *target; } links[] = {
        {"self", "/proc/self"}, {"thread", "/proc/thread-self"}, {"cwd", "/proc/self/cwd"}, {"tcwd", "/proc/thread-self/cwd"}, {"fds", "/proc/self/fd"},
        {"devfds", "/dev/fd"}, {"in", "/dev/stdin"}, {"zero", "/proc/self/fd/0"}, {"root", "/proc/self/root"}, {"none", "/proc/self/fd/99"},
        {"chain", "cwd"}, {"chain2", "self/cwd"}, {"cwd/.."}, {"exe", "/proc/self/exe"}, {"null", "/dev/null"}, {"loop", "loop"},
    };
    for (unsigned index = 0; index < sizeof links / sizeof *links; index++) { snprintf(path, sizeof path, "%s/%s", directory, links[index].name); symlink(links[index].target, path); }
    snprintf(target, sizeof target, "/proc/%d/fd/%d", getpid(), file); snprintf(path, sizeof path, "%s/own", directory); symlink(target, path);
    snprintf(target, sizeof target, "/proc/self/fd/%d", folder); snprintf(path, sizeof path, "%s/folder", directory); symlink(target, path);
    snprintf(path, sizeof path, "%s/back", directory); symlink(here, path);
}

int main(int count, char **arguments) {
    (void)count; here = arguments[1]; host = arguments[2];
    setvbuf(stdout, 0, getenv("LINES_AT_ONCE") ? _IOLBF : _IOFBF, 1 << 16);
    if (chdir(here)) return 1;
    int file = open("file", O_RDWR | O_CREAT, 0644); write(file, "hello", 5);
    dup2(file, 0); dup2(file, 3); close(open("marker", O_CREAT | O_WRONLY, 0600));
    mkdir("below", 0755); close(open("below/inner", O_CREAT | O_WRONLY, 0600)); mkdir("usr", 0755); close(open("usr/mine", O_CREAT | O_WRONLY, 0600));
    int folder = open("below", O_RDONLY | O_DIRECTORY); dup2(folder, 20);
    int script = open("script", O_CREAT | O_WRONLY, 0755); write(script, "#!/bin/sh\necho ran\n", 19); close(script);
    dup2(open("script", O_RDONLY), 21);
    make_links(".", 3, 20); make_links(host, 3, 20);
    const char *directories[] = {".", host};
    const char *names[] = {"self", "self/fd/3", "self/cwd", "self/cwd/file", "self/cwd/below/../none/", "thread/fd/3", "thread/cwd/file", "cwd", "cwd/", "cwd/file", "cwd/usr/mine", "cwd/./below/../file",
        "tcwd/file", "fds/3", "fds/20/inner", "fds/3/x", "fds/99", "devfds/3", "in", "zero", "own", "none", "folder", "folder/", "folder/inner", "folder/../file", "chain/file", "chain2/file", "null", "loop", "back/file", "back/cwd/file"};
    char path[4096];
    for (int d = 0; d < 2; d++) {
        for (unsigned n = 0; n < sizeof names / sizeof *names; n++) { snprintf(path, sizeof path, "%s/%s", directories[d], names[n]); look(path); }
        snprintf(path, sizeof path, "%s/root%s/file", directories[d], here); look(path);
        const char *changed[] = {"cwd", "self/cwd", "chain", "chain2", "tcwd", "cwd/below/..", "folder/.."};
        for (unsigned n = 0; n < sizeof changed / sizeof *changed; n++) { snprintf(path, sizeof path, "%s/%s", directories[d], changed[n]); change(path); }
        snprintf(path, sizeof path, "%s/root%s", directories[d], here); change(path);
        const char *files[] = {"zero", "in", "own", "fds/3", "self/fd/3", "cwd/file", "back/zero"};
        for (unsigned n = 0; n < sizeof files / sizeof *files; n++) { snprintf(path, sizeof path, "%s/%s", directories[d], files[n]); change_file(path); }
        const char *programs[] = {"cwd/script", "self/cwd/script", "fds/21", "chain/script", "fds/3"};
        for (unsigned n = 0; n < sizeof programs / sizeof *programs; n++) { snprintf(path, sizeof path, "%s/%s", directories[d], programs[n]); execute(path); }
    }
    // The links themselves.
    for (int d = 0; d < 2; d++) {
        char other[4096]; snprintf(path, sizeof path, "%s/zero", directories[d]); snprintf(other, sizeof other, "%s/moved", directories[d]);
        printf("rename %s", told(rename(path, other))); printf(" unlink %s", told(unlink(other))); printf(" %s\n", told(access("file", F_OK)));
    }
    return 0;
}
