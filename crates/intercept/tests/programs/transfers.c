// What transfers between descriptors (sendfile, copy_file_range, splice) leave where they did not move all: positions, what is in the pipe,
// the error of the next call, signals. Told line by line as in conform.c.
//   transfers DIRECTORY      an empty directory, which becomes the working directory
#include "say.h"

static volatile int signals;
static void count(int number) { (void)number; signals++; }
static int file(const char *name) { return open(name, O_CREAT | O_TRUNC | O_RDWR, 0600); }
static char bytes[1 << 20];
static int filled(const char *name, long size) {
    int made = file(name);
    if (pwrite(made, bytes, size, 0) != size) say("cannot fill %s", name);
    return made;
}
static long at(int file) { return lseek(file, 0, SEEK_CUR); }
static int waiting(int pipe) { int count = 0; ioctl(pipe, FIONREAD, &count); return count; }
static long length(int file) { struct stat s; return fstat(file, &s) ? -1 : s.st_size; }
// Whether a file holds the first bytes from an offset on.
static int holds(int file, long from, long size) { char *text = malloc(size); int same = pread(file, text, size, from) == size && !memcmp(text, bytes, size); free(text); return same; }
// A call that waits is a failure, not a hang.
static void late(int number) { (void)number; static const char text[] = "it waits\n"; syscall(SYS_write, 1, text, sizeof text - 1); _exit(1); }

