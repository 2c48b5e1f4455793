//! Volumes for the tests of fsck, written with the format's own encoders and without the engine.

use super::super::saved;
use crate::bits::Bits;
use crate::disk::Disk;
use crate::file_map::hashed_ranges;
use crate::format::entry::{
    Binding, Extents, FileExtent, LargeValue, LoggedAttributes, Owned, Partner, Payload, encode,
};
use crate::format::page::{AT_NEXT, LINES, LinePlace, Link, PageHeader};
use crate::format::shares::SharedRun;
use crate::format::slot::{AT_HEAD, AT_LINKS, AT_PARENT, Birth, SLOT_BYTES, encode_map_word};
use crate::format::state::CLEAN_AT;
use crate::format::superblock::{FEATURE_LARGE_XATTRS, FEATURE_SHARED};
use crate::format::{BLOCK_BYTES, LINE_BYTES, Tag};
use crate::mkfs::{MakeOptions, make};
use crate::recover::ROOT;
use gannet_media::{DataHash, Medium};
use gannet_vfs::{FileType, InodeFlags, Owner, Time};
use std::collections::HashMap;

/// A log's end.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    pub(crate) generation: u32,
    pub(crate) block: u64,
    pub(crate) line: u32,
    pub(crate) sequence: u64,
}

/// A volume being written.
pub(crate) struct Builder {
    pub(crate) medium: Medium,
    pub(crate) disk: Disk,
    pub(crate) logs: HashMap<u32, Log>,
    pub(crate) blocks: Vec<u64>,
    links: HashMap<u32, (FileType, u64, u32)>,
    chunks: Vec<u64>,
    next_block: u64,
    next_inode: u32,
    time: i64,
    shared: Vec<SharedRun>,
}

pub(crate) const VOLUME_BYTES: u64 = 1 << 20;

impl Builder {
    pub(crate) fn new() -> Self {
        let (medium, _) = Medium::simulated(VOLUME_BYTES);
        let options = MakeOptions {
            label: "test".into(),
            copy_on_write: false,
            emulate_persistence: false,
            owner: Owner::default(),
            mode: 0o755,
            random: *b"abcdefghijklmnopqrstuvwx",
            now: Time(1_000),
        };
        make(&medium, &options).unwrap();
        let disk = Disk::open(medium.clone()).unwrap();
        let first = disk.geometry().first_free;
        let next_block = first + disk.geometry().chunk_blocks;
        Self {
            medium,
            disk,
            logs: HashMap::from([(ROOT, Log { generation: 1, block: 0, line: LINES, sequence: 1 })]),
            blocks: Vec::new(),
            links: HashMap::from([(ROOT, (FileType::Directory, 2, ROOT))]),
            chunks: vec![first],
            next_block,
            next_inode: 2,
            time: 2_000,
            shared: Vec::new(),
        }
    }

    pub(crate) fn take_block(&mut self) -> u64 {
        self.next_block += 1;
        self.blocks.push(self.next_block - 1);
        self.next_block - 1
    }

    fn store(&self, at: u64, word: u64) {
        let mut commit = self.disk.begin();
        commit.store(at, word).unwrap();
        let _ = commit.fence();
    }

    fn write_bytes(&self, at: u64, bytes: &[u8]) {
        let mut commit = self.disk.begin();
        commit.write(at, bytes).unwrap();
        let _ = commit.fence();
    }

    pub(crate) fn slot_at(&self, inode: u32) -> u64 {
        self.disk.slot_at(inode).unwrap().unwrap()
    }

