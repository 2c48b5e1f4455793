//! `gannet fsck --repair` from outside: what it finds, gives up and says of it.

use crate::{Bench, failure, gannet, success};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;

#[test]
fn damage_is_found_repaired_and_gone() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let mut image = fs::read(&path).unwrap();
    image[100..200].fill(7);
    fs::write(&path, &image).unwrap();
    let damaged = gannet(&["fsck", volume]);
    assert_eq!(damaged.status.code(), Some(4), "{damaged:?}");
    let text = String::from_utf8(damaged.stdout).unwrap();
    assert!(text.contains("superblock at 0x0") && text.contains("DAMAGED, 1 findings"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), image, "a check changes nothing");
    let repaired = gannet(&["fsck", "--repair", volume]);
    assert_eq!(repaired.status.code(), Some(1), "{repaired:?}");
    assert!(String::from_utf8(repaired.stdout).unwrap().contains("Repaired: it is copied from its replica"));
    assert!(success(&["fsck", volume]).contains("sound"));
}

#[test]
fn a_repair_that_was_cut_short_is_said_and_done_again() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let mut image = fs::read(&path).unwrap();
    // What a repair of a volume that was closed cleanly begins with: the complement of the clean word.
    image[4160..4168].iter_mut().for_each(|byte| *byte = !*byte);
    fs::write(&path, &image).unwrap();
    assert!(success(&["info", volume]).contains("a repair was cut short: `gannet fsck --repair` goes on with it"));
    assert!(success(&["info", "--json", volume]).contains("\"repair_cut_short\": true"));
    assert!(
        failure(&["mount", volume, bench.directory.path().to_str().unwrap()], 1)
            .contains("a repair of the volume was cut short")
    );
    assert_eq!(fs::read(&path).unwrap(), image, "nobody opens it");
    let repaired = gannet(&["fsck", "--repair", volume]);
    assert_eq!(repaired.status.code(), Some(1), "{repaired:?}");
    assert!(success(&["fsck", volume]).contains("sound"));
    assert!(!success(&["info", volume]).contains("cut short"));
}

#[test]
fn a_full_volume_that_nobody_can_open_is_repaired_where_a_file_is_given_up() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    assert!(failure(&["fsck", "--give-up", "/file", volume], 16).contains("--repair"));
    let open = gannet_open::open(&path, gannet_open::Options::default()).unwrap();
    let file = gannet_vfs::NewNode::regular(0o600, gannet_vfs::Owner::default());
    open.create(open.root(), gannet_vfs::Name::new(b"file").unwrap(), &file).unwrap();
    drop(open);
    assert!(failure(&["fsck", "--repair", "--give-up", "/no file", volume], 8).contains("is not there"));
    let repaired = gannet(&["fsck", "--repair", "--give-up", "/file", volume]);
    assert_eq!(repaired.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&repaired.stdout).contains("given up, as was asked for"));
    assert!(success(&["fsck", volume]).contains("sound; 1 files"));
}

/// In JSON a path is a string with the names' letters, as the guide has it; in text it is one that terminals can show.
#[test]
fn a_path_of_a_finding_is_that_of_the_file() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let open = gannet_open::open(&path, gannet_open::Options::default()).unwrap();
    let name = gannet_vfs::Name::new(b"a\n\"\xff \xc3\xa4").unwrap();
    let file = gannet_vfs::NewNode::regular(0o600, gannet_vfs::Owner::default());
    let file = open.create(open.root(), name, &file).unwrap();
    open.set_xattr(file, b"user.large", &[0x5A; 9000], gannet_vfs::XattrMode::Any).unwrap();
    drop(open);
    let mut bytes = std::fs::read(&path).unwrap();
    let is_of_the_value = |block: &[u8]| block.iter().all(|&byte| byte == 0x5A);
    let block = bytes.chunks(4096).position(is_of_the_value).unwrap();
    bytes[block * 4096 + 17] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found: serde_json::Value = serde_json::from_slice(&gannet(&["fsck", "--json", volume]).stdout).unwrap();
    assert_eq!(found["findings"][0]["path"], "/a\n\"\u{fffd} ä", "{found:#}");
    let output = gannet(&["fsck", volume]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(r#"(/a\n\"\xff \xc3\xa4)"#), "{said}");
}

/// Runs a script as root in a mount namespace of its own, in a directory in memory: `$1` is the command, `$2` this program. What it cannot have
/// it ends with 77.
fn in_own_namespace(script: &str) {
    const NOT_HERE: i32 = 77;
    let bench = Bench::new();
    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_gannet")])
        .arg(std::env::current_exe().unwrap());
    match shell.current_dir(bench.directory.path()).output() {
        Err(error) => eprintln!("skipped: unshare: {error}"),
        Ok(_) if !rustix::process::geteuid().is_root() => eprintln!("skipped: only root mounts without more ado"),
        Ok(output) if output.status.code() == Some(NOT_HERE) => eprintln!("skipped: no overlay: {output:?}"),
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
}

const MOUNTS_OVERLAY: &str = "mkdir lower upper work on && \
    mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work on || exit 77
    set -ex
";

/// The other process of the test below. Not told to, it does nothing.
#[test]
fn loses_its_descriptors_when_told() {
    let Some(path) = std::env::var_os("GANNET_TEST_LOSE") else { return };
    let volume = gannet_open::open_volume(Path::new(&path), gannet_open::Options::default()).unwrap();
    // SAFETY: descriptors of this process, whose other threads use none above those.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
    println!("lost");
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
    drop(volume);
}

/// The lock by which a volume is known to be open goes with the descriptor there.
#[test]
fn nothing_is_repaired_beside_who_lost_the_descriptor_on_an_overlay() {
    in_own_namespace(&format!(
        "{MOUNTS_OVERLAY}{}",
        r#"
        "$1" mkfs on/volume --size 4M
        mkfifo go
        GANNET_TEST_LOSE=on/volume "$2" --exact repair::loses_its_descriptors_when_told --nocapture < go > said &
        exec 3> go
        until grep lost said; do kill -0 $! || exit 1; sleep 0.01; done
        ! "$1" fsck --repair on/volume 2> refused
        grep "somebody has the volume open" refused
        ! "$1" mkfs --force on/volume --size 4M 2> refused
        grep "somebody has this volume open" refused
        "$1" fsck on/volume | grep "somebody has the volume open"
        exec 3>&-
        wait $!
        "$1" fsck on/volume | grep sound
        "$1" fsck --repair on/volume
        "#
    ));
}

#[test]
fn shared_state_on_an_overlay_is_refused_with_the_reason() {
    in_own_namespace(&format!(
        "{MOUNTS_OVERLAY}{}",
        r#"
        "$1" mkfs volume --size 4M
        mkdir on/inside && cp volume on/inside
        mount --bind on /dev/shm
        cd /dev/shm/inside
        ! "$1" set volume / --data cow 2> refused
        grep "/dev/shm.*overlay file system" refused
        "$1" fsck volume | grep sound
        ! ls /dev/shm | grep gannet-
        "#
    ));
}
