//! Programs that are executed in user namespaces below the one in which `gannet run` was started: what they say in a volume is what they say
//! on tmpfs, as root and as an ordinary user.

use crate::{Place, build_library, gannet, run, text};
use std::process::{Command, Stdio};

/// Why namespaces are not tested, if so.
fn hindrance() -> Option<&'static str> {
    let tried = Command::new("unshare").args(["--user", "true"]).output();
    let works = tried.is_ok_and(|output| output.status.success());
    (!works).then_some("user namespaces may not be made here (unshare --user true)")
}

/// What a user does with a directory of their own, below namespaces of several kinds. `$1` is the directory.
const SCRIPT: &str = r#"
exec 2>&1; cd "$1" || exit; umask 022; LC_ALL=C; export LC_ALL
echo hi > f; mkdir d; mkfifo p
unshare -r cat f; unshare --user cat f
echo "-- as root"
unshare -r sh -c 'id -u; stat -c %u:%g f; echo more >> f; touch n; stat -c %u:%g n; chown 0:0 n; chown 1 n; chmod 600 n; cat n; ls -ln | wc -l; (echo through >p & cat p)'
stat -c %u:%g n
echo "-- unmapped"
unshare --user sh -c 'id -u; stat -c %u:%g f; echo more >> f; touch n2; stat -c %u:%g n2; chown 0:0 n2; chmod 600 n2; cat n2; mv n2 d; ls d'
stat -c %u:%g d/n2
echo "-- one in another"
unshare -r unshare --user sh -c 'stat -c %u:%g n f; echo x >> f; touch n3'
unshare -r unshare -r sh -c 'stat -c %u:%g n f; echo x >> f; touch n4'
unshare -r sh -c 'unshare -r --fork sh -c "stat -c %u:%g n4; touch n5"'
unshare -r --map-user=65534 sh -c 'id -u; stat -c %u:%g f; wc -l < f; touch n6'
stat -c %u:%g n3 n4 n5 n6
echo "-- entered"
unshare -r sh -c 'touch there; until test -e go; do sleep 0.01; done' & until test -e there; do sleep 0.01; done
nsenter -U -t $! --preserve-credentials sh -c 'id -u; stat -c %u:%g f; touch n7'
touch go; wait; stat -c %u:%g n7
if bwrap --dev-bind / / true; then
    echo "-- bwrap"
    bwrap --dev-bind / / sh -c 'wc -l < f; stat -c %u:%g f; touch b1; id -u'
    bwrap --unshare-user --uid 77 --gid 78 --dev-bind / / sh -c 'wc -l < f; stat -c %u:%g f; touch b2; id -u'
    bwrap --unshare-all --dev-bind / / sh -c 'wc -l < f; stat -c %u:%g f; touch b3; id -u; ls -ln | wc -l'
    bwrap --dev-bind / / --proc /proc --unshare-pid --clearenv --setenv PATH "$PATH" sh -c 'cat f | wc -l; touch b4; bwrap --dev-bind / / stat -c %u:%g b4'
    stat -c %u:%g b1 b2 b3 b4
fi
"#;

/// The script in a directory of tmpfs and in a volume, as whoever runs this.
const BOTH: &str = r#"
d=$(mktemp -d /dev/shm/gannet-users-XXXXXX) || exit 77; trap 'rm -rf "$d"' EXIT; HOME=$d; export HOME
"$1" mkfs "$d/volume" --size 16M > "$d/said" 2>&1 || { cat "$d/said"; exit 77; }
mkdir "$d/host"; sh -c "$2" sh "$d/host"; echo ====; "$1" run "$d/volume" -- sh -c "$2" sh /gannet
"#;

/// A `/dev/shm` for everybody, which not every machine has; then an ordinary user.
const ORDINARY: &str = r#"
mount -t tmpfs -o mode=1777 none /dev/shm
exec setpriv --reuid 1234 --regid 1234 --clear-groups "$@"
"#;

