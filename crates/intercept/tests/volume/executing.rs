//! Programs and libraries of a volume, and what goes over an `execve`.

use crate::common::{Volume, have, is_root_who_can, run};

#[test]
fn shared_libraries_of_the_volume() {
    let volume = Volume::new(64);
    volume.script("mkdir lib inner; echo 'int inner(void) { return 40; }' > i.c; echo 'int inner(void); int outer(void) { return inner() + 2; }' > o.c
        printf '#include <stdio.h>\\nint outer(void);\\nint main(void) { printf(\"%%d\\\\n\", outer()); return 0; }\\n' > m.c
        cc -shared -fPIC -Wl,-soname,libinner.so.1 -o inner/libinner.so.1 i.c
        cc -shared -fPIC -Wl,-soname,libouter.so -Wl,-rpath,'$ORIGIN/../inner' -o lib/libouter.so o.c inner/libinner.so.1
        cc -o m m.c -Llib -louter -Wl,-rpath-link,inner -Wl,-rpath,'$ORIGIN/lib'; ./m; host=$(mktemp -d); cp m $host/m; LD_LIBRARY_PATH=/gannet/lib $host/m; rm -r $host
        sh -c './m; env | grep -c fd/../fd'; python3 -c 'import ctypes; print(ctypes.CDLL(\"/gannet/lib/libouter.so\").outer())'",
        "42\n42\n42\n0\n42");
}

#[test]
fn long_lists_of_libraries() {
    let volume = Volume::new(64);
    volume.script(
        "colons() { printf \"%0$1d\" 0 | tr 0 :; }; LD_PRELOAD=$(colons 20000) echo builtin; LD_PRELOAD=$(colons 20000) /bin/echo short of the limit
        LD_PRELOAD=$(colons 120000) /bin/echo shorter; (LD_PRELOAD=$(colons 200000) exec /bin/echo too long) 2>&1 | grep -o 'Argument list too long'
        echo 'int inner(void) { return 42; }' > i.c; cc -shared -fPIC -Wl,-soname,libinner.so -o libinner.so i.c
        printf '#include <stdio.h>\\nint inner(void);\\nint main(void) { printf(\"%%d\\\\n\", inner()); return 0; }\\n' > m.c; cc -o m m.c -L. -linner
        LD_LIBRARY_PATH=$(colons 20000)/gannet ./m",
        "builtin\nshort of the limit\nshorter\nArgument list too long\n42",
    );
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
    volume.script(
        "chmod +x e; host=$(mktemp -d); cp own $host/own; $host/own y | sed \"s|$host|on the host: |\"; rm -r $host",
        "on the host: /own y",
    );
    volume.script("mkdir bin; cp /bin/true bin/mine; PATH=/gannet/bin:$PATH; mine && echo found; nothing-there 2>/dev/null; echo $?", "found\n127");
}

