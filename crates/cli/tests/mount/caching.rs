//! Caching that is never wrong: the kernel remembers while the mount is alone, nothing from the moment somebody else is there.

use crate::{Bench, Server, eventually, with_transports};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whether a file is read and looked at without the server.
fn is_cached(server: &Server, path: &Path) -> bool {
    const ROUNDS: u32 = 1000;
    let file = File::open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    let before = server.busy();
    for _ in 0..ROUNDS {
        file.read_exact_at(&mut byte, 0).unwrap();
        fs::metadata(path).unwrap();
    }
    // Two requests each round take at least two microseconds of it.
    server.busy() - before < ROUNDS * Duration::from_nanos(700)
}

fn text(file: &File) -> String {
    let mut bytes = [0; 100];
    let count = file.read_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

#[test]
fn changes_of_others_are_seen_at_once_and_caching_comes_back() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        fs::write(bench.on("file"), "alone").unwrap();
        fs::create_dir(bench.on("d")).unwrap();
        let file = File::options().read(true).write(true).open(bench.on("file")).unwrap();
        for round in 0..2 {
            eventually("cached", || is_cached(&server, &bench.on("file")));
            assert!(fs::metadata(bench.on("absent")).is_err(), "and that is remembered, too");
            assert!(text(&file).starts_with("alone"));
            let mut shell = bench.shell();
            shell.does("echo together > /gannet/file; echo x > /gannet/absent; mv /gannet/d /gannet/e");
            // A file that was open through the kernel's pages, one that is opened now, and names.
            assert_eq!(text(&file), "together\n");
            assert_eq!(fs::read_to_string(bench.on("file")).unwrap(), "together\n");
            assert_eq!(fs::metadata(bench.on("absent")).unwrap().len(), 2);
            assert!(fs::metadata(bench.on("d")).is_err() && fs::metadata(bench.on("e")).unwrap().is_dir());
            for step in 0..300 {
                // Of the same length within one tick of the clock: only the content tells.
                let content = format!("{:04}\n", step);
                shell.does(&format!("printf '%04d\\n' {step} > /gannet/file"));
                assert_eq!(text(&file), content);
                if step % 10 == 0 {
                    shell.does(&format!("chmod {} /gannet/file", if step % 20 == 0 { "600" } else { "644" }));
                    assert_eq!(
                        fs::metadata(bench.on("file")).unwrap().mode() & 0o777,
                        if step % 20 == 0 { 0o600 } else { 0o644 }
                    );
                    assert_eq!(fs::read_to_string(bench.on("file")).unwrap(), content);
                    file.write_all_at(b"back", 0).unwrap();
                    assert_eq!(shell.does("cat /gannet/file"), "back\n");
                }
            }
            assert!(!is_cached(&server, &bench.on("file")));
            shell.does("echo alone > /gannet/file; rm /gannet/absent; mv /gannet/e /gannet/d");
            shell.end();
            assert!(text(&file).starts_with("alone"), "round {round}");
        }
        drop(file);
        server.end();
        bench.check();
    });
}

#[test]
fn what_is_mapped_and_changed_is_flushed_before_another_looks() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        // dd with conv=notrunc would write; a map is changed by python, the only program at hand that maps.
        fs::write(bench.on("file"), vec![b'.'; 8192]).unwrap();
        let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),8192)\nm[0:6]=b'mapped'\nprint('changed',flush=True)\nsys.stdin.read()\nprint(m[4096:4100].decode(),flush=True)";
        let spawned = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(bench.on("file"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut python) = spawned else { return eprintln!("skipped: python3 is not installed") };
        let mut out = std::io::BufReader::new(python.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_eq!(line, "changed\n");
        assert_eq!(bench.run("head -c 6 /gannet/file"), "mapped");
        drop(python.stdin.take());
        python.wait().unwrap();
        server.end();
    });
}

#[test]
fn a_stopped_server_is_cut_off() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport},cache_deadline=5"));
        fs::write(bench.on("file"), "before").unwrap();
        // Another process has it open: our children close what we have when they begin, and would wait for the server.
        let script = "exec 3< \"$0\"; head -c 3 <&3; echo; read go; cat <&3";
        let mut other = Command::new("sh");
        other.args(["-c", script]).arg(bench.on("file")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut out = BufReader::new(other.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "bef\n");
        eventually("cached", || is_cached(&server, &bench.on("file")));
        server.signal(Signal::STOP);
        let begin = Instant::now();
        bench.run("echo after! > /gannet/file; echo x > /gannet/new");
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_secs(5), "{waited:?}");
        // Whoever comes next does not wait again.
        let quickly = || {
            let begin = Instant::now();
            bench.run("true");
            begin.elapsed() < Duration::from_secs(5)
        };
        assert!((0..10).any(|_| quickly()), "everybody waits again");
        // Nothing that the kernel remembers can be believed any more: it asks, and waits for the stopped server.
        let path = bench.on("file");
        let mut stdin = other.stdin.take().unwrap();
        let reader = std::thread::spawn(move || {
            writeln!(stdin, "go").unwrap();
            let mut rest = String::new();
            out.read_to_string(&mut rest).unwrap();
            (fs::metadata(path).unwrap().len(), rest)
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!reader.is_finished(), "answered without the server");
        server.signal(Signal::CONT);
        assert_eq!(reader.join().unwrap(), (7, "er!\n".into()));
        assert!(other.wait().unwrap().success());
        assert_eq!(fs::read_to_string(bench.on("new")).unwrap(), "x\n");
        eventually("cached", || is_cached(&server, &bench.on("file")));
        server.end();
        bench.check();
    });
}

