//! Programs with their files in a volume.

mod common;

use common::{Volume, check, compile, have, run};

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
fn working_directories_and_paths_across_the_border() {
    let volume = Volume::new(64);
    volume.script(
        "mkdir -p a/b; cd a/b; pwd; cd ..; /bin/pwd; cd ../..; pwd; ls -d gannet/a; cd gannet; pwd",
        "/gannet/a/b\n/gannet/a\n/\ngannet/a\n/gannet",
    );
    volume.script("head -c 4 /gannet/../etc/passwd; echo; head -c 4 ../etc/passwd; echo; ln -s /etc e; head -c 4 e/passwd; echo; ln -s ../../gannet/a up; ls -d up/b", "root\nroot\nroot\nup/b");
    volume.script(
        "ls -d //gannet/./a/../a; cd /tmp; ls -d ../gannet/a; cat /gannet/nothing 2>/dev/null || echo none",
        "//gannet/./a/../a\n../gannet/a\nnone",
    );
    volume.script("mv a/b /tmp/gannet-no 2>/dev/null; ls -d a/b /tmp/gannet-no 2>/dev/null; ln /etc/passwd p 2>/dev/null || echo xdev", "/tmp/gannet-no\nxdev");
    let _ = std::fs::remove_dir_all("/tmp/gannet-no");
    volume.script("echo text > t; cat /dev/stdin < t; cat /dev/fd/0 < t; cat /proc/self/fd/0 < t", "text\ntext\ntext");
}

#[test]
fn shared_libraries_of_the_volume() {
    let volume = Volume::new(64);
    volume.script("mkdir lib inner; echo 'int inner(void) { return 40; }' > i.c; echo 'int inner(void); int outer(void) { return inner() + 2; }' > o.c
        printf '#include <stdio.h>\\nint outer(void);\\nint main(void) { printf(\"%%d\\\\n\", outer()); return 0; }\\n' > m.c
        cc -shared -fPIC -Wl,-soname,libinner.so.1 -o inner/libinner.so.1 i.c
        cc -shared -fPIC -Wl,-soname,libouter.so -Wl,-rpath,'$ORIGIN/../inner' -o lib/libouter.so o.c inner/libinner.so.1
        cc -o m m.c -Llib -louter -Wl,-rpath-link,inner -Wl,-rpath,'$ORIGIN/lib'; ./m; cp m /tmp/gannet-m; LD_LIBRARY_PATH=/gannet/lib /tmp/gannet-m; rm /tmp/gannet-m
        sh -c './m; env | grep -c fd/../fd'; python3 -c 'import ctypes; print(ctypes.CDLL(\"/gannet/lib/libouter.so\").outer())'",
        "42\n42\n42\n0\n42");
}

#[test]
fn symbolic_links_of_the_host() {
    let volume = Volume::new(64);
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink("/gannet/d", directory.path().join("link")).expect("a link");
    std::os::unix::fs::symlink("link", directory.path().join("second")).expect("a link");
    std::os::unix::fs::symlink("/gannet/d/p", directory.path().join("program")).expect("a link");
    let at = directory.path().display();
    volume.script(&format!("mkdir d; echo text > {at}/link/f; cat d/f {at}/second/f; mkdir {at}/link/e; mv {at}/link/f {at}/second/e/; ls {at}/link {at}/second/e; stat -c %F {at}/link; stat -L -c %F {at}/link/"),
        &format!("text\ntext\n{at}/link:\ne\n\n{at}/second/e:\nf\nsymbolic link\ndirectory"));
    volume.script(&format!("cd {at}/second/e && /bin/pwd && cat f; cp /bin/echo /gannet/d/p; {at}/program run; cat {at}/link/none 2>/dev/null || echo none; cat {at}/nothing 2>/dev/null || echo none; rm -r {at}/link/e; ls /gannet/d"),
        "/gannet/d/e\ntext\nrun\nnone\nnone\np");
}

#[test]
fn programs_and_scripts_of_the_volume() {
    let volume = Volume::new(64);
    volume.script("cp /bin/echo e; ./e program; printf '#!/bin/sh\\necho script \"$0\" \"$@\"\\n' > s; chmod +x s; ./s 1 '2 3'; /gannet/s; env -i ./s",
        "program\nscript ./s 1 2 3\nscript /gannet/s\nscript ./s");
    volume.script(
        "printf '#!/gannet/e -n\\n' > own; chmod +x own; ./own x; echo; chmod -x e; ./e 2>/dev/null; echo $?",
        "./own x\n126",
    );
    volume
        .script("chmod +x e; cp own /tmp/gannet-own; /tmp/gannet-own y; echo; rm /tmp/gannet-own", "/tmp/gannet-own y");
    volume.script("mkdir bin; cp /bin/true bin/mine; PATH=/gannet/bin:$PATH; mine && echo found; nothing-there 2>/dev/null; echo $?", "found\n127");
}