/// `#!` lines as the kernel reads them, and paths of programs as it gives them.
#[test]
fn lines_and_names_of_programs() {
    let volume = Volume::new(64);
    volume.script(
        "cp /bin/echo e; printf '#!/gannet/e short' > short; printf '#!/gannet/e\\r\\n' > cr; printf '#!/gannet/e \\t a b \\t\\n' > blank
         printf '#!/gannet/e %0300d\\n' 0 > long; printf '#!/gannet/%0300d\\n' 0 > name
         ln -s /gannet/s5 s; for i in 1 2 3 4 5 6; do printf '#!/gannet/s%s\\n' $((i - 1)) > s$i; done; cp e s0; chmod +x *
         ./short; ./cr 2>/dev/null; echo $?; ./blank; ./long | wc -c; ./name 2>/dev/null; echo $?
         s/x 2>/dev/null; ./s5 | tr ' ' '\\n' | wc -l; ./s6 2>&1 | grep -o 'Too many levels'",
        "short ./short\n127\na b ./blank\n251\n0\n5\nToo many levels",
    );
    volume.script(
        "mkdir -p real/deep; ln -s real/deep dd; cp /usr/bin/readlink real/prog; dd/../prog /proc/self/exe; cd real; ./prog /proc/self/exe
         host=$(mktemp -d); printf '#!/gannet/e inner\\n' > $host/inner; printf '#!%s\\n' $host/inner > $host/outer; chmod +x $host/*
         $host/outer | sed \"s|$host|host|g\"; rm -r $host",
        "/gannet/real/prog\n/gannet/real/prog\ninner host/inner host/outer",
    );
    if have("python3") {
        volume.script(
            "python3 -c \"
import os
os.execve(os.open('/gannet/real/prog', os.O_RDONLY), ['x', '/proc/self/exe'], {})\"",
            "/gannet/real/prog",
        );
    }
}

/// `execveat` as glibc calls it, and its flags.
#[test]
fn programs_by_descriptor_and_flag() {
    let volume = Volume::new(64);
    volume.script(
        "cat > x.c <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void try(int directory, const char *path, int flags) {
    char *arguments[] = {\"executed\", NULL}, *environment[] = {NULL};
    fflush(stdout);
    if (fork() == 0) {
        int result = execveat(directory, path, arguments, environment, flags);
        int checks = flags == 0x10000 && (result == 0 || errno == EINVAL);
        printf(\"%s\\n\", checks ? \"checked\" : strerror(errno));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}
int main(void) {
    try(AT_FDCWD, \"script\", 0);
    try(AT_FDCWD, \"program\", 0);
    try(open(\"program\", O_RDONLY), \"\", AT_EMPTY_PATH);
    try(AT_FDCWD, \"program\", 0x10000);
    try(AT_FDCWD, \"script\", 0x10000);
    try(AT_FDCWD, \"program\", 1);
    try(AT_FDCWD, \"x.c\", 0);
    return 0;
}
END
cc -o x x.c; cp /usr/bin/printf program; printf '#!/bin/sh\\necho \"$0\"\\n' > script; chmod +x script
./x 2>&1 | sed 's/missing operand/no operand/; /Try/d'",
        "script\nexecuted: no operand\nexecuted: no operand\nchecked\nchecked\nInvalid argument\nPermission denied",
    );
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
    os.execv('/bin/sh', ['sh', '-c', 'exec "$@"', 'sh', sys.executable, '-u', 'lock.py', 'second', str(kept)])
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
    let host = program.display();
    let script = format!(
        "cp {host} /gannet/own; /gannet/own; cd /gannet; ./own; printf '#!/gannet/own\\n' > s; chmod +x s; ./s; echo $?"
    );
    let output = run(volume.command("bash").arg("-c").arg(&script));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("/own: statically linked: this program will not see the volume").count(), 3, "{said}");
}

#[test]
fn a_program_that_does_not_see_its_working_directory_is_nowhere() {
    let volume = Volume::new(64);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = r#"#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
int main(void) { int made = open("gannet-test-nowhere", O_CREAT | O_RDWR, 0600); printf("%s %d\n", made < 0 ? "not made" : "made", errno); return 0; }
"#;
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("s.c"), source).expect("s.c");
    let built = std::process::Command::new("cc").arg("-static").arg("-o").arg(at("static")).arg(at("s.c")).status();
    assert!(built.expect("cc").success());
    let host = at("static").display().to_string();
    // What stays: others' are there for a moment, when they go there.
    let nowhere = "i=0; while [ $(ls -d /dev/shm/gannet-nowhere* 2>/dev/null | wc -l) != 0 ] && [ $((i += 1)) -lt 500 ]; do sleep 0.01; done; ls /dev/shm | grep -c gannet-nowhere";
    // By fork, by the program of the volume, and by what a failed execve leaves; on the host it is where it was.
    let script = format!(
        "cd /gannet; {host}; cp {host} own; ./own; cp {host} {host}-broken; printf '\\0' | dd of={host}-broken bs=1 seek=16 conv=notrunc status=none; shopt -s execfail; (exec {host}-broken) 2>/dev/null; exec {host}-broken 2>/dev/null; sh -c 'readlink /proc/$PPID/cwd; echo back > here; cat here'; cd {}; {host}; rm gannet-test-nowhere; {nowhere}",
        directory.path().display()
    );
    let output = run(volume.command("bash").arg("-c").arg(&script));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "not made 2\nnot made 2\n/\nback\nmade 0\n0\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!std::path::Path::new("/gannet-test-nowhere").exists());
    if have("python3") {
        // Python's children share its memory until they execute something.
        let script = format!(
            "cd /gannet; python3 -c 'import subprocess, os; subprocess.run([\"{host}\"]); subprocess.run([\"sh\", \"-c\", \"readlink /proc/$PPID/cwd\"])'"
        );
        let output = run(volume.command("bash").arg("-c").arg(&script));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "not made 2\n/\n");
    }
}

#[test]
fn programs_that_gain_capabilities_are_named() {
    if !have("python3") || !is_root_who_can("give a program capabilities") {
        return;
    }
    let volume = Volume::new(64);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("cat").display().to_string();
    let script = format!(
        "chmod 755 {0}; cp /bin/cat {program}; python3 -c 'import os, struct; os.setxattr(\"{program}\", \"security.capability\", struct.pack(\"<5I\", 0x2000001, 1 << 13, 0, 0, 0))' || exit 77; echo seen > f; echo outside > {0}/f; {program} f; setpriv --reuid=65534 --clear-groups {program} {0}/f",
        directory.path().display()
    );
    let output = run(volume.command("bash").arg("-c").arg(format!("cd /gannet; {script}")));
    if output.status.code() == Some(77) {
        eprintln!("left out: capabilities cannot be given: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "seen\noutside\n", "{said}");
    assert_eq!(said.matches("has capabilities of its own: this program will not see the volume").count(), 1, "{said}");
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
fn running_programs_are_not_written_to_and_know_where_they_are() {
    let volume = Volume::new(128);
    volume.script("runs() { until [[ $(readlink /proc/$!/exe) == /memfd* ]]; do sleep 0.01; done; }
        cp /bin/sleep s; ./s 250 & runs; (echo x >> s) 2>&1 | grep -o 'Text file busy'; truncate -s 0 s 2>/dev/null || echo busy
        kill -9 $!; wait $! 2>/dev/null; echo x >> s && echo written; cp /bin/true t; exec 5>>t; ./t 2>&1 | grep -o 'Text file busy'; exec 5>&-; ./t && echo runs
        cp /bin/bash b; ./b -c 'echo in b; exec sleep 0.1' & wait; echo >> b && echo after exec",
        "Text file busy\nbusy\nwritten\nText file busy\nruns\nin b\nafter exec");
    // A program that does not use the volume holds none of its shared state.
    volume.script("cp /bin/sleep u", "");
    let mut sleeper = volume.command("/gannet/u").arg("250").spawn().expect("a program of the volume");
    // Who writes to it before it runs keeps it from running.
    let children = format!("/proc/{0}/task/{0}/children", sleeper.id());
    let program_that_runs = || {
        let children = std::fs::read_to_string(&children).unwrap_or_default();
        let mut programs = children.split_whitespace().filter_map(|id| id.parse::<i32>().ok());
        programs.find(|id| {
            std::fs::read_link(format!("/proc/{id}/exe"))
                .is_ok_and(|program| program.to_string_lossy().starts_with("/memfd:"))
        })
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    let runs = loop {
        if let Some(runs) = program_that_runs() {
            break rustix::process::Pid::from_raw(runs).expect("a number");
        }
        assert!(std::time::Instant::now() < deadline, "it runs");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    volume.script("(echo x >> u) 2>&1 | grep -o 'Text file busy'", "Text file busy");
    rustix::process::kill_process(runs, rustix::process::Signal::KILL).expect("kill");
    sleeper.wait().expect("wait");
    volume.script("cp /bin/readlink r; mkdir d; ln -s ../r d/l; ./r /proc/self/exe; d/l /proc/self/exe; cd d; ../r -f /proc/self/exe; cp /bin/cat mycat; ./mycat /proc/self/comm",
        "/gannet/r\n/gannet/r\n/gannet/r\nmycat");
}
