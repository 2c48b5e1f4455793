// Random maps of a few files, made, moved, protected and taken away inside one stretch of addresses, while the files are written, cut, removed,
// closed and replaced, and holes are made in them; prints what each call returned and what each page shows, signals included. Run in a volume and
// beside it, the output must be the same. At the end nothing has a name any more.
// maps DIRECTORY SEED STEPS
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 96, FILES = 3, FILE_PAGES = 24, STEADY = FILES - 1 };
// Low, where the kernel looks for free addresses last: what others map does not come between.
static char *const arena = (char *)0x1000000000;
// Which call made the map of each page, 0 for none: only ranges of one map are moved, as it depends on the kernel what of others becomes one.
static unsigned made_by[PAGES], calls;
static char is_private[PAGES];
// Of each call that made a map: whether it is of a file that keeps its blocks.
static char is_steady[1 << 16];
static int file[FILES], read_only[FILES];

static uint64_t state;
static unsigned next(unsigned limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % limit;
}

static sigjmp_buf back;
static void handler(int number) { siglongjmp(back, number); }

// What a byte shows, or less than nothing: the signal.
static int look(const volatile char *at) {
    int number = sigsetjmp(back, 1);
    return number ? -number : (unsigned char)*at;
}

static int put(volatile char *at, char value) {
    int number = sigsetjmp(back, 1);
    if (number) return -number;
    *at = value;
    return 0;
}

static void say(const char *what, long result) { printf("%s %ld %d\n", what, result, result < 0 ? errno : 0); }

// A range of pages of one map; how many, 0 where the first that was tried has none.
static unsigned of_one_map(unsigned *first) {
    *first = next(PAGES);
    unsigned most = 0;
    while (*first + most < PAGES && made_by[*first] && made_by[*first + most] == made_by[*first]) most++;
    return most ? 1 + next(most) : 0;
}

static void mark(unsigned first, unsigned count, unsigned by) {
    for (unsigned i = first; i < first + count && i < PAGES; i++) made_by[i] = by, is_private[i] = 0;
}

// Another map of what a call made.
static unsigned again(unsigned of) {
    is_steady[++calls] = is_steady[of];
    return calls;
}

static void show(void) {
    for (unsigned i = 0; i < PAGES; i++)
        if (made_by[i]) printf("%u:%d,%d ", i, look(arena + i * PAGE), look(arena + i * PAGE + 4095));
    printf("\n");
}

static void make(void) {
    unsigned which = next(FILES), first = next(PAGES), count = 1 + next(12), offset = next(FILE_PAGES);
    // Of a file that keeps its blocks: it is not specified whether a private map shows what becomes of them.
    unsigned shared = which != STEADY || next(2);
    if (first + count > PAGES) count = PAGES - first;
    int protection = next(4) == 0 ? PROT_READ : PROT_READ | PROT_WRITE, from = next(5) == 0 ? read_only[which] : file[which];
    char *at = mmap(arena + first * PAGE, count * PAGE - next(PAGE), protection, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, from, offset * PAGE);
    printf("map of %u at %u, %u pages from %u, %s, %d: ", which, first, count, offset, shared ? "shared" : "private", protection);
    say("", at == MAP_FAILED ? -1 : at - arena);
    if (at == MAP_FAILED) return;
    is_steady[++calls] = which == STEADY;
    mark(first, count, calls);
    memset(is_private + first, !shared, count);
}