    /// Appends an entry; returns where and with which sequence.
    pub(crate) fn append(&mut self, inode: u32, payload: &Payload<'_>) -> (LinePlace, u64) {
        self.time += 10;
        let mut log = self.logs[&inode];
        let key = self.disk.key();
        let epoch = self.disk.epoch();
        if log.line + payload.lines() > LINES {
            let block = self.take_block();
            let header =
                PageHeader { inode, generation: log.generation, epoch, first_sequence: log.sequence }.encode(key);
            let mut page = [0; BLOCK_BYTES as usize];
            page[..LINE_BYTES as usize].copy_from_slice(&header);
            self.write_bytes(block * BLOCK_BYTES, &page);
            let from = match log.block {
                0 => self.slot_at(inode) + AT_HEAD,
                previous => previous * BLOCK_BYTES + AT_NEXT,
            };
            self.store(from, Link { block, epoch }.encode());
            (log.block, log.line) = (block, 1);
        }
        let place = LinePlace::new(log.block, log.line);
        let owned = Owned { key, inode, generation: log.generation };
        let mut buffer = [0; BLOCK_BYTES as usize];
        let bytes = encode(owned, epoch, log.sequence, self.time, payload, &mut buffer);
        self.write_bytes(place.offset_bytes(), bytes);
        log.line += payload.lines();
        log.sequence += 1;
        self.logs.insert(inode, log);
        (place, log.sequence - 1)
    }

