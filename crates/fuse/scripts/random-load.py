#!/usr/bin/env python3
"""Random operations by several programs on the same few names of a directory, as fsstress does, some of them killed on the way.

    random-load.py DIRECTORY SEED STEPS [SECONDS [CLIENTS]]

Each client does STEPS operations; with SECONDS, clients are begun anew until those are over. What may fail, fails; an errno that no
operation here should ever get ends it all. In the end everything can be read, is removed, and its space must come back."""
import errno, mmap, os, random, shutil, signal, sys, time

directory, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 0
clients = int(sys.argv[5]) if len(sys.argv) > 5 else 4
EXPECTED = {errno.ENOENT, errno.EACCES, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.ENOSPC, errno.EINVAL, errno.EXDEV,
            errno.ENODATA, errno.EPERM, errno.ELOOP, errno.EBADF, errno.EOPNOTSUPP, errno.ENXIO, errno.EBUSY, errno.EMLINK,
            errno.EFBIG, errno.ENOTTY, errno.ESPIPE, errno.EAGAIN, errno.E2BIG, errno.ERANGE, errno.ESTALE}


def client(number):
    """The operations of one client."""
    choose = random.Random(number)
    opened = []

    def name():
        return "/".join([directory] + [f"d{choose.randrange(3)}" for _ in range(choose.randrange(3))] + [f"n{choose.randrange(12)}"])

    def folder():
        return os.path.dirname(name()) + f"/d{choose.randrange(3)}"

    def file(flags=os.O_RDWR | os.O_CREAT):
        # Not a pipe's end, which would wait.
        return os.open(name(), flags | os.O_NONBLOCK | choose.choice([0, 0, 0, os.O_APPEND, os.O_DSYNC]), 0o644)

    def with_file(use):
        descriptor = choose.choice(opened) if opened and choose.random() < 0.3 else file()
        try:
            use(descriptor)
        finally:
            if descriptor not in opened:
                os.close(descriptor)

    def place():
        return choose.randrange(choose.choice([100, 5000, 70_000, 1 << 20]))

    def length():
        return choose.randrange(choose.choice([10, 4096, 30_000, 300_000]))

    def through_map(descriptor):
        size = os.fstat(descriptor).st_size
        if size:
            with mmap.mmap(descriptor, min(size, 1 << 20)) as mapped:
                # Others cut the file: what lies in its first page is safe until they do, too, so it is left alone.
                if choose.random() < 0.5:
                    mapped.flush()

    def allocate(descriptor):
        os.posix_fallocate(descriptor, place(), 1 + length())

    def copy():
        source, target = file(), file()
        try:
            os.copy_file_range(source, target, length(), place(), place())
        finally:
            os.close(source)
            os.close(target)

    def keep():
        opened.append(file(choose.choice([os.O_RDONLY, os.O_RDWR | os.O_CREAT])))
        if len(opened) > 8:
            os.close(opened.pop(0))

    def unnamed():
        descriptor = os.open(folder(), os.O_TMPFILE | os.O_RDWR)
        try:
            os.write(descriptor, bytes(length()))
            os.link(f"/proc/self/fd/{descriptor}", name(), follow_symlinks=True)
        finally:
            os.close(descriptor)

    def prune():
        # Trees move into each other and grow.
        about = os.statvfs(directory)
        if about.f_bfree < about.f_blocks * 0.7 or about.f_files - about.f_ffree > 3000:
            shutil.rmtree(f"{directory}/d{choose.randrange(3)}", ignore_errors=True)

    operations = [
        (1, prune),
        (8, lambda: with_file(lambda fd: os.pwrite(fd, bytes([choose.randrange(256)]) * length(), place()))),
        (6, lambda: with_file(lambda fd: os.pread(fd, length(), place()))),
        (3, lambda: with_file(lambda fd: os.ftruncate(fd, place()))),
        (1, lambda: with_file(through_map)),
        (1, lambda: with_file(os.fsync)),
        (1, lambda: with_file(allocate)),
        (1, lambda: with_file(lambda fd: os.setxattr(fd, f"user.{choose.randrange(3)}", bytes(choose.randrange(3000))))),
        (2, copy),
        (3, keep),
        (1, unnamed),
        (4, lambda: os.unlink(name())),
        (4, lambda: os.rename(name(), name())),
        (2, lambda: os.rename(folder(), folder())),
        (2, lambda: os.link(name(), name())),
        (1, lambda: os.symlink("n1", name())),
        (1, lambda: os.mkfifo(name())),
        (3, lambda: os.makedirs(folder(), exist_ok=True)),
        (2, lambda: os.rmdir(folder())),
        (3, lambda: [entry.stat(follow_symlinks=False) for entry in os.scandir(folder())]),
        (3, lambda: os.stat(name())),
        (1, lambda: os.chmod(name(), choose.choice([0o644, 0o4755, 0o2755]))),
        (1, lambda: os.utime(name(), (place(), place()))),
        (1, lambda: os.listxattr(name())),
        (1, lambda: os.statvfs(directory)),
    ]
    weights = [weight for weight, _ in operations]
    for step in range(steps):
        operation = choose.choices(operations, weights)[0][1]
        try:
            operation()
        except ValueError:
            pass  # A map of a file that was cut meanwhile.
        except OSError as error:
            if error.errno not in EXPECTED:
                print(f"client {number}, step {step}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
    os._exit(0)


def begin(number):
    pid = os.fork()
    if pid == 0:
        try:
            client(number)
        except BaseException as error:
            print(f"client {number}: {error!r}", file=sys.stderr, flush=True)
            os._exit(2)
    return pid


def free():
    about = os.statvfs(directory)
    return about.f_bfree, about.f_ffree


def main():
    before = free()
    choose = random.Random(seed)
    end = time.monotonic() + seconds
    number, killed, ran = seed * 1000, 0, 0
    running = set()
    for _ in range(clients):
        running.add(begin(number))
        number += 1
    while running:
        # A client in four is killed somewhere on its way.
        if choose.random() < 0.25:
            time.sleep(choose.random() * 0.2)
            victim = choose.choice(sorted(running))
            os.kill(victim, signal.SIGKILL)
            killed += 1
        pid, status = os.wait()
        running.discard(pid)
        ran += 1
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"seed {seed}: a client failed")
        if time.monotonic() < end or ran + len(running) < 3 * clients:
            running.add(begin(number))
            number += 1
    count = 0
    for below, folders, files in os.walk(directory, topdown=False):
        for entry in files:
            path = os.path.join(below, entry)
            about = os.lstat(path)
            if (about.st_mode & 0o170000) == 0o100000:
                with open(path, "rb") as content:
                    assert len(content.read()) == about.st_size, f"{path}: {about.st_size}"
            os.unlink(path)
            count += 1
        if below != directory:
            os.rmdir(below)
    deadline = time.monotonic() + 60
    # Not all blocks: the log of the directory itself has grown. With company (seconds), others use them.
    while not seconds and (free()[1] != before[1] or free()[0] < before[0] - before[0] // 100 - 64):
        if time.monotonic() > deadline:
            sys.exit(f"seed {seed}: free blocks and inodes {free()}, before {before}")
        time.sleep(0.05)
    print(f"seed {seed}: {ran} clients, {killed} killed, {count} names left and removed")


main()
