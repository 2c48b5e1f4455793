//! How serving processes end at a signal, and what they have from whoever started them.

use crate::life::{unmount, words};
use crate::{Bench, eventually, gannet, hindrance, with_transports};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Command;

fn terminate(server: &mut crate::Server) {
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    eventually("it ends", || server.child.try_wait().unwrap().is_some());
}

#[test]
fn a_signal_ends_the_mount_that_is_served_and_no_other() {
    with_transports(|transport| {
        let options = format!("transport={transport}");
        let (below, above) = (Bench::new(), Bench::new());
        let mut first = below.mount(&options);
        // Another's mount over it.
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        let over = command.args(["mount", "-o", &options]).arg(above.volume()).arg(below.at()).output().unwrap();
        assert!(over.status.success(), "{over:?}");
        fs::write(below.on("file"), "above").unwrap();
        terminate(&mut first);
        assert_eq!(fs::read_to_string(below.on("file")).unwrap(), "above");
        unmount(&below.at());
        // What is left of the one below.
        let _ = rustix::mount::unmount(below.at(), rustix::mount::UnmountFlags::DETACH);
        below.check();
        eventually("closed", || gannet(["fsck".as_ref(), above.volume().as_os_str()]).status.code() == Some(0));
    });
}

#[test]
fn a_signal_ends_a_mount_that_was_moved() {
    with_transports(|transport| {
        let bench = Bench::new();
        let here = bench.directory.path();
        fs::create_dir_all(here.join("above/mnt")).unwrap();
        for moves in [false, true] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
            command.args(["mount", "--foreground", "-o", &format!("transport={transport}")]);
            command.arg(bench.volume()).arg(here.join("above/mnt")).stdout(std::process::Stdio::null());
            let child = command.spawn().unwrap();
            let now = here.join(if moves { "mnt" } else { "renamed/mnt" });
            let mut server = crate::Server { child, at: now.clone() };
            eventually("mounted", || !words(&here.join("above/mnt")).is_empty());
            fs::write(here.join("above/mnt/file"), "x").unwrap();
            match moves {
                true => rustix::mount::mount_move(here.join("above/mnt"), &now).unwrap(),
                false => fs::rename(here.join("above"), here.join("renamed")).unwrap(),
            }
            assert!(!words(&now).is_empty());
            terminate(&mut server);
            assert_eq!(words(&now), "");
            if !moves {
                fs::rename(here.join("renamed"), here.join("above")).unwrap();
            }
        }
        bench.check();
    });
}

#[test]
fn a_server_in_the_background_keeps_nothing_of_its_callers() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let lock = bench.directory.path().join("lock");
    let script = r#"exec 9> "$1" 300>> "$1"; exec "$0" mount "$2" "$3""#;
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_gannet")]).arg(&lock).arg(bench.volume()).arg(bench.at());
        command.output()
    };
    let mounted = match shell(script) {
        Ok(mounted) => mounted,
        Err(error) => return eprintln!("skipped: bash: {error}"),
    };
    assert!(mounted.status.success(), "{mounted:?}");
    let about = gannet(["info".as_ref(), "--json".as_ref(), bench.volume().as_os_str()]);
    let about = String::from_utf8(about.stdout).unwrap();
    let process: u32 =
        about.split("\"pid\": ").nth(1).unwrap().split([',', '\n', '}']).next().unwrap().parse().unwrap();
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let open: Vec<_> = descriptors.flatten().flat_map(|descriptor| fs::read_link(descriptor.path())).collect();
    assert!(open.iter().any(|path| path.ends_with("fuse")), "{open:?}");
    assert!(!open.contains(&lock), "{open:?}");
    unmount(&bench.at());
    // But for the one that the volume is named by.
    let script = r#"exec 9<> "$2"; exec "$0" mount /dev/fd/9 "$3""#;
    let mounted = shell(script).unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    fs::write(bench.on("file"), "x").unwrap();
    unmount(&bench.at());
    bench.check();
}
