//! A file in so many pieces that the memory for indexes is used up: whatever then fails or succeeds, what is seen is what would be
//! there after a crash, and what fails has changed nothing.

use crate::volume::{MODES, Mode, assert_sound, format, options, simulated};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, LogFs};
use gannet_media::{CreateOptions, Medium, MediumOffset};
use gannet_vfs::{AllocateMode, Errno, FileSystem, NodeId, Result, WritePosition, XattrMode};

const BLOCK: u64 = 4096;
const VOLUME_BYTES: u64 = 8 << 20;
/// Blocks of the file: more pieces than there is room for.
const BLOCKS: u64 = 2200;
/// The least that an arena has.
const NODES: u64 = 64;

fn open(medium: &Medium, nodes: u64) -> LogFs {
    LogFs::open_private(medium.clone(), AttachOptions { index_bytes_max: nodes * 512, ..options() }).expect("attach")
}

/// What a file looks like: size, mapped ranges, bytes.
type Look = (u64, u64, Vec<u8>);

/// Nothing where its index was dropped, and there is no room to build it again.
fn look(fs: &LogFs, node: NodeId) -> Option<Look> {
    match fs.attributes(node) {
        Ok(attributes) => Some((attributes.size_bytes, attributes.sectors, Rig::new(fs).content(node))),
        Err(error) => {
            assert_eq!(error.errno(), Errno::NOMEM);
            None
        }
    }
}

fn both(fs: &LogFs, files: [NodeId; 2]) -> Option<[Look; 2]> {
    let [file, other] = files.map(|node| look(fs, node));
    Some([file?, other?])
}

/// The same after a crash at this moment.
fn look_after_crash(medium: &Medium, is_checked: bool, when: &str) -> [Look; 2] {
    let mut bytes = vec![0; VOLUME_BYTES as usize];
    medium.read(MediumOffset(0), &mut bytes).expect("read the medium");
    let (copy, _simulation) = simulated(&bytes);
    if is_checked {
        assert_sound(&copy, false, when);
    }
    let fs = open(&copy, 8192);
    let rig = Rig::new(&fs);
    both(&fs, ["file", "other"].map(|text| rig.find(rig.root, text).expect("it is there"))).expect("room for all")
}

/// Does something at random to one of the files; what that was, and how it ended.
fn change(rig: &Rig<'_>, [file, other]: [NodeId; 2], random: &mut Random, step: u64) -> (String, Result<()>) {
    let fs = rig.fs;
    let node = if random.below(8) == 0 { other } else { file };
    let at = random.below(BLOCKS as usize) as u64 * BLOCK;
    let length = (1 + random.below(24)) as u64 * BLOCK;
    let byte = 1 + (step % 250) as u8;
    let of_block = |text: &str| format!("{text} of {node:?} at block {}, {} blocks", at / BLOCK, length / BLOCK);
    match random.below(16) {
        0..5 => {
            let bytes = vec![byte; length as usize - random.below(2) * 100];
            (of_block("write"), rig.try_write(node, WritePosition::At(at), &bytes).map(drop))
        }
        5 | 6 => (of_block("punch"), fs.allocate(node, AllocateMode::PunchHole, at, length)),
        7 => (of_block("zero"), fs.allocate(node, AllocateMode::ZeroKeepSize, at, length)),
        8 => (of_block("collapse"), fs.allocate(node, AllocateMode::Collapse, at, length)),
        9 => (of_block("insert"), fs.allocate(node, AllocateMode::Insert, at, length)),
        10 => (of_block("allocate"), fs.allocate(node, AllocateMode::KeepSize, at, length)),
        11 => (of_block("clone"), fs.clone_range(file, at, other, at, length)),
        12 => (of_block("clone back"), fs.clone_range(other, at, file, (at + 77 * BLOCK) % (BLOCKS * BLOCK), length)),
        13 => {
            let size_bytes = rig.attributes(node).size_bytes;
            let wanted = size_bytes.saturating_sub(length / 2 + 7);
            (format!("truncate {node:?} to {wanted}"), rig.resize(node, wanted).map(drop))
        }
        14 => {
            let name = format!("user.name{}", random.below(40));
            ("attribute".into(), fs.set_xattr(node, name.as_bytes(), &[byte; 300], XattrMode::Any))
        }
        _ => ("append".into(), rig.try_write(node, WritePosition::Append, &[byte; 100]).map(drop)),
    }
}

#[test]
fn what_is_seen_is_what_a_crash_leaves() {
    let mut lacked = Vec::new();
    for (seed, mode) in MODES.into_iter().cycle().take(if long() { 200 } else { 8 }).enumerate() {
        lacked.extend(what_is_seen(seed as u64, mode));
    }
    println!("lacked memory: {lacked:#?}");
    assert!(!lacked.is_empty());
}

/// Returns what lacked memory.
fn what_is_seen(seed: u64, mode: Mode) -> Vec<String> {
    let create = CreateOptions { huge_pages: false, ..Default::default() };
    let medium = Medium::create_in_memory("starved", VOLUME_BYTES, create).expect("memory");
    format(&medium, mode);
    let fs = open(&medium, NODES);
    let rig = Rig::new(&fs);
    let files = ["file", "other"].map(|text| rig.file(rig.root, text));
    // In pieces, from the end, so that none is joined with another, until there is no room for more.
    let mut lacked = false;
    for block in (0..BLOCKS / 2).rev() {
        match rig.try_write(files[0], WritePosition::At(block * 2 * BLOCK), &[9; BLOCK as usize]) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOMEM);
                lacked = true;
            }
        }
    }
    assert!(lacked, "seed {seed}: there are more index nodes than this test is for");
    let mut random = Random(seed);
    let mut failed = Vec::new();
    for step in 0..if long() { 100 } else { 20 } {
        let Some(before) = both(&fs, files) else { break };
        let (text, outcome) = change(&rig, files, &mut random, step);
        let when = format!("seed {seed}, {mode:?}, step {step}: {text}: {outcome:?}");
        let Some(seen) = both(&fs, files) else { break };
        if let Err(error) = &outcome {
            assert!(matches!(error.errno(), Errno::NOMEM | Errno::INVAL | Errno::NOSPC), "{when}");
            if error.errno() == Errno::NOMEM {
                failed.push(text.clone());
            }
            // What consists of steps may have done some; those of an allocation are not seen.
            let same = match text.split(' ').next() {
                Some("clone") => true,
                Some("zero" | "allocate") => {
                    seen.iter().zip(&before).all(|(seen, before)| (seen.0, &seen.2) == (before.0, &before.2))
                }
                _ => seen == before,
            };
            assert!(same, "{when}: it has changed something");
        }
        let left = look_after_crash(&medium, step % 10 == 0, &when);
        for (seen, left) in seen.iter().zip(&left) {
            assert_eq!((seen.0, seen.1), (left.0, left.1), "{when}: size and blocks");
            let differs = seen.2.iter().zip(&left.2).position(|(seen, left)| seen != left);
            assert_eq!(differs, None, "{when}: bytes");
        }
    }
    let _ = fs.detach().expect("detach");
    drop(fs);
    assert_sound(&medium, false, "in the end");
    failed
}
