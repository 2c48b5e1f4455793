//! Damage that can be repaired, and the volumes that get it.

use super::looks::torn_lines;
use super::repairs::{findings, is_repaired, repair};
use super::workload::{Volume, bytes_of};
use crate::operations::{at, bytes, populate};
use gannet_fstest::Rig;
use gannet_logfs::{Finding, LogFs};
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_vfs::{AttributeChange, FileSystem, ModeChange};
use std::rc::Rc;

/// Words that are not what they were: where, and what stands there.
pub(crate) type Damage = Vec<(u64, u64)>;

/// A volume that is damaged, for good.
pub(crate) fn damaged(volume: &Volume, damage: &Damage) -> (Medium, Simulation) {
    let (medium, simulation) = volume.simulated();
    for &(at, word) in damage {
        medium.store_u64(MediumOffset(at), word).expect("damage");
    }
    medium.fence();
    (medium, simulation)
}

/// Words of metadata, some of those that are neither nothing nor of the past; names; the root directory.
pub(crate) fn logs_and_slots(volume: &Volume) -> Vec<Damage> {
    let metadata: Vec<_> = words_of(volume).take_while(|&(number, _)| number < 64 * 512).collect();
    let some = (0..DAMAGES).map(|part| metadata[part * metadata.len() / DAMAGES]);
    // Names in the middle of directories, whose logs are written anew then: names behind them are lost, of which the one is in the log that
    // the lost ones are found by, the other is not.
    let names = ["sparse", "many.3"].map(|name| {
        let at = volume.image.windows(6).position(|bytes| bytes == name.as_bytes()).expect("a name");
        *metadata.iter().find(|&&(number, _)| number == at as u64 / 8).expect("in the metadata")
    });
    let [inverted, other] = names.map(|(at, word)| (at * 8, !word));
    let words = some.map(|(at, word)| vec![(at * 8, !word)]);
    let (root, slot) = slots(volume);
    let mut damages: Vec<Damage> = words.collect();
    damages.retain(|damage| repair(&damaged(volume, damage).0).is_ok_and(|report| is_repaired(&report)));
    let some = [root, vec![inverted], vec![other], vec![inverted, slot]];
    some.into_iter().chain(cached(volume)).chain(damages).collect()
}

/// All words that are neither nothing nor of the past, with their numbers.
fn words_of(volume: &Volume) -> impl Iterator<Item = (u64, u64)> {
    let words = volume.image.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let past = u64::from_le_bytes([PAST; 8]);
    (0_u64..).zip(words).filter(move |&(_, word)| word != 0 && word != past)
}

/// The epoch; words of the inode map, also with the chunks of the inode table that they lead to; a slot that was never used.
pub(crate) fn fixed_places(volume: &Volume) -> Vec<Damage> {
    let word_at = |wanted: u64| words_of(volume).find(|&(number, _)| number * 8 == wanted).expect("a word").1;
    let map: Vec<_> = words_of(volume).filter(|&(number, _)| number / 512 == MAP_BLOCK).collect();
    assert!(map.len() > 2, "chunks, of which two are in use");
    let blocks = map.iter().map(|&(_, word)| word & 0xFFFF_FFFF_FFFF);
    let words: Vec<_> = map.iter().map(|&(number, word)| (number * 8, !word)).collect();
    let lost = |block: u64| (block * 4096..(block + 1) * 4096).step_by(8).map(|at| (at, u64::MAX));
    let chunks: Vec<Damage> =
        words.iter().zip(blocks).map(|(&word, block)| [word].into_iter().chain(lost(block)).collect()).collect();
    let unused = chunks[2].last().expect("a chunk").0 + 8 - SLOT_BYTES;
    assert!(words_of(volume).all(|(number, _)| number * 8 != unused), "a slot in use");
    let nothing = (EPOCH_AT, 0);
    let mut damages =
        vec![vec![nothing], vec![(EPOCH_AT, !word_at(EPOCH_AT))], vec![(unused, u64::MAX)], words.clone()];
    damages.extend(words[..2].iter().map(|&word| vec![nothing, word]));
    damages.extend(chunks.into_iter().take(2));
    damages
}

