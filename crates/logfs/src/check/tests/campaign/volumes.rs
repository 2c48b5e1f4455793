//! The volumes that the campaign damages: on one, two and three media, closed cleanly and left open in the middle of work, with
//! something of everything and logs of several pages that were collected. What is on them, and where.

use super::super::fuzz::Targets;
use super::seen::Seen;
use crate::attach::AttachOptions;
use crate::check::model::{Given, Model};
use crate::disk::Disk;
use crate::format::entry::claimed_lines;
use crate::format::slot::SLOT_BYTES;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::mkfs::{FurtherOptions, MakeOptions, make, make_spanning};
use crate::ops::NoUsers;
use crate::volume::LogFs;
use gannet_fstest::{Rig, name};
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_vfs::{NodeId, Owner, Result, Time, XattrMode};
use std::collections::BTreeMap;
use std::ops::Range;

const MEBIBYTE: u64 = 1 << 20;

/// A volume that can be damaged.
pub(super) struct Volume {
    pub(super) text: String,
    pub(super) image: Vec<u8>,
    first_bytes: Option<u64>,
    pub(super) is_closed: bool,
    /// What is on it, as the engine shows it.
    pub(super) seen: Seen,
    pub(super) targets: Targets,
    /// Blocks with metadata.
    pub(super) metadata: Vec<u64>,
    /// Blocks in use.
    pub(super) used: Vec<u64>,
    /// Of each inode, where damage cannot be told from what a crash leaves, if the volume was not closed: its slot, the end of its log, its data.
    pub(super) in_flight: BTreeMap<u32, Vec<Range<u64>>>,
    /// Of each inode, its log's last entry: where it is not there at all, nothing tells that it was.
    pub(super) last: BTreeMap<u32, Range<u64>>,
}

/// All of them.
pub(super) fn all() -> Vec<Volume> {
    let media: [&[u64]; 3] = [&[2], &[2, 2], &[2, 2, 2]];
    media
        .into_iter()
        .flat_map(|sizes| {
            [true, false].map(|is_closed| {
                let text = format!("{} media, {}", sizes.len(), if is_closed { "closed" } else { "open" });
                Volume::new(text, sizes, is_closed)
            })
        })
        .collect()
}

pub(super) fn attach(medium: &Medium) -> Result<LogFs> {
    let options = AttachOptions {
        index_bytes_max: 4 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium.clone(), options)
}

fn simulated(image: &[u8], first_bytes: Option<u64>) -> (Medium, Simulation) {
    let (medium, simulation) = Medium::simulated_from_image(image);
    if let Some(bytes) = first_bytes {
        simulation.set_first_length(bytes);
    }
    (medium, simulation)
}

fn bytes_of(medium: &Medium) -> Vec<u8> {
    let mut bytes = vec![0; medium.length() as usize];
    medium.read(MediumOffset(0), &mut bytes).unwrap();
    bytes
}

impl Volume {
    fn new(text: String, sizes: &[u64], is_closed: bool) -> Self {
        let first_bytes = (sizes.len() > 1).then_some(sizes[0] * MEBIBYTE);
        let blank = vec![0; (sizes.iter().sum::<u64>() * MEBIBYTE) as usize];
        let (medium, _simulation) = simulated(&blank, first_bytes);
        let options = MakeOptions {
            label: String::new(),
            copy_on_write: false,
            emulate_persistence: false,
            owner: Owner::default(),
            mode: 0o755,
            random: *b"of the campaign of fsck.",
            now: Time(1_000),
        };
        let mut start_bytes = 0;
        let mut further = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            if index > 0 {
                further.push(FurtherOptions { start_bytes, path: format!("{index}").into() });
            }
            start_bytes += size * MEBIBYTE;
        }
        match &further[..] {
            [] => make(&medium, &options).unwrap(),
            further => make_spanning(&medium, &options, further).unwrap(),
        }
        let fs = attach(&medium).unwrap();
        populate(&fs, sizes[0] * MEBIBYTE);
        assert!(fs.detach().unwrap());
        drop(fs);
        if !is_closed {
            let fs = attach(&medium).unwrap();
            let open = work_on(&fs);
            let image = bytes_of(&medium);
            drop(open);
            drop(fs);
            return Self::from_image(text, image, first_bytes, false);
        }
        Self::from_image(text, bytes_of(&medium), first_bytes, true)
    }

    fn from_image(text: String, image: Vec<u8>, first_bytes: Option<u64>, is_closed: bool) -> Self {
        let (medium, _simulation) = simulated(&image, first_bytes);
        let disk = Disk::open(medium).unwrap();
        let model = Model::of(&disk, Given::default(), 1, &mut |_| {}).unwrap();
        assert!(!model.findings.damaged(), "{text}: {:?}", model.findings);
        let geometry = *disk.geometry();
        let mut metadata: Vec<u64> = geometry.fixed().collect();
        let (mut in_flight, mut last_entries) = (BTreeMap::new(), BTreeMap::new());
        for &block in model.ground.chunks.blocks.values() {
            metadata.extend(block..block + geometry.chunk_blocks);
        }
        for examined in model.inodes.values() {
            metadata.extend(&examined.log.pages);
            let slot = model.ground.chunks.slot_at(&disk, examined.inode).unwrap();
            let last = examined.log.pages.iter().rev().take(2);
            let data = examined.map.iter().flat_map(|run| run.block..run.block + run.count as u64);
            let blocks = last.copied().chain(data).map(|block| block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
            if let Some(at) = examined.log.last.map(|last| last.offset_bytes()) {
                let lines = claimed_lines(&image[at as usize..]).unwrap();
                last_entries.insert(examined.inode, at..at + lines as u64 * LINE_BYTES);
            }
            in_flight.insert(examined.inode, blocks.chain(std::iter::once(slot..slot + SLOT_BYTES)).collect());
        }
        let used: Vec<u64> = (0..geometry.blocks).filter(|&block| model.used.has(block)).collect();
        let targets = Targets::of(&disk, &image, used.clone());
        drop(model);
        let (copy, _simulation) = simulated(&image, first_bytes);
        let fs = attach(&copy).unwrap();
        let seen = Seen::of(&fs).unwrap();
        drop(fs);
        Self { text, image, first_bytes, is_closed, seen, targets, metadata, used, in_flight, last: last_entries }
    }

    /// A medium, or several, with these bytes.
    pub(super) fn medium(&self, image: &[u8]) -> (Medium, Simulation) {
        simulated(image, self.first_bytes)
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (seed.wrapping_mul(0x9E37_79B9) >> (at % 5) ^ (at / 7) as u64) as u8 | 1).collect()
}

