// Where processes of a volume meet: another user neither takes the place of who has it nor comes into it. Run by root in a directory of a
// volume, with a /dev/shm where every user may make files.
#include "say.h"
#include <ftw.h>
#include <libgen.h>

enum { OTHER = 1001 };
static char place[256];
static mode_t wanted;
static int see(const char *path, const struct stat *s, int kind, struct FTW *at) {
    (void)kind; (void)at;
    if ((s->st_mode & S_IFMT) == wanted) snprintf(place, sizeof place, "%s", path);
    return 0;
}
// Where the kernel has what stands for the volume's.
static void find(mode_t kind) { place[0] = 0; wanted = kind; nftw("/dev/shm", see, 10, FTW_PHYS); if (!place[0]) say("none of %o", kind); }
static struct sockaddr_un to(const char *path) { struct sockaddr_un a = {AF_UNIX, ""}; snprintf(a.sun_path, sizeof a.sun_path, "%s", path); return a; }
static int binds(const char *path) {
    int s = socket(AF_UNIX, SOCK_STREAM, 0); struct sockaddr_un a = to(path);
    return bind(s, (void *)&a, sizeof a) || listen(s, 5) ? -1 : 0;
}
static int connects(const char *path) { int s = socket(AF_UNIX, SOCK_STREAM, 0), e; struct sockaddr_un a = to(path); e = connect(s, (void *)&a, sizeof a); int why = errno; close(s); errno = why; return e; }
static int sends(const char *path) { int s = socket(AF_UNIX, SOCK_DGRAM, 0), e; struct sockaddr_un a = to(path); e = sendto(s, "x", 1, 0, (void *)&a, sizeof a); int why = errno; close(s); errno = why; return e; }
static int opens(const char *path, int flags) { int f = open(path, flags); if (f >= 0) close(f); return f < 0 ? -1 : 0; }
static void as_other(void) { if (seteuid(OTHER)) say("seteuid: %s", strerrorname_np(errno)); }
static void as_root(void) { if (seteuid(0)) say("seteuid: %s", strerrorname_np(errno)); }

// What another user made before stands at the place, in the directories that there must be.
static void occupy(int fifo) {
    char copy[256]; snprintf(copy, sizeof copy, "%s", place);
    const char *directory = dirname(copy);
    unlink(place); rmdir(directory);
    as_other();
    if (strcmp(directory, "/dev/shm")) { mkdir(directory, 0777); chmod(directory, 0777); }
    if (fifo ? mkfifo(place, 0666) : binds(place)) say("occupy: %s", strerrorname_np(errno));
    chmod(place, 0777);
    as_root();
}
static void vacate(void) {
    char copy[256]; snprintf(copy, sizeof copy, "%s", place);
    const char *directory = dirname(copy);
    unlink(place); if (strcmp(directory, "/dev/shm")) rmdir(directory);
}

int main(int count, char **arguments) {
    if (count < 2 || chdir(arguments[1])) return 2;
    chmod(".", 0777); umask(0);
    section = "socket";
    R(binds("s")); R(connects("s")); R(sends("s")); find(S_IFSOCK);
    as_other(); R(connects(place)); R(unlink(place)); R(rename(place, "/dev/shm/away")); R(connects("s")); as_root();
    R(connects("s"));
    occupy(0); R(connects("s")); R(sends("s")); R(binds("new")); R(unlink("new")); vacate();
    section = "nobody there";
    R(connects("s")); R(sends("s")); R(mknod("made", S_IFSOCK | 0666, 0)); R(connects("made")); R(unlink("s"));
    section = "another's";
    as_other(); R(binds("theirs")); R(connects("theirs")); as_root();
    R(connects("theirs")); R(chmod("theirs", 0)); R(connects("theirs")); as_other(); R(connects("theirs")); R(unlink("theirs")); as_root();
    section = "fifo";
    R(mkfifo("f", 0666)); R(opens("f", O_RDWR)); find(S_IFIFO);
    as_other(); R(opens(place, O_RDWR)); R(unlink(place)); as_root();
    occupy(1); R(opens("f", O_RDWR)); vacate(); R(opens("f", O_RDWR));
    section = "umask"; umask(0777);
    R(binds("closed")); R(chmod("closed", 0666)); R(connects("closed"));
    as_other(); R(mkfifo("own", 0666)); R(chmod("own", 0600)); R(opens("own", O_RDWR)); R(binds("hers")); R(connects("hers")); R(chmod("hers", 0600)); R(connects("hers")); as_root();
    return 0;
}
