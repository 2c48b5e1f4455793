//! Files that hold copies of their own volume's metadata, even forged ones: where a link is lost, what is found is never a file's.

use super::build::{Builder, populated};
use super::damage::head_of;
use super::tree::tree;
use super::{damage, medium_of, repaired};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Binding, Owned, Payload, encode};
use crate::format::page::LinePlace;
use crate::format::slot::AT_HEAD;
use crate::recover::ROOT;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::FileType;

/// A volume with a directory, and a file the only block of which, in front of the directory's log page, holds a copy of that page, or what `change`
/// makes of one.
struct Copied {
    builder: Builder,
    directory: u32,
    file: u32,
}

impl Copied {
    fn new(change: impl Fn(&Builder, u32, &mut Vec<u8>)) -> Self {
        let (mut builder, _) = populated();
        let file = builder.create(ROOT, b"image", FileType::Regular);
        let block = builder.write(file, 0, 1, 0x77)[0];
        builder.append(file, &Payload::Seal);
        let directory = builder.create(ROOT, b"copied", FileType::Directory);
        for number in 0..10 {
            builder.create(directory, format!("before {number}").as_bytes(), FileType::Regular);
        }
        let page = head_of(&builder, directory);
        assert!(block < page, "it is met first");
        let mut copy = vec![0; BLOCK_BYTES as usize];
        builder.disk.read(page * BLOCK_BYTES, &mut copy).unwrap();
        change(&builder, directory, &mut copy);
        builder.medium.write(MediumOffset(block * BLOCK_BYTES), &copy).unwrap();
        for number in 0..6 {
            builder.create(directory, format!("after {number}").as_bytes(), FileType::Regular);
        }
        builder.close();
        Self { builder, directory, file }
    }

    /// Without the links to the logs of these inodes.
    fn without_heads(&self, inodes: &[u32], is_closed: bool) -> Medium {
        let medium = medium_of(&self.builder.image());
        for &inode in inodes {
            medium.store_u64(MediumOffset(self.builder.slot_at(inode) + AT_HEAD), 0x0105_A5A5_A5A5_A5A5).unwrap();
        }
        if !is_closed {
            medium.store_u64(MediumOffset(crate::format::state::CLEAN_AT), 0).unwrap();
        }
        medium
    }

    fn is_found_again(&self, is_closed: bool) {
        let whole = tree(&self.builder.medium);
        // The file's log may be as lost as the directory's: then nobody knows at first that the copy is its.
        for lost in [&[self.directory][..], &[self.directory, self.file]] {
            let medium = self.without_heads(lost, is_closed);
            let report = repaired(&medium);
            assert_eq!(tree(&medium), whole, "{:#?}", damage(&report));
        }
    }
}

#[test]
fn a_copy_of_a_log_page_is_not_taken_for_it() {
    let copied = Copied::new(|_, _, _| {});
    [true, false].into_iter().for_each(|is_closed| copied.is_found_again(is_closed));
}

/// Whoever can read the volume knows the key of its checksums, and may write files where he may.
#[test]
fn a_forged_log_page_in_a_file_is_not_taken_for_one() {
    let copied = Copied::new(|builder, directory, copy| {
        let log = builder.logs[&directory];
        let owned = Owned { key: builder.disk.key(), inode: directory, generation: log.generation };
        // Further than the real one will ever come.
        let (mut line, mut sequence) = (log.line, log.sequence);
        for number in 0.. {
            let name = format!("forged {number}");
            let kind = Some(FileType::Regular);
            let first = Binding { name: name.as_bytes(), rank: 0, file_type: kind, inode: 3, generation: 1 };
            let payload = Payload::Bind { first, second: None, birth: None, partner: None };
            if line + payload.lines() > 64 {
                break;
            }
            let at = LinePlace::new(0, line).offset_bytes() as usize;
            encode(owned, 1, sequence, 5_000, &payload, &mut copy[at..]);
            (line, sequence) = (line + payload.lines(), sequence + 1);
        }
        assert!(sequence > log.sequence + 10);
    });
    [true, false].into_iter().for_each(|is_closed| copied.is_found_again(is_closed));
}

#[test]
fn a_copy_of_the_inode_table_is_not_taken_for_it() {
    let (mut builder, _) = populated();
    let whole_chunk = builder.disk.chunk_block(0).unwrap().unwrap();
    let length = builder.disk.geometry().chunk_blocks;
    let file = builder.create(ROOT, b"image", FileType::Regular);
    let blocks = builder.write(file, 0, length, 0x77);
    builder.append(file, &Payload::Seal);
    builder.close();
    // Its own slot is in what it holds, so the last thing that changes there is not.
    let mut copy = vec![0; (length * BLOCK_BYTES) as usize];
    builder.disk.read(whole_chunk * BLOCK_BYTES, &mut copy).unwrap();
    builder.medium.write(MediumOffset(blocks[0] * BLOCK_BYTES), &copy).unwrap();
    let whole = tree(&builder.medium);
    // The real one is gone as far as the copy was made of it: one slot less.
    let medium = medium_of(&builder.image());
    let other = builder.slot_at(2);
    medium.store_u64(MediumOffset(other + 40), 0).unwrap();
    medium.store_u64(MediumOffset(builder.disk.geometry().map_word_at(0)), 0x5A5A).unwrap();
    let report = repaired(&medium);
    assert_eq!(tree(&medium), whole, "{:#?}", damage(&report));
}