/// Something of everything, on both sides of the first medium's end.
fn populate(fs: &LogFs, first_bytes: u64) {
    let rig = Rig::new(fs);
    for number in 0..5 {
        let directory = rig.directory(rig.root, &format!("directory {number}"));
        let inner = rig.directory(directory, "inner");
        for file in 0..6_u64 {
            let node = rig.file(directory, &format!("file {file}"));
            rig.write(node, 0, &pattern(number * 7 + file, 500 + 3000 * file as usize));
            rig.fs.set_xattr(node, b"user.small", &pattern(file, 40), XattrMode::Any).unwrap();
            if file == 3 {
                rig.fs.link(node, inner, name("another name")).unwrap();
                rig.fs.set_xattr(node, b"user.large", &pattern(file, 9000), XattrMode::Any).unwrap();
            }
        }
        rig.symlink(inner, "link", b"../file 1").unwrap();
    }
    // Logs of several pages, some collected, some not.
    let many = rig.directory(rig.root, "many names");
    for number in 0..170 {
        rig.file(many, &format!("a name that is so long that it takes more than a line of the log {number}"));
    }
    let often = rig.file(rig.root, "written often");
    for number in 0..150_u64 {
        rig.write(often, (number % 7) * 8192, &pattern(number, 5000));
        rig.resize(often, 9000 + number * 40).unwrap();
    }
    let renamed = rig.directory(rig.root, "renamed");
    for number in 0..60 {
        rig.file(many, "before");
        rig.rename((many, "before"), (renamed, &format!("after {}", number % 9))).unwrap();
    }
    let original = rig.file(rig.root, "original");
    rig.write(original, 0, &pattern(99, 20_000));
    let clone = rig.file(rig.root, "clone");
    rig.fs.clone_range(original, 0, clone, 0, 20_000).unwrap();
    let sparse = rig.file(rig.root, "sparse");
    for piece in 0..6 {
        rig.write(sparse, piece * 50_000, &pattern(piece, 6000));
    }
    // What comes now lies on the further media, if there are any.
    let ballast = rig.file(rig.root, "ballast");
    rig.write(ballast, 0, &pattern(5, first_bytes as usize / 3));
    let last = rig.directory(rig.root, "last");
    for number in 0..30 {
        let node = rig.file(last, &format!("{number}"));
        rig.write(node, 0, &pattern(number, 3000));
    }
}

/// What was being done when everybody was gone; who holds the result holds a file open.
fn work_on(fs: &LogFs) -> impl Sized + '_ {
    let rig = Rig::new(fs);
    let find = |path: &str| -> NodeId { rig.find(rig.root, path).unwrap() };
    let (last, renamed) = (find("last"), find("renamed"));
    for number in 0..6 {
        let node = rig.file(renamed, &format!("new {number}"));
        rig.write(node, 0, &pattern(number, 7000));
        rig.rename((renamed, &format!("new {number}")), (last, &format!("moved {number}"))).unwrap();
        rig.unlink(last, &format!("{number}")).unwrap();
    }
    let open = rig.file(last, "open");
    rig.write(open, 0, &pattern(1, 9000));
    let hold = rig.hold(open);
    rig.unlink(last, "open").unwrap();
    hold
}
