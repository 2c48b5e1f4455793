// What the suites for Linux file systems look at beyond the calls' answers, told line by line as in conform.c: which times move, which set-id
// bits go, what lies behind a file's end, flags of inodes, users of several kinds, ranges and their limits.
//   suites DIRECTORY      an empty directory, which becomes the working directory
#include "say.h"
#include <setjmp.h>
#include <sys/sendfile.h>

static const int user = 65534, other = 4711;

static void as(int who, int group, void (*work)(void)) {
    fflush(0);
    pid_t child = fork();
    if (!child) {
        if (who) { gid_t none[] = {group}; setgroups(1, none); setresgid(who, who, who); setresuid(who, who, who); }
        work();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status) say("ended with %x", status);
}

// Which of the three times of a file moved since it was given old ones.
static void age(const char *name) {
    struct timespec old[2] = {{1000000000, 5}, {1100000000, 6}};
    utimensat(AT_FDCWD, name, old, AT_SYMLINK_NOFOLLOW);
}
static struct timespec changed_before[8];
static const char *watched[8];
static int watched_count;
static void watch(const char *name) {
    struct stat s;
    age(name);
    lstat(name, &s);
    watched[watched_count] = name;
    changed_before[watched_count++] = s.st_ctim;
}
static int later(struct timespec a, struct timespec b) { return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec); }
static void moved(const char *what) {
    for (int i = 0; i < watched_count; i++) {
        struct stat s;
        if (lstat(watched[i], &s)) { say("%s: %s is gone", what, watched[i]); continue; }
        say("%s: %s %s%s%s", what, watched[i], s.st_atim.tv_sec != 1000000000 ? "a" : "-", s.st_mtim.tv_sec != 1100000000 ? "m" : "-", later(s.st_ctim, changed_before[i]) ? "c" : "-");
    }
    watched_count = 0;
}
// Times of the kernel have its clock's tick, which a virtual machine may let pass late: two calls in one are not told apart. They may
// also be up to a tick ahead of that clock (multigrain timestamps, Linux 6.13).
static void tick(void) { struct timespec from, now, t = {0, 1000000}; clock_gettime(CLOCK_REALTIME, &from); do nanosleep(&t, 0), clock_gettime(CLOCK_REALTIME_COARSE, &now); while (!later(now, from)); }
#define TIMES(files, ...) do { const char *f_[] = files; for (unsigned i_ = 0; i_ < sizeof f_ / sizeof *f_; i_++) watch(f_[i_]); tick(); errno = 0; long r_ = (long)(__VA_ARGS__); int e_ = errno; moved(#__VA_ARGS__); if (r_ == -1) say("  %s", strerrorname_np(e_)); } while (0)
#define F(...) {__VA_ARGS__}

static void times(void) {
    section = "times";
    mkdir("d", 0755); mkdir("e", 0755); make("d/f", "content of a file"); make("d/g", "another"); symlink("f", "d/l"); mkdir("d/sub", 0755);
    char text[8192]; int file = open("d/f", O_RDWR), dir = open("d", O_RDONLY), append = open("d/f", O_WRONLY | O_APPEND), ends[2]; pipe(ends);
    TIMES(F("d/f"), read(file, text, 4)); TIMES(F("d/f"), read(file, text, 0)); TIMES(F("d/f"), pread(file, text, 4, 1000)); TIMES(F("d/f"), write(file, "x", 1)); TIMES(F("d/f"), write(file, "x", 0)); TIMES(F("d/f"), write(append, "tail", 4)); TIMES(F("d/f"), pwrite(file, "y", 1, 5000));
    TIMES(F("d/f"), ftruncate(file, 4000)); TIMES(F("d/f"), ftruncate(file, 4000)); TIMES(F("d/f"), truncate("d/f", 4000)); TIMES(F("d/f"), truncate("d/f", 100)); TIMES(F("d/f"), close(open("d/f", O_WRONLY | O_TRUNC))); TIMES(F("d/f"), close(open("d/f", O_WRONLY | O_TRUNC))); TIMES(F("d", "d/f"), close(open("d/f", O_WRONLY | O_CREAT, 0600)));
    TIMES(F("d/f"), fallocate(file, 0, 0, 10000)); TIMES(F("d/f"), fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 20000)); TIMES(F("d/f"), fallocate(file, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096));
    TIMES(F("d/f"), chmod("d/f", 0640)); TIMES(F("d/f"), chmod("d/f", 0640)); TIMES(F("d/f"), chown("d/f", 5, 5)); TIMES(F("d/f"), chown("d/f", -1, -1)); TIMES(F("d/f"), setxattr("d/f", "user.a", "1", 1, 0)); TIMES(F("d/f"), getxattr("d/f", "user.a", text, 10)); TIMES(F("d/f"), removexattr("d/f", "user.a"));
    TIMES(F("d", "d/f"), link("d/f", "d/h")); TIMES(F("d", "d/f"), unlink("d/h")); TIMES(F("d", "e", "d/f"), rename("d/f", "e/f")); TIMES(F("d", "e", "e/f", "d/g"), rename("e/f", "d/g")); TIMES(F("d", "d/g"), rename("d/g", "d/f")); TIMES(F("d", "d/f"), rename("d/f", "d/f"));
    TIMES(F("d", "e", "d/sub"), rename("d/sub", "e/sub")); TIMES(F("d"), mkdir("d/new", 0755)); TIMES(F("d"), rmdir("d/new")); TIMES(F("d"), close(open("d/n", O_CREAT | O_WRONLY, 0600))); TIMES(F("d", "d/l"), readlink("d/l", text, 10)); TIMES(F("d"), symlink("x", "d/m")); TIMES(F("d"), mkfifo("d/p", 0600)); TIMES(F("d"), unlink("d/p")); TIMES(F("d"), unlink("d/none"));
    TIMES(F("d"), syscall(SYS_getdents64, dir, text, sizeof text) > 0); TIMES(F("d"), close(open("d", O_TMPFILE | O_RDWR, 0600))); make("d/one", "1"); make("d/two", "2"); TIMES(F("d", "d/one", "d/two"), S(renameat2, AT_FDCWD, "d/one", AT_FDCWD, "d/two", RENAME_EXCHANGE));
    int a = open("d/one", O_RDWR), b = open("d/two", O_RDWR); TIMES(F("d/one", "d/two"), copy_file_range(a, 0, b, 0, 1, 0)); lseek(a, 0, 0); TIMES(F("d/one", "d/two"), sendfile(b, a, 0, 1)); lseek(a, 0, 0); TIMES(F("d/one"), splice(a, 0, ends[1], 0, 1, 0)); TIMES(F("d/two"), splice(ends[0], 0, b, 0, 1, 0));
    ftruncate(a, 8192); char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0); TIMES(F("d/one"), (map[0] = 1, msync(map, 8192, MS_SYNC))); munmap(map, 8192);
    int quiet = open("d/one", O_RDONLY | O_NOATIME); TIMES(F("d/one"), read(quiet, text, 1)); TIMES(F("d/one"), utimensat(AT_FDCWD, "d/one", 0, 0)); struct timespec omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}}, only[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}}; TIMES(F("d/one"), utimensat(AT_FDCWD, "d/one", omit, 0)); TIMES(F("d/one"), utimensat(AT_FDCWD, "d/one", only, 0)); TIMES(F("d/one"), access("d/one", R_OK)); TIMES(F("d", "d/one"), fsync(a));
    struct statx born, now; statx(AT_FDCWD, "d/one", 0, STATX_ALL, &born); pwrite(a, "x", 1, 0); chmod("d/one", 0777); rename("d/one", "d/born"); statx(AT_FDCWD, "d/born", 0, STATX_ALL, &now); R(born.stx_btime.tv_sec == now.stx_btime.tv_sec && born.stx_btime.tv_nsec == now.stx_btime.tv_nsec);
    for (int i = 3; i < 40; i++) close(i);
}