#[track_caller]
fn same_in_both(mut command: Command) {
    command.args(["sh", "-c", BOTH, "sh", env!("CARGO_BIN_EXE_gannet"), SCRIPT]);
    let output = command.env_remove("XDG_CACHE_HOME").stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: who this is cannot make a volume here: {output:?}");
        return;
    }
    let (plain, ours) = text(&output.stdout).split_once("====\n").expect("both");
    assert!(plain.contains("-- entered"), "{output:?}");
    assert_eq!(ours.trim_end(), plain.trim_end(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn programs_in_user_namespaces_do_what_they_do_on_tmpfs() {
    if let Some(why) = hindrance() {
        eprintln!("skipped: {why}");
        return;
    }
    build_library();
    let command = || {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "300"]);
        command
    };
    same_in_both(command());
    if rustix::process::geteuid().is_root() {
        let mut ordinary = command();
        ordinary.args(["unshare", "-m", "sh", "-c", ORDINARY, "sh"]);
        same_in_both(ordinary);
    }
}

/// A program that is not intercepted makes a namespace: nobody knows who those in it are outside.
#[test]
fn who_is_not_known_does_not_see_the_volume() {
    if let Some(why) = hindrance() {
        eprintln!("skipped: {why}");
        return;
    }
    let place = Place::new();
    let (source, program) = (place.path("made.c"), place.path("made"));
    let text_of = "#define _GNU_SOURCE\n#include <sched.h>\n#include <unistd.h>\n\
                   int main(int n, char **a) { return unshare(CLONE_NEWUSER) ? 9 : execvp(a[1], a + 1); }\n";
    std::fs::write(&source, text_of).unwrap();
    let compiled = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no static programs can be made here (cc -static)");
        return;
    }
    let volume = place.volume("volume");
    let script = format!("echo hi > /gannet/f; {} cat /gannet/f; echo $?", program.display());
    let output = gannet().args(["run", &volume, "--", "sh", "-c", &script]).env("LC_ALL", "C").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text(&output.stdout), "1", "{output:?}");
    assert!(errors.contains("user namespace") && errors.contains("Permission denied"), "{errors}");
    // Who begins anew in there is known.
    let second = place.volume("second");
    assert!(run(&["run", &second, "--", "sh", "-c", "echo there > /gannet/f"]).status.success());
    let script = format!(
        "{} {} run {second}:/second -- sh -c 'cat /second/f; stat -c %u /second/f'",
        program.display(),
        env!("CARGO_BIN_EXE_gannet")
    );
    let output = gannet().args(["run", &volume, "--", "sh", "-c", &script]).output().unwrap();
    assert_eq!(text(&output.stdout), format!("there\n{}", rustix::process::geteuid().as_raw()), "{output:?}");
    // Inside a namespace from the start, ids are what they look like there.
    let within = Command::new("unshare")
        .args([
            "-r",
            env!("CARGO_BIN_EXE_gannet"),
            "run",
            &volume,
            "--",
            "sh",
            "-c",
            "cat /gannet/f; stat -c %u /gannet/f",
        ])
        .output()
        .unwrap();
    assert!(within.status.success(), "{within:?}");
    assert!(run(&["fsck", &volume]).status.success());
}

/// The first directory of a volume in memory belongs to who makes it, who may be in a namespace by then.
#[test]
fn a_volume_in_memory_belongs_to_who_is_outside() {
    if hindrance().is_some() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: user namespaces may not be made here, or this is not root, who can be others");
        return;
    }
    build_library();
    let output = Command::new("setpriv")
        .args(["--reuid", "1234", "--regid", "1235", "--clear-groups", env!("CARGO_BIN_EXE_gannet")])
        .args(["run", "memory:", "--", "unshare", "-r", "stat", "-c", "%u:%g", "/gannet"])
        .env("HOME", "/nonexistent")
        .env_remove("XDG_CACHE_HOME")
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "0:0", "{output:?}");
}