#[test]
fn exclusive_mounts_keep_others_out() {
    with_transports(|transport| {
        let bench = Bench::new();
        for cache in ["exclusive", "writeback"] {
            let options = format!("transport={transport},cache={cache}");
            let server = bench.mount(&options);
            fs::write(bench.on("file"), "mine").unwrap();
            // Not at the first look: what was written may still be on its way.
            eventually("cached", || is_cached(&server, &bench.on("file")));
            let refused = crate::gannet(["run".as_ref(), bench.volume().as_os_str(), "--".as_ref(), "true".as_ref()]);
            let complaint = String::from_utf8(refused.stderr).unwrap();
            assert!(!refused.status.success() && complaint.contains("mounted for itself"), "{complaint}");
            assert_eq!(complaint.lines().count(), 1, "{complaint}");
            server.end();
            let mut shell = bench.shell();
            // An answer shows that it has the volume open.
            assert_eq!(shell.does("cat /gannet/file"), "mine");
            let complaint = bench.try_mount(&options).map(drop).unwrap_err();
            assert!(complaint.contains("others have the volume open") && complaint.lines().count() == 1, "{complaint}");
            shell.end();
            // A killed one keeps nobody out.
            bench.mount(&options).kill();
            assert_eq!(bench.run("cat /gannet/file"), "mine");
            rustix::mount::unmount(bench.at(), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
        bench.check();
    });
}

#[test]
fn coherent_mounts_never_cache_and_two_mounts_see_each_other() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport},cache=coherent"));
        fs::write(bench.on("file"), "x").unwrap();
        assert!(!is_cached(&server, &bench.on("file")));
        server.end();
        // Two automatic mounts of one volume.
        let first = bench.mount(&format!("transport={transport}"));
        let file = File::open(bench.on("file")).unwrap();
        assert_eq!(text(&file), "x");
        let other = bench.directory.path().join("other");
        fs::create_dir(&other).unwrap();
        let mounted = crate::gannet(["mount".as_ref(), bench.volume().as_os_str(), other.as_os_str()]);
        assert!(mounted.status.success(), "{mounted:?}");
        for step in 0..100 {
            fs::write(other.join("file"), format!("{step:03}")).unwrap();
            assert_eq!(text(&file), format!("{step:03}"));
            fs::write(bench.on("file"), format!("{step:02}")).unwrap();
            assert_eq!(fs::read_to_string(other.join("file")).unwrap(), format!("{step:02}"));
        }
        eventually("unmounted", || rustix::mount::unmount(&other, rustix::mount::UnmountFlags::empty()).is_ok());
        drop(file);
        eventually("cached", || is_cached(&first, &bench.on("file")));
        first.end();
        bench.check();
    });
}

/// Behind a direct write at the end that fails the kernel sets the size to what it takes for the end. Others have moved it.
#[test]
fn a_direct_write_that_fails_cuts_off_nothing_of_others() {
    use std::os::unix::fs::OpenOptionsExt;
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        // The mount is alone: the file is opened through the kernel's pages, and so for direct I/O, too.
        let cached = File::create(bench.on("log")).unwrap();
        let mut log = File::options().append(true).custom_flags(libc::O_DIRECT).open(bench.on("log")).unwrap();
        let record = vec![b'x'; 1 << 20];
        log.write_all(&record[..4096]).unwrap();
        let mut shell = bench.shell();
        shell.does("head -c 8192 /dev/zero >> /gannet/log; cat /dev/zero > /gannet/fill 2>&1; :");
        let error = log.write(&record).expect_err("there is no room");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let size: u64 = shell.does("stat -c %s /gannet/log").trim().parse().unwrap();
        assert!(size >= 4096 + 8192, "{size} bytes");
        shell.does("rm /gannet/fill");
        // What a program cuts is cut.
        log.write_all(&record).unwrap();
        log.set_len(100).unwrap();
        assert_eq!(shell.does("stat -c %s /gannet/log"), "100\n");
        // Others append and are gone before the write fails.
        shell.does("head -c 8192 /dev/zero >> /gannet/log; cat /dev/zero > /gannet/fill 2>&1; :");
        shell.end();
        log.write_all(&record).expect_err("there is no room");
        assert!(bench.run("stat -c %s /gannet/log").trim().parse::<u64>().unwrap() >= 100 + 8192);
        drop((cached, log));
        server.end();
        bench.check();
    });
}
