// Calls on bytes: reading, writing, positions, lengths, allocation, copies, maps.

static void told_rest(int file, struct watched *watched) {
    moved("f", watched);
    long at = CALL(lseek, file, 0, SEEK_CUR);
    if (at >= 0) tell(" @%ld", at);
}
static void reads(void) {
    int file = a_slot(), way = (int)any(6);
    size_t length = a_length();
    off_t offset = an_offset();
    if (length > sizeof sink) length = sizeof sink;
    int flags = way == 4 ? (int)PICK(0, 0, RWF_HIPRI, 0x40000000, RWF_DSYNC, RWF_APPEND) : 0;
    void *room = !without_bad && rarely(40) ? BAD : (void *)sink;
    size_t asked = rarely(60) ? (size_t)PICK(SSIZE_MAX, -1) : length;
    memset(sink, 'x', length < 200000 ? length + 1 : length);
    size_t first = length ? any((unsigned)length) : 0;
    struct iovec pieces[3] = {{room, first}, {sink + first, 0}, {sink + first, length - first}};
    int count = rarely(30) ? (int)PICK(0, -1, 1025) : 3;
    struct watched watched = before(file, "", AT_EMPTY_PATH);
    if (asked != length && watched.known && watched.then.stx_size > sizeof sink) asked = length;
    tell("%s %d %zd @%ld", ((const char *[]){"read", "pread", "readv", "preadv", "preadv2", "read"})[way], file, (ssize_t)asked, offset);
    long got = -1;
    switch (way) {
    case 0: case 5: got = answer(CALL(read, file, room, asked)); break;
    case 1: got = answer(CALL(pread64, file, room, asked, offset)); break;
    case 2: got = answer(CALL(readv, file, pieces, count)); break;
    case 3: got = answer(CALL(preadv, file, pieces, count, offset, 0)); break;
    case 4: tell(" flags %x", flags); got = answer(CALL(preadv2, file, pieces, count, rarely(3) ? -1 : offset, rarely(3) ? -1 : 0, flags)); break;
    }
    if (got > 0 && room != BAD) tell(" #%08x", hash(0, sink, (size_t)got));
    told_rest(file, &watched);
}
static void writes(void) {
    int file = a_slot(), way = (int)any(6);
    size_t length = a_length();
    off_t offset = an_offset();
    int flags = way == 4 ? (int)PICK(0, 0, RWF_HIPRI, 0x40000000, RWF_DSYNC, RWF_SYNC, RWF_APPEND, 0x20, 0x30) : 0;
    // RWF_NOAPPEND is not passed on to FUSE servers.
    if (without_clones) flags &= ~0x20;
    void *from = !without_bad && rarely(40) ? BAD : (void *)source;
    fill(length + 1);
    size_t first = length ? any((unsigned)length) : 0;
    struct iovec pieces[3] = {{from, first}, {source + first, 0}, {source + first, length - first}};
    int count = rarely(30) ? (int)PICK(0, -1, 1025) : 3;
    // Where the bad piece is not the only one, how much is written before it is the file system's.
    if (from == BAD && way >= 2 && way <= 4) pieces[0].iov_len = length, count = 1;
    // Whether a write of nothing moves times is the file system's, too.
    if (from == BAD) waited = 0;
    struct watched watched = before(file, "", AT_EMPTY_PATH);
    tell("%s %d %zd @%ld%s", ((const char *[]){"write", "pwrite", "writev", "pwritev", "pwritev2", "write"})[way], file, (ssize_t)length, offset, from == BAD ? " bad" : "");
    switch (way) {
    case 0: case 5: answer(CALL(write, file, from, length)); break;
    case 1: answer(CALL(pwrite64, file, from, rarely(60) ? -1ul : length, offset)); break;
    case 2: answer(CALL(writev, file, pieces, count)); break;
    case 3: answer(CALL(pwritev, file, pieces, count, offset, 0)); break;
    case 4: tell(" flags %x", flags); answer(CALL(pwritev2, file, pieces, count, rarely(3) ? -1 : offset, rarely(3) ? -1 : 0, flags)); break;
    }
    told_rest(file, &watched);
}
static int allocated_any;
static void seeks(void) {
    int file = a_slot(), whence = (int)PICK(SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE, SEEK_DATA, SEEK_HOLE, 5, -1);
    off_t offset = an_offset();
    // How far a position may lie is the file system's.
    if (offset > 1l << 40) offset = 1l << 40;
    // Whether what is allocated and not written is a hole is the file system's.
    if (allocated_any && whence >= SEEK_DATA) whence = SEEK_END;
    struct statx about;
    // A position in a directory is a cookie.
    if (inspect(file, "", AT_EMPTY_PATH, &about) == 0 && S_ISDIR(about.stx_mode)) whence = SEEK_SET, offset = 0;
    tell("lseek %d %ld %d", file, offset, whence);
    answer(CALL(lseek, file, offset, whence));
    answer(CALL(lseek, file, 0, SEEK_CUR));
}
static void truncates(void) {
    off_t length = an_offset();
    if (length > 1l << 40 || length == LONG_MAX) length = 12345;
    if (rarely(2)) {
        const char *path = a_path();
        struct watched watched = before(AT_FDCWD, path, 0);
        tell("truncate %s %ld", told_path, length);
        answer(CALL(truncate, path, length));
        moved("f", &watched);
    } else {
        int file = a_slot();
        struct watched watched = before(file, "", AT_EMPTY_PATH);
        tell("ftruncate %d %ld", file, length);
        answer(CALL(ftruncate, file, length));
        told_rest(file, &watched);
    }
}
static void allocates(void) {
    int file = a_slot();
    int mode = (int)PICK(0, 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE, 3, 3, 3, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | 1,
        FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_COLLAPSE_RANGE | 1, FALLOC_FL_ZERO_RANGE | FALLOC_FL_PUNCH_HOLE, 0x1000, FALLOC_FL_INSERT_RANGE | FALLOC_FL_COLLAPSE_RANGE);
    if (without_collapse) mode &= ~(FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE);
    off_t offset = an_offset(), length = rarely(12) ? (off_t)PICK(0, -1) : (off_t)a_length();
    if (rarely(2)) offset &= ~4095l, length &= ~4095l;
    struct watched watched = before(file, "", AT_EMPTY_PATH);
    allocated_any = 1;
    tell("fallocate %d %x %ld+%ld", file, mode, offset, length);
    // Some move times before they refuse.
    if (answer(CALL(fallocate, file, mode, offset, length)) == -1) waited = 0;
    told_rest(file, &watched);
}
static void copies(void) {
    int from = a_slot(), to = a_slot();
    size_t length = a_length();
    off_t in = an_offset(), out = an_offset();
    // How long a file may be is the file system's.
    if (out > 1l << 40) out = 1l << 30;
    off_t *in_at = rarely(2) ? &in : NULL, *out_at = rarely(2) ? &out : NULL;
    struct watched watched = before(to, "", AT_EMPTY_PATH);
    struct statx source_about;
    // Bytes that are on their way to where they come from are copies on one file system, pages on another.
    int is_same = watched.known && inspect(from, "", AT_EMPTY_PATH, &source_about) == 0 && source_about.stx_ino == watched.then.stx_ino;
    unsigned way = any(4);
    switch (is_same ? 0 : way) {
    case 0: case 1: {
        tell("copy %d%s %d%s %zu", from, in_at ? "@" : "", to, out_at ? "@" : "", length);
        if (in_at) tell(" %ld", in);
        if (out_at) tell(" %ld", out);
        unsigned flags = rarely(30) ? 1 : 0;
        // It may move fewer bytes than there are.
        long all = 0, got;
        do all += got = CALL(copy_file_range, from, in_at, to, out_at, length - (size_t)all, flags);
        while (got > 0 && (size_t)all < length);
        if (got == -1 && all == -1) answer(-1); else tell(" = %ld %s", all, got == -1 ? name_of(errno) : "");
        break;
    }
    case 2:
        tell("sendfile %d %d%s %zu", to, from, in_at ? "@" : "", length);
        if (in_at) tell(" %ld", in);
        answer(CALL(sendfile, to, from, in_at, length));
        break;
    case 3: {
        int ends[2];
        if (pipe(ends)) { tell("pipe failed"); break; }
        tell("splice %d%s %d%s %zu", from, in_at ? "@" : "", to, out_at ? "@" : "", length);
        if (in_at) tell(" %ld", in);
        long got = answer(CALL(splice, from, in_at, ends[1], rarely(30) ? &out : NULL, length > 60000 ? 60000 : length, SPLICE_F_NONBLOCK));
        // The pipe holds at most sixteen pieces: how much comes at once depends on where they begin.
        if (got > 0) {
            fcntl(ends[1], F_SETFL, O_NONBLOCK);
            if (out_at) tell(" %ld", out);
            answer(CALL(splice, ends[0], NULL, to, out_at, (size_t)got, SPLICE_F_NONBLOCK));
        }
        close(ends[0]), close(ends[1]);
        break;
    }
    }
    tell(" %ld %ld", in, out);
    if (from != to) { long at = CALL(lseek, from, 0, SEEK_CUR); tell(" from@%ld", at); }
    told_rest(to, &watched);
}
static int mapped_any;
static void clones(void) {
    // What is mapped shared cannot be shared otherwise (EOPNOTSUPP).
    if (mapped_any) return tell("-");
    int from = a_slot(), to = a_slot();
    struct watched watched = before(to, "", AT_EMPTY_PATH);
    struct file_clone_range range = {from, (uint64_t)an_offset(), (uint64_t)a_length(), (uint64_t)an_offset()};
    if (rarely(2)) range.src_offset &= ~4095ul, range.src_length &= ~4095ul, range.dest_offset &= ~4095ul;
    if (rarely(3)) {
        tell("FICLONE %d %d", from, to);
        answer(CALL(ioctl, to, FICLONE, from));
    } else {
        tell("FICLONERANGE %d %d %lld+%lld %lld", from, to, (long long)range.src_offset, (long long)range.src_length, (long long)range.dest_offset);
        answer(CALL(ioctl, to, FICLONERANGE, &range));
    }
    told_rest(to, &watched);
}
static void syncs(void) {
    int file = a_slot();
    switch (any(6)) {
    case 0: tell("fsync %d", file); answer(CALL(fsync, file)); break;
    case 1: tell("fdatasync %d", file); answer(CALL(fdatasync, file)); break;
    case 2: tell("syncfs %d", file); answer(CALL(syncfs, file)); break;
    case 3: { int flags = (int)PICK(0, 1, 2, 7, 8); off_t from = an_offset(); tell("sync_file_range %d %x %ld", file, flags, from); answer(CALL(sync_file_range, file, from, (off_t)a_length(), flags)); break; }
    case 4: { int advice = (int)any(8); off_t length = an_offset(); tell("fadvise %d %d %ld", file, advice, length); answer(CALL(fadvise64, file, 0, length, advice)); break; }
    case 5: { size_t length = a_length(); tell("readahead %d", file); answer(CALL(readahead, file, an_offset(), length)); break; }
    }
}

