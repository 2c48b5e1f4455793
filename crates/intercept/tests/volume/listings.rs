//! Directories of the host that a program under interception sees otherwise, and what it does not see.

use crate::common::{Volume, check, have, run};
use std::process::{Command, Stdio};

/// Prints which descriptors there are, whether listings agree, and what calls say of those that the interception has.
const DESCRIPTORS: &str = r"
import os
os.path.exists('/gannet/f')
def outcome(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return error.errno
there = {descriptor for descriptor in range(1100) if not isinstance(outcome(os.fstat, descriptor), int)}
for path in ('/proc/self/fd', '/dev/fd', '/proc/self/fdinfo', '/proc/%d/fd' % os.getpid()):
    # The listing has its own descriptor, too.
    print(path.split('/')[-1], {int(name) for name in os.listdir(path)} - there <= {max(there) + 1, 3, 4})
print(sorted(there))
for call in (os.dup, os.close, os.fchdir, os.fsync, os.get_inheritable, lambda d: os.read(d, 1), lambda d: os.stat('x', dir_fd=d),
             lambda d: os.stat('/proc/self/fd/%d' % d), lambda d: os.open('/dev/fd/%d' % d, 0)):
    print([outcome(call, descriptor) for descriptor in (230, 512)])
";

#[test]
fn descriptors_of_the_interception_are_not_seen() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(16);
    let with = |mut command: Command| run(command.arg("-c").arg(DESCRIPTORS).stdin(Stdio::null()));
    let outside = with(Command::new("python3"));
    let wanted = String::from_utf8_lossy(&outside.stdout).trim().to_owned();
    assert!(wanted.contains("[9, 9]\n[2, 2]"), "{wanted}");
    check(&with(volume.command("python3")), DESCRIPTORS, &wanted);
}

/// A medium's descriptor goes behind as many as the program has open when it first uses the volume.
#[test]
fn a_medium_stays_hidden_behind_any_number_of_descriptors() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(16);
    let script = "python3 -c \"
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.chdir('/')
opened = [os.open('/dev/null', os.O_RDONLY) for _ in range(700)]
open('/gannet/first', 'w').close()
seen = {int(n) for n in os.listdir('/proc/self/fd')}
reached = {n for n in range(2048) if os.path.exists('/proc/self/fd/%d' % n)}
print(sorted(n for n in reached if n > max(opened)), len(seen - reached))\"";
    // What is listed and not there is the listing's own.
    let output = run(volume.command("bash").arg("-c").arg(script));
    check(&output, script, "[] 1");
}

#[test]
fn the_place_of_a_volume_is_as_busy_as_a_mount() {
    let volume = Volume::new(16);
    volume.script(
        "echo kept > f; cd /; host=$(mktemp -d); mv /gannet $host/moved 2>&1 | sed \"s|$host|host|\"; mv -T $host /gannet 2>/dev/null; echo $?
         rmdir /gannet 2>&1; mkdir /gannet 2>/dev/null; echo $?; cat /gannet/f; ls $host; rmdir $host",
        "mv: cannot move '/gannet' to 'host/moved': Device or resource busy\n1\nrmdir: failed to remove '/gannet': Device or resource busy\n1\nkept",
    );
}

#[test]
fn the_place_of_a_volume_is_listed() {
    let volume = Volume::new(16);
    volume.script(
        "ls / | grep -cx gannet; ls -a / | sort | uniq -d; echo /gann*; cd / && echo gann*",
        "1\n/gannet\ngannet",
    );
    volume.script("find / -maxdepth 1 -name gannet -type d; cd /tmp && ls .. | grep -x gannet", "/gannet\ngannet");
    // Up from the volume, as `getcwd` does it by hand, and in one that sees more than an entry at a time.
    volume
        .script("mkdir -p a/b; cd a/b; ls -d ../../../gannet; ls ../../.. | grep -x gannet", "../../../gannet\ngannet");
    if have("python3") {
        volume.script(
            "python3 -c \"
import os
all = list(os.scandir('/'))
print([(e.name, e.is_dir(), e.is_symlink()) for e in all if e.name == 'gannet'], len(all) == len({e.name for e in all}))
d = os.open('/', os.O_RDONLY); print([len(os.listdir(d)) == len(all) for _ in range(3)])\"",
            "[('gannet', True, False)] True\n[True, True, True]",
        );
    }
}

#[test]
fn a_place_that_the_host_has_is_listed_once() {
    let above = tempfile::tempdir().expect("a directory");
    let place = above.path().join("place");
    let volume = Volume::new(16);
    for made in [false, true] {
        if made {
            std::fs::create_dir(&place).expect("a directory");
        }
        let mut command = volume.command("ls");
        let volumes = format!("{}\x1f{}", volume.path().display(), place.display());
        let output = run(command.env("GANNET_RUN_VOLUMES", volumes).arg("-a").arg(above.path()));
        check(&output, "ls", ".\n..\nplace");
    }
}

#[test]
fn few_descriptors() {
    // Where the limit can be raised for a moment, a volume takes none of them.
    let volume = Volume::new(16);
    volume.script("for i in 1 2 3 4 5 6 7 8 9; do echo $i > $i; done; ulimit -Sn 6; sort -n -m 1 2 3 4 5 6 7 8 9 | tr -d '\\n'; ulimit -n", "1234567896");
}

#[test]
fn what_an_open_fifo_is() {
    let volume = Volume::new(16);
    volume.script(
        "mkfifo -m 640 p; exec 5<>p; stat -L -c '%F %a' /proc/self/fd/5; [ $(stat -L -c %i p) = $(stat -c %i - <&5) ] && echo same; \
         echo through >&5; timeout 200 cp --copy-contents p copy 5>&- & while ! [ -e copy ]; do sleep 0.01; done; exec 5>&-; wait $!; cat copy",
        "fifo 600\nsame\nthrough",
    );
}
