//! Operations, what reuses what they freed, opening and closing, recovery.

use super::looks::{be_born_anew, close, look, policy, use_everything};
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::{Expected, exercise};
use crate::operations::{Operation, at, bytes, operation};
use crate::state::{State, Tear, capture};
use crate::volume::{assert_sound, attach};
use gannet_fstest::{Rig, name};
use gannet_media::simulation::CrashPolicy;
use gannet_vfs::{FileSystem, NewNode, Owner, Result, WritePosition, XattrMode};
use std::rc::Rc;
use std::sync::OnceLock;

/// One operation, its crashes, and the clean detach behind it.
pub(crate) fn one(text: String, volume: Rc<Volume>, operation: Operation) -> Workload {
    let reference: OnceLock<State> = OnceLock::new();
    Workload::new(Kind::Operation, text.clone(), move |fault| {
        let reference = reference.get_or_init(|| {
            let (fs, _simulation) = volume.open();
            let _ = operation.apply(&fs);
            capture(&fs).expect("the state").without_times()
        });
        let (fs, simulation) = volume.open();
        let before = capture(&fs).expect("the state before");
        let mark = simulation.mark();
        fault.during(&simulation, || {
            let _ = operation.apply(&fs);
        });
        let returned_at = simulation.mark();
        if !fault.looks() {
            return;
        }
        let after = capture(&fs).expect("the state after");
        look(&simulation, mark..returned_at, (&before, &after), operation.tear, returned_at, &text);
        let plain = after.without_times();
        assert_eq!(plain.may_follow(reference, reference, Tear::Whole), Ok(()), "what it did");
        close(fs, &simulation, &text);
    })
}

/// An operation on a volume with little room, and others that take what it gave up.
pub(crate) fn and_reuse(text: String, volume: Rc<Volume>, operation: Operation) -> Workload {
    Workload::new(Kind::Reuse, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        fault.during(&simulation, || {
            let _ = operation.apply(&fs);
        });
        if fault.looks() {
            be_born_anew(&fs, &simulation, &text);
        }
        for reuse in reuses() {
            let before = capture(&fs).expect("the state before");
            let mark = simulation.mark();
            // On another thread, whose fences make nothing of the first one's durable.
            fault.during(&simulation, || {
                std::thread::scope(|scope| drop(scope.spawn(|| drop_result(reuse.apply(&fs))).join()));
            });
            let returned_at = simulation.mark();
            if fault.looks() {
                let after = capture(&fs).expect("the state after");
                let text = format!("{text}; {}", reuse.text);
                look(&simulation, mark..returned_at, (&before, &after), reuse.tear_after, returned_at, &text);
            }
        }
        if fault.looks() {
            close(fs, &simulation, &text);
        }
    })
}

pub(crate) fn drop_result<T>(_: T) {}

/// Take numbers, log pages and blocks as soon as there are any.
pub(crate) fn reuses() -> Vec<Operation> {
    let whole = |text: &str, run: fn(&Rig<'_>) -> Result<()>| operation(text.into(), Tear::Whole, run);
    vec![
        whole("another that shares goes", |rig| rig.unlink(rig.root, "c").map(|_| ())),
        whole("a link", |rig| rig.symlink(rig.root, "reuse.l", &[b'x'; 300]).map(|_| ())),
        whole("a directory", |rig| {
            rig.fs.create(rig.root, name("reuse.d"), &NewNode::directory(0o700, Owner::default())).map(|_| ())
        }),
        whole("a name in it", |rig| {
            let directory = at(rig, "/reuse.d")?;
            rig.fs.create(directory, name("f"), &NewNode::regular(0o600, Owner::default())).map(|_| ())
        }),
        // With little room a part is written first, and then what fits behind it.
        operation("bytes".into(), Tear::Bytes("/reuse.d/f"), |rig| {
            let node = at(rig, "/reuse.d/f")?;
            rig.try_write(node, WritePosition::Append, &bytes(0x99, 20_000)).map(|_| ())
        }),
        whole("an attribute", |rig| {
            rig.fs.set_xattr(at(rig, "/reuse.d")?, b"user.reuse", &bytes(0x55, 6000), XattrMode::Any)
        }),
    ]
}

/// Opening and closing, twice.
pub(crate) fn session(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (medium, simulation) = volume.simulated();
        for _ in 0..2 {
            let mark = simulation.mark();
            let fs = fault.during(&simulation, || attach(&medium)).expect("attach");
            let state = capture(&fs).expect("the state");
            let _ = Rig::new(&fs).file(fs.root(), &format!("file{mark}"));
            let changed = capture(&fs).expect("the state");
            let between = simulation.mark();
            if fault.looks() {
                look(&simulation, mark..between, (&state, &changed), Tear::Whole, between, &text);
            }
            // Another list of what is shared than last time.
            let rig = Rig::new(&fs);
            let clone = rig.file(rig.root, &format!("clone{mark}"));
            fs.clone_range(at(&rig, "/a").expect("a file"), 0, clone, 0, 10_000).expect("clone");
            let changed = capture(&fs).expect("the state");
            let between = simulation.mark();
            assert!(fault.during(&simulation, || fs.detach()).expect("detach"));
            drop(fs);
            if fault.looks() {
                look(&simulation, between..simulation.mark(), (&changed, &changed), Tear::Whole, between, &text);
                let end = simulation.mark();
                simulation
                    .for_each_crash(end..end, &policy(5), |crash| drop(assert_sound(&crash.medium(), true, &text)));
            }
        }
    })
}

/// Recovery from crashes during an operation, with crashes in it and behind it.
pub(crate) fn recovery(text: String, volume: Rc<Volume>, operation: Operation) -> Workload {
    Workload::new(Kind::Recovery, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let before = capture(&fs).expect("the state before");
        let mark = simulation.mark();
        let _ = operation.apply(&fs);
        let returned_at = simulation.mark();
        let after = capture(&fs).expect("the state after");
        let expected = Expected { before: &before, after: &after, tear: operation.tear, returned_at };
        let sparse = CrashPolicy { combinations_max: 12, cuts_max: 2, samples: 2, ..policy(2) };
        let mut number = 0;
        simulation.for_each_crash(mark..returned_at, &sparse, |crash| {
            number += 1;
            // Of many lines each alone, and all others: some of these.
            if number > 10 && number % 16 != 0 {
                return;
            }
            let control = crash.simulation();
            let began = control.mark();
            let fs = fault.during(control, || attach(&crash.medium())).expect("recovery");
            if !fault.looks() {
                return;
            }
            let found = capture(&fs).expect("what was recovered");
            assert_eq!(expected.compare(&found, crash.at()), Ok(()), "{text}");
            let recovered = control.mark();
            look(control, began..recovered, (&found, &found), operation.tear, recovered, &text);
            control
                .for_each_crash(began..recovered, &sparse, |again| drop(assert_sound(&again.medium(), false, &text)));
            be_born_anew(&fs, control, &text);
            use_everything(&fs, control, Tear::Whole, &text);
            exercise(&fs);
            close(fs, control, &text);
        });
    })
}
