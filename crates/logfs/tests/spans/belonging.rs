//! Which files belong to a volume: what another one, a copy, or a medium of another time has in it is refused, and never touched.

use crate::{BLOCK, MEBIBYTE, Span, make_options, options, pattern};
use gannet_fstest::Rig;
use gannet_logfs::{CheckOptions, FurtherOptions, LogFs, Outcome, check, make_spanning, open_medium};
use gannet_media::{Medium, MediumOffset, OpenOptions};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn files_that_are_not_the_volumes_are_refused() {
    let span = Span::new("wrong", &[2, 2, 2]);
    let (one, two, kept) = (span.file("1"), span.file("2"), span.file("kept"));
    let said = |what: &str| {
        let said = span.refusal();
        assert!(said.contains(what) && said.contains("0: its medium"), "{what}: {said}");
    };
    // Not there.
    fs::rename(&one, &kept).unwrap();
    said("its medium 2 of 3, ");
    said("is not there; move it there, or put a symbolic link to it");
    symlink(&kept, &one).unwrap();
    drop(span.open());
    // Another file.
    fs::remove_file(&one).unwrap();
    fs::write(&one, vec![7; 2 << 20]).unwrap();
    said("holds no medium of a volume: another file stands there");
    fs::write(&one, b"short").unwrap();
    said("cannot be opened");
    fs::remove_file(&one).unwrap();
    fs::create_dir(&one).unwrap();
    said("is neither a file nor a DAX device");
    fs::remove_dir(&one).unwrap();
    let (directory, mode) = (rustix::fs::CWD, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(directory, &one, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let refused = LogFs::open(&span.file("0"), false, options()).err().expect("refused").to_string();
    assert!(refused.contains("is neither a file nor a DAX device"), "{refused}");
    fs::remove_file(&one).unwrap();
    symlink("/dev/null", &one).unwrap();
    said("is neither a file nor a DAX device");
    fs::remove_file(&one).unwrap();
    symlink("0", &one).unwrap();
    said("holds no medium of a volume");
    fs::remove_file(&one).unwrap();
    // The same medium of another volume.
    span.make("other", &[2, 2, 2]);
    fs::copy(span.file("other1"), &one).unwrap();
    said("is a medium of another volume");
    // Interchanged.
    fs::rename(&two, &one).unwrap();
    fs::rename(&kept, &two).unwrap();
    said("is another medium of this volume: the files were interchanged");
    fs::rename(&two, &kept).unwrap();
    fs::rename(&one, &two).unwrap();
    fs::rename(&kept, &one).unwrap();
    drop(span.open());
    // Cut.
    let cut = |path: &Path, length: u64| fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap();
    let whole = fs::read(&two).unwrap();
    cut(&two, MEBIBYTE);
    said("its medium 3 of 3, ");
    said("is shorter than it was");
    fs::write(&two, whole).unwrap();
    let whole = fs::read(span.file("0")).unwrap();
    cut(&span.file("0"), MEBIBYTE);
    assert!(span.refusal().contains("the first medium of the volume was longer"));
    fs::write(span.file("0"), whole).unwrap();
    drop(span.open());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(span.file("0"), Some(12345), None).unwrap();
        drop(span.open());
        std::os::unix::fs::chown(&two, Some(54321), None).unwrap();
        said("belongs to user 54321, who does not own the first medium");
        std::os::unix::fs::chown(&two, Some(12345), None).unwrap();
        drop(span.open());
    }
    span.assert_sound();
}

#[test]
fn a_path_that_is_elsewhere_now_is_looked_for_beside_the_first() {
    let span = Span::new("beside", &[2, 2]);
    let directory = span.file("below");
    fs::create_dir(&directory).unwrap();
    // Both in `below`, from where the second is known as `1`.
    for name in ["0", "1"] {
        fs::rename(span.file(name), directory.join(name)).unwrap();
    }
    drop(LogFs::open(&directory.join("0"), false, options()).unwrap_or_else(|error| panic!("{error}")));
    fs::rename(directory.join("0"), span.file("0")).unwrap();
    assert!(span.refusal().contains("is not there"));
    fs::rename(directory.join("1"), span.file("1")).unwrap();
    drop(span.open());
}

#[test]
fn media_of_different_times_are_not_mixed() {
    let span = Span::new("times", &[2, 2]);
    let (first, second) = (span.file("0"), span.file("1"));
    drop(span.open());
    fs::copy(&first, span.file("old0")).unwrap();
    fs::copy(&second, span.file("old1")).unwrap();
    let fs = span.open();
    let rig = Rig::new(&fs);
    rig.file(rig.root, "file");
    // A copy of the first while the volume is open: the second is in use by others.
    fs::copy(&first, span.file("now0")).unwrap();
    let refused = LogFs::open(&span.file("now0"), false, options()).err().expect("refused").to_string();
    assert!(refused.contains("have the volume open") || refused.contains("has the volume open"), "{refused}");
    drop(fs);
    for (from, to) in [("old0", &first), ("old1", &second)] {
        let whole = fs::read(to).unwrap();
        fs::copy(span.file(from), to).unwrap();
        let refused = span.refusal();
        assert!(refused.contains("was not used last together with this first medium"), "{refused}");
        fs::write(to, whole).unwrap();
    }
    // Both of one time are a volume, with what it had then.
    let now = [fs::read(&first).unwrap(), fs::read(&second).unwrap()];
    fs::copy(span.file("old0"), &first).unwrap();
    fs::copy(span.file("old1"), &second).unwrap();
    let fs = span.open();
    let rig = Rig::new(&fs);
    assert!(rig.find(rig.root, "file").is_none());
    drop(fs);
    // Whoever insists: fsck says it, and makes of it what can be made.
    fs::write(&first, &now[0]).unwrap();
    assert!(span.refusal().contains("was not used last together"));
    let report = span.check(false);
    assert!(
        report.outcome == Outcome::Damaged && report.findings[0].to_string().contains("medium 2 was not used last")
    );
    assert!(span.check(true).outcome == Outcome::Repaired);
    drop(span.open());
    span.assert_sound();
}

#[test]
fn copies_made_while_it_was_open_are_recovered() {
    let span = Span::new("killed", &[2, 4]);
    let fs = span.open();
    let rig = Rig::new(&fs);
    let data = pattern(4, 4 * MEBIBYTE);
    rig.write(rig.file(rig.root, "file"), 0, &data);
    // As a crash of the machine leaves them.
    fs::create_dir(span.file("copy")).unwrap();
    for name in ["0", "1"] {
        fs::copy(span.file(name), span.file("copy").join(name)).unwrap();
    }
    let copy = LogFs::open(&span.file("copy").join("0"), false, options()).unwrap_or_else(|error| panic!("{error}"));
    assert!(copy.recovery().is_some());
    let rig = Rig::new(&copy);
    assert!(rig.content(rig.find(rig.root, "file").expect("the file")) == data);
    drop(copy);
    let medium = open_medium(&span.file("copy").join("0"), true).unwrap();
    let report = check(&medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).unwrap();
    assert!(report.outcome == Outcome::Sound && report.closed_cleanly, "{:?}", report.findings);
}

#[test]
fn the_first_medium_alone_is_no_volume() {
    let span = Span::new("alone", &[2, 2]);
    let first = Medium::open(&span.file("0"), OpenOptions::default()).unwrap();
    let refused = LogFs::open_private(first, options()).err().expect("refused").to_string();
    assert!(refused.contains("larger than its medium"), "{refused}");
    let second = Medium::open(&span.file("1"), OpenOptions::default()).unwrap();
    assert!(LogFs::open_private(second, options()).err().expect("refused").to_string().contains("no Gannet volume"));
}

#[test]
fn media_that_were_used_otherwise_while_they_were_being_claimed_are_not_stored_to() {
    let (medium, simulation) = Medium::simulated(4 << 20);
    simulation.set_first_length(2 << 20);
    make_spanning(&medium, &make_options(), &[FurtherOptions { start_bytes: 2 << 20, path: "x".into() }]).unwrap();
    for block in [2 << 20, (4 << 20) - BLOCK] {
        drop(LogFs::open_private(medium.clone(), options()).unwrap_or_else(|error| panic!("{error}")));
        // One of the two can be damaged.
        medium.store_u64(MediumOffset(block + 64), 1).unwrap();
    }
    medium.store_u64(MediumOffset((2 << 20) + 64), 1).unwrap();
    medium.fence();
    let mut before = vec![0; 4 << 20];
    medium.read(MediumOffset(0), &mut before).unwrap();
    let refused = LogFs::open_private(medium.clone(), options()).err().expect("refused").to_string();
    assert!(refused.contains("was not used last together"), "{refused}");
    let mut after = vec![0; 4 << 20];
    medium.read(MediumOffset(0), &mut after).unwrap();
    assert!(before == after);
}
