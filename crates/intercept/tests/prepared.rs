//! Prepared copies of the C library and the loader: made once, believed only if they are whole and this user's.

mod common;

use common::{Volume, intercepted, run};
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const TRAILER_BYTES: u64 = 4096;

/// A cache of a test's own.
struct Cache {
    directory: tempfile::TempDir,
}

impl Cache {
    fn new() -> Cache {
        Cache { directory: tempfile::Builder::new().prefix("gannet-cache-").tempdir().expect("a directory") }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = intercepted(program);
        command.env("XDG_CACHE_HOME", self.directory.path()).env("GANNET_RUN_REPORT", "1");
        command
    }

    /// Runs a program that does a few things; how the C library and the loader were rewritten.
    #[track_caller]
    fn sources(&self) -> Vec<String> {
        let output = run(self.command("sh").args(["-c", "echo $(echo a | cat) && exec true"]));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"a\n");
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        let of_base = |line: &&str| line.contains("/libc.so") || line.contains("/ld-linux");
        let first: Vec<&str> = report.lines().filter(of_base).take(2).collect();
        assert!(first.len() == 2 && first.iter().all(|line| line.contains(" 0 left, ")), "{report}");
        first.iter().map(|line| line.rsplit(", ").next().unwrap_or_default().to_owned()).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.directory.path().join("gannet")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<PathBuf> = paths
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("prepared-")))
            .collect();
        paths.sort();
        paths
    }
}

fn age(path: &Path) {
    let file = fs::File::options().read(true).open(path).expect("the copy");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("its time");
}

fn flip(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).expect("the copy");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 0x10], offset).expect("a byte");
}

const PREPARED: [&str; 2] = ["prepared copy"; 2];

#[test]
fn the_second_start_maps_what_the_first_prepared() {
    let cache = Cache::new();
    assert_eq!(cache.sources(), ["new plan"; 2]);
    assert_eq!(cache.files().len(), 2);
    assert_eq!(cache.sources(), PREPARED);
    // The map's file is as the object's, so that its symbols are found: but for the text.
    let maps = run(cache.command("cat").arg("/proc/self/maps"));
    let maps = String::from_utf8_lossy(&maps.stdout).into_owned();
    for file in cache.files() {
        assert_eq!(fs::metadata(&file).expect("the copy").mode() & 0o7777, 0o600);
        assert!(maps.lines().any(|line| line.contains(" r-xp ") && line.ends_with(&*file.to_string_lossy())), "{maps}");
    }
    assert!(!maps.contains("rwxp"), "{maps}");
}

#[test]
fn damaged_copies_are_not_executed_but_made_anew() {
    let cache = Cache::new();
    cache.sources();
    type Damage = (&'static str, fn(&Path));
    let damages: &[Damage] = &[
        ("empty", |path| fs::write(path, b"").expect("the copy")),
        ("short", |path| {
            fs::File::options().write(true).open(path).and_then(|file| file.set_len(5000)).expect("the copy")
        }),
        ("cut by a page", |path| {
            let file = fs::File::options().write(true).open(path).expect("the copy");
            file.set_len(file.metadata().expect("its size").len() - 4096).expect("cut");
        }),
        ("longer by a page", |path| {
            let file = fs::File::options().write(true).open(path).expect("the copy");
            file.set_len(file.metadata().expect("its size").len() + 4096).expect("longer");
        }),
        ("other bytes", |path| fs::write(path, vec![0xcc; 300_000]).expect("the copy")),
        // What an earlier boot wrote is compared: one byte of the text, of the slots.
        ("text", |path| {
            flip(path, 0x2_8000);
            age(path);
        }),
        ("slots", |path| {
            flip(path, fs::metadata(path).expect("the copy").len() - TRAILER_BYTES - 3000);
            age(path);
        }),
    ];
    for (what, damage) in damages {
        for path in cache.files() {
            damage(&path);
        }
        assert_eq!(cache.sources(), ["cached plan"; 2], "{what}");
        assert_eq!(cache.sources(), PREPARED, "{what}");
    }
    // Every field of the trailer's header, and some of its exits.
    for offset in (0..80).step_by(5).chain([80, 83, 86, 300]) {
        for path in cache.files() {
            flip(&path, fs::metadata(&path).expect("the copy").len() - TRAILER_BYTES + offset);
        }
        assert_eq!(cache.sources(), ["cached plan"; 2], "offset {offset}");
    }
}

#[test]
fn a_whole_copy_of_an_earlier_boot_is_compared_once() {
    let cache = Cache::new();
    cache.sources();
    cache.files().iter().for_each(|path| age(path));
    assert_eq!(cache.sources(), PREPARED);
    for path in cache.files() {
        let modified = fs::metadata(&path).expect("the copy").modified().expect("its time");
        assert!(modified > SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000), "remembered");
    }
}

