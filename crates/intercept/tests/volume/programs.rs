//! Programs with their files in a volume.

use crate::common::{Volume, have};

#[test]
fn shell_redirections_and_core_utilities() {
    let volume = Volume::new(64);
    volume.script("echo hello > a; echo more >> a; cat a; wc -l < a; ls", "hello\nmore\n2\na");
    volume.script(
        "mkdir -p d/e; cp a d/; mv a d/e/b; ls -R; cat d/e/b d/a | wc -c",
        ".:\nd\n\n./d:\na\ne\n\n./d/e:\nb\n22",
    );
    volume.script("ln -s d/e l; cat l/b | head -1; readlink l; readlink -f l/b; ln d/a h; stat -c %h h; test h -ef d/a && echo same",
        "hello\nd/e\n/gannet/d/e/b\n2\nsame");
    volume.script(
        "(echo one; echo two >&2) > both 2>&1; cat both; exec 7<>both; read x <&7; echo $x; read y <&7; echo $y",
        "one\ntwo\none\ntwo",
    );
    volume.script("printf 0123456789 > n; dd if=n of=n bs=1 skip=2 seek=7 count=3 conv=notrunc status=none; cat n; truncate -s 4 n; stat -c %s n; tail -c 2 n", "01234562344\n23");
    // The numbers where the interception keeps what it needs itself.
    volume.script(
        "exec 230>one; echo first >&230; echo second > two; bash -c 'echo third >&230'; exec 230>&-; cat one two; exec 230<two; read x <&230; echo $x; rm one two",
        "first\nthird\nsecond\nsecond",
    );
    volume.script(
        "chmod 640 n; touch -d '2001-02-03 04:05:06Z' n; TZ=UTC stat -c '%a %Y' n; rm -r d l h both; ls",
        "640 981173106\nn",
    );
    volume.script(
        "rmdir nothing 2>/dev/null; echo $?; mkdir x; rmdir x/ && echo gone; mkdir n 2>/dev/null || echo exists",
        "1\ngone\nexists",
    );
}

#[test]
fn archives_and_trees() {
    let volume = Volume::new(128);
    volume.script("tar cf - -C /usr/include linux | tar xf - && diff -r /usr/include/linux linux && echo same; find linux -type f | wc -l | tr -d ' ' > n; find /usr/include/linux -type f | wc -l | cmp - n && echo count", "same\ncount");
    volume.script("cp -a linux copy && diff -r linux copy && rm -rf linux && du -s copy > /dev/null && find copy -name '*.h' -exec grep -l __u64 {} + | wc -l | cmp - <(find /usr/include/linux -name '*.h' -exec grep -l __u64 {} + | wc -l) && echo found", "found");
}

