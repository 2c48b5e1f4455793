//! User namespaces below the one in which the tree was started: `users.c` tells what files look like there and who may do what, in a volume
//! and on tmpfs; what is refused under interception is told by a second program.

mod common;

use common::{Volume, compile, is_root_who_can, run};
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

#[test]
fn ids_and_rights_in_user_namespaces_are_what_they_are_on_tmpfs() {
    if !is_root_who_can("change who it is") || !namespaces_are_allowed() {
        return;
    }
    let (_directory, program) = compile("users");
    let host = tempfile::Builder::new().prefix("gannet-users-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = run(Command::new("timeout").arg("60").arg(&program).arg(host.path()));
    let volume = Volume::new(64);
    volume.script("mkdir /gannet/work", "");
    let ours = run(volume.command(program.to_str().expect("UTF-8")).arg("/gannet/work"));
    let [plain, text] = [&plain, &ours].map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(plain.ends_with("done: all\n"), "{plain}");
    let refused = run(volume.command(program.to_str().expect("UTF-8")).args(["/gannet/work", "refused"]));
    common::check(&refused, "what is refused", REFUSED);
    let differing: Vec<_> = plain.lines().zip(text.lines()).filter(|(plain, ours)| plain != ours).collect();
    assert!(differing.is_empty() && plain.lines().count() == text.lines().count(), "{differing:#?}\n{ours:?}");
}
