// What the calls that are made most with paths say of many paths of the host, told line by line: the same whether they are looked at or not.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *told(long result) { return result < 0 ? strerrorname_np(errno) : "yes"; }

static void tell(const char *what, const char *path) {
    struct stat status; struct statx more; char text[4096];
    printf("%s:", what);
    printf(" %s", told(stat(path, &status)));
    printf(" %s", told(lstat(path, &status)));
    printf(" %s", told(access(path, R_OK)));
    printf(" %s", told(faccessat(AT_FDCWD, path, R_OK, AT_EACCESS)));
    printf(" %s", told(readlink(path, text, sizeof text)));
    printf(" %s", told(statx(AT_FDCWD, path, 0, STATX_ALL, &more)));
    // The directory means nothing to an absolute path.
    printf(" %s", told(fstatat(9999, path, &status, 0)));
    printf(" %s\n", told(fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW)));
}

static void ignored(int signal) { (void)signal; }

int main(int count, char **arguments) {
    for (int index = 1; index < count; index++) tell(arguments[index], arguments[index]);
    size_t page = 4096;
    char *pages = mmap(0, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 3 * page, page);
    char *end = pages + 3 * page;
    tell("nowhere", 0); tell("bad", (char *)1); tell("not canonical", (char *)0x8000000000000000); tell("behind the end", end);
    strcpy(end - 5, "/usr"); tell("up to the end", end - 5);
    strcpy(end - 2, "/"); tell("root at the end", end - 2);
    end[-1] = '/'; tell("a slash at the end", end - 1);
    memcpy(end - 4, "/usr", 4); tell("without an end", end - 4);
    memcpy(end - 5, "/usr/", 5); tell("without an end, a slash last", end - 5);
    memset(pages, 'x', 3 * page); pages[0] = '/'; tell("far too long", pages);
    for (int length = 4093; length < 4100; length++) {
        for (int at = 0; at < length; at++) pages[at] = at % 100 ? 'x' : '/';
        pages[length] = 0; tell("long", pages);
    }
    // Signals come while paths are looked at.
    struct sigaction action = {.sa_handler = ignored};
    sigaction(SIGALRM, &action, 0);
    ualarm(50, 50);
    struct stat status; int wrong = 0;
    for (int round = 0; round < 200000; round++) wrong += stat("/usr/bin/env", &status) != 0 || stat("/usr/bin/none", &status) == 0;
    ualarm(0, 0);
    printf("wrong: %d\n", wrong);
    return 0;
}