// Set-id bits: what each change of content does to them, by root, a member of the group, and another.
static unsigned bits; static int changes;
static void change(void) {
    static const char *const names[] = {"write", "write nothing", "cut", "keep", "allocate", "allocate behind", "punch", "copy", "open", "truncate", "send", "writev", "sync write", "map"};
    struct stat s; int file = open("s", O_RDWR); if (file < 0) { say("not opened: %s", strerrorname_np(errno)); return; }
    errno = 0; long r = -1; off_t none = 0; struct iovec v = {"z", 1};
    switch (changes) {
    case 0: r = pwrite(file, "x", 1, 0); break;
    case 1: r = pwrite(file, "", 0, 0); break;
    case 2: r = ftruncate(file, 3); break;
    case 3: r = ftruncate(file, 9000); break;
    case 4: r = fallocate(file, 0, 0, 20000); break;
    case 5: r = fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 30000); break;
    case 6: r = fallocate(file, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096); break;
    case 7: { int from = open("source", O_RDONLY); r = copy_file_range(from, 0, file, 0, 100, 0); break; }
    case 8: r = open("s", O_WRONLY | O_TRUNC); if (r >= 0) r = 0; break;
    case 9: r = truncate("s", 5); break;
    case 10: { int from = open("source", O_RDONLY); r = sendfile(file, from, &none, 10); break; }
    case 11: r = writev(file, &v, 1); break;
    case 12: { int direct = open("s", O_WRONLY | O_SYNC | O_APPEND); r = write(direct, "x", 1); break; }
    case 13: { char *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); r = map == MAP_FAILED ? -1 : 0; if (!r) { map[0] = 1; r = msync(map, 4096, MS_SYNC); } break; }
    }
    int error = errno; stat("s", &s);
    say("%s of %o by %d: %s, %o", names[changes], bits, (int)getuid(), r < 0 ? strerrorname_np(error) : "ok", s.st_mode & 07777);
}
static void owned(void) {
    struct stat s;
    static const int to[][2] = {{-1, -1}, {-1, 65534}, {-1, 100}, {65534, -1}, {5, -1}};
    for (unsigned i = 0; i < 5; i++) { errno = 0; int r = chown("s", to[i][0], to[i][1]), e = errno; stat("s", &s); say("chown %d:%d of %o by %d: %s, %o %d:%d", to[i][0], to[i][1], bits, (int)getuid(), r ? strerrorname_np(e) : "ok", s.st_mode & 07777, s.st_uid, s.st_gid); if (!getuid() && !r) { chown("s", 65534, 65534); chmod("s", bits); } }
}
static void set_id(void) {
    section = "set-id";
    static const unsigned all[] = {06777, 02767, 04777, 02777, 02666, 06666, 04711, 06767};
    chmod(".", 0777); make("source", "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789");
    for (unsigned m = 0; m < 8; m++) for (changes = 0; changes < 14; changes++) for (int who = 0; who < 4; who++) {
        // Root; the owner, who is of the group; another; another who is of the group.
        unlink("s"); int file = open("s", O_CREAT | O_RDWR, 0600); ftruncate(file, 9000); fchown(file, user, user); bits = all[m]; fchmod(file, bits); close(file);
        as(who == 0 ? 0 : who == 1 ? user : other, who == 3 ? user : 100, change);
    }
    for (unsigned m = 0; m < 8; m++) for (int who = 0; who < 3; who++) { unlink("s"); close(open("s", O_CREAT | O_RDWR, 0600)); chown("s", user, user); bits = all[m]; chmod("s", bits); as(who == 0 ? 0 : who == 1 ? user : other, 100, owned); }
    mkdir("group", 0777); chown("group", 0, 100); chmod("group", 02777); chdir("group");
    for (int who = 0; who < 2; who++) for (unsigned m = 0; m < 8; m++) { bits = all[m]; pid_t child = fork(); if (!child) { if (who) { setgroups(0, 0); setresgid(user, user, user); setresuid(user, user, user); } umask(0); struct stat s; const char *made[] = {"f", "m", "d", "t"}; close(open("f", O_CREAT | O_RDWR, bits)); mknod("m", S_IFREG | bits, 0); mkdir("d", bits); int t = open(".", O_TMPFILE | O_RDWR, bits); char name[40]; snprintf(name, 40, "/proc/self/fd/%d", t); linkat(AT_FDCWD, name, AT_FDCWD, "t", AT_SYMLINK_FOLLOW); for (int i = 0; i < 4; i++) { if (lstat(made[i], &s)) say("%s: %s", made[i], strerrorname_np(errno)); else say("in a group's directory %s %o by %d: %o, group %d", made[i], bits, (int)getuid(), s.st_mode & 07777, s.st_gid); unlink(made[i]); rmdir(made[i]); } _exit(0); } wait(0); }
    chdir("..");
}

static void behind_the_end(void) {
    section = "behind the end";
    static char text[16384], page[16384]; struct stat s; memset(page, 'p', sizeof page);
    int file = open("b", O_CREAT | O_RDWR, 0644); write(file, "short", 5);
    char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    // What is stored behind the end in the last page is seen by nobody once the file grows.
    R(map[5]); R(map[4095]); memset(map + 5, 'g', 4091); fstat(file, &s); R(s.st_size); R(ftruncate(file, 4096)); R(pread(file, text, 4096, 0)); R(memchr(text, 'g', 4096) == 0); R(text[5]); R(map[5]);
    R(ftruncate(file, 5)); R(map[5]); memset(map + 5, 'h', 100); R(pwrite(file, "X", 1, 3000)); R(pread(file, text, 4096, 0)); R(memchr(text, 'h', 4096) == 0);
    R(ftruncate(file, 5)); memset(map + 5, 'i', 100); R(fallocate(file, 0, 0, 4096)); R(pread(file, text, 4096, 0)); R(memchr(text, 'i', 4096) == 0);
    R(ftruncate(file, 5)); memset(map + 5, 'j', 100); R(lseek(file, 5000, 0)); R(write(file, "Y", 1)); memset(text, 0, sizeof text); R(pread(file, text, 8192, 0)); R(memchr(text, 'j', 8192) == 0);
    R(ftruncate(file, 5)); memset(map + 5, 'k', 100); int append = open("b", O_WRONLY | O_APPEND); R(write(append, "tail", 4)); R(pread(file, text, 100, 0)); text[9] = 0; say("'%s'", text); munmap(map, 8192); R(pread(file, text, 100, 0));
    // Growing, cutting, growing: zeros.
    R(ftruncate(file, 0)); write(file, page, 10000); pwrite(file, page, 10000, 0); R(ftruncate(file, 3)); R(ftruncate(file, 10000)); R(pread(file, text, 10000, 0)); int zeros = 1; for (int i = 3; i < 10000; i++) zeros &= !text[i]; R(zeros);
    static const struct { int mode; long at, length; } ranges[] = {{3, 100, 50}, {3, 4000, 200}, {3, 0, 4096}, {3, 4096, 100000}, {3, 20000, 100}, {1, 8000, 9000}, {0, 12000, 1}};
    for (unsigned i = 0; i < 7; i++) { ftruncate(file, 0); pwrite(file, page, 10000, 0); errno = 0; int r = fallocate(file, ranges[i].mode, ranges[i].at, ranges[i].length); fstat(file, &s); memset(text, 1, sizeof text); long n = pread(file, text, sizeof text, 0), sum = 0; for (int k = 0; k < n; k++) sum += text[k] * (k + 1L); say("fallocate %d %ld %ld: %s, size %ld, sum %ld, data %d hole %ld", ranges[i].mode, ranges[i].at, ranges[i].length, r ? strerrorname_np(errno) : "ok", (long)s.st_size, sum, lseek(file, 0, SEEK_DATA) >= 0, (long)(lseek(file, 0, SEEK_HOLE) >= 0)); }
    ftruncate(file, 0); R(pwrite(file, "x", 1, 1 << 20)); R(lseek(file, 0, SEEK_DATA)); R(lseek(file, 0, SEEK_HOLE)); R(lseek(file, 1 << 20, SEEK_HOLE)); R(lseek(file, (1 << 20) + 1, SEEK_HOLE)); R(lseek(file, (1 << 20) + 1, SEEK_DATA)); fstat(file, &s); R(s.st_blocks <= 16); R(ftruncate(file, 1 << 30)); R(lseek(file, 2 << 20, SEEK_DATA)); R(lseek(file, 2 << 20, SEEK_HOLE)); fstat(file, &s); R(s.st_blocks <= 16);
    // Maps of what is not there yet see it come.
    ftruncate(file, 0); const char *seen = mmap(0, 1 << 20, PROT_READ, MAP_SHARED, file, 0); char *stores = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); int wrong = 0; for (int i = 0; i < 200; i++) { memset(page, 'a' + i % 26, 4096); pwrite(file, page, 4096, i * 4096L); wrong += seen[i * 4096L] != 'a' + i % 26; stores[i * 4096L + 1] = 'S'; } R(wrong); for (int i = 0; i < 200; i++) { pread(file, text, 2, i * 4096L); wrong += text[0] != 'a' + i % 26 || text[1] != 'S' || seen[i * 4096L + 1] != 'S'; } R(wrong); ftruncate(file, 1 << 20); stores[900000] = 'G'; R(pread(file, text, 1, 900000)); R(text[0]); R(seen[900000]); ftruncate(file, 100000); ftruncate(file, 1 << 20); R(seen[200000]); R(stores[900000]); R(seen[4097]); R(fallocate(file, 3, 8192, 4096)); R(seen[8192]); stores[8192] = 'P'; pread(file, text, 1, 8192); R(text[0]); close(open("b", O_RDWR | O_TRUNC)); ftruncate(file, 8192); R(seen[0]); stores[0] = 'T'; pread(file, text, 1, 0); R(text[0]); munmap((void *)seen, 1 << 20); munmap(stores, 1 << 20); memset(page, 'p', sizeof page);
    // A private map does not see or make changes; a shared one both; over an end that moved.
    ftruncate(file, 0); pwrite(file, page, 8192, 0); char *shared = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), *private = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0); private[0] = 'q'; shared[1] = 's'; R(pread(file, text, 2, 0)); say("%c%c %c%c", text[0], text[1], shared[0], private[0]); ftruncate(file, 4096); ftruncate(file, 8192); R(shared[5000]); shared[5000] = 't'; R(pread(file, text, 1, 5000)); R(text[0]); R(mremap(shared, 8192, 4096, 0) == shared); char *more = mremap(shared, 4096, 16384, MREMAP_MAYMOVE); R(more != MAP_FAILED); R(more[5000]); R(mremap(more, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, more + 4096) == MAP_FAILED ? -1 : 0); R(mremap(more, 0, 8192, 0) == MAP_FAILED ? -1 : 0); R(msync(more, 4096, MS_SYNC | MS_ASYNC)); R(msync(more, 4096, 64)); R(msync(more + 1, 4096, MS_SYNC)); R(msync((void *)0x10000000000, 4096, MS_SYNC)); R(madvise(more, 4096, MADV_DONTNEED)); R(more[0]); R(madvise(more, 4096, MADV_WILLNEED)); R(madvise(more, 4096, 12345)); R(madvise(more + 1, 4096, MADV_NORMAL)); unsigned char resident[4]; R(mincore(more, 4096, resident)); R(mincore(more, 4096, (void *)8)); R(mlock(more, 4096)); R(munlock(more, 4096)); close(file); R(more[0]); for (int i = 3; i < 30; i++) close(i);
}

