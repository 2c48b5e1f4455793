//! What programs are told on mounted volumes is what the kernel's own file systems tell them.

use crate::{Bench, gannet, hindrance, oracle, with_transports};
use std::ffi::OsStr;
use std::process::Command;

#[test]
fn answers_are_the_kernels() {
    with_transports(|transport| {
        for cache in ["automatic", "coherent", "exclusive", "writeback"] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},cache={cache},allow_other,suid,dev"));
            oracle::compare(&bench.at(), &oracle::excused(cache == "writeback"));
            server.end();
            bench.check();
        }
    });
}

/// Random operations of several programs, some of them killed: nothing stays behind. `scripts/long-load` does it for hours.
#[test]
fn nothing_stays_of_what_many_programs_did() {
    with_transports(|transport| {
        for (seed, cache) in [(1, "automatic"), (2, "coherent"), (3, "exclusive")] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},cache={cache}"));
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuse/scripts/random-load.py");
            let mut load = Command::new("python3");
            load.arg(script).arg(bench.at()).args([&seed.to_string(), "200"]);
            match load.output() {
                Err(_) => eprintln!("skipped: python3 is not installed"),
                Ok(output) => assert!(output.status.success(), "{transport}, {cache}: {output:?}"),
            }
            server.end();
            bench.check();
        }
    });
}

/// By what its options say, unless a file says otherwise: a write in place leaves no entry in the file's log.
#[test]
fn data_is_written_as_the_mount_was_told() {
    with_transports(|transport| {
        let bench = Bench::new();
        bench.run("cd /gannet && for n in plain kept; do head -c 8192 /dev/urandom > $n; done && chattr +C kept");
        let entries = |name: &str| {
            let volume = bench.volume();
            let dumped = gannet(["dump".as_ref(), volume.as_os_str(), name.as_ref()]);
            assert!(dumped.status.success(), "{dumped:?}");
            String::from_utf8_lossy(&dumped.stdout).lines().filter(|line| line.contains("write")).count()
        };
        // The first write in place seals what was appended.
        for (data, copied) in [("inplace", None), ("inplace", Some([false, false])), ("cow", Some([true, false]))] {
            let before = ["plain", "kept"].map(entries);
            let server = bench.mount(&format!("transport={transport},cache=coherent,data={data}"));
            for name in ["plain", "kept"] {
                let file = std::fs::File::options().write(true).open(bench.on(name)).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 0).unwrap();
            }
            server.end();
            let after = ["plain", "kept"].map(entries);
            let more = [after[0] > before[0], after[1] > before[1]];
            assert!(copied.is_none_or(|copied| copied == more), "{data}: {before:?}, then {after:?}");
        }
        bench.check();
        assert!(bench.try_mount("data=journal").is_err_and(|why| why.contains("cow or inplace")));
    });
}

#[test]
fn a_volume_over_several_files_is_one_for_all() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    with_transports(|transport| {
        let bench = Bench::new();
        let second = bench.volume().with_extension("second");
        let made = gannet([
            "mkfs".as_ref(),
            bench.volume().as_os_str(),
            "--size=4M".as_ref(),
            "--force".as_ref(),
            "--and".as_ref(),
            format!("{}:60M", second.display()).as_ref(),
        ]);
        assert!(made.status.success(), "{made:?}");
        let data: Vec<u8> = (0..12_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(second.with_extension("data"), &data).unwrap();
        let server = bench.mount(&format!("transport={transport}"));
        std::fs::write(bench.on("file"), &data).unwrap();
        assert!(std::fs::read(bench.on("file")).unwrap() == data);
        // The same file through the library, beside the mount; and back.
        let copied = format!(
            "cmp /gannet/file {} && cp /gannet/file /gannet/again && echo same",
            second.with_extension("data").display()
        );
        assert_eq!(bench.run(&copied), "same\n");
        assert!(std::fs::read(bench.on("again")).unwrap() == data);
        server.end();
        bench.check();
        std::fs::set_permissions(&second, std::os::unix::fs::PermissionsExt::from_mode(0o602)).unwrap();
        let complaint = bench.try_mount("suid").map(drop).unwrap_err();
        assert!(
            complaint.contains("only root can write") && complaint.contains("second can be written"),
            "{complaint}"
        );
    });
}

/// A direct write, of which the kernel asks for no sync itself, is synced by the mount where the file, or the call, says so: on a disk.
#[test]
fn synced_direct_writes_sync_a_volume_on_a_disk() {
    with_transports(|transport| {
        for (place, wanted) in [("/dev/shm", 0), (env!("CARGO_TARGET_TMPDIR"), 5)] {
            let bench = Bench::new_in(place);
            let about = gannet([OsStr::new("info"), bench.volume().as_os_str()]);
            if wanted > 0 && !String::from_utf8_lossy(&about.stdout).contains("file on a disk") {
                return eprintln!("skipped: {place} is not on a disk");
            }
            let server = bench.mount(&format!("transport={transport}"));
            let syncs = |flags: &str| {
                let count = || {
                    let told = gannet([OsStr::new("stat"), "--json".as_ref(), bench.volume().as_os_str()]);
                    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("an object");
                    let all = told["operations"].as_array().expect("operations");
                    all.iter()
                        .find(|one| one["name"] == "sync")
                        .map_or(0, |one| one["calls"].as_u64().expect("a number"))
                };
                let before = count();
                let mut dd = Command::new("dd");
                dd.args(["if=/dev/zero", "bs=4096", "count=5", "status=none", flags])
                    .arg(format!("of={}", bench.on("file").display()));
                assert!(dd.status().expect("dd").success(), "{flags}");
                count() - before
            };
            let told = ["oflag=direct", "oflag=direct,dsync", "oflag=direct,sync"].map(syncs);
            assert_eq!(told, [0, wanted, wanted], "{transport}, {place}");
            drop(server);
        }
    });
}