    fn binding<'n>(&self, name: &'n [u8], target: Option<(u32, FileType)>) -> Binding<'n> {
        let inode = target.map_or(0, |(inode, _)| inode);
        let generation = self.logs.get(&inode).map_or(1, |log| log.generation);
        Binding { name, rank: 0, file_type: target.map(|(_, file_type)| file_type), inode, generation }
    }

    /// Makes an inode with a name.
    pub(crate) fn create(&mut self, directory: u32, name: &[u8], file_type: FileType) -> u32 {
        let inode = self.next_inode;
        self.next_inode += 1;
        let chunk = inode as u64 / self.disk.geometry().slots_per_chunk();
        if chunk as usize == self.chunks.len() {
            let length = self.disk.geometry().chunk_blocks;
            let first = self.next_block;
            self.next_block += length;
            self.chunks.push(first);
            self.store(self.disk.geometry().map_word_at(chunk), encode_map_word(self.disk.key(), chunk, first));
        }
        self.logs.insert(inode, Log { generation: 1, block: 0, line: LINES, sequence: 1 });
        let birth = Birth {
            file_type,
            mode: 0o640,
            flags: InodeFlags::empty(),
            owner: Owner { user: 5, group: 6 },
            device: if file_type == FileType::CharacterDevice { 259 } else { 0 },
            created: self.time + 10,
            head: 0,
        };
        let links = if file_type == FileType::Directory { 2 } else { 1 };
        let bytes: [u8; SLOT_BYTES as usize] =
            birth.encode(self.disk.key(), inode, 1, links, if links == 2 { directory } else { 0 });
        self.write_bytes(self.slot_at(inode), &bytes);
        self.links.insert(inode, (file_type, links, directory));
        let first = self.binding(name, Some((inode, file_type)));
        self.append(directory, &Payload::Bind { first, second: None, birth: Some(birth), partner: None });
        inode
    }

    /// Binds another name.
    pub(crate) fn link(&mut self, directory: u32, name: &[u8], inode: u32) {
        let entry = self.links.get_mut(&inode).unwrap();
        entry.1 += 1;
        let (file_type, links, _) = *entry;
        self.store(self.slot_at(inode) + AT_LINKS, links);
        let first = self.binding(name, Some((inode, file_type)));
        self.append(directory, &Payload::Bind { first, second: None, birth: None, partner: None });
    }

    /// Removes a name.
    pub(crate) fn unlink(&mut self, directory: u32, name: &[u8], inode: u32) {
        let entry = self.links.get_mut(&inode).unwrap();
        entry.1 -= 1;
        let links = entry.1;
        self.store(self.slot_at(inode) + AT_LINKS, links);
        let first = Binding { file_type: None, ..self.binding(name, None) };
        self.append(directory, &Payload::Bind { first, second: None, birth: None, partner: None });
    }

    /// Renames within a directory.
    pub(crate) fn rename(&mut self, directory: u32, from: &[u8], to: &[u8], inode: u32) {
        let first = self.binding(to, Some((inode, self.links[&inode].0)));
        let second = Some(self.binding(from, None));
        self.append(directory, &Payload::Bind { first, second, birth: None, partner: None });
    }

    /// Renames across directories: both halves, or only the second one.
    pub(crate) fn rename_across(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), inode: u32, both: bool) {
        let partner = |log: Log, inode| Some(Partner { inode, generation: log.generation, sequence: log.sequence });
        let (from_log, to_log) = (self.logs[&from.0], self.logs[&to.0]);
        if both {
            let first = self.binding(from.1, None);
            self.append(from.0, &Payload::Bind { first, second: None, birth: None, partner: partner(to_log, to.0) });
        }
        let first = self.binding(to.1, Some((inode, self.links[&inode].0)));
        self.append(to.0, &Payload::Bind { first, second: None, birth: None, partner: partner(from_log, from.0) });
        if self.links[&inode].0 == FileType::Directory {
            self.store(self.slot_at(inode) + AT_PARENT, to.0 as u64);
        }
    }

    /// Appends whole blocks to a file, with a data hash.
    pub(crate) fn write(&mut self, inode: u32, file_block: u64, count: u64, fill: u8) -> Vec<u64> {
        let blocks: Vec<u64> = (0..count).map(|_| self.take_block()).collect();
        for &block in &blocks {
            self.write_bytes(block * BLOCK_BYTES, &[fill; BLOCK_BYTES as usize]);
        }
        let extents = [FileExtent { file_block, block: blocks[0], count: count as u32, shared: false }];
        let size_bytes = (file_block + count) * BLOCK_BYTES;
        let generation = self.logs[&inode].generation;
        let mut hash = DataHash::new(self.disk.key().seed(Tag::Data, inode as u64, generation as u64));
        // The size before is a whole number of blocks, so the old end adds nothing.
        hashed_ranges(
            0,
            size_bytes,
            &Extents::List(&extents),
            |_| None,
            |at, length_bytes| self.disk.hash_range(&mut hash, at, length_bytes),
        )
        .unwrap();
        let payload = Payload::Write { size_bytes, hash: Some(hash.value()), extents: Extents::List(&extents) };
        self.append(inode, &payload);
        blocks
    }

    /// Makes a file share blocks of another, contiguous ones.
    pub(crate) fn share(&mut self, inode: u32, file_block: u64, blocks: &[u64]) {
        self.disk.add_feature(FEATURE_SHARED).unwrap();
        let count = blocks.len() as u32;
        let extents = [FileExtent { file_block, block: blocks[0], count, shared: true }];
        self.append(
            inode,
            &Payload::Remap {
                size_bytes: (file_block + count as u64 + 1) * BLOCK_BYTES,
                file_block,
                count: count as u64 + 1,
                extents: Extents::List(&extents),
            },
        );
        self.shared.push(SharedRun { block: blocks[0], count, references: 2 });
    }

    /// Gives an inode an attribute whose value stands in blocks of its own.
    pub(crate) fn large_xattr(&mut self, inode: u32, name: &[u8], value: &[u8]) -> u64 {
        self.disk.add_feature(FEATURE_LARGE_XATTRS).unwrap();
        let blocks: Vec<u64> = value.chunks(BLOCK_BYTES as usize).map(|_| self.take_block()).collect();
        for (&block, part) in blocks.iter().zip(value.chunks(BLOCK_BYTES as usize)) {
            self.write_bytes(block * BLOCK_BYTES, part);
        }
        let extents = [FileExtent { file_block: 0, block: blocks[0], count: blocks.len() as u32, shared: false }];
        let owned = Owned { key: self.disk.key(), inode, generation: self.logs[&inode].generation };
        let checksum = owned.value_checksum(value);
        let value = LargeValue { bytes: value.len() as u32, checksum, extents: Extents::List(&extents) };
        self.append(inode, &Payload::LargeXattr { name, value });
        blocks[0]
    }

    pub(crate) fn attributes(&mut self, inode: u32, size_bytes: u64) {
        let attributes = LoggedAttributes {
            mode: 0o600,
            flags: InodeFlags::NO_DUMP,
            owner: Owner { user: 7, group: 8 },
            size_bytes,
            modified: 5,
            accessed: 6,
        };
        self.append(inode, &Payload::Attributes(attributes));
    }

    /// Blocks in use, as this builder knows them.
    pub(crate) fn used(&self) -> Bits {
        let geometry = self.disk.geometry();
        let used = Bits::new(geometry.blocks);
        let chunks = self.chunks.iter().flat_map(|&first| first..first + geometry.chunk_blocks);
        for block in geometry.fixed().chain(chunks).chain(self.blocks.clone()) {
            let _ = used.set(block);
        }
        used
    }

    /// Closes the volume cleanly.
    pub(crate) fn close(&self) {
        let used = self.used();
        let inodes = Bits::new(self.disk.geometry().inodes());
        self.logs.keys().chain(&[0]).for_each(|&inode| {
            let _ = inodes.set(inode as u64);
        });
        saved::save(&self.disk, &used, &inodes, &self.shared).unwrap();
    }

    /// Takes the clean detach back.
    pub(crate) fn open_again(&self) {
        self.store(CLEAN_AT, 0);
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; VOLUME_BYTES as usize];
        self.disk.read(0, &mut bytes).unwrap();
        bytes
    }
}

