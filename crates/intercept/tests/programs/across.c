// Calls of which one end is in a volume and the other the host's, and in which order what is wrong with them is found, told line by line as in
// conform.c. What is the host's is memory, which is another file system beside tmpfs, too.
//   across DIRECTORY      an empty directory, which becomes the working directory
#include "say.h"
#include <linux/fiemap.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
enum { SETXATTRAT = 463, GETXATTRAT, LISTXATTRAT, REMOVEXATTRAT, FILE_GETATTR = 468, FILE_SETATTR };
#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY 1027
#endif

static long length(int file) { struct stat s; return fstat(file, &s) ? -1 : s.st_size; }

// What is sent from devices, and what cannot be sent.
static void devices(void) {
    section = "devices";
    int file = open("f", O_CREAT | O_RDWR, 0600), zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY); off_t at = 5; char text[100] = "";
    pwrite(file, "0123456789", 10, 0); R(sendfile(file, zero, 0, 4)); R(lseek(file, 0, SEEK_CUR)); show("f"); R(sendfile(file, zero, &at, 4)); R(at); R(sendfile(file, random, 0, 100)); R(sendfile(file, random, &at, 100)); R(at);
    R(length(file)); R(sendfile(file, zero, 0, 300000)); R(length(file)); R(lseek(file, 0, SEEK_CUR)); R(pread(file, text, 1, 300000)); R(text[0]);
    struct rlimit limit = {400000, RLIM_INFINITY}, unlimited; getrlimit(RLIMIT_FSIZE, &unlimited); setrlimit(RLIMIT_FSIZE, &limit); R(sendfile(file, zero, 0, 300000)); R(sendfile(file, zero, 0, 300000)); setrlimit(RLIMIT_FSIZE, &unlimited); R(length(file));
    int null = open("/dev/null", O_RDWR), terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY), directory = open("/", O_RDONLY); R(sendfile(file, null, 0, 4)); R(sendfile(file, terminal, 0, 4)); at = 0; R(sendfile(file, terminal, &at, 4)); R(sendfile(file, directory, 0, 4)); R(sendfile(file, zero, 0, 0)); R(sendfile(file, null, 0, 0));
    // Only as many descriptors as there are: it is done nevertheless.
    struct rlimit few = {directory + 1, 1024}, many; getrlimit(RLIMIT_NOFILE, &many); few.rlim_max = many.rlim_max; ftruncate(file, 0); lseek(file, 0, SEEK_SET); setrlimit(RLIMIT_NOFILE, &few); R(sendfile(file, zero, 0, 100000)); setrlimit(RLIMIT_NOFILE, &many); R(length(file));
    sigset_t none; sigemptyset(&none);
    int path = open("f", O_PATH), reading = open("f", O_RDONLY), appending = open("f", O_WRONLY | O_APPEND), others[] = {epoll_create1(0), eventfd(3, 0), signalfd(-1, &none, 0), timerfd_create(CLOCK_MONOTONIC, 0), inotify_init(), syscall(SYS_pidfd_open, getpid(), 0)};
    for (int i = 0; i < 6; i++) {
        int other = others[i]; say("-- %d", i);
        at = 0; R(sendfile(file, other, &at, 8)); R(sendfile(path, other, &at, 8)); R(sendfile(reading, other, &at, 8)); R(sendfile(appending, other, &at, 8)); R(sendfile(file, other, 0, 8)); R(sendfile(appending, other, 0, 8)); R(copy_file_range(other, 0, file, 0, 1, 0)); R(copy_file_range(file, 0, other, 0, 1, 0)); R(copy_file_range(other, 0, appending, 0, 1, 0)); R(copy_file_range(other, 0, path, 0, 1, 0));
    }
    for (int i = 3; i < 40; i++) close(i);
    unlink("f");
}