#[test]
fn record_locks_over_exec() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(64);
    volume.script(
        r#"cat > lock.py <<'P'
import fcntl, os, subprocess, sys, signal
def held(name, start=0):  # by anybody else than the asker
    return subprocess.run([sys.executable, 'lock.py', 'try', name, str(start)]).returncode == 3
def wait(answer, name, start=0):
    while held(name, start) != answer: pass
step = sys.argv[1]
if step == 'try':
    try: fcntl.lockf(os.open(sys.argv[2], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[3]))
    except OSError: sys.exit(3)
elif step == 'first':
    kept, closing = os.open('kept', os.O_RDWR | os.O_CREAT), os.open('closing', os.O_RDWR | os.O_CREAT)
    for start in range(0, 40, 4): fcntl.lockf(kept, fcntl.LOCK_EX if start % 8 else fcntl.LOCK_SH, 2, start)
    fcntl.lockf(closing, fcntl.LOCK_EX, 1, 0); fcntl.flock(kept, fcntl.LOCK_EX)
    os.set_inheritable(kept, True)
    try: os.execv('/nonexistent', ['x'])
    except OSError: pass
    print('after a failure', held('kept', 4), held('kept', 2), held('closing'))
    # Twice: what came over an exec goes over the next.
    os.execv('/bin/sh', ['sh', '-c', 'exec "$@"', 'sh', sys.executable, 'lock.py', 'second', str(kept)])
elif step == 'second':
    kept = int(sys.argv[2])
    print('after exec', held('kept', 4), held('kept', 8), held('kept', 2), held('closing'))
    if os.fork() == 0:
        try: fcntl.lockf(kept, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 4); print('a child has its own')
        except OSError: print('a child has none')
        sys.stdout.flush(); os._exit(0)
    os.wait(); fcntl.lockf(kept, fcntl.LOCK_UN, 2, 4); print('unlocked', held('kept', 4), held('kept', 12))
    os.close(os.open('kept', os.O_RDONLY)); print('closed', held('kept', 12))
    fcntl.lockf(kept, fcntl.LOCK_EX, 1, 0); print('again', held('kept')); sys.stdout.flush()
    ready = os.pipe(); os.set_inheritable(ready[1], True)
    child = os.fork()
    if child == 0:
        f = os.open('killed', os.O_RDWR | os.O_CREAT); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); os.set_inheritable(f, True)
        os.execv('/bin/sh', ['sh', '-c', 'echo >&%d; exec sleep 100' % ready[1]])
    os.read(ready[0], 1); print('of another program', held('killed')); os.kill(child, signal.SIGKILL); os.waitpid(child, 0); wait(False, 'killed')
P
python3 -u lock.py first; python3 lock.py try kept 0 && echo released at the end"#,
        "after a failure True False True
after exec True True False False
a child has none
unlocked False True
closed False
again True
of another program True
released at the end",
    );
}

