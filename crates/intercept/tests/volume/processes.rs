//! Several processes at once: what they share, and what is left when one of them dies.

use crate::common::{Volume, check, compile, have, intercepted, is_root_who_can, nothing_is_left, on_host, run};

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
fn killed_processes_leave_the_others_alone() {
    let volume = Volume::new(64);
    let output = run(volume.command("bash").arg("-c").arg(
        // What the killed had started may be at work still: it holds the pipe until it ends.
        "cd /gannet; for i in 1 2 3 4 5 6; do (while :; do echo x > f$i; cat f$i > /dev/null; mv f$i g$i; rm g$i; done) & p=$!; sleep 0.05; kill -9 $p; done 2>/dev/null | cat; rm -f f* g*; touch end; ls",
    ));
    check(&output, "kill", "end");
}

#[test]
fn a_forked_child_that_used_the_volume_leaves_it_in_order() {
    let mut volume = Volume::new(64);
    volume.alone();
    // It outlives its parent, and so is the last. Those that use nothing end without a word.
    volume.script("echo one > a; (:); (:); (sleep 0.1; echo two > b; sleep 0.5; :) & sleep 0.3; (:)", "");
    assert!(volume.is_closed(), "the child was the last");
    volume.script("(echo three > c); (: ; (echo four > d)); cat a b c d", "one\ntwo\nthree\nfour");
    assert!(volume.is_closed());
    // Started in the volume, but it asks for nothing of it.
    volume.script("exec env true", "");
    assert!(volume.is_closed());
}

#[test]
fn pipes_sockets_and_asynchronous_requests() {
    let volume = Volume::new(64);
    volume.script("mkfifo p; (echo through > p &); cat p; rm p; ls", "through");
    // What the kernel has of a FIFO goes with it, whoever removes it; who has it open goes on.
    volume.script(
        "mkfifo p; exec 5<> p; there=$(readlink /proc/self/fd/5); ln p q; (rm p); test -e $there && echo there; (rm q); test -e $there || echo gone; echo on >&5; read x <&5; echo $x",
        "there\ngone\non",
    );
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
fn asynchronous_requests_are_seen_by_those_who_wait_already_and_by_those_who_look_at_the_ring() {
    let (_directory, program) = compile("asynchronous");
    let program = program.display().to_string();
    let host = tempfile::Builder::new().prefix("gannet-asynchronous-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = run(on_host(&program).current_dir(host.path()));
    assert!(plain.status.success(), "on the host: {plain:?}");
    Volume::new(64).script(&program, &String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn who_takes_turns_at_record_locks_is_not_told_of_a_deadlock() {
    let (_directory, program) = compile("turns");
    Volume::new(16).script(&format!("{} 30000", program.display()), "failed: 0");
}

#[test]
fn addresses_of_unix_sockets() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(16);
    volume.script(
        "cat > a.py <<'EOF'
import errno, os, socket
server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); server.bind('s'); print(server.getsockname())
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); print(repr(client.getsockname())); client.bind('/gannet/c')
client.sendto(b'to a name', '/gannet/s'); data, back = server.recvfrom(20); print(data); server.sendto(b'back', back); print(client.recv(20))
client.sendmsg([b'in a message'], [], 0, 's'); print(server.recv(20))
a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [os.open('a.py', os.O_RDONLY)]); print(os.read(socket.recv_fds(b, 1, 1)[1][0], 6))
client.connect('../gannet/s'); print(client.getpeername(), client.getsockname()); client.send(b'connected'); print(server.recv(20))
many = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(40)]
for number, one in enumerate(many): one.bind(f'many-{number}')
print(sum(one.getsockname() == f'many-{number}' for number, one in enumerate(many)))
for name, flags in (('nowhere', 0), ('a.py', 0), ('s' * 107, 0)):
    try: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'', name)
    except OSError as error: print(errno.errorcode[error.errno])
os.chmod('s', 0o400 if os.getuid() else 0); os.rename('s', 't'); client.sendto(b'renamed', 't') ; print(server.recv(20))
EOF
python3 a.py; mkdir d; cd d; python3 - <<'EOF'
import socket
far = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); far.bind('../f')
near.connect('/gannet/f'); near.send(b'up'); print(far.recv(9), near.getpeername(), far.getsockname())
import os, sys; sys.stdout.flush(); print(os.fork() == 0 and far.getsockname() or os.wait()[1])
EOF",
            "s\n''\nb'to a name'\nb'back'\nb'in a message'\nb'import'\ns /gannet/c\nb'connected'\n40\nENOENT\nECONNREFUSED\nENOENT\nb'renamed'\nb'up' ../f ../f\n../f\n0",
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
python3 -u m.py",
        "b'minea' b'a'\n524288",
    );
}

