// Limits, sealed maps and short buffers: what is refused, and what stays as it was. Told line by line as in conform.c.
//   corners DIRECTORY      an empty directory, which becomes the working directory
#include "say.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static void maps(void) {
    section = "maps";
    int file = open("mapped", O_CREAT | O_RDWR, 0600), reading = open("mapped", O_RDONLY); ftruncate(file, 65536); pwrite(file, "content", 7, 0);
    char *map = mmap(0, 16384, PROT_READ, MAP_SHARED, reading, 0); R(mprotect(map, 4096, 99)); R(mprotect(map, 4096, 0x400)); R(mprotect(map, 0, 99)); R(mprotect(map, 4096, PROT_READ | PROT_WRITE)); R(mprotect(map, 4096, PROT_READ | 8)); R(mprotect(map, 4096, PROT_READ | PROT_WRITE | 8)); R(mprotect(map, 4096, PROT_READ | PROT_GROWSDOWN)); R(memcmp(map, "content", 7)); munmap(map, 16384);
    map = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); mprotect(map, 4096, PROT_READ); R(mprotect(map, 4096, PROT_READ | PROT_WRITE | 8)); map[0] = 'C'; R(memcmp(map, "Content", 7));
    char *room = mmap(0, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // A child, which ends with what cannot be taken away again.
    fflush(0);
    pid_t child = fork();
    if (!child) {
        long sealed = S(mseal, map, 16384, 0);
        say("sealed: %s", sealed ? strerrorname_np(errno) : "yes");
        // Linux before 6.10.
        if (sealed) _exit(0);
        R(mremap(map, 16384, 8192, 0)); R(mremap(map, 16384, 16384, 0) == map); R(mremap(map, 16384, 16384, 0)); R(mremap(map, 16384, 32768, MREMAP_MAYMOVE)); R(mremap(map, 16384, 16384, MREMAP_MAYMOVE | MREMAP_FIXED, room)); R(mremap(map, 0, 16384, MREMAP_MAYMOVE)); R(mremap(map, 16384, 0, MREMAP_MAYMOVE)); R(mremap(map + 4096, 4096, 8192, MREMAP_MAYMOVE)); R(munmap(map, 4096)); R(mprotect(map, 4096, PROT_READ)); R(memcmp(map, "Content", 7)); map[1] = 'O'; R(pread(file, room = malloc(7), 7, 0)); R(memcmp(room, "COntent", 7));
        _exit(0);
    }
    waitpid(child, 0, 0); munmap(map, 16384); munmap(room, 65536); close(file); close(reading);
}

// At the end of what an offset can say.
static void ends(void) {
    section = "ends";
    int file = open("end", O_CREAT | O_RDWR, 0600); char text[20]; struct iovec part = {text, 20}; ftruncate(file, 65536);
    if (lseek(file, LONG_MAX - 10, SEEK_SET) > 0) { R(read(file, text, 20)); R(readv(file, &part, 1)); R(write(file, text, 20)); R(writev(file, &part, 1)); R(lseek(file, 0, SEEK_CUR) == LONG_MAX - 10); }
    else for (int i = 0; i < 5; i++) say("no such place");
    R((long)mmap(0, 4096, PROT_READ, MAP_SHARED, file, LONG_MAX - 4095)); R((long)mmap(0, 8192, PROT_READ, MAP_PRIVATE, file, LONG_MAX - 8191)); R((long)mmap(0, 4096, PROT_READ, MAP_SHARED, file, -4096));
    char *map = mmap(0, 8192, PROT_READ, MAP_SHARED, file, 32768); R(madvise(map, 4096, MADV_WIPEONFORK)); R(madvise(map, 4096, MADV_FREE)); R(madvise(map, 4096, MADV_DONTNEED)); R(map[0]);
    // No path at all, since Linux 6.11 an empty one; which the working directory is, others say.
    struct stat status; struct statx extended; R(fstatat(AT_FDCWD, 0, &status, AT_EMPTY_PATH)); R(S_ISDIR(status.st_mode)); R(syscall(SYS_statx, AT_FDCWD, 0, AT_EMPTY_PATH, STATX_TYPE, &extended)); R(S_ISDIR(extended.stx_mode)); R(fstatat(AT_FDCWD, 0, &status, 0));
    munmap(map, 8192); close(file);
}

static void names(void) {
    section = "names";
    int listening = socket(AF_UNIX, SOCK_STREAM, 0), calling = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {AF_UNIX, "a socket with a name"}; R(bind(listening, (void *)&address, sizeof address)); R(listen(listening, 1)); R(connect(calling, (void *)&address, sizeof address)); int accepted = accept(listening, 0, 0);
    static const unsigned lengths[] = {0, 1, 2, 3, 10, 22, 23, 24, 110, 200};
    for (int i = 0; i < 10; i++) for (int which = 0; which < 3; which++) {
        char got[200]; memset(got, '#', sizeof got); unsigned length = lengths[i]; errno = 0;
        int r = which == 0 ? getsockname(listening, (void *)got, &length) : which == 1 ? getpeername(calling, (void *)got, &length) : getsockname(accepted, (void *)got, &length);
        int untouched = 0; while (untouched < 200 && got[199 - untouched] == '#') untouched++;
        if (r) say("%u: %s", lengths[i], strerrorname_np(errno)); else say("%u: %u, %d bytes, '%.*s'", lengths[i], length, 200 - untouched, lengths[i] < 3 ? 0 : (int)strnlen(got + 2, 198 - untouched), got + 2);
    }
    unsigned length = -1; R(getsockname(listening, (void *)&address, &length)); R(getsockname(listening, BAD, &length)); R(getsockname(listening, (void *)&address, BAD)); length = 4; R(getsockname(listening, BAD, &length));
    close(listening); close(calling); close(accepted); unlink(address.sun_path);
}

// A child that may open nothing goes on with what is open.
static void descriptors(void) {
    section = "descriptors";
    for (int way = 0; way < 4; way++) {
        int file = open("kept", O_CREAT | O_TRUNC | O_RDWR, 0600); fflush(0);
        pid_t child = fork();
        if (!child) {
            struct rlimit none = {0, 0}, few = {3, 3}; say("way %d", way);
            R(way == 0 ? setrlimit(RLIMIT_NOFILE, &none) : way == 1 ? prlimit(0, RLIMIT_NOFILE, &none, 0) : way == 2 ? prlimit(getpid(), RLIMIT_NOFILE, &none, 0) : setrlimit(RLIMIT_NOFILE, &few));
            R(write(file, "written", 7)); R(open("kept", O_RDONLY)); R(open("kept", O_PATH)); R(open("/dev/null", O_RDONLY)); R(dup(file)); R(fcntl(file, F_DUPFD, 0)); R(fcntl(file, F_DUPFD, 5)); R(unlink("none")); R(lseek(file, 0, SEEK_CUR)); struct stat s; R(stat("kept", &s)); R(s.st_size); R(close(file));
            _exit(0);
        }
        waitpid(child, 0, 0); close(file); show("kept");
    }
}

int main(int count, char **arguments) {
    if (count < 2 || chdir(arguments[1])) return 2;
    maps(); ends(); names(); descriptors();
    section = "end"; say("done");
}
