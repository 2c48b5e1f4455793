//! What a program that executes others, or fails to, must not notice or leave behind.

mod common;

use common::{Volume, check, compile, compile_with, in_directory, nothing_is_left, run};
use std::process::Command;

#[test]
fn programs_find_what_they_would_find_on_the_host() {
    let (_directory, program) = compile("execs");
    for what in ["numbers", "settled", "many", "crowd", "signals", "alternate", "both"] {
        let host = tempfile::Builder::new().prefix("gannet-execs-").tempdir_in("/dev/shm").expect("/dev/shm");
        let plain = run(Command::new(&program).arg(what).current_dir(host.path()));
        assert!(plain.status.success(), "{what} on the host: {plain:?}");
        let volume = Volume::new(64);
        let wanted = String::from_utf8_lossy(&plain.stdout);
        check(&run(in_directory(&volume, 120).arg(&program).arg(what)), what, &wanted);
        nothing_is_left(volume, what);
    }
}

#[test]
fn who_gave_up_its_rights_executes_programs_with_files_open() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_directory, program) = compile("execs");
    let volume = Volume::new(64);
    let output = run(in_directory(&volume, 120).arg(&program).arg("dropped"));
    assert!(output.status.success() && output.stdout == b"ok\n", "{output:?}");
    nothing_is_left(volume, "dropped");
}

/// A static program keeps what it inherits from being given up, and cannot do anything with it. More of them than there can be
/// participants: what each leaves is settled by those who come.
#[test]
fn programs_that_cannot_be_intercepted_leave_places_that_others_settle() {
    let (_directory, program) = compile_with("execs", &["-static"]);
    let volume = Volume::new(64);
    let script = "exec 9>log; i=0; n=0; while [ $i -lt 1200 ]; do
        \"$0\" writer 2>&- 3>&-; [ $? = 9 ] && n=$((n+1)); i=$((i+1)); done; echo $n
        flock 9; flock -n log true || echo taken; exec 9>&-; cat log; echo through";
    let output = run(in_directory(&volume, 240).args(["sh", "-c", script]).arg(&program));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text == "1200\ntaken\nthrough\n",
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    nothing_is_left(volume, "static programs");
}
