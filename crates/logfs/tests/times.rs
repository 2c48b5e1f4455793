//! Times that words beside the log keep are what they were after the volume was closed and opened, whatever was collected.

mod common;

use common::volume;
use gannet_fstest::{Rig, name};
use gannet_logfs::{AccessTimes, AttachOptions, LogFs, NoUsers};
use gannet_vfs::{AttributeChange, FileSystem, ModeChange, RenameFlags, Time, XattrMode};

fn options(access_times: AccessTimes) -> AttachOptions {
    AttachOptions { index_bytes_max: 4 << 20, copy_on_write: None, access_times, threads: 1, users: Box::new(NoUsers) }
}

#[test]
fn times_outlive_collection_and_remounts() {
    let medium = volume(16 << 20);
    let mut fs = LogFs::open_private(medium.clone(), options(AccessTimes::Relative)).expect("attach");
    let file = {
        let rig = Rig::new(&fs);
        let file = rig.file(rig.root, "f");
        rig.write(file, 0, &[1; 9000]);
        file
    };
    // Every order of a write in place, a read and a change of attributes or names, with and without a log that is collected.
    for round in 0..24_u32 {
        let expected = {
            let rig = Rig::new(&fs);
            let steps: [&dyn Fn(); 4] = [
                &|| rig.write(file, 100, b"in place"),
                &|| rig.fs.note_access(file),
                &|| {
                    let mode = ModeChange::Set(0o600 + round);
                    rig.fs.set_attributes(file, &AttributeChange { mode, ..Default::default() }).expect("chmod");
                },
                &|| {
                    for index in 0..if round % 2 == 0 { 1 } else { 300 } {
                        let value = [index as u8; 40];
                        rig.fs.set_xattr(file, b"user.a", &value, XattrMode::Any).expect("set an attribute");
                    }
                },
            ];
            let mut left: Vec<usize> = (0..4).collect();
            let mut order = round as usize;
            while !left.is_empty() {
                let step = left.remove(order % left.len());
                order /= left.len() + 1;
                rig.tick();
                steps[step]();
            }
            rig.attributes(file)
        };
        assert!(fs.detach().expect("detach"));
        drop(fs);
        fs = LogFs::open_private(medium.clone(), options(AccessTimes::Relative)).expect("attach");
        assert_eq!(fs.attributes(file).expect("attributes"), expected, "round {round}");
    }
}

#[test]
fn access_times_can_be_told_to_stand_still_or_to_move_always() {
    let medium = volume(16 << 20);
    for (access_times, moves) in [(AccessTimes::Never, [false, false]), (AccessTimes::Always, [true, true])] {
        let fs = LogFs::open_private(medium.clone(), options(access_times)).expect("attach");
        let rig = Rig::new(&fs);
        let text = format!("{access_times:?}");
        let file = rig.file(rig.root, &text);
        for expected in moves {
            let before = rig.attributes(file).accessed;
            rig.tick();
            fs.note_access(file);
            assert_eq!(rig.attributes(file).accessed > before, expected, "{access_times:?}");
        }
        fs.remove(rig.root, name(&text), gannet_vfs::RemoveKind::NonDirectory).expect("remove");
        assert!(fs.detach().expect("detach"));
    }
}

#[test]
fn a_write_within_the_tick_of_a_set_time_shows() {
    let fs = LogFs::open_private(volume(16 << 20), options(AccessTimes::Relative)).expect("attach");
    let rig = Rig::new(&fs);
    let file = rig.file(rig.root, "f");
    rig.write(file, 0, &[1; 9000]);
    let past = Time(1_000_000_000_000_000_000);
    let set = AttributeChange { modified: gannet_vfs::TimeChange::Set(past), ..Default::default() };
    for round in 0..50 {
        rig.fs.set_attributes(file, &set).expect("set the time");
        assert_eq!(rig.fs.attributes(file).expect("attributes").modified, past);
        rig.write(file, 100, b"in place");
        assert!(rig.fs.attributes(file).expect("attributes").modified > past, "round {round}");
    }
}