static void vectors(void) {
    section = "vectors";
    char text[100], *bad = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); mprotect(bad + 4096, 4096, PROT_NONE);
    int file = open("v", O_CREAT | O_RDWR, 0644), pipes[2]; pipe(pipes); struct iovec first_bad[] = {{bad + 4096, 10}, {"rest", 4}}, second_bad[] = {{"good", 4}, {bad + 4096, 10}}, empty[] = {{"", 0}, {0, 0}, {"e", 1}};
    R(writev(file, first_bad, 2)); R(lseek(file, 0, 1)); R(writev(file, empty, 3)); R(lseek(file, 0, 1)); R(preadv(file, second_bad, 0, 0)); R(preadv(file, second_bad, 2, -1)); struct iovec into[] = {{text, 1}, {bad + 4096, 10}}; write(file, "0123456789", 10); R(preadv(file, into, 2, 0)); R(pread(pipes[0], text, 1, 0)); R(pwrite(pipes[1], text, 1, 0)); R(preadv(pipes[0], empty, 1, 0)); R(lseek(pipes[0], 0, 0)); R(fallocate(pipes[1], 0, 0, 10)); R(ftruncate(pipes[1], 1)); R(fsync(pipes[0])); R(posix_fadvise(pipes[0], 0, 0, 0)); R(readahead(pipes[0], 0, 1)); R(sync_file_range(pipes[0], 0, 1, 0));
    static const long ranges[][3] = {{0, 0, 0}, {0, 10, 7}, {-1, 10, 2}, {0, -1, 2}, {5, 5, 8}, {5, 5, -1}, {1L << 62, 1L << 62, 2}, {100, 5, 1}};
    for (unsigned i = 0; i < 8; i++) { errno = 0; long r = S(sync_file_range, file, ranges[i][0], ranges[i][1], ranges[i][2]); say("sync_file_range %ld %ld %ld = %s", ranges[i][0], ranges[i][1], ranges[i][2], r ? strerrorname_np(errno) : "0"); }
    int append = open("v", O_RDWR | O_APPEND); struct iovec one = {"NA", 2}; R(S(pwritev2, append, &one, 1, 0, 0, 0x20)); R(S(pwritev2, append, &one, 1, 1, 0, 0x30)); show("v"); R(S(preadv2, append, &one, 1, 0, 0, 0x20)); R(S(pwritev2, append, &one, 1, -1, 0, 0x20));
    R(copy_file_range(file, 0, file, 0, 0, 0)); loff_t a = 0, b = 1L << 62; R(copy_file_range(file, &a, append, 0, 1, 0)); R(copy_file_range(file, &a, file, &b, 5, 0)); b = LONG_MAX - 2; R(copy_file_range(file, &a, file, &b, 5, 0)); a = LONG_MAX; b = 0; R(copy_file_range(file, &a, file, &b, 5, 0)); a = 0; b = 5; R(copy_file_range(file, &a, file, &b, 5, 0)); R(a); R(b); ftruncate(file, 12); show("v"); a = 0; b = 3; R(copy_file_range(file, &a, file, &b, 5, 0)); R(copy_file_range(0x7fffffff, 0, file, 0, 1, 0)); R(copy_file_range(file, 0, 0x7fffffff, 0, 1, 0)); int null = open("/dev/null", O_RDWR); R(copy_file_range(null, 0, file, 0, 1, 0)); R(copy_file_range(file, 0, null, 0, 1, 0)); mkdir("vd", 0755); int dir = open("vd", O_RDONLY); R(copy_file_range(file, 0, dir, 0, 1, 0)); int path = open("v", O_PATH); R(copy_file_range(path, 0, file, 0, 1, 0)); R(sendfile(file, path, 0, 1)); R(sendfile(path, file, 0, 1)); R(splice(path, 0, pipes[1], 0, 1, 0)); R(sendfile(null, file, 0, 4)); R(sendfile(file, null, 0, 4)); off_t big = LONG_MAX; R(sendfile(null, file, &big, 4)); off_t past = 1000; R(sendfile(null, file, &past, 4)); R(S(tee, pipes[0], pipes[1], 1, 0)); R(S(vmsplice, path, &one, 1, 0));
    // Addresses that no memory has, the kernel's, and the end of everything.
    static void *const wild[] = {(void *)0x8000000000001000, (void *)0x7ffffffff000, (void *)0xffff888000000000, (void *)-4096, (void *)-1}; struct stat status; lseek(file, 0, 0);
    for (int i = 0; i < 5; i++) { say("-- %d", i); R(S(read, file, wild[i], 4)); R(S(write, file, wild[i], 4)); R(S(pread64, file, wild[i], 4, 0)); R(S(readv, file, wild[i], 1)); R(S(open, wild[i], 0)); R(S(stat, wild[i], &status)); R(S(stat, "v", wild[i])); R(S(getcwd, wild[i], 4096)); R(S(setxattr, "v", wild[i], "1", 1, 0)); R(S(fcntl, file, F_GETLK, wild[i])); R(S(execve, wild[i], 0, 0)); R(S(io_submit, 1, 1, wild[i]) == 0); }
    unsigned long context = 0; R(S(io_setup, 8, &context)); struct cb { uint64_t data; uint32_t key, flags; uint16_t op; int16_t prio; uint32_t fd; uint64_t buffer, bytes; int64_t offset; uint64_t r2; uint32_t f2, res; } c = {.op = 0, .fd = file, .buffer = (uint64_t)text, .bytes = 4}, *list[2] = {&c, &c}; uint64_t event[8]; int only_write = open("v", O_WRONLY), only_read = open("v", O_RDONLY);
    R(S(io_submit, context, 0, list)); R(S(io_submit, context, -1, list)); R(S(io_submit, context, 1, BAD)); struct cb *wrong[] = {BAD}; R(S(io_submit, context, 1, wrong)); c.fd = only_write; R(S(io_submit, context, 1, list)); c.op = 1; c.fd = only_read; R(S(io_submit, context, 1, list)); c.fd = path; R(S(io_submit, context, 1, list)); c.fd = file; R(S(io_submit, context, 2, list)); struct timespec none = {0, 0}; R(S(io_getevents, context, 2, 2, event, &none)); R((long)event[2]); c.r2 = 1; R(S(io_submit, context, 1, list)); R(S(io_submit, 0, 1, list)); R(S(io_destroy, context)); R(S(io_destroy, context)); for (int i = 3; i < 60; i++) close(i);
}

// What use of an address does: its value, or the signal and why.
static sigjmp_buf out_of_it;
static void caught(int number, siginfo_t *why, void *context) { (void)context; siglongjmp(out_of_it, number << 8 | why->si_code); }
#define USE(...) do { int how_ = sigsetjmp(out_of_it, 1); if (how_) say("%s: signal %d, %d", #__VA_ARGS__, how_ >> 8, how_ & 255); else { long value_ = (long)(__VA_ARGS__); say("%s = %ld", #__VA_ARGS__, value_); } } while (0)
// Does something to a file in another process.
#define ELSEWHERE(...) do { fflush(0); if (!fork()) { int own = open("beyond", O_RDWR); __VA_ARGS__; _exit(0); } wait(0); } while (0)
static void numbered(int file) { for (int i = 0; i < 4; i++) { char text[16]; snprintf(text, 16, "page%d", i); pwrite(file, text, 5, i * 4096L); } }

// Pages that lie behind the end of a file, and calls that would act on the medium under a map.
static void beyond(void) {
    section = "beyond";
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO}; sigaction(SIGSEGV, &action, 0); sigaction(SIGBUS, &action, 0);
    static char text[16384]; memset(text, 'm', sizeof text); int file = open("beyond", O_CREAT | O_RDWR, 0644), empty = open("empty", O_CREAT | O_RDWR, 0644), ends[2]; pipe(ends); write(file, text, 8192);
    volatile char *map = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); USE(map[0]); USE(map[8191]); USE(map[8192]); USE(map[16383]); USE(map[12288] = 'x'); R(write(ends[1], (char *)map + 8192, 4)); R(write(ends[1], (char *)map + 8190, 2)); R(write(empty, (char *)map + 8192, 4)); R(pread(file, (char *)map + 8192, 4, 0));
    R(ftruncate(file, 4096)); USE(map[4096]); USE(map[4095]); R(ftruncate(file, 12288)); USE(map[4096]); USE(map[12287] = 'y'); USE(map[12288]); R(pread(file, text, 1, 12287)); R(text[0]); R(ftruncate(file, 100)); USE(map[4095]); USE(map[4096]); R(pwrite(file, "far", 3, 13000)); USE(map[5000]); USE(map[13000]); USE(map[16383]);
    volatile char *private = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE, empty, 0), *none = mmap(0, 4096, PROT_READ, MAP_SHARED, empty, 0); USE(private[0]); USE(none[0]); R(pwrite(empty, "abc", 3, 0)); USE(none[0]); USE(private[1]); USE(private[0] = 'p'); R(pwrite(empty, "later", 5, 8192)); USE(private[0]); USE(private[8192]); USE(private[5000]); USE(private[12288]); USE(none[0]);
    char *moved = mremap((void *)private, 16384, 65536, MREMAP_MAYMOVE); R(moved != MAP_FAILED); USE(moved[0]); USE(moved[8192]); USE(moved[12288]); USE(moved[60000]); R(munmap(moved + 8192, 4096)); USE(moved[4096]); USE(moved[8192]);
    // Another process makes it longer.
    ftruncate(file, 4096); USE(map[9000]); ELSEWHERE(pwrite(own, "later", 5, 9000)); USE(map[9000]); USE(map[5000] = 'z'); R(pread(file, text, 1, 5000)); R(text[0]); USE(map[12288]); ELSEWHERE(ftruncate(own, 16384)); USE(map[16000] = 'q'); R(pread(file, text, 1, 16000)); R(text[0]);
    fflush(0); pid_t child = fork(); int status; if (!child) { signal(SIGBUS, SIG_DFL); ftruncate(file, 0); status = map[0]; _exit(3); } waitpid(child, &status, 0); say("by default: %d", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    child = fork(); if (!child) { signal(SIGBUS, SIG_IGN); ftruncate(file, 16384); ftruncate(file, 0); status = map[8192]; _exit(3); } waitpid(child, &status, 0); say("ignored: %d", WIFSIGNALED(status) ? WTERMSIG(status) : -1); munmap((void *)map, 16384);
    // Other parts of the file in the same place, and holes through a map.
    numbered(file); map = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); ftruncate(file, 16384); R(S(remap_file_pages, map, 4096, 0, 3, 0)); say("%.5s", (char *)map); USE(map[4] = 'R'); pread(file, text, 5, 12288); say("%.5s", text); R(S(remap_file_pages, map + 4096, 8192, 0, 0, 0)); say("%.5s %.5s", (char *)map + 4096, (char *)map + 8192); R(S(remap_file_pages, map, 4096, 1, 2, 0)); R(S(remap_file_pages, map, 100, 0, 2, 0)); R(S(remap_file_pages, map, 4096, 0, -1L, 0)); R(S(remap_file_pages, map, 65536, 0, 0, 0)); R(S(remap_file_pages, map, 4096, 0, 100, 0)); USE(map[0]); munmap((void *)map, 16384);
    map = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); R(madvise((char *)map + 4096, 8192, MADV_REMOVE)); say("%.5s %d %d %.4s", (char *)map, map[4096], map[8192], (char *)map + 12288); struct stat s; fstat(file, &s); R(s.st_size); R(s.st_blocks); char *readable = mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0), *own = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0); R(madvise(readable, 4096, MADV_REMOVE)); R(madvise(own, 4096, MADV_REMOVE)); R(madvise((char *)map + 1, 4096, MADV_REMOVE)); R(madvise((char *)map, 0, MADV_REMOVE)); R(S(pkey_mprotect, readable, 4096, PROT_READ | PROT_WRITE, -1)); USE(readable[0] = 'k'); R(pread(file, text, 1, 0)); R(text[0]);
    int read_only = open("beyond", O_RDONLY); char *only = mmap(0, 4096, PROT_READ, MAP_SHARED, read_only, 0); R(S(pkey_mprotect, only, 4096, PROT_READ | PROT_WRITE, -1)); signal(SIGSEGV, SIG_DFL); signal(SIGBUS, SIG_DFL); for (int i = 3; i < 30; i++) close(i);
}

