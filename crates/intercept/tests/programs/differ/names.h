// Calls on names: opening, making, removing, renaming, linking, listing.

static int open_flags(void) {
    int flags = (int)PICK(O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR, O_ACCMODE);
    if (rarely(2)) flags |= O_CREAT;
    if (rarely(8)) flags |= O_EXCL;
    if (rarely(10)) flags |= O_TRUNC;
    if (rarely(6)) flags |= O_APPEND;
    if (rarely(10)) flags |= O_DIRECTORY;
    if (rarely(8)) flags |= O_NOFOLLOW;
    if (rarely(16)) flags |= O_PATH;
    if (rarely(20)) flags |= O_TMPFILE;
    if (rarely(16)) flags |= O_SYNC;
    if (rarely(16)) flags |= O_DSYNC;
    if (rarely(16)) flags |= O_NOATIME;
    if (rarely(16)) flags |= O_CLOEXEC;
    if (!without_fifos || rarely(10)) flags |= O_NONBLOCK;
    return flags;
}
static int a_mode(void) { return (int)PICK(0644, 0644, 0755, 0777, 0700, 0600, 0, 0444, 02755, 01777, 04755, 06777, 0111, 0170777, 0666, 0222); }
static void opened(long descriptor, struct watched *watched) {
    moved("f", watched);
    if (descriptor < 0) return;
    struct statx about;
    if (inspect((int)descriptor, "", AT_EMPTY_PATH, &about) == 0) tell_about(&about);
    tell(" fl %lo fd %ld", CALL(fcntl, descriptor, F_GETFL), CALL(fcntl, descriptor, F_GETFD));
    keep(descriptor);
}
// A volume's devices cannot be opened, as with the mount option nodev.
static int is_device(const struct watched *watched) {
    return watched->known && (S_ISCHR(watched->then.stx_mode) || S_ISBLK(watched->then.stx_mode));
}
static void opens(void) {
    int place = a_place(), flags = open_flags(), mode = a_mode();
    const char *path = a_path();
    struct watched watched = before(place, path, 0);
    if (is_device(&watched)) flags = O_PATH;
    // The mode of a link of /proc tells how the descriptor was opened, and a volume's are placeholders.
    if (path != BAD && !strncmp(path, "/proc", 5) && flags & O_PATH) flags &= ~O_NOFOLLOW;
    if (rarely(5)) {
        struct { uint64_t flags, mode, resolve, more; } how = {(uint64_t)flags, (uint64_t)mode & 07777, (uint64_t)PICK(0, 0, 1, 2, 4, 8, 0x10, 8 | 4, 0x18, 0x40), 0};
        // What is in a cache is the kernel's matter, but what is made is not.
        if (flags & O_CREAT && rarely(10)) how.resolve = 0x20;
        // Where the path from the root crosses mounts is not the same.
        if (path != BAD && *path == '/') how.resolve &= ~1ul;
        if (!(flags & (O_CREAT | __O_TMPFILE)) && !rarely(6)) how.mode = 0;
        if (rarely(20)) how.flags |= 1ul << PICK(33, 31, 27, 4, 23);
        size_t size = rarely(20) ? (size_t)PICK(0, 8, 23, 32, 5000) : 24;
        if (rarely(20)) how.more = size == 32;
        tell("openat2 %d %s %lo %lo resolve %lx %zu", place, told_path, how.flags, how.mode, how.resolve, size);
        opened(answer(CALL(openat2, place, path, &how, size)), &watched);
        return;
    }
    if (rarely(20)) flags |= (int)PICK(1u << 31, 1 << 27, 040, 1 << 4);
    tell("openat %d %s %o %o", place, told_path, flags, mode);
    opened(answer(CALL(openat, place, path, flags, mode)), &watched);
}
// Something to work with.
static void begins(void) {
    const char *path = simple[any(6)];
    char below[20];
    if (rarely(3)) snprintf(below, sizeof below, "%s/%s", path, simple[any(6)]), path = below;
    if (rarely(3)) { tell("mkdir %s", path); answer(CALL(mkdir, path, 0777)); return; }
    int flags = O_CREAT | O_RDWR | (without_fifos ? 0 : O_NONBLOCK);
    struct watched watched = before(AT_FDCWD, path, 0);
    if (is_device(&watched)) flags = O_PATH;
    tell("open %s %o", path, flags);
    opened(answer(CALL(open, path, flags, 0666)), &watched);
}
static void direct(void) {
    const char *path = a_path();
    tell("direct %s", told_path);
    struct watched found = before(AT_FDCWD, path, 0);
    if (is_device(&found)) return tell(" device");
    long file = answer(CALL(open, path, O_RDWR | O_DIRECT | O_NONBLOCK | PICK(0, O_CREAT), 0600));
    if (file < 0) return;
    fill(8192);
    waited = 0;
    struct watched watched = before((int)file, "", AT_EMPTY_PATH);
    char *aligned = (char *)(((uintptr_t)source + 4095) & ~4095ul), *room = (char *)(((uintptr_t)sink + 4095) & ~4095ul);
    off_t offset = 4096 * (off_t)any(20);
    answer(CALL(pwrite64, file, aligned, 8192, offset));
    long got = answer(CALL(pread64, file, room, 16384, offset));
    if (got > 0) tell(" #%08x", hash(0, room, (size_t)got));
    told_rest((int)file, &watched);
    close((int)file);
}
static void closes(void) {
    unsigned slot = any(SLOTS);
    tell("close %d", slots[slot]);
    answer(CALL(close, slots[slot]));
    slots[slot] = -1;
}
static void makes(void) {
    int place = a_place(), mode = a_mode();
    const char *path = a_path();
    struct watched parent = before(AT_FDCWD, ".", 0);
    switch (any(5)) {
    case 0: case 1: tell("mkdirat %d %s %o", place, told_path, mode); answer(CALL(mkdirat, place, path, mode)); break;
    case 2: {
        int type = (int)PICK(S_IFREG, 0, S_IFIFO, S_IFCHR, S_IFBLK, S_IFDIR, S_IFLNK, S_IFSOCK, 0150000);
        if (without_fifos && type == S_IFIFO) type = S_IFREG;
        tell("mknodat %d %s %o", place, told_path, type | (mode & 07777));
        answer(CALL(mknodat, place, path, type | (mode & 07777), type == S_IFCHR ? makedev(1, 3) : 0));
        break;
    }
    default: {
        const char *target_told, *target = a_new_path();
        target_told = told_path;
        const char *at = a_path();
        if (rarely(20)) target = target_told = "";
        // Its length shows. And what is made through a link must not be the host's.
        static char nowhere[5000];
        if (target != BAD && !strncmp(target, top, strlen(top))) snprintf(nowhere, sizeof nowhere, "/nowhere%s", target_told), target = nowhere;
        tell("symlinkat %s %d %s", target_told, place, told_path);
        answer(CALL(symlinkat, target, place, at));
        path = at;
    }
    }
    struct statx about;
    if (inspect(place, path, AT_SYMLINK_NOFOLLOW, &about) == 0) tell_about(&about);
    moved("in", &parent);
}
static void removes(void) {
    int place = a_place(), flags = (int)PICK(0, 0, 0, AT_REMOVEDIR, AT_REMOVEDIR, 1);
    const char *path = a_path();
    struct watched parent = before(AT_FDCWD, ".", 0);
    tell("unlinkat %d %s %x", place, told_path, flags);
    answer(CALL(unlinkat, place, path, flags));
    moved("in", &parent);
}
static void renames(void) {
    int place = a_place(), other = a_place();
    const char *path = a_new_path(), *told = told_path, *new = a_new_path();
    unsigned flags = (unsigned)PICK(0, 0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE, 3, 8, RENAME_WHITEOUT);
    // Whose the whiteout is differs: in a volume always root's.
    if (flags == RENAME_WHITEOUT && is_other) flags = 0;
    struct watched watched = before(place, path, AT_SYMLINK_NOFOLLOW), parent = before(AT_FDCWD, ".", 0);
    struct watched replaced = before(other, new, AT_SYMLINK_NOFOLLOW);
    tell("renameat2 %d %s %d %s %x", place, told, other, told_path, flags);
    // The whiteout may be made before the rest is refused.
    if (flags & RENAME_WHITEOUT) waited = 0;
    long renamed = CALL(renameat2, place, path, other, new, flags);
    // That a directory is not empty has two names.
    if (renamed == -1 && errno == EEXIST && !(flags & RENAME_NOREPLACE)) errno = ENOTEMPTY;
    answer(renamed);
    moved("old", &watched), moved("new", &replaced), moved("in", &parent);
}
static void links(void) {
    int place = a_place(), other = a_place();
    const char *path = a_path(), *told = told_path, *new = a_new_path();
    int flags = (int)PICK(0, 0, AT_SYMLINK_FOLLOW, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, 0x10);
    if (flags == AT_EMPTY_PATH && rarely(2)) path = told = "", place = a_slot();
    // Who was somebody else when the file was opened, nobody keeps count of.
    if (flags == AT_EMPTY_PATH && is_other) flags = 0;
    struct watched watched = before(place, path, flags & AT_SYMLINK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW), parent = before(AT_FDCWD, ".", 0);
    tell("linkat %d %s %d %s %x", place, told, other, told_path, flags);
    answer(CALL(linkat, place, path, other, new, flags));
    moved("old", &watched), moved("in", &parent);
}
static void reads_link(void) {
    int place = a_place();
    const char *path = a_path();
    long size = rarely(6) ? PICK(0, -1, 1, 3) : 4096;
    // Links of /proc name things by other ways.
    int is_proc = !strncmp(told_path, "/proc", 5);
    char text[5000];
    tell("readlinkat %d %s %ld", place, told_path, size);
    long got = CALL(readlinkat, place, path, text, size);
    if (got < 0 || !is_proc) answer(got);
    if (got > 0 && !is_proc) tell(" #%08x", hash(0, text, (size_t)got));
}
static void walks(void) {
    static const char *const levels[] = {"..", "../..", "a", "b", "c", "."};
    char text[4200];
    if (rarely(3)) { int file = a_slot(); tell("fchdir %d", file); answer(CALL(fchdir, file)); }
    else { const char *path = rarely(2) ? a_path() : (told_path = levels[any(6)]); tell("chdir %s", told_path); answer(CALL(chdir, path)); }
    long got = CALL(getcwd, text, sizeof text);
    size_t skip = strlen(top);
    // Who went above comes back.
    if (got < 0) tell(" cwd %s", name_of(errno));
    else if (strncmp(text, top, skip)) tell(" outside");
    else tell(" cwd %s", text + skip);
    struct statx here, root;
    if (rarely(4) || got < 0 || strncmp(text, top, skip) || (text[skip] && text[skip] != '/')) chdir(top);
    (void)here, (void)root;
}
static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
// Reads a directory in small pieces; from the middle of it something is made and removed, and it is sought back to a cookie.
static void lists(void) {
    const char *path = a_path();
    unsigned change = any(5), piece = (unsigned)PICK(300, 300, 1000, 32768, 24, 64);
    tell("list %s piece %u change %u", told_path, piece, change);
    long directory = answer(CALL(open, path, O_RDONLY | O_DIRECTORY));
    if (directory < 0) return;
    static char names[400][260], *sorted[400];
    int count = 0, turn = 0;
    long cookie = -1, cookie_at = 0;
    for (;;) {
        char buffer[32768] __attribute__((aligned(8)));
        long got = CALL(getdents64, directory, buffer, piece);
        // Which names come before one that is too long for the piece is the file system's.
        if (got < 0) tell(" = %s", name_of(errno)), change = 1;
        if (got <= 0) break;
        for (long at = 0; at < got;) {
            struct entry { uint64_t node, next; uint16_t length; uint8_t type; char name[]; } *entry = (void *)(buffer + at);
            if (count < 400) snprintf(names[count++], 260, "%s.%d", entry->name, entry->type);
            if (cookie == -1) cookie = (long)entry->next, cookie_at = count;
            at += entry->length;
        }
        if (turn++ == 0) {
            if (change == 1) answer(CALL(unlinkat, directory, simple[any(6)], 0));
            // What is made meanwhile may be seen or not; so it goes again.
            if (change == 2) { answer(CALL(mknodat, directory, "made", S_IFREG | 0600, 0)); answer(CALL(unlinkat, directory, "made", 0)); }
            if (change == 3) { count = (int)cookie_at; answer(CALL(lseek, directory, cookie, SEEK_SET) == cookie ? 0 : -1); }
            if (change == 4) { count = 0; answer(CALL(lseek, directory, 0, SEEK_SET)); }
        }
    }
    for (int i = 0; i < count; i++) sorted[i] = names[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_name);
    // Who was removed while it was read was seen or not.
    if (change == 1) tell(" some"); else for (int i = 0; i < count; i++) tell(" %s", sorted[i]);
    close((int)directory);
}