#[test]
fn git() {
    if !have("git") {
        return;
    }
    let volume = Volume::new(256);
    volume.script("export HOME=/gannet GIT_CONFIG_NOSYSTEM=1; git init -q -b main r; cd r; git config user.name a; git config user.email a@b; git config gc.auto 0
        for i in $(seq 40); do echo $i > f$((i % 7)); git add .; git commit -qm $i; done
        git log --oneline | wc -l; git checkout -q -b other HEAD~20; git checkout -q main; git status --short; git gc -q; git fsck 2>&1; git clone -q . ../c; git -C ../c log --oneline | wc -l", "40\n40");
}

#[test]
fn sqlite() {
    if !have("sqlite3") {
        return;
    }
    let volume = Volume::new(128);
    for mode in ["delete", "truncate", "persist", "wal"] {
        volume.script(&format!(
            "sqlite3 {mode}.db 'pragma journal_mode={mode}; create table t(a)' >/dev/null
             for p in 1 2 3; do (for i in $(seq 10); do sqlite3 {mode}.db '.timeout 200000' \"insert into t values($p*100+$i)\" || exit 1; done) & done; wait
             sqlite3 {mode}.db 'select count(*), sum(a) from t; pragma integrity_check'"), "30|6165\nok");
    }
}

#[test]
fn python_in_the_volume() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(128);
    volume.script("cat > t.py <<'EOF'
import os, sys, mmap, subprocess, multiprocessing, shutil, tempfile, fcntl, select
os.makedirs('lib/pkg'); open('lib/pkg/__init__.py', 'w').write('x = 42\\n')
sys.path.insert(0, '/gannet/lib'); import pkg; print(pkg.x)
with open('m', 'w+b') as f:
    f.truncate(8192); m = mmap.mmap(f.fileno(), 8192); m[0:5] = b'hello'; m.flush()
    print(os.pread(f.fileno(), 5, 0)); os.pwrite(f.fileno(), b'J', 0); print(m[0:5])
    if os.fork() == 0: m[4096:4100] = b'kind'; os._exit(0)
    os.wait(); print(m[4096:4100], os.pread(f.fileno(), 4, 4096))
print(subprocess.check_output(['pwd'], cwd='/gannet/lib'), os.getcwd())
print(subprocess.check_output(['cat'], stdin=open('lib/pkg/__init__.py')))
def work(i):
    with open('/gannet/lines', 'a') as f: f.write('line %d\\n' % i)
with multiprocessing.Pool(3) as p: p.map(work, range(30))
print(len(open('lines').readlines()))
shutil.copytree('lib', 'lib2'); print(sorted(os.listdir('lib2')))
d = tempfile.TemporaryDirectory(dir='/gannet'); f = tempfile.TemporaryFile(dir=d.name); f.write(b'x' * 70000); f.seek(0); print(len(f.read())); f.close(); d.cleanup()
fd = os.open('lines', os.O_RDWR); fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
pid = os.fork()
if pid == 0:
    try: fcntl.lockf(os.open('lines', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB); os._exit(1)
    except BlockingIOError: os._exit(0)
print(os.waitpid(pid, 0)[1]); os.close(fd)
print(select.select([open('lines')], [], [], 0)[0] != [])
r, w = os.pipe(); n = os.sendfile(w, os.open('lines', os.O_RDONLY), 0, 20); print(n, os.read(r, 4))
print(os.path.realpath('lib2/../lib/pkg'), os.statvfs('.').f_namemax, os.access('lines', os.W_OK))
os.setxattr('lines', 'user.k', b'v'); print(os.listxattr('lines'), os.getxattr('lines', 'user.k'))
try: os.read(os.open('lines', os.O_WRONLY), 1)
except OSError as e: print(e.errno)
import ctypes; libc = ctypes.CDLL(None, use_errno=True)
fd = os.open('lines', os.O_RDWR); print(libc.read(fd, ctypes.c_void_p(8), 10), ctypes.get_errno(), libc.write(fd, ctypes.c_void_p(8), 10), ctypes.get_errno())
EOF
python3 t.py", "42\nb'hello'\nb'Jello'\nb'kind' b'kind'\nb'/gannet/lib\\n' /gannet\nb'x = 42\\n'\n30\n['pkg']\n70000\n0\nTrue\n20 b'line'\n/gannet/lib/pkg 255 True\n['user.k'] b'v'\n9\n-1 14 -1 14");
}

#[test]
fn building_a_c_program() {
    let volume = Volume::new(128);
    volume.script("mkdir src; for i in 1 2 3; do echo \"int f$i(void) { return $i; }\" > src/f$i.c; done
        printf '#include <stdio.h>\\nint f1(void), f2(void), f3(void);\\nint main(void) { printf(\"%%d\\\\n\", f1() + f2() + f3()); return 0; }\\n' > src/main.c
        printf 'OBJECTS = $(patsubst %%.c,%%.o,$(wildcard src/*.c))\\nsum: $(OBJECTS)\\n\\tcc -o $@ $(OBJECTS)\\n' > Makefile
        make -s -j2 && ./sum && make -q && echo current", "6\ncurrent");
}

#[test]
fn files_that_share_blocks() {
    let volume = Volume::new(64);
    volume.script(
        "head -c 300000 /dev/zero | tr '\\0' x > a; cp --reflink=always a b; cmp a b && echo same; printf changed | dd of=b bs=1 seek=5000 conv=notrunc status=none
         cmp a b | sed 's/.*differ: [a-z]*//'; cp --reflink=auto b c; rm b; dd if=c bs=1 skip=5000 count=7 status=none; echo; host=$(mktemp -d); cp --reflink=always a $host/no 2>/dev/null || echo other; rm -r $host",
        "same\n 5001, line 1\nchanged\nother",
    );
    volume.script(
        r#"python3 - <<'P'
import errno, fcntl, os, struct
def shared(f):
    request = bytearray(struct.pack('<QQIIII', 0, 2**63 - 1, 0, 0, 64, 0) + bytes(56 * 64))
    fcntl.ioctl(f, 0xc020660b, request)
    count = struct.unpack_from('<I', request, 20)[0]
    extents = [struct.unpack_from('<QQQQQI', request, 32 + 56 * i) for i in range(count)]
    return [(at, length, bool(flags & 0x2000)) for at, _, length, _, _, flags in extents], extents[-1][5] & 1
def refused(call):
    try: call()
    except OSError as error: return errno.errorcode[error.errno]
a, b = open('one', 'w+b'), open('two', 'w+b')
a.write(b'y' * 12288); a.flush()
fcntl.ioctl(b, 0x40049409, a.fileno())
print(shared(a), os.fstat(b.fileno()).st_size)
os.pwrite(b.fileno(), b'z', 4096)
print(shared(b))
fcntl.ioctl(b, 0x4020940d, struct.pack('<qQQQ', a.fileno(), 4096, 4096, 12288))
print(os.fstat(b.fileno()).st_size, os.pread(b.fileno(), 1, 12288))
def dedupe(at):
    request = bytearray(struct.pack('<QQHHI', 0, 4096, 1, 0, 0) + struct.pack('<qQQiI', b.fileno(), at, 0, 0, 0))
    fcntl.ioctl(a, 0xc0189436, request)
    return struct.unpack_from('<QQi', request, 32)[1:]
os.pwrite(b.fileno(), b'y' * 4096, 8192)
print(dedupe(8192), dedupe(4096), dedupe(100))
def toward(target):
    request = bytearray(struct.pack('<QQHHI', 0, 4096, 1, 0, 0) + struct.pack('<qQQiI', target, 0, 0, 0, 0))
    fcntl.ioctl(a, 0xc0189436, request)
    return errno.errorcode[-struct.unpack_from('<i', request, 48)[0]]
print(toward(os.memfd_create('host')), toward(999), toward(os.open('two', os.O_PATH)), toward(-1))
def answer(source=0, length=4096, reserved=(0, 0, 0)):
    request = bytearray(struct.pack('<QQHHI', source, length, 1, *reserved[:2]) + struct.pack('<qQQiI', b.fileno(), 8192, 7, 7, reserved[2]))
    return refused(lambda: fcntl.ioctl(a, 0xc0189436, request)) or struct.unpack_from('<Qi', request, 40)
print(answer(), answer(reserved=(1, 0, 0)), answer(reserved=(0, 1, 0)), answer(reserved=(0, 0, 1)), answer(10), answer(8192, 4097), answer(2**64 - 4096))
import mmap
for shown in a, b:
    with mmap.mmap(shown.fileno(), 0): print(answer())
print(refused(lambda: fcntl.ioctl(b, 0x40049409, 0)), refused(lambda: fcntl.ioctl(b, 0x40049409, 999)),
      refused(lambda: fcntl.ioctl(b, 0x40049409, os.open('.', 0))), refused(lambda: fcntl.ioctl(open('two'), 0x40049409, a.fileno())),
      refused(lambda: fcntl.ioctl(b, 0x4020940d, struct.pack('<qQQQ', a.fileno(), 1, 4096, 0))))
big = open('big', 'w+b'); big.write(os.urandom(200000)); big.flush(); big.seek(0)
copy = open('copy', 'w+b')
print(os.copy_file_range(big.fileno(), copy.fileno(), 10**9), os.lseek(big.fileno(), 0, 1), os.lseek(copy.fileno(), 0, 1), shared(copy)[0][0][2])
print(open('big', 'rb').read() == open('copy', 'rb').read())
P"#,
        "([(0, 12288, True)], 1) 12288
([(0, 4096, True), (4096, 4096, False), (8192, 4096, True)], 1)
16384 b'y'
(4096, 0) (0, 1) (0, -22)
EXDEV EBADF EBADF EBADF
(4096, 0) EINVAL EINVAL (0, -22) (0, -22) EINVAL EINVAL
(0, 1)
(0, 1)
EXDEV EBADF EISDIR EBADF EINVAL
200000 200000 200000 True
True",
    );
}
