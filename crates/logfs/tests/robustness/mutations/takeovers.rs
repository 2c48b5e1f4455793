//! Threads that end in the middle of an operation; a place is left out where another settles what they left.

use super::looks::{be_born_anew, look, use_everything};
use super::usual::drop_result;
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::exercise;
use crate::operations::Operation;
use crate::state::{Tear, capture};
use crate::volume::assert_sound;
use gannet_logfs::LogFs;
use gannet_media::Simulation;
use gannet_shm::testing::{run_abandoned, stop_here, store_point};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// A thread ends in the middle of an operation, and another settles what it left.
pub(crate) fn takeover(text: String, volume: Rc<Volume>, operation: Operation) -> Workload {
    let ends: OnceLock<Vec<End>> = OnceLock::new();
    Workload::new(Kind::Takeover, text.clone(), move |fault| {
        for (number, &end) in ends.get_or_init(|| ends_of(&volume, &operation)).iter().enumerate() {
            let (fs, simulation) = volume.open();
            end_at(&fs, &simulation, &operation, end);
            let session = fs.session().clone();
            fault.during(&simulation, || session.reap_dead()).expect("settling");
            drop(session);
            if !fault.looks() {
                continue;
            }
            let text = format!("{text}, {end:?}");
            // What it wrote in place nobody was told of.
            let tear = operation.tear;
            let look_now = || {
                let (state, end) = (capture(&fs).expect("the state"), simulation.mark());
                let returned_at = if tear == Tear::Whole { end } else { usize::MAX };
                look(&simulation, end..end, (&state, &state), tear, returned_at, &text);
            };
            look_now();
            match number % 2 {
                0 => be_born_anew(&fs, &simulation, &text),
                _ => use_everything(&fs, &simulation, tear, &text),
            }
            exercise(&fs);
            look_now();
            assert!(fs.detach().expect("detach"));
            drop(fs);
            // Where somebody died in the middle of something, the next one counts anew.
            assert_sound(&simulation.medium(), false, &text);
        }
    })
}

/// Where a thread ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// After so many stores to the medium, before it writes back the last.
    Medium(usize),
    /// After so many to arena or medium.
    Any(u64),
}

/// Runs an operation on a thread that ends there.
pub(crate) fn end_at(fs: &LogFs, simulation: &Simulation, operation: &Operation, end: End) {
    let (mark, control) = (simulation.mark(), simulation.clone());
    let (medium, any) = match end {
        End::Medium(stores) => (stores, u64::MAX / 2),
        End::Any(stores) => (usize::MAX, stores),
    };
    simulation.set_hook(Some(Arc::new(move |event| {
        store_point();
        if control.stores_in(mark..event + 1) >= medium {
            stop_here();
        }
    })));
    let session = fs.session().clone();
    let _ = run_abandoned(&[&session], any, || drop_result(operation.apply(fs)));
    simulation.set_hook(None);
}

/// Where one structure is stored and the next is not begun, or has just begun; and some places where nothing is stored to the medium.
pub(crate) fn ends_of(volume: &Volume, operation: &Operation) -> Vec<End> {
    let (fs, simulation) = volume.open();
    let mark = simulation.mark();
    let _ = operation.apply(&fs);
    let stored = simulation.stored_in(mark..simulation.mark());
    let mut ends = vec![stored.len()];
    for (number, pair) in stored.windows(2).enumerate() {
        if pair[0].0.abs_diff(pair[1].0) > 64 {
            ends.extend([number + 1, number + 2, number + 5]);
        }
    }
    ends.retain(|&end| end > 0 && end <= stored.len());
    ends.sort_unstable();
    ends.dedup();
    // The last ones, where it commits.
    let ends = ends.split_off(ends.len().saturating_sub(ENDS_MAX));
    ends.into_iter().map(End::Medium).rev().chain([40, 100].map(End::Any)).collect()
}

const ENDS_MAX: usize = 14;