// Behind RLIMIT_FSIZE; the source is a file of the host, wherever this runs, or one of here.
static void limited(const char *where) {
    section = where;
    struct rlimit old, limit = {1000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    int from = !strcmp(where, "limited, from memory") ? memfd_create("from", 0) : file("from"), to = file("to");
    pwrite(from, bytes, 5000, 0); setrlimit(RLIMIT_FSIZE, &limit);
    R(sendfile(to, from, 0, 5000)); R(at(from)); R(at(to)); R(signals); R(sendfile(to, from, 0, 5000)); R(at(from)); R(signals); R(holds(to, 0, 1000)); lseek(from, 0, SEEK_END); R(sendfile(to, from, 0, 10)); lseek(from, 500, SEEK_SET); off_t offset = 3; R(sendfile(to, from, &offset, 10)); R(offset); R(at(from)); signals = 0;
    if (strcmp(where, "limited, from memory")) { lseek(from, 0, SEEK_SET); lseek(to, 0, SEEK_SET); R(copy_file_range(from, 0, to, 0, 5000, 0)); R(at(from)); R(at(to)); R(signals); R(copy_file_range(from, 0, to, 0, 5000, 0)); R(at(from)); R(signals); lseek(from, 0, SEEK_END); R(copy_file_range(from, 0, to, 0, 5000, 0)); }
    setrlimit(RLIMIT_FSIZE, &old); signals = 0; close(from); close(to);
}

// Likewise to a file of the host's, wherever this runs.
static void limited_there(void) {
    section = "limited, to memory"; signals = 0;
    struct rlimit old, limit = {1000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    char name[] = "/dev/shm/gannet-transfers-XXXXXX"; int from = file("from"), to = mkstemp(name); unlink(name); loff_t in = 0, out = 900;
    pwrite(from, bytes, 5000, 0); setrlimit(RLIMIT_FSIZE, &limit);
    R(copy_file_range(from, 0, to, 0, 5000, 0)); R(at(from)); R(at(to)); R(length(to)); R(signals); R(copy_file_range(from, 0, to, 0, 5000, 0)); R(at(from)); R(signals); R(copy_file_range(from, &in, to, &out, 5000, 0)); R(in); R(out); R(signals); R(copy_file_range(from, &in, to, &out, 5000, 0)); R(signals); out = 5000; R(copy_file_range(from, &in, to, &out, 5, 0)); R(signals); R(length(to)); R(at(to));
    setrlimit(RLIMIT_FSIZE, &old); signals = 0; pwrite(from, bytes, sizeof bytes, 0); limit.rlim_cur = sizeof bytes / 2; setrlimit(RLIMIT_FSIZE, &limit); in = out = 0;
    R(copy_file_range(from, &in, to, &out, sizeof bytes, 0)); R(in); R(out); R(signals); R(length(to));
    setrlimit(RLIMIT_FSIZE, &old); signals = 0; close(from); close(to);
}

static void from_pipes(void) {
    section = "from pipes";
    struct rlimit old, limit = {1000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old); setrlimit(RLIMIT_FSIZE, &limit);
    int ends[2], to = file("to"); pipe(ends); write(ends[1], bytes, 500); loff_t offset = 900;
    R(splice(ends[0], 0, to, &offset, 500, 0)); R(offset); R(waiting(ends[0])); R(signals); R(splice(ends[0], 0, to, &offset, 500, 0)); R(waiting(ends[0])); R(signals); R(length(to)); R(holds(to, 900, 100)); lseek(to, 2000, SEEK_SET); R(splice(ends[0], 0, to, 0, 500, SPLICE_F_NONBLOCK)); R(waiting(ends[0])); R(read(ends[0], bytes + 5000, 500)); R(memcmp(bytes + 5000, bytes + 100, 400)); memcpy(bytes + 5000, bytes, 500);
    R(splice(ends[0], 0, to, 0, 500, SPLICE_F_NONBLOCK)); fcntl(ends[0], F_SETFL, O_NONBLOCK); R(splice(ends[0], 0, to, 0, 500, 0)); fcntl(ends[0], F_SETFL, 0); setrlimit(RLIMIT_FSIZE, &old); signals = 0; lseek(to, 0, SEEK_SET);
    // What is there, and no more, whatever its size.
    write(ends[1], bytes, 65536); R(splice(ends[0], 0, to, 0, 1 << 20, 0)); R(holds(to, 0, 65536)); R(at(to)); write(ends[1], bytes, 10); R(splice(ends[0], 0, to, 0, 4, 0)); R(waiting(ends[0])); close(ends[1]); R(splice(ends[0], 0, to, 0, 40, 0)); R(splice(ends[0], 0, to, 0, 40, 0)); close(ends[0]); close(to);
}

static void to_pipe(const char *where, int *ends, int from) {
    section = where;
    static char text[1 << 20]; loff_t offset = 0; off_t sent = 0;
    R(splice(from, 0, ends[1], 0, 1 << 20, 0)); R(at(from)); R(waiting(ends[0])); R(splice(from, 0, ends[1], 0, 1 << 20, SPLICE_F_NONBLOCK)); R(at(from)); fcntl(ends[1], F_SETFL, O_NONBLOCK); R(splice(from, 0, ends[1], 0, 1, 0)); R(sendfile(ends[1], from, 0, 1)); R(sendfile(ends[1], from, &sent, 1)); R(sent); fcntl(ends[1], F_SETFL, 0); R(read(ends[0], text, 65536)); R(memcmp(text, bytes, 65536));
    write(ends[1], text, 100); R(splice(from, &offset, ends[1], 0, 70000, 0)); R(offset); while (waiting(ends[0])) read(ends[0], text, sizeof text);
    write(ends[1], text, 100); sent = 0; fcntl(ends[1], F_SETFL, O_NONBLOCK); R(sendfile(ends[1], from, &sent, 70000)); R(sent); fcntl(ends[1], F_SETFL, 0); while (waiting(ends[0])) read(ends[0], text, sizeof text);
    R(fcntl(ends[1], F_SETPIPE_SZ, 4096)); offset = 0; R(splice(from, &offset, ends[1], 0, 8192, 0)); R(splice(from, &offset, ends[1], 0, 8192, SPLICE_F_NONBLOCK)); R(read(ends[0], text, 8192)); R(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20)); offset = 0; R(splice(from, &offset, ends[1], 0, 1 << 20, 0)); R(read(ends[0], text, 1 << 20)); R(memcmp(text, bytes, 1 << 20)); R(fcntl(ends[1], F_SETPIPE_SZ, 65536));
    offset = 100; R(splice(from, &offset, ends[1], 0, 1 << 20, 0)); R(read(ends[0], text, 65536)); R(memcmp(text, bytes + 100, 65436)); R(splice(from, &offset, ends[1], 0, 20, SPLICE_F_NONBLOCK)); R(read(ends[0], text, 65536)); offset = 1 << 20; R(splice(from, &offset, ends[1], 0, 20, 0));
    // All of it to a reader who takes what comes.
    lseek(from, 0, SEEK_SET); pid_t child = fork();
    if (!child) { close(ends[1]); long all = 0, got; int same = 1; while ((got = read(ends[0], text, 5000)) > 0) { same &= !memcmp(text, bytes + all, got); all += got; } _exit(all == sizeof bytes && same ? 0 : 1); }
    long all = 0, got; while (all < (long)sizeof bytes && (got = splice(from, 0, ends[1], 0, sizeof bytes, 0)) > 0) all += got;
    R(all); R(at(from)); close(ends[1]); int status; waitpid(child, &status, 0); R(status); close(ends[0]);
}

static void broken(int from) {
    section = "broken"; signal(SIGPIPE, count); signals = 0;
    int ends[2]; pipe(ends); close(ends[0]); lseek(from, 7, SEEK_SET);
    R(splice(from, 0, ends[1], 0, 100, 0)); R(signals); R(at(from)); R(sendfile(ends[1], from, 0, 100)); R(signals); R(at(from)); close(ends[1]);
}

// Descriptors of the host's as targets of what they do not take.
static void refused(int from) {
    section = "refused"; signals = 0;
    int ends[2]; pipe(ends); lseek(from, 7, SEEK_SET); off_t sent = 3; int append = open("/dev/null", O_WRONLY | O_APPEND), reading = open("/dev/null", O_RDONLY), directory = open("/", O_RDONLY), path = open("/dev/null", O_PATH), text = open("host", O_CREAT | O_RDWR, 0600), memory = memfd_create("to", 0);
    R(sendfile(append, from, 0, 4)); R(sendfile(append, from, 0, 0)); R(sendfile(append, from, &sent, 4)); R(sendfile(reading, from, 0, 4)); R(sendfile(reading, from, &sent, 4)); R(sendfile(directory, from, 0, 4)); R(sendfile(path, from, 0, 4)); R(sendfile(ends[0], from, 0, 4)); R(sendfile(77, from, 0, 4)); R(sendfile(77, from, &sent, LONG_MAX)); R(sendfile(77, from, &sent, LONG_MAX - 3)); R(sendfile(77, from, 0, LONG_MAX)); R(sendfile(77, from, 0, LONG_MAX - 7)); R(sendfile(77, from, 0, -1L)); R(sendfile(memory, from, 0, -1L)); R(sent); R(at(from));
    R(copy_file_range(from, 0, append, 0, 4, 0)); R(copy_file_range(from, 0, directory, 0, 4, 0)); R(at(from)); fcntl(ends[1], F_SETFL, O_APPEND); R(splice(from, 0, ends[1], 0, 4, 0)); R(sendfile(ends[1], from, 0, 4)); R(at(from)); fcntl(memory, F_SETFL, O_APPEND); R(sendfile(memory, from, 0, 4)); R(at(from)); fcntl(memory, F_SETFL, 0); R(sendfile(memory, from, 0, 4)); R(at(from)); R(at(memory)); R(length(memory));
    for (int i = from + 1; i < 40; i++) close(i);
}

int main(int count_of, char **arguments) {
    if (count_of < 2 || chdir(arguments[1])) return 2;
    for (unsigned i = 0; i < sizeof bytes; i++) bytes[i] = i * 2654435761u >> 13;
    memcpy(bytes + 5000, bytes, 500);
    signal(SIGXFSZ, count); signal(SIGALRM, late); alarm(100);
    limited("limited"); limited("limited, from memory"); limited_there(); from_pipes();
    int from = filled("long", sizeof bytes), ends[2];
    pipe(ends); to_pipe("to pipes", ends, from);
    char name[] = "/dev/shm/gannet-transfers-XXXXXX"; mkdtemp(name); char fifo[80]; snprintf(fifo, sizeof fifo, "%s/p", name); mkfifo(fifo, 0600);
    lseek(from, 0, SEEK_SET); ends[0] = open(fifo, O_RDONLY | O_NONBLOCK); ends[1] = open(fifo, O_WRONLY); fcntl(ends[0], F_SETFL, 0); unlink(fifo); rmdir(name); to_pipe("to pipes with names", ends, from);
    broken(from); refused(from);
    section = "end"; say("done");
}