#[test]
fn a_map_holds_the_open_file_that_it_was_made_from() {
    if !have("python3") || !have("flock") {
        return;
    }
    let volume = Volume::new(64);
    volume.script(
        "cat > m.py <<'EOF'
import ctypes, fcntl, mmap, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def locked(): return subprocess.run(['flock', '-n', 'f', 'true']).returncode != 0
f = os.open('f', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 65536); fcntl.flock(f, fcntl.LOCK_EX)
at = libc.mmap(None, 65536, 3, mmap.MAP_SHARED, f, 0)
os.close(f); print('closed', locked())
r, w = os.pipe()
child = os.fork()
if child == 0: os.read(r, 1); os._exit(0)
libc.munmap(at, 4096); libc.munmap(at + 8192, 65536 - 8192); print('in part', locked())
libc.munmap(at + 4096, 4096); print('in the child', locked())
os.write(w, b'x'); os.waitpid(child, 0); print('nowhere', locked())
EOF
python3 -u m.py",
        "closed True\nin part True\nin the child True\nnowhere False",
    );
    nothing_is_left(volume, "a map that held its file");
}

#[test]
fn an_open_file_stays_until_the_last_of_its_descriptors_is_closed() {
    let (_directory, program) = compile("alike");
    let volume = Volume::new(64);
    for mode in ["", "threads"] {
        volume.script(&format!("{} {mode}", program.display()), "done");
    }
    nothing_is_left(volume, "open files with several descriptors");
}

