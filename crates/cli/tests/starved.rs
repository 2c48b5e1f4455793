//! Shared memory that ends under users of a volume: they are told so, and go on.

use std::process::{Command, Output, Stdio};

const GANNET: &str = env!("CARGO_BIN_EXE_gannet");

/// What a script does in a mount namespace of its own with 20 MiB of `/dev/shm`, and its volume elsewhere: `$1` is the command, and the
/// working directory has the volume `v` with 300 files in `d`.
fn with_little_memory(script: &str) -> Output {
    let scene = "set -e; mount --make-rprivate /; mount -t tmpfs -o size=600M none /mnt; mount -t tmpfs -o mode=1777,size=20M none /dev/shm; cd /mnt
        $1 mkfs v --size 300M > made
        $1 run v -- sh -c 'mkdir /gannet/d; for i in $(seq 300); do : > /gannet/d/$i; done'
        set +e";
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", "unshare", "-m", "sh", "-c", &format!("{scene}\n{script}"), "sh", GANNET]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Free space that was saved at a clean detach is read when it is needed. The first look at it, when nothing was left for it, ended whoever looked.
#[test]
fn free_space_that_was_not_read_is_not_looked_at_without_memory_for_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: it takes root");
        return;
    }
    let each = [
        "for i in $(seq 3000); do touch d/n$i || break; done",
        "mkdir d/new",
        "mv d/1 d/moved",
        "ln d/2 d/linked",
        "ln -s x d/symbolic",
        "rm d/3",
        "truncate -s 1M d/4",
        "cp d/9 d/5; dd if=/dev/zero of=d/5 bs=64k count=16",
    ];
    for what in each {
        // Refused or done, by a process that goes on and says so.
        let script = format!(
            "$1 run v -- sh -c 'cd /gannet; cat d/9; dd if=/dev/zero of=/dev/shm/fill bs=4k 2> /dev/null; {what}; echo went on'
            code=$?; rm -f /dev/shm/*; $1 run v -- true && $1 fsck v || code=2; exit $code"
        );
        let output = with_little_memory(&script);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("went on"), "{what}: {output:?}");
    }
}