// Names of inodes that outlive paths, extended attributes by descriptor or path, descriptors told apart, requests about files.
static struct { unsigned bytes; int type; char rest[160]; } handle;
static void named(void) {
    section = "named";
    make("h", "content"); mkdir("hd", 0755); make("hd/in", "x"); symlink("h", "hl"); chmod(".", 0755); int mount, file = open("h", O_RDWR), again = open("h", O_RDONLY), directory = open(".", O_RDONLY), path = open("h", O_PATH); struct stat a, b; char text[300];
    handle.bytes = 0; R(S(name_to_handle_at, AT_FDCWD, "h", &handle, &mount, 0)); R(handle.bytes > 0); handle.bytes = 129; R(S(name_to_handle_at, AT_FDCWD, "h", &handle, &mount, 0)); R(S(name_to_handle_at, AT_FDCWD, "h", BAD, &mount, 0)); R(S(name_to_handle_at, AT_FDCWD, "h", &handle, &mount, -1)); R(S(name_to_handle_at, -1, "h", &handle, &mount, 0)); R(S(name_to_handle_at, file, "h", &handle, &mount, 0)); R(S(name_to_handle_at, AT_FDCWD, "", &handle, &mount, 0)); R(S(name_to_handle_at, AT_FDCWD, "none", &handle, &mount, 0)); handle.bytes = 128; R(S(name_to_handle_at, AT_FDCWD, "h", &handle, BAD, 0)); handle.bytes = 128; R(S(name_to_handle_at, file, "", &handle, &mount, AT_EMPTY_PATH));
    handle.bytes = 128; R(S(name_to_handle_at, AT_FDCWD, "hl", &handle, &mount, 0)); R(S(open_by_handle_at, directory, &handle, O_RDONLY)); R(S(open_by_handle_at, directory, &handle, O_PATH) >= 0); handle.bytes = 128; R(S(name_to_handle_at, AT_FDCWD, "hl", &handle, &mount, AT_SYMLINK_FOLLOW)); int opened = S(open_by_handle_at, directory, &handle, O_RDWR); R(opened >= 0); fstat(file, &a); fstat(opened, &b); R(a.st_ino == b.st_ino); R(read(opened, text, 7)); R(S(open_by_handle_at, AT_FDCWD, &handle, O_RDONLY) >= 0); R(S(open_by_handle_at, file, &handle, O_RDONLY) >= 0); R(S(open_by_handle_at, -1, &handle, O_RDONLY)); R(S(open_by_handle_at, directory, BAD, O_RDONLY)); R(S(open_by_handle_at, directory, &handle, O_RDONLY | O_DIRECTORY)); int kept = handle.bytes; handle.bytes = 0; R(S(open_by_handle_at, directory, &handle, O_RDONLY)); handle.bytes = 129; R(S(open_by_handle_at, directory, &handle, O_RDONLY)); handle.bytes = kept; rename("h", "hd/moved"); R(S(open_by_handle_at, directory, &handle, O_RDONLY) >= 0); rename("hd/moved", "h");
    fflush(0); pid_t child = fork(); if (!child) { setresuid(user, user, user); R(S(open_by_handle_at, directory, &handle, O_RDONLY)); _exit(0); } wait(0); for (int i = 0; i < 4; i++) handle.rest[i] ^= 0x55; R(S(open_by_handle_at, directory, &handle, O_RDONLY)); handle.bytes = 128; S(name_to_handle_at, AT_FDCWD, "hd", &handle, &mount, 0); R(S(open_by_handle_at, directory, &handle, O_RDONLY | O_DIRECTORY) >= 0); R(S(open_by_handle_at, directory, &handle, O_RDWR)); R(S(open_by_handle_at, directory, &handle, O_RDONLY | O_CREAT)); handle.bytes = 128; make("gone", "x"); S(name_to_handle_at, AT_FDCWD, "gone", &handle, &mount, 0); unlink("gone"); R(S(open_by_handle_at, directory, &handle, O_RDONLY));
    enum { SET = 463, GET, LIST, REMOVE }; struct { uint64_t value; uint32_t size, flags; uint64_t more; } value = {(uintptr_t)"abc", 3, 0, 0}; lsetxattr("hl", "trusted.l", "l", 1, 0);
    R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 16)); R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 24)); value.more = 1; R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 24)); value.more = 0; R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 8)); R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 5000)); R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", BAD, 16)); R(syscall(SET, AT_FDCWD, "h", 1, "trusted.q", &value, 16)); R(syscall(SET, AT_FDCWD, "h", 0, BAD, &value, 16)); R(syscall(SET, AT_FDCWD, "none", 0, "trusted.q", &value, 16)); R(syscall(SET, file, "", AT_EMPTY_PATH, "trusted.r", &value, 16)); R(syscall(SET, file, 0, AT_EMPTY_PATH, "trusted.s", &value, 16)); R(syscall(SET, path, "", AT_EMPTY_PATH, "trusted.r", &value, 16)); R(syscall(SET, file, "", 0, "trusted.r", &value, 16)); value.flags = 1; R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 16)); value.flags = 2; R(syscall(SET, AT_FDCWD, "h", 0, "trusted.none", &value, 16)); value.flags = 8; R(syscall(SET, AT_FDCWD, "h", 0, "trusted.q", &value, 16));
    R(syscall(GET, AT_FDCWD, "h", 0, "trusted.q", &value, 16)); value.flags = 0; value.value = (uintptr_t)text; value.size = 100; R(syscall(GET, AT_FDCWD, "h", 0, "trusted.q", &value, 16)); say("%.3s", text); value.size = 1; R(syscall(GET, AT_FDCWD, "h", 0, "trusted.q", &value, 16)); value.size = 0; R(syscall(GET, AT_FDCWD, "h", 0, "trusted.q", &value, 16)); R(syscall(GET, AT_FDCWD, "hl", AT_SYMLINK_NOFOLLOW, "trusted.l", &value, 16)); R(syscall(GET, AT_FDCWD, "hl", 0, "trusted.l", &value, 16)); R(syscall(LIST, AT_FDCWD, "h", 0, text, 300)); R(syscall(LIST, AT_FDCWD, "hl", AT_SYMLINK_NOFOLLOW, text, 300)); R(syscall(LIST, file, "", AT_EMPTY_PATH, text, 300)); R(syscall(LIST, AT_FDCWD, "h", 0, text, 1)); R(syscall(LIST, AT_FDCWD, "h", 0, BAD, 300)); R(syscall(LIST, AT_FDCWD, "h", -1, text, 300)); R(syscall(REMOVE, AT_FDCWD, "h", 0, "trusted.q")); R(syscall(REMOVE, AT_FDCWD, "h", 0, "trusted.q")); R(syscall(REMOVE, file, "", AT_EMPTY_PATH, "trusted.r")); R(syscall(REMOVE, AT_FDCWD, "hl", AT_SYMLINK_NOFOLLOW, "trusted.l")); R(syscall(REMOVE, AT_FDCWD, "h", 4, "trusted.q"));
    R(S(kcmp, getpid(), getpid(), 0, file, dup(file))); R(S(kcmp, getpid(), getpid(), 0, file, again) != 0); R(S(kcmp, getpid(), getpid(), 0, file, 200)); R(S(kcmp, getpid(), getpid(), 0, file, 1) != 0); child = fork(); if (!child) { R(S(kcmp, getppid(), getpid(), 0, file, file)); R(S(kcmp, getppid(), getpid(), 0, file, again) != 0); _exit(0); } wait(0);
    R(fcntl(file, F_SETOWN, getpid())); R(fcntl(file, F_GETOWN) == getpid()); R(fcntl(file, F_SETOWN, 999999999)); R(fcntl(file, F_SETSIG, SIGUSR1)); R(fcntl(file, F_GETSIG)); R(fcntl(file, F_SETSIG, 999)); R(fcntl(file, F_SETSIG, 0)); R(fcntl(path, F_GETOWN)); R(fcntl(file, F_SETFL, O_ASYNC | O_APPEND)); R(fcntl(file, F_GETFL)); R(fcntl(file, F_NOTIFY, DN_MODIFY)); int number = 1; R(ioctl(file, FIOASYNC, &number)); number = 0; R(ioctl(file, FIOASYNC, &number)); long room = 0; R(ioctl(file, 0x5460, &room)); R(room > 0); R(ioctl(directory, FIGETBSZ, &number)); R(ioctl(directory, FIONREAD, &number)); R(chroot("none")); R(chroot("h")); R(chroot("h/x"));
    struct { unsigned long inode, cookie; unsigned short length; char name[]; } *entry; int entries = open("hd", O_RDONLY); long length = S(getdents, entries, text, sizeof text), seen = 0; for (long at = 0; at < length; at += entry->length) { entry = (void *)(text + at); seen++; if (entry->name[0] == 'i') say("'%s' of type %d", entry->name, text[at + entry->length - 1]); } R(seen); R(S(getdents, entries, text, sizeof text)); lseek(entries, 0, 0); R(S(getdents, entries, text, 10)); R(S(getdents, entries, BAD, 300)); R(S(getdents, file, text, 300)); for (int i = 3; i < 60; i++) close(i);
}