// A descriptor of the host's without any path, and the working directory.
static void pathless(void) {
    section = "pathless";
    int memory = memfd_create("memory", 0), ends[2]; pipe(ends); char text[100] = ""; struct { uint64_t value; uint32_t size, flags; } value = {(uintptr_t)"abc", 3, 0}; make("f", "x"); int file = open("f", O_RDWR), all[] = {memory, ends[0], file, 700, -5};
    for (int i = 0; i < 5; i++) {
        int of = all[i]; say("-- %d", i); value.value = (uintptr_t)"abc";
        R(syscall(SETXATTRAT, of, 0, AT_EMPTY_PATH, "user.a", &value, 16)); value.value = (uintptr_t)text; R(syscall(GETXATTRAT, of, 0, AT_EMPTY_PATH, "user.a", &value, 16)); say("%.3s", text); OK(syscall(LISTXATTRAT, of, 0, AT_EMPTY_PATH, text, 100)); R(syscall(REMOVEXATTRAT, of, 0, AT_EMPTY_PATH, "user.a")); R(syscall(GETXATTRAT, of, "", AT_EMPTY_PATH, "user.a", &value, 16)); R(syscall(GETXATTRAT, of, 0, 0, "user.a", &value, 16)); R(syscall(LISTXATTRAT, of, 0, 0, text, 100));
        memset(text, 0, 24); R(syscall(FILE_SETATTR, of, 0, text, 24, AT_EMPTY_PATH)); R(syscall(FILE_GETATTR, of, 0, text, 24, AT_EMPTY_PATH)); R(syscall(FILE_GETATTR, of, "", text, 24, AT_EMPTY_PATH)); R(syscall(FILE_GETATTR, of, 0, text, 24, 0)); memset(text, 0, 24);
    }
    // Whose flags are these: those of the directory here, which was given one.
    memset(text, 0, 24); text[0] = 0x40; R(syscall(FILE_SETATTR, AT_FDCWD, 0, text, 24, AT_EMPTY_PATH)); text[0] = 0; R(syscall(FILE_GETATTR, AT_FDCWD, 0, text, 24, AT_EMPTY_PATH)); R(text[0]); text[0] = 0; R(syscall(FILE_GETATTR, AT_FDCWD, ".", text, 24, 0)); R(text[0]); memset(text, 0, 24); R(syscall(FILE_SETATTR, AT_FDCWD, 0, text, 24, AT_EMPTY_PATH)); text[3] = 8; R(syscall(FILE_SETATTR, AT_FDCWD, ".", text, 24, 0)); memset(text, 0, 24);
    // From a directory of the host's, too.
    R(syscall(LISTXATTRAT, AT_FDCWD, 0, AT_EMPTY_PATH, text, 100)); R(syscall(LISTXATTRAT, AT_FDCWD, "", AT_EMPTY_PATH, text, 100)); R(syscall(REMOVEXATTRAT, AT_FDCWD, "", AT_EMPTY_PATH, "user.a")); R(syscall(REMOVEXATTRAT, AT_FDCWD, 0, AT_EMPTY_PATH, "user.a")); R(syscall(REMOVEXATTRAT, AT_FDCWD, 0, AT_EMPTY_PATH, ""));
    char home[4096]; getcwd(home, sizeof home); chdir("/"); R(syscall(FILE_GETATTR, memory, 0, text, 24, AT_EMPTY_PATH)); R(syscall(FILE_GETATTR, AT_FDCWD, 0, text, 24, 0)); OK(syscall(LISTXATTRAT, memory, 0, AT_EMPTY_PATH, text, 100)); chdir(home);
    for (int i = 3; i < 40; i++) close(i);
    unlink("f");
}

// Clones from, onto and beside the host's, and what is no file.
static void clones(void) {
    section = "clones";
    make("f", "0123456789"); mkfifo("p", 0600); int file = open("f", O_RDWR), memory = memfd_create("memory", 0), writing = open("f", O_WRONLY), reading = open("f", O_RDONLY), path = open("f", O_PATH), directory = open(".", O_RDONLY), fifo = open("p", O_RDWR | O_NONBLOCK), ends[2], of_host = open("/dev/null", O_PATH); pipe(ends); write(memory, "abcdefgh", 8);
    int own[] = {file, writing, reading, path, directory, fifo}, others[] = {memory, ends[1], of_host, 700, -1};
    for (int i = 0; i < 6; i++) for (int k = 0; k < 5; k++) {
        struct file_clone_range from = {own[i], 0, 0, 0}, to = {others[k], 0, 0, 0};
        say("-- %d %d", i, k); R(ioctl(others[k], FICLONE, own[i])); R(ioctl(own[i], FICLONE, others[k])); R(ioctl(others[k], FICLONERANGE, &from)); R(ioctl(own[i], FICLONERANGE, &to));
    }
    // Only what is wrong whatever the file system: not all can clone.
    R(ioctl(directory, FICLONE, path)); R(ioctl(file, FICLONE, path)); R(ioctl(path, FICLONE, file)); R(ioctl(fifo, FICLONE, path)); R(ioctl(fifo, FICLONE, file)); R(ioctl(fifo, FICLONE, directory)); R(ioctl(file, FICLONE, fifo)); R(ioctl(directory, FICLONE, fifo)); R(ioctl(file, FICLONE, directory)); R(ioctl(directory, FICLONE, file)); R(ioctl(file, FICLONERANGE, BAD)); R(ioctl(memory, FICLONERANGE, BAD));
    show("f"); R(length(memory)); for (int i = 3; i < 40; i++) close(i);
    unlink("f"); unlink("p");
}

