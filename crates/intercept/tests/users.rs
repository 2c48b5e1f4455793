//! User namespaces below the one in which the tree was started: `users.c` tells what files look like there and who may do what, in a volume
//! and on tmpfs; what is refused under interception is told by a second program.

mod common;

use common::{Volume, compile, is_root_who_can, run};
use std::path::Path;
use std::process::Command;

/// Whether namespaces may be made here at all. Says why nothing is tested otherwise.
fn namespaces_are_allowed() -> bool {
    let tried = Command::new("unshare").args(["--user", "true"]).output();
    let allowed = tried.is_ok_and(|output| output.status.success());
    if !allowed {
        eprintln!("skipped: user namespaces may not be made here (unshare --user true)");
    }
    allowed
}

const REFUSED: &str = "\
refused: opens(\"root\", O_RDONLY) = 0
refused: mkdir(\"full\", 0777) = EOVERFLOW
refused: mkdir(\"full\", 0777) = 0
refused:   full is 65534:65534 65534:65534 755
refused: unshare(CLONE_NEWUSER) = EPERM
refused: S(clone3, &beside, sizeof beside) = EPERM
refused: S(clone, CLONE_NEWUSER | CLONE_VM | SIGCHLD, 0, 0, 0, 0) = EPERM
refused: setns(f, CLONE_NEWUSER) = EPERM
refused: setns(f, CLONE_NEWUSER) = EPERM
refused: opens(\"root\", O_RDONLY) = 0
refused: opens(\"root\", O_RDONLY) = 0
";

/// Requires a program to say in `work` of the volume what it says in a directory of tmpfs.
fn is_as_on_tmpfs(volume: &Volume, program: &Path) {
    let host = tempfile::Builder::new().prefix("gannet-users-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = run(Command::new("timeout").arg("60").arg(program).arg(host.path()));
    volume.script("mkdir /gannet/work", "");
    let ours = run(volume.command(program.to_str().expect("UTF-8")).arg("/gannet/work"));
    let [plain, text] = [&plain, &ours].map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(plain.ends_with("done: all\n"), "{plain}");
    let differing: Vec<_> = plain.lines().zip(text.lines()).filter(|(plain, ours)| plain != ours).collect();
    assert!(differing.is_empty() && plain.lines().count() == text.lines().count(), "{differing:#?}\n{ours:?}");
}

#[test]
fn ids_and_rights_in_user_namespaces_are_what_they_are_on_tmpfs() {
    if !is_root_who_can("change who it is") || !namespaces_are_allowed() {
        return;
    }
    let (_directory, program) = compile("users");
    let volume = Volume::new(64);
    is_as_on_tmpfs(&volume, &program);
    let refused = run(volume.command(program.to_str().expect("UTF-8")).args(["/gannet/work", "refused"]));
    common::check(&refused, "what is refused", REFUSED);
}

/// Where /proc is not to be seen the kernel tells the namespace since Linux 6.11; where it does not, volumes are not seen.
#[test]
fn without_proc_ids_are_never_taken_for_those_of_another_namespace() {
    use std::os::unix::fs::MetadataExt;
    if !is_root_who_can("mount something over /proc") || !namespaces_are_allowed() {
        return;
    }
    let origin = std::fs::metadata("/proc/self/ns/user").expect("/proc").ino();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc");
    let mut numbers = kernel.split('.').map(|number| number.parse().unwrap_or(0));
    let is_told = (numbers.next(), numbers.next()) >= (Some(6), Some(11));
    let volume = Volume::new(16);
    volume.script("echo inside > file", "");
    // Programs are not started where they could not be executed by a descriptor: what else is asked there is missing.
    const SCRIPT: &str =
        "mkdir -p $0 && mount --rbind /proc $0 && mount -t tmpfs none /proc && mkdir /proc/self || exit 99
for name in fd fdinfo maps exe stat status; do ln -s $0/self/$name /proc/self/$name; done
exec env \"$@\" cat /gannet/file";
    let seen_elsewhere = volume.path().with_file_name("proc");
    let in_namespaces = |kinds: &[&str], told: &str| {
        let inner = volume.command("cat");
        let mut command = Command::new("unshare");
        command.args(kinds).args(["sh", "-c", SCRIPT]).arg(&seen_elsewhere);
        for (name, value) in inner.get_envs() {
            let value = value.expect("none is taken away").to_str().expect("UTF-8");
            command.arg(format!("{}={value}", name.to_str().expect("UTF-8")));
        }
        command.arg(format!("GANNET_RUN_USERS={told}"));
        let output = run(&mut command);
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (is_seen, text) = in_namespaces(&["--mount"], &origin.to_string());
    assert!(is_seen == is_told && (text == "inside\n") == is_told, "{text}");
    // A program that is not ours has made it.
    let (is_seen, text) = in_namespaces(&["--user", "--map-root-user", "--mount"], &origin.to_string());
    assert!(!is_seen && text.contains("is in a user namespace"), "{text}");
}

#[test]
fn rights_of_a_program_that_changes_who_it_is_are_what_they_are_on_tmpfs() {
    if !is_root_who_can("change who it is") {
        return;
    }
    let (_directory, program) = compile("rights");
    is_as_on_tmpfs(&Volume::new(64), &program);
}
