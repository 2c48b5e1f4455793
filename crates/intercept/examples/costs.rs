//! What interception costs: per call that is not ours, per call that is, and per start. Compares with the same without.
//!
//! `costs VOLUME` (VOLUME as for the `run` example); it starts itself under interception.

use gannet_intercept::{LaunchOptions, MountedAt, find_library, launch};
use std::ffi::{CString, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

const ROUNDS: u32 = 200_000;

fn nanoseconds_per_call(mut call: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            call();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    best
}

unsafe extern "C" {
    fn read(descriptor: i32, buffer: *mut u8, count: usize) -> isize;
    fn pread(descriptor: i32, buffer: *mut u8, count: usize, offset: i64) -> isize;
    fn pwrite(descriptor: i32, buffer: *const u8, count: usize, offset: i64) -> isize;
    fn open(path: *const i8, flags: i32, mode: u32) -> i32;
    fn close(descriptor: i32) -> i32;
    fn stat(path: *const i8, buffer: *mut u8) -> i32;
    fn unlink(path: *const i8) -> i32;
    fn getppid() -> i32;
    fn lseek(descriptor: i32, offset: i64, whence: i32) -> i64;
}

fn measure(directory: &str) {
    let path = |name: &str| CString::new(format!("{directory}/{name}")).expect("no zero byte");
    let mut buffer = vec![1u8; 4096];
    let b = buffer.as_mut_ptr();
    let (host, file, missing, made) = (path("../dev/zero"), path("costs"), path("missing"), path("made"));
    let zero = CString::new("/dev/null").expect("no zero byte");
    let _ = host;
    // SAFETY: the C library's functions with valid arguments.
    unsafe {
        let null = open(zero.as_ptr(), 0, 0);
        println!(
            "  getppid (never ours)       {:7.1} ns",
            nanoseconds_per_call(|| {
                getppid();
            })
        );
        println!(
            "  read of /dev/null          {:7.1} ns",
            nanoseconds_per_call(|| {
                read(null, b, 1);
            })
        );
        println!(
            "  stat of a host path        {:7.1} ns",
            nanoseconds_per_call(|| {
                stat(zero.as_ptr(), b);
            })
        );
        let descriptor = open(file.as_ptr(), 0o102, 0o600);
        assert!(descriptor >= 0, "cannot make a file in {directory}");
        assert_eq!(pwrite(descriptor, b, 4096, 0), 4096);
        println!(
            "  lseek                      {:7.1} ns",
            nanoseconds_per_call(|| {
                lseek(descriptor, 0, 0);
            })
        );
        println!(
            "  pread 1                    {:7.1} ns",
            nanoseconds_per_call(|| {
                pread(descriptor, b, 1, 0);
            })
        );
        println!(
            "  pread 4 KiB                {:7.1} ns",
            nanoseconds_per_call(|| {
                pread(descriptor, b, 4096, 0);
            })
        );
        println!(
            "  pwrite 4 KiB               {:7.1} ns",
            nanoseconds_per_call(|| {
                pwrite(descriptor, b, 4096, 0);
            })
        );
        println!(
            "  stat                       {:7.1} ns",
            nanoseconds_per_call(|| {
                stat(file.as_ptr(), b);
            })
        );
        println!(
            "  stat of a missing name     {:7.1} ns",
            nanoseconds_per_call(|| {
                stat(missing.as_ptr(), b);
            })
        );
        println!(
            "  open + close               {:7.1} ns",
            nanoseconds_per_call(|| {
                close(open(file.as_ptr(), 0, 0));
            })
        );
        let create = || {
            close(open(made.as_ptr(), 0o102, 0o600));
            unlink(made.as_ptr());
        };
        println!("  create + close + unlink    {:7.1} ns", nanoseconds_per_call(create));
        unlink(file.as_ptr());
    }
}

/// Microseconds for one start of `true`, the best of five series.
fn start_us(make: impl Fn() -> Command) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..100 {
            assert!(make().status().expect("true").success());
        }
        best = best.min(start.elapsed().as_micros() as f64 / 100.0);
    }
    best
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let volume = arguments.next().expect("costs VOLUME");
    if volume == "--measure" {
        measure(arguments.next().expect("a directory").to_str().expect("UTF-8"));
        return;
    }
    let library = find_library().ok().flatten().expect("libgannet_preload.so: build gannet-preload");
    let myself = std::env::current_exe().expect("this program");
    println!("without interception, on tmpfs:");
    measure("/dev/shm");
    println!("intercepted, in the volume:");
    let options = LaunchOptions {
        library: library.clone(),
        mounts: vec![MountedAt { volume: volume.clone(), place: PathBuf::from("/gannet"), manner: String::new() }],
        program: myself.into_os_string(),
        arguments: vec![OsString::from("--measure"), OsString::from("/gannet")],
        directory: None,
        closed: Vec::new(),
    };
    assert!(launch(&options).expect("this program again").success());
    let plain = start_us(|| Command::new("/bin/true"));
    let volumes = [volume.as_encoded_bytes(), b"\x1f/gannet"].concat();
    let injected = |volumes: &[u8]| {
        let mut command = Command::new("/bin/true");
        // SAFETY: bytes of operating-system strings, joined at ASCII.
        let volumes = unsafe { OsString::from_encoded_bytes_unchecked(volumes.to_vec()) };
        command.env("LD_PRELOAD", &library).env("GANNET_RUN_LIBRARY", &library).env("GANNET_RUN_VOLUMES", volumes);
        command
    };
    println!(
        "start of `true`: plain {plain:.0} us, intercepted {:.0} us, with a volume {:.0} us",
        start_us(|| injected(b"")),
        start_us(|| injected(&volumes))
    );
}