// What else is wrong, and when that is found.
static void orders(void) {
    section = "orders";
    make("f", "0123456789"); int file = open("f", O_RDWR), again = open("f", O_RDWR), path = open("f", O_PATH), writing = open("f", O_WRONLY), reading = open("f", O_RDONLY), appending = open("f", O_WRONLY | O_APPEND), directory = open(".", O_RDONLY), ends[2]; pipe(ends);
    R(fcntl(path, F_DUPFD_QUERY, path)); R(fcntl(path, F_DUPFD_QUERY, dup(path))); R(fcntl(path, F_DUPFD_QUERY, file)); R(fcntl(file, F_DUPFD_QUERY, path)); R(fcntl(file, F_DUPFD_QUERY, again)); R(fcntl(path, F_DUPFD_QUERY, 700)); R(fcntl(path, F_DUPFD_QUERY, ends[0]));
    R(fcntl(directory, F_SETFL, O_DIRECT)); R(fcntl(directory, F_GETFL) & O_DIRECT); R(fcntl(directory, F_SETFL, O_NONBLOCK)); R(fcntl(directory, F_ADD_SEALS, 1)); R(fcntl(reading, F_ADD_SEALS, 1)); R(fcntl(path, F_ADD_SEALS, 1));
    struct flock lock = {F_RDLCK, SEEK_SET, 0, 0, 1}; R(fcntl(writing, F_OFD_SETLK, &lock)); R(fcntl(file, F_OFD_SETLK, &lock)); R(fcntl(file, F_OFD_GETLK, &lock)); lock.l_type = F_WRLCK; R(fcntl(reading, F_OFD_SETLKW, &lock)); lock.l_type = F_UNLCK; R(fcntl(reading, F_OFD_SETLK, &lock)); lock.l_type = 9; R(fcntl(reading, F_OFD_SETLK, &lock));
    R(splice(ends[0], 0, appending, 0, 1, SPLICE_F_NONBLOCK)); R(splice(ends[0], 0, file, 0, 1, SPLICE_F_NONBLOCK)); loff_t at = -1; R(splice(ends[0], 0, file, &at, 1, SPLICE_F_NONBLOCK)); R(splice(ends[0], 0, reading, 0, 1, SPLICE_F_NONBLOCK)); write(ends[1], "a", 1); R(splice(ends[0], 0, appending, 0, 1, SPLICE_F_NONBLOCK)); R(splice(ends[0], 0, file, 0, 1, SPLICE_F_NONBLOCK)); close(ends[1]); R(splice(ends[0], 0, file, 0, 1, SPLICE_F_NONBLOCK)); show("f");
    R((long)mmap(0, -4096, PROT_READ, MAP_SHARED, file, 0)); R((long)mmap(0, -4096, PROT_READ, MAP_PRIVATE, file, 4096)); R((long)mmap(0, 1l << 60, PROT_READ, MAP_PRIVATE, file, 0)); R((long)mmap(0, -4096, PROT_READ, MAP_SHARED, directory, 0)); R((long)mmap(0, 4096, PROT_READ, MAP_SHARED, directory, 0x7ffffffffffff000)); R((long)mmap(0, 8192, PROT_READ, MAP_SHARED, directory, 0x7ffffffffffff000)); R((long)mmap(0, 4096, PROT_READ, MAP_SHARED, directory, -4096)); R((long)mmap(0, 8192, PROT_READ, MAP_SHARED, file, 0x7ffffffffffff000)); R((long)mmap(0, 4096, PROT_READ, MAP_SHARED, path, 0x7ffffffffffff000));
    // Of the disk's file systems; the one in memory has no such request.
    struct fiemap map = {0, ~0ull, 0, 0, 0x7fffffff, 0}; R(ioctl(file, FS_IOC_FIEMAP, &map)); map.fm_extent_count = -1; R(ioctl(file, FS_IOC_FIEMAP, &map));
    struct { unsigned bytes; int type; char rest[160]; } handle = {128}; int mount; R(S(name_to_handle_at, AT_FDCWD, "f", &handle, &mount, 2)); R(S(name_to_handle_at, AT_FDCWD, "none", &handle, &mount, 2)); R(S(name_to_handle_at, AT_FDCWD, "f", &handle, &mount, 0x202)); R(S(name_to_handle_at, AT_FDCWD, "f", &handle, &mount, 4));
    handle.bytes = 128; R(S(name_to_handle_at, AT_FDCWD, "f", &handle, &mount, 0)); R(S(open_by_handle_at, directory, &handle, O_RDWR | O_CREAT | O_EXCL)); OK(S(open_by_handle_at, directory, &handle, O_RDWR | O_CREAT)); OK(S(open_by_handle_at, directory, &handle, O_RDWR | O_EXCL)); OK(S(open_by_handle_at, directory, &handle, O_PATH | O_CREAT | O_EXCL)); handle.type |= 0x1000000; R(S(open_by_handle_at, directory, &handle, O_RDWR)); R(S(open_by_handle_at, -1, &handle, O_RDWR)); handle.type |= 1 << 31; R(S(open_by_handle_at, directory, &handle, O_RDWR));
    for (int i = 3; i < 60; i++) close(i);
    unlink("f");
}

int main(int count, char **arguments) {
    if (count < 2 || chdir(arguments[1])) return 2;
    signal(SIGXFSZ, SIG_IGN); umask(022);
    devices(); pathless(); clones(); orders();
    section = "end"; say("done");
}
