// What the calls of `differ.c` are made with: chance, names, descriptors, bytes, and how an answer is told.
// Each step has a chance of its own, from the seed and its number: who leaves steps out does not change the others.
#define SLOTS 8
#define MAPS 3
#define FOR_OTHERS 1000

static uint64_t chance;
static uint64_t word(void) {
    chance += 0x9e3779b97f4a7c15u;
    uint64_t z = chance;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static unsigned any(unsigned limit) { return (unsigned)(word() >> 33) % limit; }
static int rarely(unsigned one_in) { return any(one_in) == 0; }
#define PICK(...) ((const long[]){__VA_ARGS__}[any(sizeof((const long[]){__VA_ARGS__}) / sizeof(long))])

static int slots[SLOTS];      // Descriptors that are kept, or -1.
static struct { char *at; size_t length; int is_private; } maps[MAPS];
static char top[4096];        // The directory that all this happens in, from the root.
static int without_maps, without_collapse, without_clones, without_fifos, without_bad, without_large, without_own_locks, without_lock_owners;
static struct timespec began;
static int is_other;            // The steps have become another user.

// The line of this step.
static char line[1 << 17];
static size_t used;
static void tell(const char *form, ...) {
    va_list list;
    va_start(list, form);
    used += (size_t)vsnprintf(line + used, sizeof line - used, form, list);
    if (used > sizeof line - 1) used = sizeof line - 1;
    va_end(list);
}
static const char *name_of(long error) { return strerrorname_np((int)error) ?: "?"; }
// Makes a call; its result or error stands behind it.
static long answer(long value) {
    if (value == -1) tell(" = %s", name_of(errno));
    else tell(" = %ld", value);
    return value;
}
#define CALL(name, ...) (errno = 0, syscall(SYS_##name, ##__VA_ARGS__))

static uint32_t hash(uint32_t from, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) from = (from ^ ((const unsigned char *)bytes)[i]) * 16777619u;
    return from;
}

// Paths. Those that a long one is made of are not told.
static const char *const simple[] = {"a", "b", "c", "d", "e", "f"};
static char long_255[256], long_256[257], long_4095[4096], long_4096[4097];
static const char *told_path;
static const char *path_below(char *into, size_t room) {
    size_t at = 0;
    unsigned depth = (unsigned)PICK(1, 1, 1, 2, 2, 3);
    if (rarely(24)) at += (size_t)snprintf(into, room, "./");
    for (unsigned i = 0; i < depth; i++) {
        const char *part = rarely(60) ? ".." : rarely(60) ? "." : simple[any(6)];
        at += (size_t)snprintf(into + at, room - at, "%s%s", i == 0 ? "" : rarely(30) ? "//" : "/", part);
    }
    if (rarely(14)) snprintf(into + at, room - at, "%s", rarely(4) ? "/." : rarely(4) ? "/.." : "/");
    return into;
}
static const char *a_path(void) {
    // As many as are drawn before one that is not of /proc: what was drawn first is still told.
    static char rooms[64][4200];
    static unsigned next;
    char *room = rooms[next++ % 64], below[1024];
    switch (any(60)) {
    case 0: return told_path = "";
    case 1: return told_path = long_255;
    case 2: told_path = "(256)"; return long_256;
    case 3: told_path = "(4095)"; return long_4095;
    case 4: told_path = "(4096)"; return long_4096;
    case 5: if (without_bad) return told_path = "a"; told_path = "(bad)"; return (const char *)8;
    case 6: case 7: case 8:
        snprintf(room, 4200, "/proc/self/fd/%d%s", slots[any(SLOTS)], rarely(4) ? "/a" : "");
        return told_path = room;
    case 9: case 10:
        path_below(below, sizeof below);
        snprintf(room, 4200, "%s/%s", top, below);
        told_path = room + strlen(top);
        return room;
    case 11: return told_path = ".";
    case 12: return told_path = "..";
    default: return told_path = path_below(room, 4200);
    }
}
// A path where something is to be made. Not in /proc, and no name that is too long: of two paths that are wrong either may be told.
static const char *a_new_path(void) {
    const char *path;
    do path = a_path(); while (path == long_256 || (path != (const char *)8 && !strncmp(path, "/proc", 5)));
    return path;
}
// A directory to begin at; mostly the working directory.
static int a_place(void) {
    if (!rarely(5)) return AT_FDCWD;
    return rarely(20) ? (int)PICK(-1, 900) : slots[any(SLOTS)];
}
static int a_slot(void) { return rarely(40) ? (int)PICK(-1, 900) : slots[any(SLOTS)]; }
static void keep(long descriptor) {
    if (descriptor < 0) return;
    unsigned slot = any(SLOTS);
    if (slots[slot] >= 0) close(slots[slot]);
    slots[slot] = (int)descriptor;
}