// As chattr does, which keeps what the file system says of the file by itself: ext4 would else write it in another form, where it can at the moment.
static int set_flags(int file, long wanted) {
    long flags = 0;
    if (!ioctl(file, FS_IOC_GETFLAGS, &flags)) flags &= ~(long)(FS_IMMUTABLE_FL | FS_APPEND_FL);
    flags |= wanted;
    return ioctl(file, FS_IOC_SETFLAGS, &flags);
}
static void flagged(void) {
    section = "flagged";
    long flags; int failed; char text[20];
    for (int immutable = 0; immutable < 2; immutable++) {
        make("fl", "content"); int file = open("fl", O_RDWR), append = open("fl", O_WRONLY | O_APPEND); mkdir("fd", 0755); make("fd/in", "x"); int dir = open("fd", O_RDONLY); flags = immutable ? FS_IMMUTABLE_FL : FS_APPEND_FL;
        failed = set_flags(file, flags); if (failed) { say("no flags here: %s", strerrorname_np(errno)); } set_flags(dir, flags); say("-- %s", immutable ? "immutable" : "append-only");
        struct fsxattr extended; memset(&extended, 0xff, sizeof extended); R(ioctl(file, FS_IOC_FSGETXATTR, &extended)); say("extended flags %#x, nothing else %d", extended.fsx_xflags, !extended.fsx_extsize && !extended.fsx_projid && !extended.fsx_cowextsize); R(ioctl(file, FS_IOC_FSSETXATTR, &extended)); extended.fsx_xflags |= FS_XFLAG_NODUMP | FS_XFLAG_HASATTR; R(ioctl(file, FS_IOC_FSSETXATTR, &extended)); R(ioctl(file, FS_IOC_FSGETXATTR, &extended)); R(extended.fsx_xflags); long seen = 0; R(ioctl(file, FS_IOC_GETFLAGS, &seen)); R((int)seen); R(ioctl(file, FS_IOC_FSGETXATTR, BAD)); R(ioctl(file, FS_IOC_FSSETXATTR, BAD));
        R(open("fl", O_WRONLY)); R(open("fl", O_WRONLY | O_APPEND) >= 0); R(open("fl", O_RDWR | O_TRUNC)); R(truncate("fl", 0)); R(ftruncate(file, 0)); R(write(append, "x", 1)); struct iovec over = {"over", 4}; R(pwritev2(append, &over, 1, 0, 0x20)); R(pwritev2(append, &over, 0, 0, 0x20)); R(fallocate(file, 3, 0, 10)); R(fallocate(file, 0, 0, 10)); R(unlink("fl")); R(rename("fl", "fm")); R(link("fl", "fm")); unlink("fm"); R(chmod("fl", 0600)); R(chown("fl", 1, 1)); R(utimensat(AT_FDCWD, "fl", 0, 0)); struct timespec set[2] = {{1, 1}, {1, 1}}; R(utimensat(AT_FDCWD, "fl", set, 0)); R(setxattr("fl", "user.a", "1", 1, 0)); R(removexattr("fl", "user.a")); R(open("fd/new", O_CREAT | O_WRONLY, 0600) >= 0); R(unlink("fd/in")); R(rename("fd/in", "fd/out")); R(mkdir("fd/sub", 0755)); R(rmdir("fd")); R(chmod("fd", 0700)); R(copy_file_range(append, 0, file, 0, 1, 0)); int from = open("source", O_RDONLY); R(copy_file_range(from, 0, file, 0, 1, 0)); R(access("fl", W_OK)); R(mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED); struct statx x; statx(AT_FDCWD, "fl", 0, STATX_ALL, &x); R(x.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND)); R(pread(file, text, 4, 0)); flags = 0; R(set_flags(file, flags)); set_flags(dir, flags); R(ioctl(file, FS_IOC_SETFLAGS, BAD)); flags = FS_IMMUTABLE_FL; for (int i = 3; i < 40; i++) close(i); system("rm -rf fl fm fd");
    }
}

static void strangers(void) {
    // As a user whom nothing belongs to.
    struct stat s; char text[40]; struct timespec set[2] = {{1, 1}, {1, 1}}, now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}}, mixed[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    static const char *const names[] = {"mine", "open", "readable", "closed", "sticky/theirs", "locked/in", 0};
    for (int i = 0; names[i]; i++) {
        const char *p = names[i]; say("-- %s", p);
        R(stat(p, &s)); R(open(p, O_RDONLY) >= 0); R(open(p, O_WRONLY) >= 0); R(open(p, O_RDONLY | O_NOATIME) >= 0); R(access(p, R_OK | W_OK)); R(utimensat(AT_FDCWD, p, 0, 0)); R(utimensat(AT_FDCWD, p, now, 0)); R(utimensat(AT_FDCWD, p, set, 0)); R(utimensat(AT_FDCWD, p, mixed, 0)); R(chmod(p, 0666)); R(chown(p, -1, getgid())); R(truncate(p, 1)); R(setxattr(p, "user.a", "1", 1, 0)); R(getxattr(p, "user.a", text, 10)); R(setxattr(p, "trusted.a", "1", 1, 0)); R(setxattr(p, "security.a", "1", 1, 0)); R(link(p, "linked")); unlink("linked"); R(rename(p, "sticky/moved")); rename("sticky/moved", p); R(unlink(p));
    }
    R(mkdir("sticky/new", 0755)); R(rmdir("sticky/new")); R(rename("sticky/theirs", "sticky/own")); R(symlink("x", "sticky/link")); R(unlink("sticky/link")); R(chdir("locked")); R(open("locked", O_RDONLY)); R(open("readonly/new", O_CREAT | O_WRONLY, 0600)); R(mkdir("readonly/new", 0700)); R(mknod("sticky/dev", S_IFCHR | 0600, makedev(1, 3))); R(mkfifo("sticky/fifo", 0600)); R(unlink("sticky/fifo")); R(open("sticky", O_TMPFILE | O_RDWR, 0600) >= 0); R(open("readonly", O_TMPFILE | O_RDWR, 0600)); long flags = FS_IMMUTABLE_FL; int own = open("sticky/file", O_CREAT | O_RDWR, 0600); R(ioctl(own, FS_IOC_SETFLAGS, &flags)); R(fchown(own, 0, -1)); R(fchown(own, -1, 0)); R(fchmod(own, 06755)); fstat(own, &s); R(s.st_mode); unlink("sticky/file"); R(setpriority(PRIO_PROCESS, 0, 0)); R(S(chroot, ".") == 0);
}
static void users(void) {
    section = "users";
    make("mine", "mine"); chown("mine", other, other); make("open", "open"); chmod("open", 0666); make("readable", "r"); make("closed", "c"); chmod("closed", 0600); mkdir("sticky", 01777); chmod("sticky", 01777); make("sticky/theirs", "t"); chmod("sticky/theirs", 0666); mkdir("locked", 0700); make("locked/in", "x"); mkdir("readonly", 0755); chmod(".", 0755);
    as(other, 100, strangers);
}