#[test]
fn links_of_descriptors_name_paths() {
    let volume = Volume::new(64);
    let link = "link() { readlink /proc/self/fd/$1; }";
    // As the shell opened it, over fork and exec; renamed, in its directory and to another, removed; reopened through the link.
    volume.script(
        &format!("{link}; mkdir -p d/e; echo text > d/f; exec 7<d/f 8<d; link 7; link 8; mv d/f d/g; link 7; mv d/g d/e/h; link 7; mv d d2; link 7; link 8; cat /proc/self/fd/7; cat /dev/fd/7; rm d2/e/h; link 7; cat < /proc/self/fd/7; rmdir d2/e d2; link 8; link 7"),
        "/gannet/d/f\n/gannet/d\n/gannet/d/g\n/gannet/d/e/h\n/gannet/d2/e/h\n/gannet/d2\ntext\ntext\n/gannet/d2/f (deleted)\ntext\n/gannet/d (deleted)\n/gannet/f (deleted)",
    );
    volume.script(
        &format!("{link}; echo x > a; ln a b; exec 5<a 6<b 7>&5; link 5; link 6; link 7; rm a; link 5 # its other name
link 6; mv b c; link 6; exec 9<c; ln -s c s; exec 8<s; link 8; long=$(printf %0200d 7); echo > $long; exec 4<$long; [ $(link 4) = /gannet/$long ] && echo long; mv $long $long$long 2>/dev/null; ls -l /proc/self/fd | grep -c ' -> /gannet/'"),
        "/gannet/a\n/gannet/b\n/gannet/a\n/gannet/b\n/gannet/b\n/gannet/c\n/gannet/c\nlong\n6",
    );
    if have("python3") {
        volume.script(
            "python3 - <<'P'
import os, sys
f = os.open('py', os.O_CREAT | os.O_RDWR); os.write(f, b'abc')
d = os.open('/proc/self/fd', os.O_RDONLY)
print(os.readlink(str(f), dir_fd=d), os.path.realpath('/dev/fd/%d' % f), os.readlink('/proc/%d/fd/%d' % (os.getpid(), f)))
g = os.open('/proc/self/fd/%d' % f, os.O_WRONLY | os.O_TRUNC); print(os.fstat(f).st_size, os.readlink('/proc/self/fd/%d' % g))
h = os.dup(g); os.dup2(g, 50); print(os.readlink('/proc/self/fd/%d' % h), os.readlink('/proc/self/fd/50'))
print(os.stat('/proc/self/fd/50').st_ino == os.stat('py').st_ino)
t = os.open('.', os.O_TMPFILE | os.O_RDWR); print(os.readlink('/proc/self/fd/%d' % t).replace(str(os.fstat(t).st_ino), 'N'))
os.link('/proc/self/fd/%d' % t, 'named', follow_symlinks=True); print(os.readlink('/proc/self/fd/%d' % t))
if os.fork() == 0: print(os.readlink('/proc/self/fd/%d' % f)); sys.stdout.flush(); os._exit(0)
os.wait(); os.set_inheritable(f, True); os.execvp('readlink', ['readlink', '/proc/self/fd/%d' % f])
P",
            "/gannet/py /gannet/py /gannet/py\n0 /gannet/py\n/gannet/py /gannet/py\nTrue\n/gannet/#N (deleted)\n/gannet/named\n/gannet/py\n/gannet/py",
        );
    }
}

#[test]
fn offsets_are_shared_by_fork_and_kept_by_exec() {
    let volume = Volume::new(64);
    volume.script(
        "printf 'a\\nb\\nc\\nd\\n' > f; exec 8<f; read x <&8; (read x <&8); sh -c 'read x <&8; read y <&8; echo $x $y'",
        "c d",
    );
    volume.script("exec 9>>log; for i in 1 2 3 4 5 6 7 8; do sh -c 'echo x >&9' & done; wait; wc -l < log", "8");
    volume.script("exec 6<f; rm f; cat <&6; ls f 2>/dev/null; exec 6<&-", "a\nb\nc\nd");
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
             for p in 1 2 3; do (for i in $(seq 10); do sqlite3 {mode}.db '.timeout 20000' \"insert into t values($p*100+$i)\" || exit 1; done) & done; wait
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
fn torture_on_a_file_of_the_volume() {
    let volume = Volume::new(64);
    let (_directory, program) = compile("torture");
    volume.script("cp /etc/passwd /gannet/passwd", "");
    let output = run(volume.command(program.to_str().expect("UTF-8")).arg("/gannet/passwd"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 13, "{text}");
}

#[test]
fn what_cannot_be_seen_is_said() {
    let volume = Volume::new(64);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = directory.path().join("s.c");
    std::fs::write(&source, "int main(void) { return 3; }\n").expect("s.c");
    let program = directory.path().join("static");
    let built = std::process::Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status();
    assert!(built.expect("cc").success());
    let output = run(volume.command("sh").arg("-c").arg(program.to_str().expect("UTF-8")));
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("statically linked") && said.contains("gannet mount"), "{said}");
}

#[test]
fn killed_processes_leave_the_others_alone() {
    let volume = Volume::new(64);
    let output = run(volume.command("bash").arg("-c").arg(
        "cd /gannet; for i in 1 2 3 4 5 6; do (while :; do echo x > f$i; cat f$i > /dev/null; mv f$i g$i; rm g$i; done) & p=$!; sleep 0.05; kill -9 $p; done; wait 2>/dev/null; sleep 1; rm -f f* g*; touch end; ls",
    ));
    check(&output, "kill", "end");
}

#[test]
fn pipes_sockets_and_asynchronous_requests() {
    let volume = Volume::new(64);
    volume.script("mkfifo p; (echo through > p &); cat p; rm p; ls", "through");
    if have("python3") {
        volume.script(
            "cat > s.py <<'EOF'
import os, socket
server = socket.socket(socket.AF_UNIX); server.bind('/gannet/s'); server.listen()
try: socket.socket(socket.AF_UNIX).bind('s')
except OSError as e: print(e.errno)
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX); client.connect('s'); client.send(b'hello'); os._exit(0)
connection, _ = server.accept(); print(connection.recv(10)); os.unlink('s'); print(os.path.exists('s'))
a, b = socket.socketpair()
if os.fork() == 0:
    fd = os.open('passed', os.O_CREAT | os.O_RDWR, 0o600); os.write(fd, b'in the volume'); os.lseek(fd, 3, 0); os.unlink('passed')
    socket.send_fds(a, [b'x'], [fd, 0]); os._exit(0)
os.wait(); data, fds, _, _ = socket.recv_fds(b, 10, 4); print(data, len(fds), os.read(fds[0], 20), os.fstat(fds[0]).st_nlink)
EOF
python3 s.py",
            "98\nb'hello'\nFalse\nb'x' 2 b'the volume' 0",
        );
    }
    if have("fio") {
        volume.script("for e in psync pvsync2 libaio posixaio mmap; do fio --name=t --directory=/gannet --size=2m --rw=randrw --bs=4k --ioengine=$e --verify=crc32c --minimal >/dev/null || echo $e failed; done; echo all", "all");
    }
}

#[test]
fn two_volumes() {
    let (first, second) = (Volume::new(64), Volume::new(64));
    let mut volumes = first.path().into_os_string();
    volumes.push("\x1f/gannet\x1f");
    volumes.push(second.path());
    volumes.push("\x1f/other");
    let script = "echo 1 > /gannet/a; cp /gannet/a /other/b; mv /other/b /gannet/c; cat /gannet/c
        python3 -c 'import os; os.rename(\"/gannet/c\", \"/other/c\")' 2>&1 | tail -1 | grep -o 'Errno 18'
        cd /other; echo 2 > x; ls . ../gannet; ln -s /gannet/a l; cat l; cd ..; pwd; stat -c %d gannet/a > gannet/d; stat -c %d other/x | cmp -s - gannet/d || echo different";
    let output = run(first.command("bash").env("GANNET_RUN_VOLUMES", volumes).arg("-c").arg(script));
    check(&output, script, "1\nErrno 18\n.:\nx\n\n../gannet:\na\nc\n1\n/\ndifferent");
}

#[test]
fn one_volume_below_anothers_place() {
    let (first, second) = (Volume::new(64), Volume::new(64));
    let mut volumes = first.path().into_os_string();
    volumes.push("\x1f/gannet\x1f");
    volumes.push(second.path());
    volumes.push("\x1f/gannet/d/inner");
    let script = "cd /gannet; mkdir -p d/e; echo outer > f; echo inner > d/inner/f; cat d/inner/f d/inner/../../f d/e/../inner/f; cd d; cat inner/f; cd inner; pwd; cat ../../f; cat f /gannet/d/e/../inner/f
        cd ../e; cat ../inner/f; ls ../inner/; mkdir ../inner/new; ls ../inner; mv ../inner/f ../inner/g; cat ../inner/g; ls ..; stat -c %d . ../inner/ | uniq | wc -l
        python3 -c 'import os; os.rename(\"/gannet/f\", \"../inner/f\")' 2>&1 | grep -o 'Errno 18'; python3 -c 'import os; d = os.open(\"..\", os.O_RDONLY); print(os.listdir(d), os.stat(\"inner/g\", dir_fd=d).st_size)'";
    let output = run(first.command("bash").env("GANNET_RUN_VOLUMES", volumes).arg("-c").arg(script));
    check(
        &output,
        script,
        "inner\nouter\ninner\ninner\n/gannet/d/inner\nouter\ninner\ninner\ninner\nf\nf\nnew\ninner\ne\n2\nErrno 18\n['e'] 6",
    );
}

#[test]
fn a_child_keeps_its_parents_maps() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(64);
    volume.script(
        "cat > m.py <<'EOF'
import mmap, os, time
f = open('mapped', 'w+b'); f.write(b'a' * 65536); f.flush()
m = mmap.mmap(f.fileno(), 65536)
r, w = os.pipe()
if os.fork() == 0:
    os.read(r, 1); m[0:4] = b'mine'; print(m[0:5], m[65535:]); m.close(); os._exit(0)
time.sleep(0.05); m.close(); f.close(); os.unlink('mapped')
for i in range(8): open('other%d' % i, 'wb').write(b'b' * 65536)
os.write(w, b'x'); os.wait()
print(sum(open('other%d' % i, 'rb').read().count(b'b') for i in range(8)))
EOF
python3 m.py",
        "b'minea' b'a'\n524288",
    );
}

#[test]
fn privileges_given_up() {
    if !have("python3") || !rustix::process::geteuid().is_root() {
        return;
    }
    let volume = Volume::new(64);
    volume.script(
        "cat > u.py <<'EOF'
import os
os.mkdir('p', 0o700); open('p/f', 'w').write('x')
for name, mode in (('o', 0o600), ('r', 0o644)): open(name, 'w').write(name); os.chmod(name, mode)
if os.fork() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    def all():
        for path in ('o', 'p/f', 'r', 'new'):
            try: print(path, open(path, 'w' if path == 'new' else 'r').read())
            except OSError as e: print(path, e.errno)
    all(); os._exit(0)
os.wait()
EOF
python3 -u u.py",
        "o 13\np/f 13\nr r\nnew 13",
    );
}

#[test]
fn a_lone_program_that_executes_another_leaves_nothing_to_recover() {
    let mut volume = Volume::new(64);
    volume.alone();
    volume.script("echo one > a; exec true", "");
    assert!(volume.is_closed(), "nothing was open");
    volume.script("exec 7> b; echo first >&7; exec bash -c 'echo second >&7; cat b'", "first\nsecond");
    assert!(volume.is_closed(), "a description went from one to the other");
    volume.script("shopt -s execfail; exec ./missing 2>/dev/null; echo still > c; cat c", "still");
    assert!(volume.is_closed(), "an exec that failed");
    volume.script("exec 7> d; rm d; echo x >&7; exec env -i /bin/true", "");
    volume.script("ls; cat a", "a\nb\nc\none");
    assert!(volume.is_closed(), "what a program without the volume left");
    let _ = run(volume.command("bash").arg("-c").arg("cd /gannet; exec 7> e; kill -9 $$"));
    assert!(!volume.is_closed());
    volume.script("ls", "a\nb\nc\ne");
    assert!(volume.is_closed(), "after a kill");
    assert!(!std::fs::read_dir("/dev/shm").expect("names").any(|name| {
        let name = name.expect("a name").file_name().to_string_lossy().into_owned();
        name.starts_with("gannet-") && name.ends_with(&volume.nonce())
    }));
}

#[test]
fn files_that_share_blocks() {
    let volume = Volume::new(64);
    volume.script(
        "head -c 300000 /dev/zero | tr '\\0' x > a; cp --reflink=always a b; cmp a b && echo same; printf changed | dd of=b bs=1 seek=5000 conv=notrunc status=none
         cmp a b | sed 's/.*differ: [a-z]*//'; cp --reflink=auto b c; rm b; dd if=c bs=1 skip=5000 count=7 status=none; echo; cp --reflink=always a /tmp/gannet-no 2>/dev/null || echo other; rm -f /tmp/gannet-no",
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
EXDEV EBADF EISDIR EBADF EINVAL
200000 200000 200000 True
True",
    );
}

#[test]
fn running_programs_are_not_written_to_and_know_where_they_are() {
    let volume = Volume::new(128);
    volume.script("runs() { until [[ $(readlink /proc/$!/exe) == /memfd* ]]; do sleep 0.01; done; }
        cp /bin/sleep s; ./s 20 & runs; (echo x >> s) 2>&1 | grep -o 'Text file busy'; truncate -s 0 s 2>/dev/null || echo busy
        kill -9 $!; wait $! 2>/dev/null; echo x >> s && echo written; cp /bin/true t; exec 5>>t; ./t 2>&1 | grep -o 'Text file busy'; exec 5>&-; ./t && echo runs
        cp /bin/bash b; ./b -c 'echo in b; exec sleep 0.1' & wait; echo >> b && echo after exec",
        "Text file busy\nbusy\nwritten\nText file busy\nruns\nin b\nafter exec");
    volume.script("cp /bin/readlink r; mkdir d; ln -s ../r d/l; ./r /proc/self/exe; d/l /proc/self/exe; cd d; ../r -f /proc/self/exe; cp /bin/cat mycat; ./mycat /proc/self/comm",
        "/gannet/r\n/gannet/r\n/gannet/r\nmycat");
}

#[test]
fn random_work_by_several_processes() {
    let (_directory, program) = compile("exercise");
    let long = std::env::var_os("GANNET_LONG").is_some();
    let operations = if long { "1000000" } else { "10000" };
    let volume = Volume::new(64);
    for (seed, processes) in [("1", "1"), ("2", "2"), ("3", "4")] {
        let mut command = volume.command_with_time(program.to_str().expect("UTF-8"), if long { 1800 } else { 60 });
        let output = run(command.args(["/gannet/f", seed, operations, processes]));
        check(&output, &format!("seed {seed}, {processes} processes"), "same");
    }
}
