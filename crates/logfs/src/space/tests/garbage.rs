//! Random words in the region: every operation ends without a panic, and a repair makes counters right again.

use super::random::Random;
use super::{Extent, Rig, SpaceError, effort, private};
use crate::space::PinOwner;
use crate::space::layout::CONTROL_WORDS;
use gannet_shm::{Ordering::Relaxed, Session};

const BLOCKS: u64 = 16384 + 3000;

/// Nonsense anywhere but in the locks, whose words shm checks.
fn spoil(session: &Session, rig: &Rig, random: &mut Random) {
    let layout = rig.layout;
    let words = session.arena().words(rig.space_at, layout.bytes() / 8).unwrap();
    let parts = [0, layout.summary_at(0), layout.bits_at(0), layout.deferred_at(0), layout.pins_at(0), words.len()];
    for _ in 0..1 + random.below(20) {
        let part = random.below(parts.len() as u64 - 1) as usize;
        let word = parts[part] + random.below((parts[part + 1] - parts[part]).min(200) as u64) as usize;
        let is_control = word < layout.pools() as usize * CONTROL_WORDS;
        if is_control && word.is_multiple_of(CONTROL_WORDS) {
            continue;
        }
        let nonsense = match random.below(5) {
            0 => u64::MAX,
            1 => 0,
            2 => random.below(5000),
            3 => 1 << random.below(64),
            _ => random.next(),
        };
        words[word].store(nonsense, Relaxed);
    }
}

#[test]
fn garbage_is_survived() {
    let mut given = 0;
    for seed in 0..150 * effort() {
        let (session, rig) = private(BLOCKS);
        let (space, thread) = (rig.space(&session), session.thread().unwrap());
        let mut random = Random(seed);
        for _ in 0..40 {
            spoil(&session, &rig, &mut random);
            let some = Extent { start: random.below(BLOCKS - 300), count: 1 + random.below(300) as u32 };
            let owner = PinOwner { participant: random.below(4) as u32, token: random.below(4) };
            let want = 1 + random.below(3000) as u32;
            match space.allocate(&thread, want, Some(random.below(BLOCKS)), random.below(4) == 0) {
                Ok(held) => {
                    let extent = held.extent();
                    assert!(extent.end() <= BLOCKS && extent.count <= want);
                    given += 1;
                    if random.below(2) == 0 {
                        space.keep(&thread, held);
                    } else {
                        space.release(&thread, held).unwrap();
                    }
                }
                Err(error) => assert!(matches!(error, SpaceError::Full)),
            }
            match random.below(6) {
                0 => drop(space.pin(&thread, owner, some)),
                1 => space.unpin(&thread, owner).unwrap(),
                2 => space.drop_pins_of(&thread, owner.participant).unwrap(),
                3 => drop(space.copy_pins(&thread, owner.participant, 9)),
                _ => {
                    let held = space.hold(&thread, some).unwrap();
                    space.release(&thread, held).unwrap();
                }
            }
            let _ = (space.free_blocks(), space.pinned(), space.verify(), space.is_free(some.start));
            space.for_each_used_run(&mut |extent| assert!(extent.end() <= BLOCKS));
        }
        for pool in 0..rig.layout.pools() {
            space.pool(pool).repair();
        }
        space.drop_pins_of(&thread, 0).unwrap();
        space.recount_all();
        assert!(space.free_blocks() <= BLOCKS);
    }
    assert!(given > 1000, "{given}");
}
