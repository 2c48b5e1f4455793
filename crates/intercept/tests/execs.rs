//! What a program that executes others, or fails to, must not notice or leave behind.

mod common;

use common::{Volume, check, compile, compile_with, have, in_directory, nothing_is_left, on_host, run};
use gannet_vfs::Name;
use std::io::Read;
use std::process::Stdio;

#[test]
fn programs_find_what_they_would_find_on_the_host() {
    let (_directory, program) = compile("execs");
    for what in ["numbers", "settled", "many", "crowd", "signals", "alternate", "both"] {
        let host = tempfile::Builder::new().prefix("gannet-execs-").tempdir_in("/dev/shm").expect("/dev/shm");
        let plain = run(on_host(&program).arg(what).current_dir(host.path()));
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

/// Another volume is put in the place of one that programs have open. They go on with theirs; what they start has neither what was
/// handed to it, of which the other volume has something of the same number, nor that volume, and says why.
#[test]
fn a_volume_that_took_the_place_of_another_is_not_taken_for_it() {
    let (volume, other) = (Volume::new(64), Volume::new(64));
    let (old, new) = (volume.path(), other.path());
    // With the same descriptions in use.
    let mut user = in_directory(&other, 120);
    user.args(["sh", "-c", "exec 5>log; echo ready; read line; exit 0"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut user = user.spawn().expect("sh");
    let mut ready = [0; 6];
    user.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("ready");
    let script = "exec 5>log; echo one >&5; mv \"$1\" \"$2\"; echo two >&5
        sh -c 'echo three >&5' && echo written
        cat log || echo refused
        cat /gannet/log || echo refused
        while read line; do echo \"$line\"; done <log";
    let output = run(in_directory(&volume, 120).args(["sh", "-c", script, "sh"]).args([&new, &old]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\nrefused\none\ntwo\n", "{errors}");
    let complaint = format!("gannet: {}: another volume has taken the place of the one", old.display());
    assert_eq!(errors.matches(&complaint).count(), 3, "{errors}");
    drop(user.stdin.take());
    assert!(user.wait().expect("sh").success());
    assert_eq!((size_of_log(&volume), size_of_log(&other)), (8, 0));
}

/// What a process passes to one with another volume at the same path means nothing there.
#[test]
fn a_descriptor_of_another_volume_is_not_taken_for_one_of_its_own() {
    if !have("python3") {
        return;
    }
    let (volume, other) = (Volume::new(64), Volume::new(64));
    let meeting = tempfile::Builder::new().prefix("gannet-execs-").tempdir_in("/dev/shm").expect("/dev/shm");
    let receive = "import os, socket, sys
log = os.open('log', os.O_CREAT | os.O_WRONLY); server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen()
print('ready', flush=True); peer = server.accept()[0]; received = socket.recv_fds(peer, 1, 1)[1][0]
try: os.write(received, b'passed')
except OSError: pass
peer.send(b'x')";
    let send = "import os, socket, sys
log = os.open('log', os.O_CREAT | os.O_WRONLY); client = socket.socket(socket.AF_UNIX); client.connect(sys.argv[1])
socket.send_fds(client, [b'x'], [log]); client.recv(1)";
    let at = meeting.path().join("socket");
    let mut receiver = in_directory(&other, 120);
    receiver.args(["python3", "-c", receive]).arg(&at).stdout(Stdio::piped());
    let mut receiver = receiver.spawn().expect("python3");
    receiver.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 6]).expect("ready");
    check(&run(in_directory(&volume, 120).args(["python3", "-c", send]).arg(&at)), "the sender", "");
    assert!(receiver.wait().expect("python3").success());
    assert_eq!((size_of_log(&volume), size_of_log(&other)), (0, 0));
}

fn size_of_log(volume: &Volume) -> u64 {
    let fs = volume.file_system();
    let log = fs.lookup(fs.root(), Name::new(b"log").expect("a name")).expect("the log").node;
    fs.attributes(log).expect("attributes").size_bytes
}