/// What a populated volume has where.
pub(crate) struct Places {
    pub(crate) file: u32,
    pub(crate) file_blocks: Vec<u64>,
    pub(crate) other: u32,
    pub(crate) other_blocks: Vec<u64>,
    pub(crate) directory: u32,
    pub(crate) inner: u32,
    pub(crate) symlink: u32,
    pub(crate) many: u32,
    pub(crate) twin: u32,
    /// First block of a large attribute of `twin`.
    pub(crate) value: u64,
}

/// A volume with something of everything, closed cleanly.
pub(crate) fn populated() -> (Builder, Places) {
    let mut builder = Builder::new();
    let directory = builder.create(ROOT, b"directory", FileType::Directory);
    let file = builder.create(directory, b"file", FileType::Regular);
    let file_blocks = builder.write(file, 0, 3, 0x11);
    let other = builder.create(ROOT, b"other", FileType::Regular);
    let other_blocks = builder.write(other, 0, 4, 0x22);
    builder.append(other, &Payload::Shift { file_block: 2, distance: 5, down: false, size_bytes: 9 * BLOCK_BYTES });
    builder.append(other, &Payload::Xattr { name: b"user.colour", value: Some(b"red") });
    builder.attributes(other, 9 * BLOCK_BYTES);
    builder.append(other, &Payload::Seal);
    let inner = builder.create(directory, b"inner", FileType::Directory);
    builder.create(inner, b"deep", FileType::Regular);
    builder.create(inner, b"pipe", FileType::Fifo);
    builder.create(inner, b"device", FileType::CharacterDevice);
    let symlink = builder.create(ROOT, b"symlink", FileType::Symlink);
    builder.append(symlink, &Payload::Target(b"directory/file"));
    builder.link(inner, b"hard link to file", file);
    let many = builder.create(ROOT, b"many", FileType::Directory);
    for index in 0..140 {
        let name = format!("a name that is long enough to take two lines {index}");
        builder.create(many, name.as_bytes(), FileType::Regular);
    }
    let moved = builder.create(ROOT, b"moved", FileType::Regular);
    builder.rename_across((ROOT, b"moved"), (directory, b"moved here"), moved, true);
    let moved = builder.create(inner, b"moved directory", FileType::Directory);
    builder.rename_across((inner, b"moved directory"), (ROOT, b"moved directory"), moved, true);
    builder.rename(inner, b"deep", b"deeper", builder.logs.keys().copied().find(|&inode| inode == inner + 1).unwrap());
    let gone = builder.create(ROOT, b"gone", FileType::Regular);
    builder.link(ROOT, b"gone too", gone);
    builder.unlink(ROOT, b"gone", gone);
    let twin = builder.create(ROOT, b"twin", FileType::Regular);
    let value = builder.large_xattr(twin, b"user.large", &[0x33; 9000]);
    builder.share(twin, 1, &file_blocks[1..]);
    builder.close();
    (builder, Places { file, file_blocks, other, other_blocks, directory, inner, symlink, many, twin, value })
}
