// What is behind links of the host to descriptors of this process, told line by line, while its working directory is the host's and a file and a directory below
// DIRECTORY are open, which is in another file system: looked at, changed, and changed by calls whose number is no constant. Arguments: DIRECTORY, and a directory for links on the host.
#include "say.h"

static char host[3000], here[3000];
static const char *at(const char *base, const char *name) {
    static char room[8][4096];
    static int next;
    char *path = room[next++ % 8];
    snprintf(path, 4096, "%s/%s", base, name);
    return path;
}
#define HOST(name) at(host, name)
#define HERE(name) at(here, name)

static void tell(int file) {
    struct stat status;
    char list[200];
    fstat(file, &status);
    say("  mode %o, size %ld, attributes %ld, links %ld", status.st_mode, (long)status.st_size, (long)flistxattr(file, list, sizeof list), (long)status.st_nlink);
    if (status.st_mtime < 100) say("  times %ld %ld", (long)status.st_mtime, (long)status.st_atime);
}

static void change_file(int file) {
    struct timespec times[2] = {{5, 0}, {6, 0}};
    struct statfs one, other;
    char value[100];
    R(setxattr(HOST("file"), "user.one", "first", 5, 0)); tell(file);
    R(getxattr(HOST("file"), "user.one", value, sizeof value));
    R(getxattr(HOST("file"), "user.none", value, sizeof value));
    R(getxattr(HOST("file"), "security.none", value, sizeof value));
    R(listxattr(HOST("file"), value, sizeof value));
    R(lgetxattr(HOST("fds/3"), "user.one", value, sizeof value) > 0);
    R(getxattr(HOST("fds/3"), "user.one", value, sizeof value));
    R(removexattr(HOST("file"), "user.one")); tell(file);
    R(listxattr(HOST("file"), value, sizeof value));
    R(chmod(HOST("file"), 0751)); tell(file);
    R(chmod(HOST("file"), 0)); tell(file);
    R(fchmodat(AT_FDCWD, HOST("fds/3"), 0640, 0)); tell(file);
    R(S(fchmodat2, AT_FDCWD, HOST("file"), 0600, 0)); tell(file);
    R(chown(HOST("file"), -1, -1));
    R(utimensat(AT_FDCWD, HOST("file"), times, 0)); tell(file);
    R(truncate(HOST("file"), 3)); tell(file);
    R(truncate(HOST("fds/3"), 0)); tell(file);
    R(statfs(HOST("file"), &one)); fstatfs(file, &other);
    say("the same: %d", one.f_type == other.f_type && one.f_blocks == other.f_blocks);
    statfs(host, &one);
    say("the host's: %d", one.f_type == 0x01021994);
    R(syscall(SYS_chmod + (file & 0), HOST("file"), 0644)); tell(file);
}

static void change_directory(const char *folder) {
    const char *new = at(folder, "new"), *other = at(folder, "other");
    R(mkdir(new, 0755)); R(access(HERE("below/new"), F_OK));
    R(mkdir(new, 0755)); R(rename(new, other)); R(access(HERE("below/other"), F_OK)); R(rmdir(other));
    R(symlink("to", new)); R(readlink(HERE("below/new"), (char[9]){0}, 9)); R(unlink(new));
    R(mknod(new, S_IFREG | 0600, 0)); R(link(new, other)); R(link(new, HERE("linked"))); R(link(HERE("linked"), at(folder, "third")));
    R(rename(other, HERE("moved"))); R(rename(HERE("moved"), other)); R(unlink(other)); R(unlink(at(folder, "third"))); R(unlink(HERE("linked")));
    R(linkat(AT_FDCWD, HOST("fds/3"), AT_FDCWD, other, AT_SYMLINK_FOLLOW)); R(unlink(other));
    R(rename(new, HOST("away"))); R(rename(HOST("own"), other)); R(unlink(new)); R(unlink(new));
    R(syscall(SYS_mkdir + (int)(folder[0] & 0), new, 0755)); R(access(HERE("below/new"), F_OK)); R(rmdir(new));
    R(mkdir(at(folder, "none/new"), 0755)); R(chdir(folder)); R(access("inner", F_OK)); R(chdir("/"));
    R(chdir(HOST("file"))); R(mkdir(HOST("file/x"), 0755)); R(rmdir(HOST("folder"))); R(mkdir(HOST("folder"), 0755));
}

int main(int count, char **arguments) {
    (void)count;
    snprintf(here, sizeof here, "%s", arguments[1]); snprintf(host, sizeof host, "%s", arguments[2]);
    if (chdir("/")) return 1;
    int file = open(HERE("file"), O_CREAT | O_RDWR, 0644);
    mkdir(HERE("below"), 0755); make(HERE("below/inner"), "x");
    int folder = open(HERE("below"), O_RDONLY | O_DIRECTORY);
    dup2(folder, 20); dup2(file, 3); write(3, "hello", 5);
    symlink("/proc/self/fd/3", HOST("file")); symlink("/proc/self/fd", HOST("fds")); symlink("/proc/self/fd/20", HOST("folder")); make(HOST("own"), "mine");
    change_file(3);
    change_directory(HOST("folder"));
    change_directory(HOST("fds/20"));
    make(HOST("own"), "own");
    R(chmod(HOST("own"), 0640)); tell(open(HOST("own"), O_RDONLY));
    R(symlink("own", HOST("link")));
    R(chmod(HOST("link"), 0604)); tell(open(HOST("own"), O_RDONLY));
    return 0;
}