#[test]
fn what_others_could_have_written_is_left_alone() {
    let cache = Cache::new();
    cache.sources();
    let modes = |mode| {
        cache.files().iter().for_each(|path| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode"))
    };
    for mode in [0o620, 0o602, 0o666] {
        modes(mode);
        assert_eq!(cache.sources(), ["cached plan"; 2], "{mode:o}");
        // Replaced by files that can be believed.
        assert_eq!(cache.sources(), PREPARED);
    }
    for path in cache.files() {
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(&path, &elsewhere).expect("a name");
        symlink(&elsewhere, &path).expect("a link");
        fs::rename(elsewhere, path.with_file_name(format!("moved-{:?}", path.file_name()))).expect("a name");
    }
    assert_eq!(cache.sources(), ["cached plan"; 2], "a symbolic link");
    let files = cache.files();
    for path in &files {
        fs::remove_file(path).expect("the copy");
        fs::create_dir(path).expect("a directory");
    }
    assert_eq!(cache.sources(), ["cached plan"; 2], "a directory");
    assert!(files.iter().all(|path| path.is_dir()), "and nothing was removed");
}

#[test]
fn starts_at_the_same_time_do_not_disturb_each_other() {
    let cache = Cache::new();
    for _ in 0..3 {
        let children: Vec<_> =
            (0..8).map(|_| cache.command("true").stderr(Stdio::null()).spawn().expect("it starts")).collect();
        for mut child in children {
            assert!(child.wait().expect("it ends").success());
        }
        let files = cache.files();
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(cache.sources(), PREPARED);
        files.iter().for_each(|path| fs::remove_file(path).expect("the copy"));
    }
}

#[test]
fn copies_are_bounded_in_number_and_what_killed_makers_left_goes() {
    let cache = Cache::new();
    let directory = cache.directory.path().join("gannet");
    fs::create_dir(&directory).expect("a directory");
    for index in 0..40 {
        fs::write(directory.join(format!("prepared-{index:032x}")), b"old").expect("a file");
        age(&directory.join(format!("prepared-{index:032x}")));
    }
    fs::write(directory.join("prepared-00.tmp123"), b"half").expect("a file");
    age(&directory.join("prepared-00.tmp123"));
    cache.sources();
    let files = cache.files();
    assert!(
        (2..=16).contains(&files.len()) && !files.iter().any(|path| path.to_string_lossy().contains(".tmp")),
        "{files:?}"
    );
    assert_eq!(cache.sources(), PREPARED);
}

/// The same build of a library need not be the same file.
#[test]
fn a_library_changed_in_place_has_another_copy() {
    let cache = Cache::new();
    cache.sources();
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let library = maps.lines().filter_map(|line| line.split(' ').next_back()).find(|path| path.ends_with("/libc.so.6"));
    let Some(library) = library else { return };
    let directory = tempfile::tempdir().expect("a directory");
    fs::copy(library, directory.path().join("libc.so.6")).expect("a copy of the library");
    let output = run(cache.command("true").env("LD_LIBRARY_PATH", directory.path()));
    assert!(output.status.success(), "{output:?}");
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = report.lines().find(|line| line.contains(&*directory.path().to_string_lossy())).unwrap_or_default();
    assert!(line.ends_with("cached plan"), "{report}");
    assert_eq!(cache.files().len(), 3);
}

/// A volume that is opened at once, for a descriptor that the program inherits, and is so large that its map would lie where the copies are to be.
#[test]
fn large_volumes_with_inherited_descriptors_do_not_stand_in_the_way() {
    let (cache, volume) = (Cache::new(), Volume::new(1280));
    let report = || {
        let mut command = volume.command("sh");
        command.env("XDG_CACHE_HOME", cache.directory.path()).env("GANNET_RUN_REPORT", "1");
        let output = run(command.args(["-c", "exec 3> /gannet/file; cat /proc/self/maps; echo x >&3"]));
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    report();
    let inode = |path: &PathBuf| fs::metadata(path).expect("the copy").ino();
    let made: Vec<u64> = cache.files().iter().map(inode).collect();
    let (maps, told) = report();
    assert!(maps.lines().any(|line| line.contains(" rw-s ") && line.ends_with("/volume")), "{maps}");
    let of_base: Vec<&str> =
        told.lines().filter(|line| line.contains("/libc.so") || line.contains("/ld-linux")).collect();
    assert!(of_base.len() >= 4 && of_base.iter().all(|line| line.ends_with("prepared copy")), "{told}");
    assert_eq!(cache.files().iter().map(inode).collect::<Vec<_>>(), made);
}
