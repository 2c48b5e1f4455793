//! What no single operation shows: files without names, torn pages, log pages that were others', files that are mapped or read.

use super::looks::{be_born_anew, close, look, look_now, torn_lines};
use super::usual::reuses;
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::Expected;
use crate::operations::at;
use crate::state::{Tear, capture};
use crate::volume::{assert_sound, attach};
use gannet_fstest::{Rig, name};
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{AllocateMode, AttributeChange, FileSystem, MapAccess, ModeChange, NewNode, Owner, SyncScope};
use std::rc::Rc;

/// A file whose last name goes while it is open, and its last user later.
pub(crate) fn orphan(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let rig = Rig::new(&fs);
        for path in ["/a", "/b", "/o"] {
            let node = at(&rig, path).expect("a file");
            let hold = rig.hold(node);
            let mark = simulation.mark();
            let before = capture(&fs).expect("the state before");
            fault.during(&simulation, || rig.unlink(rig.root, &path[1..])).expect("unlink");
            let unlinked = simulation.mark();
            let unnamed = capture(&fs).expect("the state without it");
            rig.write(node, 100, b"a few bytes");
            let without = capture(&fs).expect("the state without it");
            assert_eq!(rig.attributes(node).links, u64::from(path == "/a"));
            let closing = simulation.mark();
            fault.during(&simulation, || drop(hold));
            if fault.looks() {
                look(&simulation, mark..unlinked, (&before, &unnamed), Tear::Whole, unlinked, &text);
                look(&simulation, closing..simulation.mark(), (&without, &without), Tear::Whole, closing, &text);
            }
            fault.during(&simulation, || {
                reuses().iter().for_each(|reuse| {
                    let _ = reuse.apply(&fs);
                })
            });
            if fault.looks() {
                look_now(&simulation, &capture(&fs).expect("the state"), &text);
            }
        }
        if fault.looks() {
            close(fs, &simulation, &text);
        }
    })
}

/// Recovery where the crash tore a line of a log page that was just begun: its header may be whole but for the link behind it.
pub(crate) fn torn_page(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let node = at(&Rig::new(&fs), "/d2/x").expect("a file without a log");
        let before = capture(&fs).expect("the state before");
        let mark = simulation.mark();
        let change = AttributeChange { mode: ModeChange::Set(0o321), ..Default::default() };
        fs.set_attributes(node, &change).expect("a change of mode");
        let returned_at = simulation.mark();
        let after = capture(&fs).expect("the state after");
        let expected = Expected { before: &before, after: &after, tear: Tear::Whole, returned_at };
        torn_lines(&simulation, mark..returned_at, &mut |crash| {
            let control = crash.simulation();
            let fs = fault.during(control, || attach(&crash.medium())).expect("recovery");
            if fault.looks() {
                let found = capture(&fs).expect("what was recovered");
                assert_eq!(expected.compare(&found, crash.at()), Ok(()), "{text}");
                close(fs, control, &text);
            }
        });
    })
}

/// Recovery where the crash tore the line in which a slot is freed, and births in that slot, which a crash tears, too.
pub(crate) fn torn_free(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let rig = Rig::new(&fs);
        let directory = at(&rig, "/d1").expect("a directory");
        let mark = simulation.mark();
        rig.unlink(directory, "s").expect("unlink");
        let end = simulation.mark();
        torn_lines(&simulation, mark..end, &mut |crash| {
            let control = crash.simulation();
            let fs = fault.during(control, || attach(&crash.medium())).expect("recovery");
            if fault.looks() {
                be_born_anew(&fs, control, &text);
                close(fs, control, &text);
            }
        });
    })
}

/// A file that one thread makes without a name, and another gives one.
pub(crate) fn unnamed(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let root = fs.root();
        let make = || fs.create_unnamed(root, &NewNode::regular(0o600, Owner::default())).expect("a file");
        let node =
            fault.during(&simulation, || std::thread::scope(|scope| scope.spawn(make).join().expect("no panic")));
        fault.during(&simulation, || fs.link(node, root, name("named"))).expect("link");
        if fault.looks() {
            look_now(&simulation, &capture(&fs).expect("the state"), &text);
            close(fs, &simulation, &text);
        }
    })
}