static void move(void) {
    unsigned first, count = of_one_map(&first), more = 1 + next(16);
    // What a private map shows of later writes once it has moved is not specified either.
    if (!count || is_private[first]) return;
    unsigned of = made_by[first];
    switch (next(3)) {
    case 0: { // Where it is, or nowhere.
        char *at = mremap(arena + first * PAGE, count * PAGE, more * PAGE, 0);
        printf("remap in place at %u, %u pages, %u: ", first, count, more);
        say("", at == MAP_FAILED ? -1 : at - arena);
        if (at == MAP_FAILED) return;
        if (first + more > PAGES) munmap(arena + PAGES * PAGE, (first + more - PAGES) * PAGE);
        // What lies behind the pages that were named is one map with the new ones only where nothing was left over.
        mark(first, count, 0);
        mark(first, more, again(of));
        return;
    }
    case 1: { // To a place that is told.
        unsigned target = next(PAGES - 16);
        char *at = mremap(arena + first * PAGE, count * PAGE, more * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, arena + target * PAGE);
        printf("remap of %u, %u pages, to %u, %u: ", first, count, target, more);
        say("", at == MAP_FAILED ? -1 : at - arena);
        if (at == MAP_FAILED) {
            // The kernel may have taken away what lay there, or the rest of the old map.
            munmap(arena, PAGES * PAGE);
            mark(0, PAGES, 0);
            return;
        }
        mark(first, count, 0);
        mark(target, more, again(of));
        return;
    }
    default: { // Anywhere; and back into the stretch.
        char *at = mremap(arena + first * PAGE, count * PAGE, more * PAGE, MREMAP_MAYMOVE);
        printf("remap anywhere of %u, %u pages, %u: ", first, count, more);
        say(at == MAP_FAILED ? "-" : at == arena + first * PAGE ? "same" : "moved", at == MAP_FAILED ? -1 : 0);
        if (at == MAP_FAILED) return;
        mark(first, count, 0);
        if (at == arena + first * PAGE) {
            if (first + more > PAGES) munmap(arena + PAGES * PAGE, (first + more - PAGES) * PAGE);
            mark(first, more, again(of));
            return;
        }
        for (unsigned i = 0; i < more; i++) printf("%d,%d ", look(at + i * PAGE), look(at + i * PAGE + 4000));
        unsigned target = next(PAGES - 16);
        char *home = mremap(at, more * PAGE, more * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, arena + target * PAGE);
        say("home", home == MAP_FAILED ? -1 : home - arena);
        if (home != MAP_FAILED) mark(target, more, again(of));
        return;
    }
    }
}

static void change_file(void) {
    static char bytes[6 * PAGE];
    unsigned which = next(FILES), kind = next(12);
    off_t at = next(FILE_PAGES * PAGE), length = 1 + next(6 * PAGE - 1), page = next(FILE_PAGES);
    if (which == STEADY && kind < 9) (kind = 0, length = next(at < FILE_PAGES * PAGE - length ? length : FILE_PAGES * PAGE - at));
    printf("file %u: ", which);
    switch (kind) {
    case 0: case 1: case 2: case 3:
        memset(bytes, (int)next(256), sizeof bytes);
        say("pwrite", pwrite(file[which], bytes, (size_t)length, at));
        break;
    case 4: case 5: say("ftruncate", ftruncate(file[which], next(4) ? FILE_PAGES * PAGE / 2 + at / 2 : next(2) ? at : page * PAGE)); break;
    case 6: say("punch", fallocate(file[which], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, length)); break;
    case 7: say("allocate", fallocate(file[which], next(2) ? FALLOC_FL_KEEP_SIZE : 0, at, length)); break;
    case 8: {
        loff_t from = at, to = page * PAGE;
        say("copy", copy_file_range(file[(which + 1) % FILES], &from, file[which], &to, (size_t)length, 0));
        break;
    }
    case 9: say("pread", pread(file[which], bytes, (size_t)length, at)); break;
    case 10: {
        ssize_t got = pread(file[which], bytes, sizeof bytes, at);
        unsigned sum = 0;
        for (ssize_t i = 0; i < got; i++) sum = sum * 31 + (unsigned char)bytes[i];
        say("sum", sum);
        break;
    }
    default: say("end", lseek(file[which], 0, SEEK_END));
    }
}

// What cannot be mapped takes nothing away; other memory does.
static void put_other(unsigned first, unsigned count) {
    int ends[2], kind = (int)next(5);
    if (pipe(ends)) exit(4);
    int type = kind == 0 ? 0 : MAP_PRIVATE, from = kind == 1 ? -1 : kind == 2 ? ends[0] : file[STEADY];
    off_t offset = kind == 3 ? 5 : 0;
    int anonymous = kind == 4 || kind == 0 ? MAP_ANONYMOUS : 0;
    char *at = mmap(arena + first * PAGE, count * PAGE, PROT_READ, type | MAP_FIXED | anonymous, from, offset);
    printf("other memory %d at %u, %u pages: ", kind, first, count);
    say("", at == MAP_FAILED ? -1 : at - arena);
    if (at != MAP_FAILED) mark(first, count, 0);
    close(ends[0]), close(ends[1]);
}

static void name_of(char *name, unsigned which, const char *what) { sprintf(name, "%s%u", what, which); }