/// What the second medium says of itself, in its first block, in its last one, in both; also of when it was used last.
pub(crate) fn headers(volume: &Volume) -> Vec<Damage> {
    let (first, last) = (volume.image.len() as u64 / 2, volume.image.len() as u64 - 4096);
    let line = |at: u64| (at..at + 64).step_by(8).map(|at| (at, 0));
    let word = |at: u64| vec![(at + 8, u64::MAX)];
    vec![
        word(first),
        word(last),
        line(first).chain(line(first + 64)).collect(),
        line(first).chain(line(last + 64)).chain(line(last)).collect(),
    ]
}

/// The root directory's slot is gone, and with it all that leads to its log; and the word that damages the slot of a file of which only
/// the directory says what it was made of.
fn slots(volume: &Volume) -> (Damage, (u64, u64)) {
    let shows = |damage: &Damage, is_it: fn(&Finding) -> bool| findings(&damaged(volume, damage).0).iter().any(is_it);
    // The root directory's number is 1, in the first block of the inode table.
    let zeroed = |slot: u64| (slot..slot + SLOT_BYTES).step_by(8).map(|at| (at, 0)).collect();
    let is_root = |slot: &u64| shows(&zeroed(*slot), |finding| finding.structure == "root directory");
    let root = (1..64).map(|block| block * 4096 + SLOT_BYTES).find(is_root).expect("a root directory");
    let others = (1..31).map(|number| (root + number * SLOT_BYTES + AT_CHECKSUM, 0));
    let is_file = |&word: &(u64, u64)| shows(&vec![word], |finding| finding.path.as_deref() == Some(&b"/b"[..]));
    (zeroed(root), others.into_iter().find(is_file).expect("a file"))
}

/// What a slot says of the number of its names, and that of a directory of its parent, is another's number: damage where the volume was closed.
fn cached(volume: &Volume) -> impl Iterator<Item = Damage> {
    let (root, _) = slots(volume);
    let damage = move |(word, structure)| {
        let is_said =
            |damage: &Damage| findings(&damaged(volume, damage).0).iter().any(|finding| finding.structure == structure);
        let mut words = (1..31).map(|number| vec![(root[0].0 + number * SLOT_BYTES + word, 777)]);
        words.find(is_said)
    };
    [(AT_LINKS, "link count"), (AT_PARENT, "parent")].into_iter().filter_map(damage)
}

/// A directory with names that none other has, and so many files that there are two chunks of inodes.
pub(crate) fn with_many_names(fs: &LogFs) {
    populate(fs);
    let rig = Rig::new(fs);
    let directory = rig.directory(rig.root, "many");
    for number in 0..20 {
        let file = rig.file(directory, &format!("many.{number}"));
        rig.write(file, 0, &bytes(number, 20));
    }
}

/// A volume as a crash leaves it: with a file that has no name any more and was open, and a log page that was just begun, the line with the
/// header of which is torn, so that behind it there is what the block held before.
pub(crate) fn left_open(volume: &Volume) -> Rc<Volume> {
    let (fs, simulation) = volume.open();
    let rig = Rig::new(&fs);
    let _hold = rig.hold(at(&rig, "/cut").expect("a file"));
    rig.unlink(rig.root, "cut").expect("unlink");
    let node = at(&rig, "/d2/x").expect("a file without a log");
    let mark = simulation.mark();
    let change = AttributeChange { mode: ModeChange::Set(0o321), ..Default::default() };
    fs.set_attributes(node, &change).expect("a change of mode");
    let whole = bytes_of(&simulation.medium(), volume.image.len());
    let mut torn = None;
    torn_lines(&simulation, mark..simulation.mark(), &mut |crash| {
        let image = crash.image_to_vec();
        let words = image.chunks_exact(8).zip(whole.chunks_exact(8)).enumerate();
        let lost: Vec<_> =
            words.filter(|(_, (torn, whole))| torn != whole).map(|(number, _)| number as u64 * 8).collect();
        // A block's first line, from the link on.
        if lost.first().is_some_and(|at| at % 4096 == AT_NEXT) && lost.len() == 4 {
            torn = Some(image);
        }
    });
    Volume::new(torn.expect("a torn line"))
}

const DAMAGES: usize = 24;
const PAST: u8 = 0xE6;
const EPOCH_AT: u64 = 4096;
const MAP_BLOCK: u64 = 2;
const AT_NEXT: u64 = 32;
const SLOT_BYTES: u64 = 128;
const AT_CHECKSUM: u64 = 40;
const AT_LINKS: u64 = 64;
const AT_PARENT: u64 = 72;
