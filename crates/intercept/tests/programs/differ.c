// Random calls on files, seeded; tells of each what came of it, in a line. Whatever file system it runs on, the lines must be the same.
// differ DIRECTORY SEED STEPS [WITHOUT [LEAVE OUT]]
// WITHOUT: letters of what is not tried: m maps, c collapsing and inserting, r sharing blocks, f named pipes, p bad pointers, x large attributes,
// u questions of one's own locks, w whose a lock is. 2: two processes make the steps in turn, without maps. LEAVE OUT: numbers of steps, "3,7-9".
#include "say.h"
#include <setjmp.h>
#include "differ/base.h"
#include "differ/data.h"
#include "differ/names.h"
#include "differ/attributes.h"
#include "differ/turns.h"

static const struct { int often; void (*make)(void); } kinds[] = {
    {12, begins}, {20, opens}, {3, direct}, {4, closes}, {10, makes}, {7, removes}, {8, renames}, {6, links}, {3, reads_link}, {3, walks}, {4, lists},
    {12, reads}, {14, writes}, {6, seeks}, {6, truncates}, {8, allocates}, {8, copies}, {4, clones}, {3, syncs}, {10, maps_and_uses},
    {9, changes}, {6, looks}, {9, extended}, {11, descriptors}, {3, handles}, {3, becomes}, {1, masks},
};

// Everything below a directory, by name: what it is, and what its bytes are.
static void all_below(int place, const char *name, int depth) {
    struct statx about;
    if (inspect(place, name, AT_SYMLINK_NOFOLLOW, &about)) { tell(" %s?%s", name, name_of(errno)); return; }
    tell(" %s", name);
    tell_about(&about);
    if (S_ISREG(about.stx_mode)) {
        int file = openat(place, name, O_RDONLY | O_NOATIME);
        uint32_t all = 0;
        // Those with large holes only where they begin.
        for (off_t at = 0; at < 400000;) {
            ssize_t got = pread(file, sink, sizeof sink, at);
            if (got <= 0) break;
            all = hash(all, sink, (size_t)got), at += got;
        }
        tell("#%08x", all);
        close(file);
    }
    if (!S_ISDIR(about.stx_mode) || depth > 6) return;
    int directory = openat(place, name, O_RDONLY | O_DIRECTORY);
    DIR *stream = directory < 0 ? NULL : fdopendir(directory);
    char *names[300];
    int count = 0;
    for (struct dirent *entry; stream && (entry = readdir(stream)) && count < 300;)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) names[count++] = strdup(entry->d_name);
    qsort(names, (size_t)count, sizeof *names, by_name);
    tell(" (");
    for (int i = 0; i < count; i++) all_below(directory, names[i], depth + 1), free(names[i]);
    tell(")");
    if (stream) closedir(stream); else if (directory >= 0) close(directory);
}
// As root, without what the steps have become.
static void everything(void) {
    uid_t effective = geteuid();
    gid_t group = getegid();
    int user = setfsuid(-1), others = setfsgid(-1);
    if (effective) CALL(setresuid, -1, 0, -1), CALL(setresgid, -1, 0, -1);
    setfsuid(0), setfsgid(0);
    int root = open(top, O_PATH);
    all_below(root, ".", 0);
    close(root);
    if (effective) CALL(setresgid, -1, group, -1), CALL(setresuid, -1, effective, -1);
    else setfsgid(others), setfsuid(user);
}
static int is_left_out(const char *list, long step) {
    while (list && *list) {
        char *end;
        long from = strtol(list, &end, 10), to = from;
        if (*end == '-') to = strtol(end + 1, &end, 10);
        if (step >= from && step <= to) return 1;
        list = *end ? end + 1 : end;
    }
    return 0;
}

static uint64_t seed;
static long steps;
static int is_for_two, of_all;
static const char *left_out;

static void write_line(void) {
    line[used++] = '\n';
    if (syscall(SYS_write, told_to, line, used) != (long)used) _exit(4);
}
static void make_step(long step) {
    chance = seed * 0x1000003 + (uint64_t)step * 0x9e3779b1;
    word();
    used = 0;
    tell("%ld ", step);
    int which = (int)any((unsigned)of_all);
    size_t kind = 0;
    while (which >= kinds[kind].often) which -= kinds[kind++].often;
    if (step < 10) kind = 0;
    if ((kinds[kind].make == maps_and_uses && without_maps) || (kinds[kind].make == clones && without_clones)) tell("-");
    else {
        if ((waited = rarely(8))) wait_for_tick();
        kinds[kind].make();
    }
    if (step % 25 == 24 || step == steps - 1) tell("\n%ld all", step), everything();
    write_line();
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    seed = strtoul(arguments[2], NULL, 10);
    steps = atol(arguments[3]);
    const char *without = count > 4 ? arguments[4] : "";
    left_out = count > 5 ? arguments[5] : "";
    is_for_two = !!strchr(without, '2');
    without_maps = is_for_two || strchr(without, 'm'), without_collapse = !!strchr(without, 'c'), without_clones = !!strchr(without, 'r');
    // What shows of a pipe without a name is not the volume's for a program that did not open it.
    without_fifos = is_for_two || strchr(without, 'f') || seed % 2;
    without_large = !!strchr(without, 'x');
    without_bad = !!strchr(without, 'p');
    without_own_locks = !!strchr(without, 'u'), without_lock_owners = !!strchr(without, 'w');
    memset(long_255, 'n', 255), memset(long_256, 'n', 256);
    for (int i = 0; i < 4095; i++) long_4095[i] = long_4096[i] = i % 2 ? '/' : '.';
    long_4095[4094] = 'a', long_4096[4095] = 'a';
    struct sigaction fault = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &fault, NULL), sigaction(SIGSEGV, &fault, NULL);
    signal(SIGXFSZ, SIG_IGN), signal(SIGPIPE, SIG_IGN), signal(SIGIO, SIG_IGN);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) of_all += kinds[i].often;
    if (count > 6) executed_partner(arguments[6], make_step);
    // Its own directory, in one that all may write to.
    if (chdir(arguments[1]) || mkdir("x", 0755) || mkdir("x/y", 0755) || mkdir("x/y/top", 0755) || chdir("x/y/top") || chmod(".", 0777) || !realpath(".", top)) return perror("directory"), 3;
    told_to = fcntl(1, F_DUPFD_CLOEXEC, 200);
    for (int i = 0; i < SLOTS; i++) slots[i] = -1;
    clock_gettime(CLOCK_REALTIME, &began);
    umask(022);
    setgroups(0, NULL);
    for (long step = 0; step < steps; step++) {
        if (is_for_two && step % 60 == 20) {
            used = 0;
            // What has become another user may not be able to execute the program.
            begins_partner(!is_other && (seed + (uint64_t)step / 60) % 2, arguments, make_step);
            write_line();
        }
        if (is_left_out(left_out, step)) { used = 0; tell("%ld left out", step); write_line(); }
        else if (is_partners(seed, step)) partner_makes(step);
        else make_step(step);
    }
    used = 0;
    ends_partner();
    if (is_for_two) write_line();
    return 0;
}