/// Logs begin pages that were pages of others, with entries as long as theirs.
pub(crate) fn pages(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let rig = Rig::new(&fs);
        let ballast = at(&rig, "/ballast").expect("the ballast");
        fs.allocate(ballast, AllocateMode::PunchHole, 0, 16 << 12).expect("room");
        for round in 0..6 {
            fault.during(&simulation, || {
                let changes = |node, count: u32| {
                    for bits in 0..count {
                        let mode = ModeChange::Set(bits);
                        let change = AttributeChange { mode, ..Default::default() };
                        let _ = fs.set_attributes(node, &change);
                    }
                };
                let gone: Vec<_> = (0..3).map(|number| format!("gone{number}")).collect();
                for text in &gone {
                    changes(rig.file(rig.root, text), 5);
                }
                for text in &gone {
                    rig.unlink(rig.root, text).expect("unlink");
                }
                changes(rig.file(rig.root, &format!("stays{round}")), 1 + round % 3);
                let _ = rig.symlink(rig.root, &format!("leads{round}"), &vec![b'y'; 8 + 48 * round as usize]);
            });
        }
        if fault.looks() {
            close(fs, &simulation, &text);
        }
    })
}

/// Files that are mapped, stored to as a program does that has them mapped, and synced, cloned or closed.
pub(crate) fn mapped(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        for how in [Mapped::Synced, Mapped::AllSynced, Mapped::Cloned, Mapped::Closed] {
            let (medium, simulation) = Medium::simulated_with_file(&volume.image);
            let fs = attach(&medium).expect("attach");
            let rig = Rig::new(&fs);
            let node = at(&rig, "/cut").expect("a file");
            let text = format!("{text}, {how:?}");
            let mut first = None;
            let token = fault
                .during(&simulation, || {
                    fs.map(node, MapAccess::Write, 0, 8192, &mut |extent| {
                        first = first.or(Some(extent.descriptor_offset_bytes));
                    })
                })
                .expect("map");
            let first = first.expect("blocks are mapped");
            // What stood behind the end of the file nobody may see.
            let mut behind = vec![0xFF; 8192 - 5001];
            medium.read(MediumOffset(first + 5001), &mut behind).expect("read");
            assert!(behind.iter().all(|&byte| byte == 0), "{text}: bytes of the past behind the end");
            for at in [8, 4096 + 64] {
                medium.store_cached(MediumOffset(first + at), 0x4D41_5050_4544_2121).expect("a store");
            }
            match how {
                Mapped::Synced => fault.during(&simulation, || fs.sync(node, SyncScope::Data)).expect("sync"),
                Mapped::AllSynced => fault.during(&simulation, || fs.sync_all()).expect("sync"),
                Mapped::Cloned | Mapped::Closed => {}
            }
            fs.unmap(token).expect("unmap");
            if let Mapped::Cloned = how {
                let clone = rig.file(rig.root, "clone");
                fault.during(&simulation, || fs.clone_range(node, 0, clone, 0, 5001)).expect("clone");
            }
            let state = capture(&fs).expect("the state");
            if fault.looks() && !matches!(how, Mapped::Closed) {
                look_now(&simulation, &state, &text);
            }
            assert!(fault.during(&simulation, || fs.detach()).expect("detach"));
            drop(fs);
            if fault.looks() {
                assert_sound(&simulation.medium(), true, &text);
                look_now(&simulation, &state, &text);
            }
        }
    })
}

/// A file is read, which moves its time of access; a word that is durable with the next fence of that thread.
pub(crate) fn read(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let rig = Rig::new(&fs);
        let node = at(&rig, "/a").expect("a file");
        let before = rig.attributes(node).accessed;
        rig.tick();
        fault.during(&simulation, || fs.note_access(node));
        if fault.looks() {
            assert!(rig.attributes(node).accessed > before, "{text}");
            rig.file(rig.root, "next");
            look_now(&simulation, &capture(&fs).expect("the state"), &text);
            close(fs, &simulation, &text);
        }
    })
}

/// How what was stored through a map is to become durable.
#[derive(Clone, Copy, Debug)]
enum Mapped {
    Synced,
    AllSynced,
    Cloned,
    Closed,
}