#[test]
fn descriptions_of_two_volumes_are_not_mistaken_for_each_other() {
    let volumes = [Volume::new(64), Volume::new(64)];
    let [first, second] = volumes.each_ref().map(|volume| volume.path().into_os_string().into_string().expect("UTF-8"));
    let script = "for i in {10..49}; do eval \"exec $i> /first/$i $((i + 40))> /second/$i\"; head -c 100000 /dev/zero >&$i; done; \
         rm /first/*; for i in {10..49}; do eval \"exec $i>&-\"; done; stat -f -c %f /first";
    let mut command = intercepted("bash");
    command.env("GANNET_RUN_VOLUMES", format!("{first}\x1f/first\x1f{second}\x1f/second"));
    let free: u64 =
        String::from_utf8_lossy(&run(command.args(["-c", script])).stdout).trim().parse().expect("a number");
    let fs = volumes[0].file_system();
    fs.shared().reap(&*fs).expect("reaping");
    let now = fs.statistics().expect("statistics").blocks_free;
    drop(fs);
    assert!(free + 100 > now, "{free} blocks were free once the removed files were closed, {now} now");
    for volume in volumes {
        nothing_is_left(volume, "descriptions of two volumes");
    }
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
fn work_goes_on_when_privileges_are_given_up() {
    if !have("python3") || !rustix::process::geteuid().is_root() {
        return;
    }
    // The volume's shared state, which is root's, grows on the way.
    let volume = Volume::new(256);
    volume.script(
        "cat > w.py <<'EOF'
import os
os.mkdir('all'); os.chmod('all', 0o777)
if os.fork() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    for i in range(3000):
        with open('all/%d' % i, 'w') as f: f.write('x' * i)
    print(len(os.listdir('all')), sum(os.stat('all/%d' % i).st_size for i in range(3000)))
    os._exit(0)
print(os.wait()[1])
EOF
python3 -u w.py",
        "3000 4498500\n0",
    );
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

#[test]
fn nobody_takes_a_descriptor_of_a_volume_out_of_another_process() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(64);
    volume.script(
        r#"python3 -u - <<'P'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def take(process, descriptor):
    taken = libc.syscall(438, os.pidfd_open(process), descriptor, 0)
    return errno.errorcode[ctypes.get_errno()] if taken < 0 else os.read(taken, 5)
ours, path = os.open('f', os.O_RDWR | os.O_CREAT), os.open('.', os.O_PATH)
host, end = os.pipe()
os.write(end, b'pipes')
child = os.fork()
if child == 0: os.read(os.pipe()[0], 1)
print(take(child, ours), take(child, path), take(os.getpid(), ours), take(child, host), take(child, 99))
os.kill(child, 9)
P"#,
        "EPERM EPERM EPERM b'pipes' EBADF",
    );
}

#[test]
fn programs_that_filter_their_own_system_calls() {
    let volume = Volume::new(64);
    let (_directory, program) = compile("filter");
    let part = ": missing: ENOENT\n: made: 640, wrote 5\n: children: 4, bytes 8000\n";
    for by in ["seccomp", "prctl"] {
        let output = run(volume.command(program.to_str().expect("UTF-8")).args(["/gannet", by]));
        check(&output, by, &format!(": filter: 0\n{part}{part}"));
    }
}

/// A program does in a volume what it does on the host, and says nothing of its own accord.
#[track_caller]
fn does_what_it_does_on_the_host(volume: &Volume, program: &std::path::Path) {
    let host = tempfile::Builder::new().prefix("gannet-host-").tempdir_in("/dev/shm").expect("/dev/shm");
    // Nobody may go there, too.
    let plain = run(on_host(program).arg(host.path()));
    assert!(plain.status.success(), "on the host: {plain:?}");
    let ours = run(volume.command(program.to_str().expect("UTF-8")).arg("/gannet"));
    check(&ours, &program.display().to_string(), &String::from_utf8_lossy(&plain.stdout));
    assert_eq!(String::from_utf8_lossy(&ours.stderr), "");
}

#[test]
fn programs_that_allow_themselves_few_calls_end_as_they_do_on_the_host() {
    let (_directory, program) = compile("enclosed");
    let mut volume = Volume::new(16);
    does_what_it_does_on_the_host(&volume, &program);
    // What they left is gone when the last one is.
    volume.script("rm -f enclosed; df --output=iused . | tail -n 1 | tr -d ' '", "1");
    volume.alone();
    assert!(volume.is_closed(), "nobody is left");
}

#[test]
fn no_address_is_not_looked_at() {
    let (_directory, program) = compile("nulls");
    does_what_it_does_on_the_host(&Volume::new(16), &program);
}

#[test]
fn who_may_not_open_a_volume_is_told_so() {
    if !is_root_who_can("be somebody else") || !have("setpriv") {
        return;
    }
    let volume = Volume::new(64);
    let look = "stat /gannet/f 2>&1 | grep -v 'you may not' ; cat /gannet/f 2>&1 | grep -c 'Permission denied'";
    volume.script(
        &format!("echo x > f; cd /; setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \"{look}\" 2> /dev/null"),
        "stat: cannot statx '/gannet/f': Permission denied\n1",
    );
    // Said once, however often it is tried.
    volume.script(
        "cd /; setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'for i in 1 2 3; do test -e /gannet/f; done' 2>&1 | wc -l",
        "1",
    );
}

#[test]
fn a_child_without_its_parents_handlers() {
    let (_directory, program) = compile("cleared");
    let program = program.display().to_string();
    let host = tempfile::Builder::new().prefix("gannet-cleared-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = run(on_host(&program).current_dir(host.path()));
    if plain.status.code() == Some(2) {
        eprintln!("left out: this kernel has no CLONE_CLEAR_SIGHAND");
        return;
    }
    assert!(plain.status.success(), "on the host: {plain:?}");
    Volume::new(16).script(&program, &String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn threads_have_their_descriptors_in_common() {
    let (directory, program) = compile("tables");
    let host = directory.path().join("host");
    Volume::new(16).script(
        &format!("{} {host}; cat {host} first second", program.display(), host = host.display()),
        "unshare alone: done
close_range alone: done
unshare in a thread: Operation not permitted
close_range in a thread: Operation not permitted
unshare of something else: done
unshare once the thread has ended: done
a thread with descriptors of its own: Operation not permitted
unshare in a forked child: done
host
first
volume",
    );
}

/// Leaving a volume takes a descriptor or two for a moment.
#[test]
fn a_process_that_ends_without_a_free_descriptor_leaves_in_order() {
    let fills = r#"exec python3 -c '
import os
try:
    while True: os.open(".", os.O_RDONLY)
except OSError as error: print(error.errno)'"#;
    let (soft, hard) = (format!("(ulimit -Sn 60; {fills})"), format!("(ulimit -n 60; {fills})"));
    Volume::new(32).script(&format!("exec 2>&1; {soft}; {hard}; echo $?"), "24\n24\n0");
}