static void make_file(unsigned which, const char *name) {
    char page[PAGE];
    file[which] = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
    read_only[which] = open(name, O_RDONLY);
    static unsigned made;
    for (unsigned n = 0; n < (which == STEADY ? FILE_PAGES : 8 + 6 * which); n++) {
        memset(page, (int)(1 + which * FILE_PAGES + n + made * 7), PAGE);
        if (pwrite(file[which], page, PAGE, n * PAGE) != PAGE) exit(3);
    }
    made++;
}

static void close_file(unsigned which) { say("close", close(file[which]) + close(read_only[which])); }

// Maps keep what they are of, whoever else lets go of it.
static void lose_file(void) {
    unsigned which = next(FILES);
    char name[16], other[16];
    name_of(name, which, "maps"), name_of(other, which, "other");
    printf("file %u: ", which);
    switch (next(4)) {
    case 0:
        close_file(which);
        file[which] = open(name, O_RDWR);
        read_only[which] = open(name, O_RDONLY);
        say("opened", file[which] < 0 || read_only[which] < 0 ? -1 : 0);
        break;
    case 1: {
        int before = file[which], before_read_only = read_only[which];
        make_file(which, other);
        say("rename", rename(other, name));
        say("close", close(before) + close(before_read_only));
        break;
    }
    case 2:
        say("unlink", unlink(name));
        close_file(which);
        make_file(which, name);
        break;
    default:
        close_file(which);
        say("unlink", unlink(name));
        make_file(which, name);
    }
}

// At first bytes: what is stored behind the end, in the page that has it, tmpfs shows when the file grows, which it should not.
static void stores(int count) {
    for (int i = 0; i < count; i++) printf("%d ", put(arena + next(PAGES) * PAGE, (char)next(256)));
}

// What a child sees, and what the parent sees of what it does.
static void child(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        printf("child ");
        show();
        stores(6);
        show();
        if (next(2)) lose_file(), show();
        fflush(stdout);
        if (next(2)) kill(getpid(), SIGKILL);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    say("child", status);
}

int main(int count, char **arguments) {
    if (count != 4 || chdir(arguments[1])) return 2;
    state = strtoull(arguments[2], 0, 10) * 0x9e3779b97f4a7c15u + 1;
    int steps = atoi(arguments[3]);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    for (unsigned i = 0; i < FILES; i++) {
        char name[16];
        name_of(name, i, "maps");
        make_file(i, name);
    }
    for (int step = 0; step < steps; step++) {
        unsigned first = next(PAGES), many = 1 + next(10);
        if (first + many > PAGES) many = PAGES - first;
        printf("%d: ", step);
        switch (next(17)) {
        case 0: case 1: case 2: make(); break;
        case 3: case 4: case 5: move(); break;
        case 6: case 7: case 8: case 9: change_file(); break;
        case 10:
            say("munmap", munmap(arena + first * PAGE, many * PAGE));
            mark(first, many, 0);
            break;
        case 11: {
            unsigned protected = of_one_map(&first);
            static const int kinds[] = {PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE, PROT_READ | PROT_WRITE};
            int kind = kinds[next(4)];
            if (!protected) break;
            int result = mprotect(arena + first * PAGE, protected * PAGE, kind);
            printf("at %u, %u pages, %d: ", first, protected, kind);
            say("mprotect", result);
            unsigned of = made_by[first];
            // The pieces before, in and behind it are maps by themselves.
            again(of);
            for (unsigned i = first; i < first + protected; i++) made_by[i] = calls;
            again(of);
            for (unsigned i = first + protected; i < PAGES && made_by[i] == of; i++) made_by[i] = calls;
            break;
        }
        case 12: say("msync", msync(arena + first * PAGE, many * PAGE, MS_SYNC)); break;
        case 13: {
            unsigned advised = of_one_map(&first);
            int advice = (int[]){MADV_DONTNEED, MADV_WILLNEED, MADV_REMOVE}[next(3)];
            if (!advised || (advice == MADV_REMOVE && is_steady[made_by[first]])) break;
            printf("%d: ", advice);
            say("madvise", madvise(arena + first * PAGE, advised * PAGE, advice));
            break;
        }
        case 14:
            stores(8);
            printf("\n");
            break;
        case 15:
            if (next(4) == 0) child();
            break;
        default:
            if (next(2)) lose_file();
            else put_other(first, many);
        }
        show();
    }
    for (unsigned i = 0; i < FILES; i++) {
        char name[16];
        name_of(name, i, "maps");
        say("unlink", unlink(name));
    }
    // What is mapped goes with the program, however that ends.
    fflush(stdout);
    if (next(2)) execl("/bin/true", "true", (char *)0);
    return 0;
}