#[test]
fn a_read_within_the_tick_of_a_set_time_shows() {
    let fs = LogFs::open_private(volume(16 << 20), options(AccessTimes::Relative)).expect("attach");
    let rig = Rig::new(&fs);
    let file = rig.file(rig.root, "f");
    let past = Time(1_000_000_000_000_000_000);
    let set = AttributeChange { accessed: gannet_vfs::TimeChange::Set(past), ..Default::default() };
    for round in 0..50 {
        rig.fs.set_attributes(file, &set).expect("set the time");
        assert_eq!(rig.fs.attributes(file).expect("attributes").accessed, past);
        fs.note_access(file);
        assert!(rig.fs.attributes(file).expect("attributes").accessed > past, "round {round}");
    }
}

#[test]
fn a_change_of_names_within_the_tick_of_a_change_of_attributes_is_not_before_it() {
    let fs = LogFs::open_private(volume(16 << 20), options(AccessTimes::Relative)).expect("attach");
    let rig = Rig::new(&fs);
    let past = Time(1_000_000_000_000_000_000);
    let set = AttributeChange { accessed: gannet_vfs::TimeChange::Set(past), ..Default::default() };
    // A read between two changes has the second one be later than the clock.
    let get_ahead = |node| {
        fs.set_attributes(node, &set).expect("set a time");
        fs.note_access(node);
        fs.set_attributes(node, &set).expect("set a time");
    };
    for round in 0..20 {
        let [one, two] = ["one", "two"].map(|text| rig.directory(rig.root, &format!("{text}{round}")));
        let file = rig.file(one, "a");
        let rename = |from, to, flags| rig.rename_with(from, to, flags).expect("rename");
        let steps: [(&str, &dyn Fn()); 9] = [
            ("create", &|| _ = rig.file(one, "f")),
            ("mkdir", &|| _ = rig.directory(one, "d")),
            ("symlink", &|| _ = rig.symlink(one, "s", b"target").expect("symlink")),
            ("link", &|| fs.link(file, one, name("g")).expect("link")),
            ("rename", &|| rename((one, "g"), (one, "h"), RenameFlags::empty())),
            ("whiteout", &|| rename((one, "s"), (one, "t"), RenameFlags::WHITEOUT)),
            ("across", &|| rename((one, "h"), (two, "h"), RenameFlags::empty())),
            ("exchange", &|| rename((one, "f"), (two, "h"), RenameFlags::EXCHANGE)),
            ("unlink", &|| _ = rig.unlink(one, "t").expect("unlink")),
        ];
        for (text, step) in steps {
            let all = [one, two, file];
            all.into_iter().for_each(get_ahead);
            let before = all.map(|node| rig.attributes(node).changed);
            step();
            let after = all.map(|node| rig.attributes(node).changed);
            let never_back = before.iter().zip(&after).all(|(before, after)| before <= after);
            assert!(never_back, "{text}, round {round}: {before:?}, {after:?}");
        }
        for (text, (number, _)) in rig.list(one) {
            let found = fs.lookup(one, name(std::str::from_utf8(&text).expect("text"))).expect("lookup").node;
            let (born, now) = (rig.attributes(found).created, Time::now());
            assert!(born <= Time(now.0 + 1_000_000), "inode {number} is born at {born:?}, the present is {now:?}");
        }
    }
}

#[test]
fn privileges_are_known_by_a_quick_look() {
    let fs = LogFs::open_private(volume(16 << 20), options(AccessTimes::Relative)).expect("attach");
    let rig = Rig::new(&fs);
    let file = rig.file(rig.root, "f");
    assert!(!fs.may_have_privileges(file), "it has none");
    let mode = |mode| AttributeChange { mode: ModeChange::Set(mode), ..Default::default() };
    fs.set_attributes(file, &mode(0o2755)).expect("chmod");
    assert!(fs.may_have_privileges(file));
    fs.set_attributes(file, &mode(0o755)).expect("chmod");
    assert!(!fs.may_have_privileges(file));
    fs.set_xattr(file, b"security.capability", &[0; 20], gannet_vfs::XattrMode::Any).expect("setxattr");
    assert!(fs.may_have_privileges(file));
    fs.remove_xattr(file, b"security.capability").expect("removexattr");
    assert!(!fs.may_have_privileges(file));
    fs.remove(rig.root, name("f"), gannet_vfs::RemoveKind::NonDirectory).expect("remove");
    let other = rig.file(rig.root, "g");
    assert!(
        fs.may_have_privileges(gannet_vfs::NodeId { generation: other.generation + 1, ..other }),
        "nobody knows it"
    );
}