// Bytes to write, and room for what is read.
static char source[1 << 18], sink[1 << 18];
static size_t a_length(void) {
    switch (any(10)) {
    case 0: return 0;
    case 1: case 2: return any(10) + 1;
    case 3: case 4: return 4096 * (1 + any(4));
    case 5: return 4096 * (1 + any(4)) - 1 + any(3);
    case 6: return any(100000);
    default: return any(6000);
    }
}
static off_t an_offset(void) {
    switch (any(16)) {
    case 0: return 0;
    case 1: case 2: case 3: return 4096 * (off_t)any(20);
    case 4: return 4096 * (off_t)(1 + any(20)) - 1 + any(3);
    case 5: return PICK(-1, -4096, LONG_MIN, -2);
    case 6: return rarely(4) ? PICK(1l << 32, 1l << 31, (1l << 31) - 1, (1l << 30) + 5) : (off_t)any(100000);
    case 7: return rarely(6) ? LONG_MAX : (off_t)any(10);
    default: return (off_t)any(70000);
    }
}
static void fill(size_t count) {
    uint64_t value = word();
    for (size_t i = 0; i < count; i++) source[i] = (char)(value >> (i % 8 * 8)) ^ (char)(i / 8);
}

// What is comparable of an object. A time that is not of this run's was set: it is told.
static void tell_time(const char *which, const struct statx_timestamp *time) {
    if (time->tv_sec >= began.tv_sec - 5 && time->tv_sec <= began.tv_sec + 3600) return;
    tell(" %s%lld.%09u", which, (long long)time->tv_sec, time->tv_nsec);
}
// Only behind calls that set it: what reads moves it by the mount's rules.
static int tells_accesses;
static void tell_about(const struct statx *about) {
    int is_directory = S_ISDIR(about->stx_mode);
    tell(" {%o %d:%d", about->stx_mode, about->stx_uid, about->stx_gid);
    if (!is_directory) tell(" l%u s%llu", about->stx_nlink, (unsigned long long)about->stx_size);
    if (S_ISCHR(about->stx_mode) || S_ISBLK(about->stx_mode)) tell(" d%u:%u", about->stx_rdev_major, about->stx_rdev_minor);
    tell_time("m", &about->stx_mtime);
    if (tells_accesses) tell_time("a", &about->stx_atime);
    tell("}");
}
static int inspect(int place, const char *path, int flags, struct statx *about) {
    memset(about, 0, sizeof *about);
    // What a link of /proc is itself: its mode tells how the descriptor was opened, and a volume's are placeholders.
    if (flags & AT_SYMLINK_NOFOLLOW && path != BAD && !strncmp(path, "/proc", 5)) { errno = EIO; return -1; }
    return (int)CALL(statx, place, path, flags, STATX_BASIC_STATS, about);
}

// Whether a tick of the clock that times are taken from has passed since the last step: else that they stay tells nothing.
static int waited;
static void wait_for_tick(void) {
    struct timespec start, now;
    clock_gettime(CLOCK_REALTIME, &start);
    do {
        usleep(500);
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
    } while (now.tv_sec < start.tv_sec || (now.tv_sec == start.tv_sec && now.tv_nsec <= start.tv_nsec));
}

// What became of an object's times in a call: `before` is looked at, and what `moved` tells then.
struct watched { int place, flags, known; const char *path; struct statx then; };
static struct watched before(int place, const char *path, int flags) {
    struct watched watched = {.place = place, .flags = flags, .path = path};
    watched.known = inspect(place, path, flags, &watched.then) == 0;
    return watched;
}
static int later(const struct statx_timestamp *a, const struct statx_timestamp *b) {
    return a->tv_sec != b->tv_sec || a->tv_nsec != b->tv_nsec;
}
static void moved(const char *what, struct watched *watched) {
    struct statx now;
    int known = inspect(watched->place, watched->path, watched->flags, &now) == 0;
    if (!watched->known && !known) return;
    tell(" %s", what);
    if (watched->known != known) tell(known ? "+" : "-");
    else if (now.stx_ino != watched->then.stx_ino) tell("!");
    else {
        if (!waited) return tell_about(&now);
        if (later(&now.stx_mtime, &watched->then.stx_mtime)) tell("m");
        if (later(&now.stx_ctime, &watched->then.stx_ctime)) tell("c");
    }
    if (known) tell_about(&now);
}