static void exclusion(void) {
    section = "exclusion";
    make("x", "0123456789"); int file = open("x", O_RDWR), ready[2], go[2], status; pipe(ready); pipe(go); char c;
    // Two processes that wait for each other: the second is told.
    struct flock first = {F_WRLCK, SEEK_SET, 0, 1, 0}, second = {F_WRLCK, SEEK_SET, 1, 1, 0}; R(fcntl(file, F_SETLK, &first)); pid_t child = fork();
    if (!child) { struct flock mine = second, theirs = first; int own = open("x", O_RDWR); fcntl(own, F_SETLK, &mine); write(ready[1], "r", 1); int r = fcntl(own, F_SETLKW, &theirs); _exit(r ? errno : 0); }
    read(ready[0], &c, 1); usleep(100000); errno = 0; int r = fcntl(file, F_SETLKW, &second); int told = r == -1 && errno == EDEADLK; if (told) { first.l_type = F_UNLCK; fcntl(file, F_SETLK, &first); } waitpid(child, &status, 0); say("of two that wait for each other one is told: %d", told + (WEXITSTATUS(status) == EDEADLK)); first = (struct flock){F_UNLCK, SEEK_SET, 0, 0, 0}; fcntl(file, F_SETLK, &first);
    struct flock ask = {F_WRLCK, SEEK_END, -3, 0, 0}; R(fcntl(file, F_SETLK, &ask)); child = fork(); if (!child) { struct flock q = {F_RDLCK, SEEK_SET, 0, 0, 0}; int own = open("x", O_RDONLY); R(fcntl(own, F_GETLK, &q)); say("%d from %ld length %ld by the parent %d", q.l_type, (long)q.l_start, (long)q.l_len, q.l_pid == getppid()); q = (struct flock){F_WRLCK, SEEK_SET, 0, 5, 0}; R(fcntl(own, F_SETLK, &q)); q.l_type = F_RDLCK; R(fcntl(own, F_SETLK, &q)); q = (struct flock){F_RDLCK, SEEK_CUR, 7, 1, 0}; R(fcntl(own, F_SETLK, &q)); q = (struct flock){F_RDLCK, SEEK_SET, 5, -3, 0}; R(fcntl(own, F_SETLK, &q)); q = (struct flock){F_RDLCK, SEEK_SET, 2, -3, 0}; R(fcntl(own, F_SETLK, &q)); q = (struct flock){9, SEEK_SET, 0, 1, 0}; R(fcntl(own, F_SETLK, &q)); q = (struct flock){F_RDLCK, 9, 0, 1, 0}; R(fcntl(own, F_GETLK, &q)); q = (struct flock){F_RDLCK, SEEK_SET, 0, 1, 5}; R(fcntl(own, F_OFD_SETLK, &q)); R(flock(own, LOCK_EX | LOCK_NB)); R(flock(own, 77)); R(flock(own, LOCK_UN)); _exit(0); } wait(0);
    // Who holds a lock is said anew after a fork, though the parent has asked who it is before.
    int held[2], over[2]; R(pipe(held)); R(pipe(over)); child = fork(); if (!child) { struct flock mine = {F_WRLCK, SEEK_SET, 100, 1, 0}; int own = open("x", O_RDWR); R(fcntl(own, F_SETLK, &mine)); write(held[1], "h", 1); read(over[0], held, 1); _exit(0); }
    char letter; R(read(held[0], &letter, 1)); struct flock whose = {F_RDLCK, SEEK_SET, 100, 1, 0}; R(fcntl(file, F_GETLK, &whose)); say("%d by the child %d", whose.l_type, whose.l_pid == child); R(write(over[1], "o", 1)); wait(0); close(held[0]); close(held[1]); close(over[0]); close(over[1]);
    close(open("x", O_RDONLY)); child = fork(); if (!child) { struct flock q = {F_WRLCK, SEEK_SET, 0, 0, 0}; int own = open("x", O_RDWR); say("closing any descriptor lets go: %d", fcntl(own, F_SETLK, &q)); _exit(0); } wait(0);
    int one = open("x", O_RDWR), two = open("x", O_RDWR), three = dup(one); R(flock(one, LOCK_EX)); R(flock(two, LOCK_SH | LOCK_NB)); R(flock(three, LOCK_SH)); R(flock(two, LOCK_SH | LOCK_NB)); R(flock(two, LOCK_EX | LOCK_NB)); close(one); R(flock(two, LOCK_EX | LOCK_NB)); close(three); R(flock(two, LOCK_EX | LOCK_NB)); struct flock ofd = {F_WRLCK, SEEK_SET, 0, 0, 0}; R(fcntl(two, F_OFD_SETLK, &ofd)); int four = open("x", O_RDWR); R(fcntl(four, F_OFD_SETLK, &ofd)); ofd.l_pid = 0; R(fcntl(four, F_OFD_GETLK, &ofd)); R(ofd.l_type); R(ofd.l_pid); struct flock plain = {F_WRLCK, SEEK_SET, 0, 0, 0}; R(fcntl(four, F_SETLK, &plain)); close(two); R(fcntl(four, F_SETLK, &plain)); int reads = open("x", O_RDONLY), writes = open("x", O_WRONLY); plain.l_type = F_WRLCK; R(fcntl(reads, F_SETLK, &plain)); plain.l_type = F_RDLCK; R(fcntl(writes, F_SETLK, &plain)); R(flock(reads, LOCK_EX)); for (int i = 3; i < 40; i++) close(i);
    // What runs is not written to, and what is open for writing does not run.
    system("cp /bin/true program"); child = fork(); if (!child) { execl("./program", "program", (char *)0); _exit(9); } waitpid(child, &status, 0); R(status); int busy = open("program", O_RDWR); child = fork(); if (!child) { close(busy); int again = open("program", O_WRONLY); execl("./program", "program", (char *)0); _exit(errno); } waitpid(child, &status, 0); say("while it is written to: %s", strerrorname_np(WEXITSTATUS(status)) ?: "runs"); close(busy); chmod("program", 0644); child = fork(); if (!child) { execl("./program", "program", (char *)0); _exit(errno); } waitpid(child, &status, 0); say("without the right: %s", strerrorname_np(WEXITSTATUS(status)) ?: "runs"); chmod("program", 0755); int by = open("program", O_PATH); child = fork(); if (!child) { char *none[] = {"p", 0}; S(execveat, by, "", none, environ, AT_EMPTY_PATH); _exit(errno); } waitpid(child, &status, 0); R(status); struct rlimit limit = {16384, RLIM_INFINITY}; child = fork(); if (!child) { setrlimit(RLIMIT_FSIZE, &limit); execl("./program", "program", (char *)0); _exit(errno); } waitpid(child, &status, 0); say("below a limit of file sizes: %d", status); child = fork(); if (!child) { setrlimit(RLIMIT_FSIZE, &limit); execl("/bin/sh", "sh", "-c", "./program; test $(ulimit -f) = 32", (char *)0); _exit(errno); } waitpid(child, &status, 0); say("and the limit is what it was: %d", status); close(by);
    make("noexec", "#!/bin/sh\n"); R(execl("./noexec", "x", (char *)0)); mkfifo("pipe", 0777); R(execl("./pipe", "x", (char *)0)); R(execl("./pipe/x", "x", (char *)0)); struct stat s; R(stat("pipe/x", &s)); R(open("pipe/x", O_RDONLY)); R(open("x/x", O_CREAT | O_RDWR, 0600)); mknod("sock", S_IFSOCK | 0600, 0); R(stat("sock/x", &s)); R(mkdir("pipe/x", 0700)); R(rename("x", "pipe/x")); R(unlink("sock/x"));
}

// A child is one with its parent's descriptors also when there are no more to be had, and when its parent acts as another user.
static void tell_opened(const char *what) { int file = open("x", O_RDONLY); say("%s: %s", what, file < 0 ? strerrorname_np(errno) : "opens"); if (file >= 0) close(file); }
static void children(void) {
    section = "children";
    struct rlimit limit, before; getrlimit(RLIMIT_NOFILE, &before); make("x", "0123456789"); chmod(".", 0755);
    for (int hard = 0; hard < 2; hard++) {
        fflush(0); pid_t parent = fork(); if (parent) { waitpid(parent, 0, 0); continue; }
        limit = before; limit.rlim_cur = 60; if (hard) limit.rlim_max = 60; setrlimit(RLIMIT_NOFILE, &limit);
        int first = open("x", O_RDWR | O_CLOEXEC), last = first, next; while ((next = open("x", O_RDONLY)) >= 0) last = next; say("the last is %d", last); tell_opened("full");
        pid_t child = fork(); if (!child) { tell_opened("full in the child"); close(last); tell_opened("one closed"); R(lseek(first, 3, SEEK_SET)); child = fork(); if (!child) { tell_opened("its child"); _exit(0); } waitpid(child, 0, 0); _exit(0); } waitpid(child, 0, 0);
        R(lseek(first, 0, SEEK_CUR)); R(fcntl(first, F_GETFD)); R(fcntl(first + 1, F_GETFD)); getrlimit(RLIMIT_NOFILE, &limit); R(limit.rlim_cur); _exit(0);
    }
    fflush(0); pid_t parent = fork(); if (!parent) { R(seteuid(other)); pid_t child = fork(); if (!child) { tell_opened("as another"); R(open("x", O_WRONLY)); R(open("new", O_CREAT | O_WRONLY, 0600)); R(seteuid(0)); R(open("x", O_WRONLY) >= 0); _exit(0); } waitpid(child, 0, 0); R(open("x", O_WRONLY)); R(seteuid(0)); R(open("x", O_WRONLY) >= 0); _exit(0); } waitpid(parent, 0, 0);
}

// Scripts: interpreters by relative paths, scripts by descriptors.
#define EXECUTED(call) do { fflush(0); pid_t c_ = fork(); int how_; if (!c_) { call; _exit(100 + errno); } waitpid(c_, &how_, 0); say("%s: %x", #call, how_); } while (0)
static void scripts(void) {
    section = "scripts";
    mkdir("sub", 0755); system("cp /bin/echo interpreter; cp /bin/echo sub/echo; printf '#! ./interpreter  one two \\n' > relative; printf '#!./relative\\n' > nested; printf '#!interpreter\\n' > bare; printf '#!none\\n' > missing; printf '#!/bin/sh\\necho script $1\\n' > sub/script; printf '#!sub/echo\\n' > sub/below; chmod 755 relative nested bare missing sub/script sub/below");
    char *list[] = {"list", "argument", 0}; int directory = open("sub", O_RDONLY), script = open("sub/script", O_RDONLY), closing = open("sub/script", O_RDONLY | O_CLOEXEC), closed = open("sub", O_RDONLY | O_CLOEXEC), program = open("interpreter", O_RDONLY | O_CLOEXEC);
    EXECUTED(execl("./relative", "x", "three", (char *)0)); EXECUTED(execl("./nested", "x", "three", (char *)0)); EXECUTED(execl("bare", "x", (char *)0)); EXECUTED(execl("./missing", "x", (char *)0)); EXECUTED(execl("sub/below", "x", (char *)0)); EXECUTED((chdir("sub"), execl("./below", "x", (char *)0))); EXECUTED((chdir("/"), execl("./relative", "x", (char *)0)));
    EXECUTED(S(execveat, directory, "script", list, environ, 0)); EXECUTED((chdir("/"), S(execveat, directory, "script", list, environ, 0))); EXECUTED(S(execveat, closed, "script", list, environ, 0)); EXECUTED(S(execveat, closed, "echo", list, environ, 0)); EXECUTED(fexecve(script, list, environ)); EXECUTED(fexecve(closing, list, environ)); EXECUTED(fexecve(program, list, environ)); for (int i = 3; i < 30; i++) close(i);
}