// Maps. What lies behind the end of a file answers with a signal.
static sigjmp_buf back;
static volatile int guarded;
static void on_fault(int number) {
    if (guarded) siglongjmp(back, number);
    signal(number, SIG_DFL);
}
static void touch(char *at, size_t length, int store, int is_told) {
    int number = sigsetjmp(back, 1);
    if (number) { guarded = 0; tell(" %s", number == SIGBUS ? "BUS" : "SEGV"); return; }
    guarded = 1;
    if (store) memcpy(at, source, length);
    memcpy(sink, at, length);
    guarded = 0;
    if (is_told) tell(" #%08x", hash(0, sink, length));
}
static void maps_and_uses(void) {
    // When what is stored through a map moves times is the file system's.
    waited = 0;
    unsigned which = any(MAPS);
    char *at = maps[which].at;
    size_t length = maps[which].length;
    if (!at || rarely(6)) {
        if (at) munmap(at, length), maps[which].at = NULL;
        int file = a_slot(), protection = (int)PICK(1, 3, 3, 3, 0, 2), flags = (int)PICK(MAP_SHARED, MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, 0);
        length = a_length();
        off_t offset = rarely(2) ? 0 : 4096 * (off_t)any(10);
        if (rarely(20)) offset += 100;
        struct watched watched = before(file, "", AT_EMPTY_PATH);
        tell("mmap %d %zu prot %d flags %x @%ld", file, length, protection, flags, offset);
        errno = 0;
        at = (char *)CALL(mmap, NULL, length, protection, flags, file, offset);
        if (at == MAP_FAILED) { tell(" = %s", name_of(errno)); return; }
        tell(" = map");
        mapped_any = 1;
        maps[which].at = at, maps[which].length = length, maps[which].is_private = flags == MAP_PRIVATE;
        // A volume's file moves its times when a hole is mapped to be stored to.
        if (flags == MAP_PRIVATE || !(protection & PROT_WRITE)) moved("f", &watched);
        return;
    }
    switch (any(9)) {
    case 0: case 1: case 2: case 3: {
        size_t from = any((unsigned)length), count = any((unsigned)(length - from)) % 5000 + (rarely(2) ? 0 : 1);
        if (from + count > length) count = length - from;
        int store = !rarely(2);
        fill(count);
        tell("%s map %zu %zu+%zu", store ? "store into" : "load from", length, from, count);
        // What a private map shows of later changes of its file is not specified.
        touch(at + from, count, store, store || !maps[which].is_private);
        break;
    }
    case 4: { int flags = (int)PICK(MS_SYNC, MS_ASYNC, MS_INVALIDATE | MS_SYNC, 5, 0, 8); size_t count = rarely(3) ? a_length() : length; tell("msync %zu %x", count, flags); answer(CALL(msync, at, count < length ? count : length, flags)); break; }
    case 5: {
        size_t wanted = a_length() + 1;
        tell("mremap %zu %zu", length, wanted);
        void *new = (void *)CALL(mremap, at, length, wanted, MREMAP_MAYMOVE);
        if (new == MAP_FAILED) { tell(" = %s", name_of(errno)); break; }
        tell(" = map");
        maps[which].at = new, maps[which].length = wanted;
        break;
    }
    case 6: { int protection = (int)PICK(1, 3, 3, 0); tell("mprotect %d", protection); answer(CALL(mprotect, at, length, protection)); break; }
    case 7: { int advice = (int)PICK(MADV_DONTNEED, MADV_WILLNEED, MADV_REMOVE, MADV_RANDOM, MADV_POPULATE_READ, MADV_POPULATE_WRITE); tell("madvise %zu %d", length, advice); answer(CALL(madvise, at, length, advice)); break; }
    case 8: {
        if (without_bad || maps[which].is_private) break;
        // What is mapped is written into a file, and read into the map.
        int file = a_slot();
        off_t offset = an_offset();
        size_t count = length > 5000 ? 5000 : length;
        struct watched watched = before(file, "", AT_EMPTY_PATH);
        int into = rarely(2);
        tell("%s %d map %zu @%ld", into ? "pread" : "pwrite", file, count, offset);
        long got = into ? CALL(pread64, file, at, count, offset) : CALL(pwrite64, file, at, count, offset);
        // How much of what lies in part behind an end is passed on is the file system's.
        if (got == -1 || got == (long)count) answer(got); else tell(" = some");
        moved("f", &watched);
        break;
    }
    }
}
