//! Tests of describing and dumping, on a volume that the engine wrote.

use super::{Target, describe, dump};
use crate::attach::AttachOptions;
use crate::mkfs::{MakeOptions, make};
use crate::ops::NoUsers;
use crate::volume::LogFs;
use gannet_media::{CreateOptions, Medium, MediumOffset};
use gannet_vfs::{Errno, FileSystem, Name, NewNode, Owner, RenameFlags, Time, XattrMode};

fn volume() -> Medium {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("dump", 4 << 20, options).unwrap();
    let made = MakeOptions {
        label: "a \"label\"".into(),
        copy_on_write: true,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [3; 24],
        now: Time(1_500_000_000),
    };
    make(&medium, &made).unwrap();
    let attach = AttachOptions {
        index_bytes_max: 1 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    let fs = LogFs::open_private(medium.clone(), attach).unwrap();
    let name = |name| Name::new(name).unwrap();
    let owner = Owner::default();
    let directory = fs.create(fs.root(), name(b"directory"), &NewNode::directory(0o700, owner)).unwrap();
    let file = fs.create(directory, name(b"file"), &NewNode::regular(0o640, owner)).unwrap();
    fs.set_xattr(file, b"user.colour", b"red", XattrMode::Any).unwrap();
    fs.rename(directory, name(b"file"), fs.root(), name(b"here"), RenameFlags::empty()).unwrap();
    assert!(fs.detach().unwrap());
    medium
}

fn text(medium: &Medium, target: Target<'_>) -> String {
    let mut out = Vec::new();
    dump(medium, target, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_volume_is_described() {
    let about = describe(&volume()).unwrap();
    assert_eq!((about.label.as_str(), about.blocks, about.copy_on_write), ("a \"label\"", 1024, true));
    assert_eq!((about.closed_cleanly, about.in_use, about.created), (true, false, Time(1_500_000_000)));
    assert_eq!(about.usage.map(|(_, inodes)| inodes), Some(3));
}

#[test]
fn everything_is_shown() {
    let medium = volume();
    let all = text(&medium, Target::Volume);
    for part in ["label \"a \\\"label\\\"\"", "blocks 1024", "1: Directory", "2: Directory", "3: Regular, generation 1"]
    {
        assert!(all.contains(part), "{part} in\n{all}");
    }
    let root = text(&medium, Target::Inode(1));
    for part in ["bind \"directory\" to Directory 2 generation 1, born with mode 0700", "partner: inode 2"] {
        assert!(root.contains(part), "{part} in\n{root}");
    }
    let file = text(&medium, Target::Path(b"/here"));
    assert!(file.contains("attribute \"user.colour\" = \"red\""), "{file}");
    assert_eq!(file, text(&medium, Target::Path(b"directory/../here")));
    assert_eq!(text(&medium, Target::Path(b"/directory")), text(&medium, Target::Path(b"/./directory//")));
}

#[test]
fn what_is_not_there_is_said() {
    let medium = volume();
    for (target, errno) in [
        (Target::Path(b"/directory/file"), Errno::NOENT),
        (Target::Path(b"/here/x"), Errno::NOTDIR),
        (Target::Path(b"/here/"), Errno::NOTDIR),
        (Target::Path(b"/here/."), Errno::NOTDIR),
        (Target::Inode(u64::MAX), Errno::NOENT),
    ] {
        assert_eq!(dump(&medium, target, &mut Vec::new()).unwrap_err().errno(), errno, "{target:?}");
    }
    medium.write(MediumOffset(0), &[0; 4096]).unwrap();
    assert!(text(&medium, Target::Volume).contains("uuid"), "the replica serves");
    medium.write(MediumOffset(medium.length() - 4096), &[0; 4096]).unwrap();
    assert_eq!(dump(&medium, Target::Volume, &mut Vec::new()).unwrap_err().errno(), Errno::INVAL);
}