// Each kind of descriptor at either end of a transfer; what is said of arguments first.
static int end_of_kind(int kind, const char *name) {
    int ends[2];
    switch (kind) {
    case 0: return open(name, O_RDWR);
    case 1: return open(name, O_RDONLY);
    case 2: return open(name, O_WRONLY);
    case 3: return open(name, O_RDWR | O_APPEND);
    case 4: return open(name, O_PATH);
    case 5: return open(".", O_RDONLY);
    case 6: pipe(ends); return ends[1];
    default: return -1;
    }
}
#define MOVED(call) do { errno = 0; long r_ = (long)(call); say("%d to %d: %s = %s", in, out, #call, r_ == -1 ? strerrorname_np(errno) : r_ ? "some" : "none"); } while (0)
static void ends(void) {
    section = "ends";
    for (int in = 0; in < 8; in++) for (int out = 0; out < 8; out++) {
        make("in", "0123456789abcdef"); make("out", "x"); int from = end_of_kind(in, "in"), to = end_of_kind(out, "out"); loff_t there = 0, here = 0;
        MOVED(splice(from, 0, to, 0, 4, 0)); there = 0; MOVED(splice(from, &there, to, 0, 4, 0)); here = 0; MOVED(splice(from, 0, to, &here, 4, 0)); MOVED(splice(from, 0, to, 0, 0, 0)); MOVED(splice(from, 0, to, 0, 4, 0xff0)); MOVED(copy_file_range(from, 0, to, 0, 4, 0)); there = here = 0; MOVED(copy_file_range(from, &there, to, &here, 4, 0)); if (in < 6) { MOVED(tee(from, to, 0, 0)); MOVED(tee(from, to, 4, 0x100)); MOVED(tee(from, to, 4, 0)); } if (in < 5) { MOVED(sendfile(to, from, 0, 4)); there = 0; MOVED(sendfile(to, from, &there, 4)); } for (int i = 3; i < 20; i++) close(i);
    }
    int file = open("in", O_RDWR), zero = open("/dev/zero", O_RDONLY); char text[10]; R(vmsplice(file, 0, 0, 0)); R(vmsplice(file, 0, 0, 0x100)); R(vmsplice(file, 0, 2000, 0)); R(readahead(file, -1, -1)); R(dup3(file, file, 0)); R(dup3(file, 40, 7)); R(dup3(file, file, O_CLOEXEC)); R(S(mmap, file, -1, -1, -1, -1, -1)); R(S(mmap, 0x10000, -1L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    R(S(truncate, BAD, -1)); R(S(truncate, "none", -1)); R(S(symlink, BAD, "")); R(S(symlink, BAD, "in")); R(S(readlink, BAD, text, 0)); R(S(readlink, "none", text, -1)); R(S(mknod, BAD, 0170000, 0)); R(S(mknod, "in/x", S_IFDIR | 0700, 0)); R(S(setxattr, BAD, "", text, 1, 0)); R(S(setxattr, "none", "user.a", text, 1, 8)); R(S(setxattr, "none", BAD, text, 1, 0)); R(S(setxattr, "none", "user.a", text, 70000, 0)); R(S(getxattr, "none", "", text, 1)); R(S(removexattr, BAD, "")); R(S(utimensat, AT_FDCWD, "none", BAD, 0)); R(S(utimes, "none", BAD)); R(S(futimesat, AT_FDCWD, "", BAD)); R(S(utime, "none", BAD)); struct timeval wrong[2] = {{0, 2000000}, {0, 0}}; R(S(utimes, "none", wrong)); struct timespec bad[2] = {{0, 2000000000}, {0, 0}}; R(S(utimensat, AT_FDCWD, "none", bad, 0)); R(S(utimensat, AT_FDCWD, "in", bad, 0)); close(file); close(zero);
}

// A working directory that somebody removes, as the process that removed it sees it, its children and the programs they become.
static void look_around(const char *who) {
    struct stat s; char text[4096]; say("%s", who);
    R(stat(".", &s)); say("%o, %ld links, %ld bytes, %d", s.st_mode, (long)s.st_nlink, (long)s.st_size, s.st_uid); R(fstatat(AT_FDCWD, "", &s, AT_EMPTY_PATH)); say("%ld links", (long)s.st_nlink);
    R(S(getcwd, text, sizeof text)); R(access(".", W_OK)); R(stat("none", &s)); R(stat("./none", &s)); R(open("made", O_CREAT | O_RDWR, 0600)); R(open(".", O_TMPFILE | O_RDWR, 0600) >= 0); R(mkdir("made", 0700)); R(mkfifo("made", 0600)); R(symlink("x", "made")); R(link("../file", "made")); R(rename("none", "made"));
    int directory = open(".", O_RDONLY | O_DIRECTORY), path = open(".", O_PATH); say("opened %d %d", directory >= 0, path >= 0);
    R(S(getdents64, directory, text, sizeof text)); R(fstat(directory, &s)); say("%ld links", (long)s.st_nlink); R(fstat(path, &s)); say("%ld links", (long)s.st_nlink); R(fstatat(path, ".", &s, 0)); R(fstatat(path, "none", &s, 0)); R(openat(path, "made", O_CREAT | O_RDWR, 0600)); R(openat(directory, ".", O_RDONLY) >= 0); R(fchdir(directory)); R(stat(".", &s)); R(fchdir(path)); R(stat(".", &s));
    R(chmod(".", 0711)); stat(".", &s); say("%o", s.st_mode); R(setxattr(".", "trusted.x", "1", 1, 0)); R(rmdir(".")); R(unlinkat(directory, "none", 0)); R(chdir(".")); R(chdir("none")); R(utimensat(AT_FDCWD, ".", 0, 0));
    close(directory); close(path);
}
static void gone(void) {
    section = "gone"; make("file", "text");
    mkdir("gone", 0755); chdir("gone"); rmdir("../gone"); look_around("who removed it"); pid_t child = fork(); if (!child) { look_around("its child"); _exit(0); } waitpid(child, 0, 0); chdir(getenv("CONFORM_HOME"));
    mkdir("gone", 0755); chdir("gone"); child = fork(); if (!child) { rmdir("../gone"); _exit(0); } waitpid(child, 0, 0); child = fork(); if (!child) { look_around("a child of who was there"); _exit(0); } waitpid(child, 0, 0); look_around("who was there"); chdir(getenv("CONFORM_HOME"));
    // Who enters it by a descriptor and closes that; and who is told by a program that was executed in it.
    mkdir("gone", 0755); int directory = open("gone", O_RDONLY); fchdir(directory); close(directory); rmdir("../gone"); look_around("by a descriptor"); chdir(getenv("CONFORM_HOME"));
    static char *stat_itself[] = {"stat", "-c", "%F %h %a", ".", 0}, *list[] = {"ls", "-A", ".", 0}, **programs[] = {stat_itself, list};
    for (int i = 0; i < 4; i++) {
        int ends[2]; char told[200] = ""; pipe(ends); mkdir("gone", 0755);
        child = i < 2 ? fork() : (chdir("gone"), rmdir("../gone"), vfork());
        if (!child) { if (i < 2) { chdir("gone"); rmdir("../gone"); } dup2(ends[1], 1); execvp(programs[i % 2][0], programs[i % 2]); _exit(9); }
        int how; waitpid(child, &how, 0); close(ends[1]); read(ends[0], told, sizeof told - 1); close(ends[0]); told[strcspn(told, "\n")] = 0; say("executed in it: %d, %s", how, told); chdir(getenv("CONFORM_HOME"));
    }
    mkdir("gone", 0755); chdir("gone"); rmdir("../gone"); R(execl("./none", "none", (char *)0)); struct stat s; R(stat(".", &s)); R(execl("/none", "none", (char *)0)); R(stat(".", &s)); chdir(getenv("CONFORM_HOME")); unlink("file");
}

// What takes capabilities from a program.
static void capable(void) {
    section = "capable"; const char *name = "security.capability"; char told[100]; unsigned version_2[5] = {0x02000001, 0x2000, 0, 0, 0}, version_3[6] = {0x03000001, 0x2000, 0, 0, 0, 0}, of_user[6] = {0x03000000, 0x2000, 0, 0, 0, 1000}, wrong[6] = {0x03000002, 0, 0, 0, 0, 0}, nobody[6] = {0x03000000, 0, 0, 0, 0, -1u};
    make("f", "program"); make("other", "0123456789"); int file = open("f", O_RDWR), from = open("other", O_RDONLY); loff_t zero = 0;
    struct { const char *name; void *value; size_t size; } values[] = {{"2", version_2, 20}, {"3", version_3, 24}, {"of a user", of_user, 24}, {"wrong", wrong, 24}, {"nobody's", nobody, 24}, {"short", version_2, 19}, {"long", version_3, 28}, {"3 as 2", version_3, 20}, {"2 as 3", version_2, 24}, {"text", "abc", 3}};
    for (int i = 0; i < 10; i++) { say("%s", values[i].name); memset(told, 0, sizeof told); R(setxattr("f", name, values[i].value, values[i].size, 0)); R(getxattr("f", name, told, sizeof told)); say("%08x %x %x", ((unsigned *)told)[0], ((unsigned *)told)[1], ((unsigned *)told)[5]); R(getxattr("f", name, 0, 0)); R(getxattr("f", name, told, 19)); R(removexattr("f", name)); }
#define KEEPS(call) do { setxattr("f", name, version_2, 20, 0); errno = 0; long r_ = (long)(call); int e_ = errno; say("%s = %s: %s", #call, r_ == -1 ? strerrorname_np(e_) : "done", getxattr("f", name, told, 99) == 20 ? "kept" : strerrorname_np(errno)); } while (0)
    KEEPS(read(file, told, 1)); KEEPS(write(file, "x", 1)); KEEPS(write(file, "", 0)); KEEPS(pwrite(file, "x", 1, 0)); KEEPS(ftruncate(file, 3)); KEEPS(ftruncate(file, 3)); KEEPS(truncate("f", 2)); KEEPS(close(open("f", O_WRONLY | O_TRUNC))); KEEPS(close(open("f", O_WRONLY))); KEEPS(chown("f", 0, 0)); KEEPS(chown("f", -1, -1)); KEEPS(chmod("f", 0755)); KEEPS(utimensat(AT_FDCWD, "f", 0, 0)); KEEPS(setxattr("f", "trusted.y", "1", 1, 0)); KEEPS(rename("f", "g")); rename("g", "f"); KEEPS(link("f", "g")); unlink("g");
    KEEPS(posix_fallocate(file, 0, 100)); KEEPS(sendfile(file, from, &zero, 4)); zero = 0; KEEPS(copy_file_range(from, &zero, file, &zero, 4, 0)); KEEPS(fsync(file));
    KEEPS(fchown(file, 1, -1)); mkdir("d", 0755); R(setxattr("d", name, version_2, 20, 0)); R(chown("d", 1, 1)); R(getxattr("d", name, told, 99)); rmdir("d"); chown("f", 0, 0); setxattr("f", name, version_2, 20, 0);
    pid_t child = fork(); if (!child) { setresuid(user, user, user); R(setxattr("f", name, version_2, 20, 0)); R(setxattr("f", name, "abc", 3, 0)); R(removexattr("f", name)); R(getxattr("f", name, told, 99)); R(chown("f", -1, -1)); R(write(file, "theirs", 6)); R(getxattr("f", name, told, 99)); R(linkat(file, "", AT_FDCWD, "linked", AT_EMPTY_PATH)); _exit(0); } waitpid(child, 0, 0);
    close(file); close(from); unlink("f"); unlink("other");
}

// In which order things are refused, and what is rarely asked: found by random calls (`differ.c`).
static long open_by_rules(int place, const char *path, long flags, long rules) {
    struct open_how how = {.flags = (unsigned long)flags, .resolve = (unsigned long)rules};
    return S(openat2, place, path, &how, sizeof how);
}
static void refused(void) {
    section = "refused"; make("f", "0123456789"); mkdir("d", 0755); mkdir("d/e", 0755); chmod("d", 0700); symlink("/nowhere/e/", "away"); symlink("e", "d/link");
    char path[4200], home[4096]; getcwd(home, sizeof home); int file = open("f", O_RDWR), directory = open("d", O_RDONLY), ends[2]; pipe(ends); loff_t far = LONG_MAX; int left = 7;
    R(splice(file, &far, ends[1], 0, 100, SPLICE_F_NONBLOCK)); far = LONG_MAX - 100; R(splice(file, &far, ends[1], 0, 100, SPLICE_F_NONBLOCK)); R(splice(file, &far, ends[1], 0, 101, SPLICE_F_NONBLOCK));
    R(open_by_rules(file, "..", 0, RESOLVE_BENEATH)); R(open_by_rules(file, "..", 0, RESOLVE_IN_ROOT)); R(open_by_rules(file, "x", 0, RESOLVE_BENEATH)); R(open_by_rules(directory, "..", 0, RESOLVE_BENEATH));
    OK(open_by_rules(directory, "/e", 0, RESOLVE_IN_ROOT)); OK(open_by_rules(directory, "//link/../e", 0, RESOLVE_IN_ROOT)); OK(open_by_rules(directory, "/", 0, RESOLVE_IN_ROOT)); OK(open_by_rules(AT_FDCWD, "/f", 0, RESOLVE_IN_ROOT)); R(open_by_rules(directory, home, 0, RESOLVE_IN_ROOT)); R(open_by_rules(directory, "/../../f", 0, RESOLVE_IN_ROOT));
    // Only the one in memory lies on another file system than the root.
    R(open_by_rules(AT_FDCWD, home, 0, RESOLVE_NO_XDEV) == -1 ? -1 : 0); OK(open_by_rules(directory, "e", 0, RESOLVE_NO_XDEV));
    struct flock lock = {F_UNLCK, SEEK_SET, LONG_MAX, 100, 0}; R(fcntl(file, F_GETLK, &lock)); R(fcntl(file, F_SETLK, &lock)); lock.l_type = 7; R(fcntl(file, F_GETLK, &lock)); R(fcntl(file, F_SETLK, &lock));
    lseek(file, 15, SEEK_SET); R(ioctl(file, FIONREAD, &left)); R(left); lseek(file, 1l << 33, SEEK_SET); R(ioctl(file, FIONREAD, &left)); R(left);
    int none = open("f", O_ACCMODE); R(sendfile(none, directory, 0, 10)); R(sendfile(file, none, 0, 10)); R(splice(none, 0, ends[1], 0, 10, 0)); R(copy_file_range(file, 0, none, 0, 10, 0)); mkfifo("pipe", 0600); R(open("pipe", O_ACCMODE | O_NONBLOCK)); unlink("pipe"); close(none);
    snprintf(path, sizeof path, "/proc/self/fd/%d", directory); R(open(path, O_CREAT | O_RDONLY, 0600)); R(open(path, O_CREAT | O_RDONLY | O_DIRECTORY, 0600)); OK(open(path, O_CREAT | O_PATH, 0600));
    snprintf(path, sizeof path, "/proc/self/fd/%d", file); struct stat about = {0}; R(linkat(AT_FDCWD, path, AT_FDCWD, "x", AT_EMPTY_PATH)); R(linkat(AT_FDCWD, path, AT_FDCWD, "x", 0)); R(linkat(AT_FDCWD, path, AT_FDCWD, "x", AT_SYMLINK_FOLLOW)); unlink("x"); int link = open(path, O_PATH | O_NOFOLLOW); R(fstat(link, &about)); R(S_ISLNK(about.st_mode)); R(open(path, O_NOFOLLOW)); close(link);
    struct __attribute__((packed)) { unsigned version; struct { unsigned short tag, rights; unsigned who; } entries[3]; } list = {2, {{1, 7, -1u}, {8, 7, -1u}, {0x20, 7, -1u}}};
    R(fsetxattr(file, "system.posix_acl_default", &list, sizeof list, 0)); R(fsetxattr(file, "system.posix_acl_access", &list, sizeof list, 0)); list.entries[1].tag = 4; R(fsetxattr(file, "system.posix_acl_default", &list, sizeof list, 0));
    int named = open("f", O_PATH); struct timespec now[2] = {{1, UTIME_NOW}, {1, UTIME_NOW}}; R(S(utimensat, named, 0, now, AT_EMPTY_PATH)); R(S(utimensat, named, 0, now, 0)); R(S(utimensat, 900, 0, now, AT_EMPTY_PATH));
    R(rename("away/.", "x")); R(rename("away/x", "x")); R(rename("f", "away/x"));
    struct flock shared = {F_RDLCK, SEEK_SET, 0, 0, 0}; R(fcntl(directory, F_SETLK, &shared)); R(fcntl(directory, F_OFD_SETLK, &shared)); R(fcntl(directory, F_GETLK, &shared)); R(shared.l_type); shared.l_type = F_WRLCK; R(fcntl(directory, F_SETLK, &shared)); shared.l_type = F_UNLCK; R(fcntl(directory, F_SETLK, &shared));
    // RWF_APPEND and RWF_NOAPPEND.
    struct iovec one = {path, 1}; R(preadv2(file, &one, 1, 0, 0x30)); R(pwritev2(file, &one, 1, 0, 0x30)); R(preadv2(file, &one, 1, 0, 0x10)); R(pwritev2(file, &one, 1, 0, 0x1000030));
    // Of the disk's file systems; the one in memory heeds the limit here, too.
    struct rlimit limit = {1000, RLIM_INFINITY}, unlimited; getrlimit(RLIMIT_FSIZE, &unlimited); setrlimit(RLIMIT_FSIZE, &limit); R(fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 20000)); R(fallocate(file, 0, 0, 20000)); setrlimit(RLIMIT_FSIZE, &unlimited);
    // To a program that acts as another the way is what it would be for who started it.
    pid_t child = fork();
    if (!child) {
        setresuid(-1, user, -1); R(access("d/e", F_OK)); R(access("d/none", F_OK)); R(faccessat(AT_FDCWD, "d/e", F_OK, AT_EACCESS)); R(S(faccessat2, AT_FDCWD, "d/e/.", 7, 0)); setresuid(-1, 0, -1);
        setresuid(user, 0, 0); R(access("d/e", F_OK)); R(faccessat(AT_FDCWD, "d/e", F_OK, AT_EACCESS)); setresuid(user, user, user); R(linkat(file, long_path, AT_FDCWD, "x", AT_EMPTY_PATH)); R(linkat(file, (char *)8, AT_FDCWD, "x", AT_EMPTY_PATH)); R(linkat(file, "", AT_FDCWD, "x", AT_EMPTY_PATH)); _exit(0);
    }
    waitpid(child, 0, 0);
    // What is open for neither reading nor writing is that for an executed program, too.
    int neither = open("f", O_ACCMODE);
    child = fork(); if (!child) { char number[20]; snprintf(number, sizeof number, "%d", neither); execl("/proc/self/exe", "suites", "flags", number, (char *)0); _exit(9); } int status = -1; waitpid(child, &status, 0); R(WEXITSTATUS(status));
    for (int i = 3; i < 40; i++) close(i); unlink("f"); unlink("away"); unlink("d/link"); rmdir("d/e"); rmdir("d");
}

int main(int count, char **arguments) {
    // Executed to tell how a descriptor is open.
    if (count == 3) return fcntl(atoi(arguments[2]), F_GETFL) & O_ACCMODE;
    if (count != 2 || chdir(arguments[1])) return 2;
    char home[4096]; getcwd(home, 4096); setenv("CONFORM_HOME", home, 1); signal(SIGPIPE, SIG_IGN); signal(SIGXFSZ, SIG_IGN); umask(022);
    memset(long_name, 'n', 256); for (int i = 0; i < 4500; i++) long_path[i] = i % 2 ? '/' : 'p';
    times(); set_id(); behind_the_end(); beyond(); named(); vectors(); flagged(); users(); exclusion(); children(); scripts(); ends(); gone(); capable(); refused();
    section = "end"; say("done"); return 0;
}
