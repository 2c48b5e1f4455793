// Calls on what belongs to an object: mode, owner, times, access, extended attributes, flags, locks, handles; and who calls.

static void changes(void) {
    int place = a_place(), way = (int)any(8);
    const char *path = a_path();
    int flags = (int)PICK(0, 0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, 0x8000);
    if (way >= 6) place = a_slot(), path = "", told_path = "", flags = AT_EMPTY_PATH;
    struct watched watched = before(place, path, flags & (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH));
    switch (way) {
    case 0: case 1: {
        int mode = a_mode();
        tell("fchmodat2 %d %s %o %x", place, told_path, mode, flags);
        answer(CALL(fchmodat2, place, path, mode, flags));
        break;
    }
    case 6: { int mode = a_mode(); tell("fchmod %d %o", place, mode); answer(CALL(fchmod, place, mode)); break; }
    case 2: case 3: {
        int user = (int)PICK(-1, 0, 1000, 1001), group = (int)PICK(-1, 0, 1000, 1001);
        if (without_clones && user == -1 && group == -1) user = 0;
        tell("fchownat %d %s %d:%d %x", place, told_path, user, group, flags);
        answer(CALL(fchownat, place, path, user, group, flags));
        break;
    }
    case 7: { int user = (int)PICK(-1, 0, 1000), group = (int)PICK(-1, 0, 1000); if (without_clones && user == -1 && group == -1) user = 0; tell("fchown %d %d:%d", place, user, group); answer(CALL(fchown, place, user, group)); break; }
    default: {
        struct timespec times[2];
        for (int i = 0; i < 2; i++) times[i] = (struct timespec){PICK(0, 1, 1000000000, 1500000000, 2000000000, -1000), PICK(0, 1, 999999999, UTIME_NOW, UTIME_OMIT, UTIME_NOW, 1000000000, -1, 500)};
        int none = rarely(5), by_descriptor = rarely(6);
        if (by_descriptor) place = a_slot(), path = NULL, told_path = "(null)", watched = before(place, "", AT_EMPTY_PATH);
        tell("utimensat %d %s %ld.%ld %ld.%ld %x%s", place, told_path, times[0].tv_sec, times[0].tv_nsec, times[1].tv_sec, times[1].tv_nsec, flags, none ? " now" : "");
        tells_accesses = answer(CALL(utimensat, place, path, none ? NULL : times, flags)) == 0;
    }
    }
    moved("f", &watched);
    tells_accesses = 0;
}
static void looks(void) {
    int place = a_place(), flags = (int)PICK(0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, 0x6000, 0x8000, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, AT_STATX_FORCE_SYNC);
    const char *path = a_path();
    if (rarely(3)) path = told_path = "";
    struct statx about;
    struct stat status;
    switch (any(4)) {
    case 0: case 1:
        tell("statx %d %s %x", place, told_path, flags);
        answer(inspect(place, path, flags, &about)) == 0 ? tell_about(&about) : (void)0;
        break;
    case 2:
        tell("newfstatat %d %s %x", place, told_path, flags);
        // The mode of a link of /proc tells how the descriptor was opened, and a volume's are placeholders.
        if (answer(CALL(newfstatat, place, path, &status, flags)) == 0) tell(" %o", S_ISLNK(status.st_mode) ? S_IFLNK : status.st_mode);
        break;
    case 3: {
        int mode = (int)PICK(0, 1, 2, 4, 7, 8, 6), how = (int)PICK(0, AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_EMPTY_PATH | AT_EACCESS, 0x8000);
        tell("faccessat2 %d %s %d %x", place, told_path, mode, how);
        answer(CALL(faccessat2, place, path, mode, how));
    }
    }
}
static size_t a_list(char *into) {
    // An access list of users and groups, sometimes a wrong one.
    struct __attribute__((packed)) { uint32_t version; struct { uint16_t tag, rights; uint32_t who; } entries[6]; } list = {2, {{1, (uint16_t)any(8), -1}, {2, (uint16_t)any(8), 1000}, {4, (uint16_t)any(8), -1}, {0x10, (uint16_t)any(8), -1}, {0x20, (uint16_t)any(8), -1}}};
    size_t size = 4 + 8 * 5;
    if (rarely(3)) { list.entries[1] = list.entries[2]; list.entries[2] = list.entries[4]; size = 4 + 8 * 3; }
    if (rarely(10)) list.version = (uint32_t)any(4);
    if (rarely(10)) list.entries[any(5)].tag = (uint16_t)PICK(8, 3, 1, 2);
    if (rarely(10)) size = (size_t)PICK(0, 3, 4, 5, 12, 52);
    memcpy(into, &list, sizeof list);
    return size;
}
static void extended(void) {
    const char *path = a_path();
    int file = a_slot(), by_file = rarely(2), link = rarely(4);
    char long_name[300] = "user.";
    memset(long_name + 5, 'n', 260);
    long_name[255 + (int)any(2)] = 0;
    const char *const names[] = {"user.a", "user.b", "user.a", "user.c", "trusted.a", "security.a", "system.posix_acl_access", "system.posix_acl_access", "system.posix_acl_default", "user.", "user", "other.a", "", "system.a", long_name};
    unsigned which = any(without_large ? 14 : 15);
    const char *name = !without_bad && rarely(40) ? (const char *)BAD : names[which], *told = name == BAD ? "(bad)" : which == 14 ? "(long)" : name;
    // Outside of user files these are the file system's own.
    size_t length = (size_t)PICK(0, 1, 5, 100, 2000, 4000, 65536, 65537);
    if (length == 65536 && !rarely(3)) length = 300;
    if (without_large && length > 300) length = 300;
    fill(length);
    if (which >= 6 && which <= 8 && name != BAD) length = a_list(source);
    int flags = (int)PICK(0, 0, 0, XATTR_CREATE, XATTR_REPLACE, XATTR_REPLACE, 4);
    struct watched watched = by_file ? before(file, "", AT_EMPTY_PATH) : before(AT_FDCWD, path, link ? AT_SYMLINK_NOFOLLOW : 0);
    char about[5000];
    if (by_file) snprintf(about, sizeof about, "%d", file); else snprintf(about, sizeof about, "%s%s", link ? "link " : "", told_path);
    switch (any(7)) {
    case 0: case 1: case 2:
        tell("setxattr %s %s %zu %x", about, told, length, flags);
        answer(by_file ? CALL(fsetxattr, file, name, source, length, flags) : link ? CALL(lsetxattr, path, name, source, length, flags) : CALL(setxattr, path, name, source, length, flags));
        break;
    case 3: case 4: {
        size_t room = (size_t)PICK(0, 1, 5, 5000, 70000);
        tell("getxattr %s %s %zu", about, told, room);
        long got = answer(by_file ? CALL(fgetxattr, file, name, sink, room) : link ? CALL(lgetxattr, path, name, sink, room) : CALL(getxattr, path, name, sink, room));
        if (got > 0 && room) tell(" #%08x", hash(0, sink, (size_t)got));
        break;
    }
    case 5: {
        size_t room = (size_t)PICK(0, 1, 5000, 5000, 70000);
        tell("listxattr %s %zu", about, room);
        long got = answer(by_file ? CALL(flistxattr, file, sink, room) : link ? CALL(llistxattr, path, sink, room) : CALL(listxattr, path, sink, room));
        uint32_t all = 0;
        if (room) for (long at = 0; at < got; at += (long)strlen(sink + at) + 1) {
            // How xfs keeps access lists.
            if (strncmp(sink + at, "trusted.SGI_ACL", 15)) all += hash(0, sink + at, strlen(sink + at));
            else tell(" SGI");
        }
        tell(" #%08x", all);
        break;
    }
    case 6:
        tell("removexattr %s %s", about, told);
        answer(by_file ? CALL(fremovexattr, file, name) : link ? CALL(lremovexattr, path, name) : CALL(removexattr, path, name));
        break;
    }
    moved("f", &watched);
}
static void descriptors(void) {
    int file = a_slot(), other = (int)PICK(-1, 30, 31, 32, 5000000);
    switch (any(13)) {
    case 0: tell("dup %d", file); keep(answer(CALL(dup, file))); break;
    case 1: tell("dup2 %d %d", file, other); keep(answer(CALL(dup2, file, other))); break;
    case 2: { int flags = (int)PICK(0, O_CLOEXEC, 1); tell("dup3 %d %d %x", file, other, flags); keep(answer(CALL(dup3, file, other, flags))); break; }
    case 3: { int to = (int)PICK(0, 20, -1); tell("dupfd %d %d", file, to); keep(answer(CALL(fcntl, file, F_DUPFD, to))); break; }
    case 4: case 5: { int flags = (int)PICK(0, O_APPEND, O_NONBLOCK, O_APPEND | O_NONBLOCK, O_NOATIME, O_SYNC | O_TRUNC, O_PATH); if (!without_fifos) flags |= O_NONBLOCK; tell("setfl %d %o", file, flags); answer(CALL(fcntl, file, F_SETFL, flags)); break; }
    case 6: tell("getfl %d", file); { long flags = CALL(fcntl, file, F_GETFL); if (flags < 0) answer(flags); else tell(" = %lo", flags); } break;
    case 7: { int command = (int)PICK(F_GETFD, F_SETFD, F_GETPIPE_SZ, F_SETPIPE_SZ, F_GETLEASE, F_GET_RW_HINT, F_GETOWN, F_GETSIG, 9999, F_GET_SEALS); int is_size = command == F_GETPIPE_SZ || command == F_SETPIPE_SZ; tell("fcntl %d %d", file, command); long got = CALL(fcntl, file, command, command == F_SETFD ? 0 : is_size ? 4096 : (long)sink); answer(got); break; }
    case 8: { int how = (int)PICK(LOCK_SH, LOCK_EX, LOCK_UN, 0, 5, 32) | LOCK_NB; tell("flock %d %d", file, how); answer(CALL(flock, file, how)); break; }
    case 9: case 10: {
        struct flock lock = {.l_type = (short)PICK(F_RDLCK, F_WRLCK, F_UNLCK, F_WRLCK, 7), .l_whence = (short)PICK(0, 1, 2, 0, 9), .l_start = an_offset(), .l_len = an_offset() % 5000};
        int command = (int)PICK(F_SETLK, F_OFD_SETLK, F_OFD_SETLK, F_GETLK, F_OFD_GETLK);
        if (rarely(30)) lock.l_pid = 5;
        // A question that kernels answer since Linux 6.10 or so: which locks are one's own.
        if (command == F_OFD_GETLK && lock.l_type == F_UNLCK && without_own_locks) lock.l_type = F_RDLCK;
        tell("lock %d %d type %d whence %d %ld+%ld", file, command, lock.l_type, lock.l_whence, lock.l_start, lock.l_len);
        if (answer(CALL(fcntl, file, command, &lock)) == 0) tell(" %d %d %ld+%ld %s", lock.l_type, lock.l_whence, lock.l_start, lock.l_len, without_lock_owners ? "-" : lock.l_pid == getpid() ? "own" : lock.l_pid == -1 ? "ofd" : lock.l_pid ? "?" : "0");
        break;
    }
    case 11: {
        unsigned long command = (unsigned long)PICK(FIONREAD, FS_IOC_GETFLAGS, 0x5401, FIOCLEX, FIONCLEX, FIONBIO, FIGETBSZ, 0x12345, FIOASYNC);
        int value = 0;
        tell("ioctl %d %lx", file, command);
        long got = CALL(ioctl, file, command, !without_bad && rarely(10) ? BAD : (void *)&value);
        answer(got);
        if (command == FIONREAD && got == 0) tell(" %d", value);
        if (!without_fifos) fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
        break;
    }
    case 12: tell("poll %d", file); { struct pollfd one = {file, (short)PICK(POLLIN, POLLOUT, POLLIN | POLLOUT | POLLPRI), 0}; answer(CALL(poll, &one, 1, 0)); tell(" %x", one.revents); } break;
    }
}
static void handles(void) {
    static struct { struct file_handle head; unsigned char bytes[200]; } kept[3];
    static int types[3];
    unsigned which = any(3);
    if (rarely(2) || !types[which]) {
        int place = a_place(), mount, flags = (int)PICK(0, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, 0x8000);
        const char *path = a_path();
        kept[which].head.handle_bytes = rarely(10) ? 0 : 128;
        types[which] = 0;
        struct watched found = before(place, path, 0);
        if (is_device(&found)) return tell("device");
        tell("name_to_handle_at %d %s %x", place, told_path, flags);
        if (answer(CALL(name_to_handle_at, place, path, &kept[which], &mount, flags)) == 0) types[which] = 1;
    } else {
        int place = rarely(4) ? a_slot() : AT_FDCWD, flags = open_flags() & ~(O_CREAT | O_TMPFILE);
        tell("open_by_handle_at %d %u %o", place, which, flags);
        struct watched none = {0};
        // The working directory's is not always the file system's.
        opened(answer(CALL(open_by_handle_at, place, &kept[which], flags)), &none);
    }
}
static void becomes(void) {
    static int now;
    int next = now ? 0 : FOR_OTHERS, way = (int)any(3);
    // A volume's named pipes are those of one user.
    if (!without_fifos) return tell("-");
    tell("become %d %d", next, way);
    static int changed_by;
    if (now) way = changed_by;
    changed_by = way;
    if (way == 0) CALL(setfsuid, next), CALL(setfsgid, next);
    else if (next) CALL(setresgid, -1, next, -1), CALL(setresuid, -1, next, -1);
    else CALL(setresuid, -1, 0, -1), CALL(setresgid, -1, 0, -1);
    tell(" %d:%d", geteuid(), getegid());
    now = next;
    is_other = next != 0;
}
static void masks(void) {
    int mask = (int)PICK(022, 0, 077, 027, 0777);
    tell("umask %o", mask);
    answer(CALL(umask, mask));
}
