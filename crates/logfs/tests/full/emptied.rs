//! A full volume can be emptied: removals, which take room themselves, always find it.

use crate::common::{attach, volume};
use crate::{assert_sound, fill};
use gannet_fstest::{Rig, name};
use gannet_vfs::{AllocateMode, Errno, FileSystem};

const ROUNDS: u32 = 15;

/// Names take room in their directory's log, and so does their removal, which frees nothing else while the file has other names.
#[test]
fn a_volume_that_is_full_of_names_can_be_emptied() {
    for (length, has_data) in [(8, false), (240, false), (90, true)] {
        for order in ["as they were made", "the latest first", "any"] {
            let medium = volume(4 << 20);
            let fs = attach(&medium);
            let rig = Rig::new(&fs);
            let (directory, file) = (rig.directory(rig.root, "names"), rig.file(rig.root, "file"));
            let before = fs.statistics().expect("statistics");
            let text = |number: u32| format!("{number:0>length$}");
            let links_max = if has_data { 5_000 } else { u32::MAX };
            let made = (0..links_max).find(|&number| match fs.link(file, directory, name(&text(number))) {
                Ok(()) => false,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    true
                }
            });
            let mut names: Vec<u32> = (0..made.unwrap_or(links_max)).collect();
            assert!(names.len() > 2_000, "{} names", names.len());
            if has_data {
                fill(&rig, "data", 1);
            }
            match order {
                "any" => names.sort_by_key(|&number| number.wrapping_mul(0x9E37_79B1)),
                "the latest first" => names.reverse(),
                _ => {}
            }
            for (removed, &number) in names.iter().enumerate() {
                if let Err(error) = rig.unlink(directory, &text(number)) {
                    panic!("{removed} of {} names of {length} letters removed, {order}: {error}", names.len());
                }
            }
            if !has_data {
                let after = fs.statistics().expect("statistics");
                assert!(after.blocks_free + 16 > before.blocks_free, "{before:?}, {after:?}");
            }
            assert!(fs.detach().expect("detach"));
            drop(fs);
            assert_sound(&medium);
        }
    }
}

/// Two at once fill a volume with names in two directories, and take them away again.
#[test]
fn two_in_need_do_not_stand_in_each_others_way() {
    let medium = volume(4 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let (one, two) = (rig.directory(rig.root, "one"), rig.directory(rig.root, "two"));
    let file = rig.file(rig.root, "file");
    let work = |seed: u64| {
        let mut random = seed;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % limit
        };
        let mut made = Vec::new();
        let mut next = 0_u64;
        for _ in 0..ROUNDS {
            let length = [8, 60, 240][below(3) as usize];
            loop {
                let (directory, text) = ([one, two][below(2) as usize], format!("{seed}-{next:0>length$}"));
                next += 1;
                match fs.link(file, directory, name(&text)) {
                    Ok(()) => made.push((directory, text)),
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC);
                        break;
                    }
                }
            }
            for _ in 0..below(made.len() as u64 + 1) {
                let (directory, text) = made.swap_remove(below(made.len() as u64) as usize);
                if let Err(error) = Rig::new(&fs).unlink(directory, &text) {
                    panic!("{text} cannot be removed: {error}; {:?}", fs.statistics());
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        scope.spawn(|| work(2));
    });
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

/// A file whose extents were cut by clones, of which its own log says nothing, and then moved: on a full volume its collection takes no block
/// that removals need.
#[test]
fn a_map_is_not_written_into_the_last_blocks() {
    const BLOCKS: u64 = 4000;
    const BLOCK: u64 = 4096;
    let medium = volume(32 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let free = |when: &str| fs.statistics().expect(when).blocks_free;
    let free_at_first = free("at first");
    let (source, clone) = (rig.file(rig.root, "source"), rig.file(rig.root, "clone"));
    rig.write(source, 0, &vec![7; (BLOCKS * BLOCK) as usize]);
    for at in (0..BLOCKS).step_by(2) {
        fs.clone_range(source, at * BLOCK, clone, at * BLOCK, BLOCK).expect("a clone");
    }
    fs.allocate(source, AllocateMode::Collapse, 0, BLOCK).expect("a collapse");
    fill(&rig, "x", 40);
    fill(&rig, "y", 1);
    let (mut punched, mut refused) = (0, 0);
    for at in (1..BLOCKS - 1).step_by(2) {
        // Of a block that is shared, so that none is free.
        match fs.allocate(source, AllocateMode::PunchHole, at * BLOCK, BLOCK) {
            Ok(()) => punched += 1,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                refused += 1;
            }
        }
    }
    println!("{punched} holes, {refused} refused, {} blocks are free", free("full"));
    assert!(punched > 100);
    for (file, _) in rig.list(rig.root) {
        let file = String::from_utf8(file).expect("text");
        rig.unlink(rig.root, &file).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    assert!(free("in the end") + 40 >= free_at_first, "{} of {free_at_first}", free("in the end"));
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}
