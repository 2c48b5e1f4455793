//! Runs a command with a volume visible at /gannet, and makes volumes, without the `gannet` command:
//! `run make FILE MEBIBYTES`, `run VOLUME COMMAND ARGUMENT…` (VOLUME `none`: intercepted, but no volume).

use gannet_intercept::{LaunchOptions, MountedAt, exit_code, find_library, launch};
use gannet_logfs::{MakeOptions, make};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Owner, Time};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().expect("run make FILE MEBIBYTES | run VOLUME COMMAND…");
    if first == "make" {
        let file = arguments.next().expect("FILE");
        let mebibytes: u64 = arguments.next().and_then(|size| size.to_str()?.parse().ok()).expect("MEBIBYTES");
        make_volume(Path::new(&file), mebibytes << 20);
        return ExitCode::SUCCESS;
    }
    let options = LaunchOptions {
        library: find_library().ok().flatten().expect("libgannet_preload.so: build gannet-preload"),
        mounts: if first == "none" {
            vec![]
        } else {
            vec![MountedAt { volume: first, place: PathBuf::from("/gannet"), manner: String::new() }]
        },
        program: arguments.next().expect("COMMAND"),
        arguments: arguments.collect(),
        directory: None,
        closed: Vec::new(),
    };
    // Held open as long as the command runs: otherwise each process would be the first and the last.
    let volume = options.mounts.first().map(|mount| Path::new(&mount.volume).to_owned());
    let held = volume.map(|volume| gannet_open::open(&volume, gannet_open::Options::default()));
    if let Some(Err(error)) = held {
        eprintln!("gannet: {error}");
        return ExitCode::from(125);
    }
    match launch(&options) {
        Ok(status) => ExitCode::from(exit_code(status) as u8),
        Err(error) => {
            eprintln!("gannet: {}: {error}", options.program.display());
            ExitCode::from(127)
        }
    }
}

fn make_volume(path: &Path, length: u64) {
    let medium = Medium::create(path, length, CreateOptions::default(), &mut |_| ()).expect("the volume's file");
    let mut random = [0; 24];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).expect("random bytes");
    let options = MakeOptions {
        label: String::new(),
        copy_on_write: false,
        emulate_persistence: false,
        owner: Owner { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() },
        mode: 0o755,
        random,
        now: Time::now(),
    };
    make(&medium, &options).expect("the volume");
}
