//! Makes an empty volume on a medium. The superblock comes last: what is cut short is no volume.

use crate::bits::Bits;
use crate::check::saved;
use crate::disk::{Disk, access_error};
use crate::format::member::{AT_OPENING, FurtherMedium, MEDIA_MAX, encode_table};
use crate::format::slot::{Birth, encode_map_word};
use crate::format::state::{ARENA_AT, CLEAN_AT, EPOCH_AT, OPENING_AT, OPENING_NEXT_AT, SUMMARY_AT};
use crate::format::superblock::{FEATURE_SMALL_CHUNKS, FEATURE_SPAN, LABEL_BYTES_MAX, Superblock};
use crate::format::{BLOCK_BYTES, Key, LINE_BYTES};
use crate::recover::ROOT;
use crate::span;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{Errno, Error, FileType, InodeFlags, Owner, Result, Time};

/// How a volume shall be.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// A name for people, at most 64 bytes of UTF-8.
    pub label: String,
    /// Data is written copy-on-write unless a file says otherwise.
    pub copy_on_write: bool,
    /// Persistence instructions are executed on a medium that does not need them.
    pub emulate_persistence: bool,
    /// Owner of the root directory.
    pub owner: Owner,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// 24 random bytes: the volume's identity and the key of its checksums.
    pub random: [u8; 24],
    /// The time.
    pub now: Time,
}

/// Makes an empty volume over the whole medium, whatever was there. `EINVAL` where it is too small (1 MiB) or too large
/// (16 TiB), or the label is too long.
pub fn make(medium: &Medium, options: &MakeOptions) -> Result<()> {
    make_with(medium, options, FEATURE_SMALL_CHUNKS, Vec::new())
}

/// A medium behind the first of a volume that spans several.
#[derive(Clone, Debug)]
pub struct FurtherOptions {
    /// Where on the whole it begins; a multiple of 2 MiB.
    pub start_bytes: u64,
    /// Where its file is: absolute, or from the directory of the first medium's file.
    pub path: Vec<u8>,
}

/// As [`make`], over a medium that was joined of several. `EINVAL` also for media that cannot be: too many, of other sizes than
/// whole 2 MiB, a first one that is too small, or paths that are too long.
pub fn make_spanning(medium: &Medium, options: &MakeOptions, further: &[FurtherOptions]) -> Result<()> {
    let media: Vec<FurtherMedium> = further
        .iter()
        .map(|medium| FurtherMedium { first_block: medium.start_bytes / BLOCK_BYTES, path: medium.path.clone() })
        .collect();
    if media.is_empty() {
        return make(medium, options);
    }
    if media.len() >= MEDIA_MAX {
        return Err(Error::because(Errno::INVAL, "a volume spans at most 8 media"));
    }
    let is_path = |medium: &FurtherMedium| !medium.path.is_empty() && !medium.path.contains(&0);
    if !media.iter().all(is_path) || !encode_table(&media, &mut [0; BLOCK_BYTES as usize]) {
        return Err(Error::because(Errno::INVAL, "the paths of the media are too long together"));
    }
    make_with(medium, options, FEATURE_SMALL_CHUNKS | FEATURE_SPAN, media)
}

fn make_with(
    medium: &Medium,
    options: &MakeOptions,
    features_incompatible: u64,
    further: Vec<FurtherMedium>,
) -> Result<()> {
    let blocks = medium.length() / BLOCK_BYTES;
    if options.label.len() > LABEL_BYTES_MAX {
        return Err(Error::because(Errno::INVAL, "the label is longer than 64 bytes"));
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&options.random[..16]);
    let key = Key(crate::format::get_u64(&options.random, 16));
    let mut label = [0; LABEL_BYTES_MAX];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    let superblock = Superblock {
        features_compatible: 0,
        features_read_only: 0,
        features_incompatible,
        uuid,
        label,
        blocks,
        key,
        created: options.now.0,
        copy_on_write: options.copy_on_write,
        emulate_persistence: options.emulate_persistence,
        further,
    };

    let geometry = superblock.geometry().ok_or(if superblock.further.is_empty() {
        Error::because(Errno::INVAL, "a volume has between 1 MiB and 16 TiB")
    } else {
        Error::because(
            Errno::INVAL,
            "each medium of several has a multiple of 2 MiB, the first an 8000th of the volume and 2 MiB at least",
        )
    })?;
    let zero = |at: u64, length_bytes: u64| medium.zero(MediumOffset(at), length_bytes).map_err(access_error);
    let store = |at: u64, value: u64| medium.store_u64(MediumOffset(at), value).map_err(access_error);
    // First of all the old superblocks go.
    zero(0, 2 * BLOCK_BYTES)?;
    zero(geometry.replica() * BLOCK_BYTES, BLOCK_BYTES)?;
    for block in geometry.headers() {
        zero(block * BLOCK_BYTES, BLOCK_BYTES)?;
    }
    medium.fence();
    zero(geometry.map_start * BLOCK_BYTES, (geometry.saved_blocks_start - geometry.map_start) * BLOCK_BYTES)?;
    let chunk = geometry.first_free;
    zero(chunk * BLOCK_BYTES, geometry.chunk_blocks * BLOCK_BYTES)?;
    // Unnoticed [fence]: the next one covers it. It keeps stores past the cache and through it on the same lines apart.
    medium.fence();

    let root = Birth {
        file_type: FileType::Directory,
        mode: options.mode,
        flags: InodeFlags::empty(),
        owner: options.owner,
        device: 0,
        created: options.now.0,
        head: 0,
    };
    let slot_at = chunk * BLOCK_BYTES + ROOT as u64 * crate::format::slot::SLOT_BYTES;
    medium.write(MediumOffset(slot_at), &root.encode(key, ROOT, 1, 2, ROOT)).map_err(access_error)?;
    store(geometry.map_word_at(0), encode_map_word(key, 0, chunk))?;
    store(EPOCH_AT, 1)?;
    store(CLEAN_AT, 0)?;
    zero(SUMMARY_AT, LINE_BYTES)?;
    zero(ARENA_AT, LINE_BYTES)?;
    if geometry.is_spanning() {
        for at in [OPENING_AT, OPENING_NEXT_AT] {
            store(at, key.0)?;
        }
    }
    for (index, range) in geometry.further_media().enumerate() {
        let header = span::header(&superblock, index + 1, &range).encode(key);
        for block in [range.start, range.end - 1] {
            medium.write(MediumOffset(block * BLOCK_BYTES), &header).map_err(access_error)?;
            store(block * BLOCK_BYTES + AT_OPENING, key.0)?;
        }
    }
    // Before there is a superblock: what is half made, without headers of all media even, is no volume.
    medium.fence();

    let encoded = superblock.encode();
    medium.write(MediumOffset(geometry.replica() * BLOCK_BYTES), &encoded[..]).map_err(access_error)?;
    medium.fence();
    medium.write(MediumOffset(0), &encoded[..]).map_err(access_error)?;
    // Unnoticed [fence]: closing it fences, too.
    medium.fence();
    close(&Disk::open(medium.clone())?)
}

/// A new volume is one that was closed cleanly: nobody need look for what a crash left.
fn close(disk: &Disk) -> Result<()> {
    let geometry = disk.geometry();
    let blocks = Bits::new(geometry.blocks);
    for block in geometry.fixed().chain(geometry.first_free..geometry.first_free + geometry.chunk_blocks) {
        let _ = blocks.set(block);
    }
    let inodes = Bits::new(geometry.inodes());
    for inode in [0, ROOT] {
        let _ = inodes.set(inode as u64);
    }
    saved::save(disk, &blocks, &inodes, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttachOptions, CheckOptions, LogFs, NoUsers, Outcome, check};
    use gannet_media::CreateOptions;
    use gannet_vfs::{FileSystem, Name, NewNode};

    #[test]
    fn volumes_with_large_chunks_of_inodes_are_used_as_they_are() {
        for (features, chunk_blocks) in [(0, 4), (FEATURE_SMALL_CHUNKS, 1)] {
            let create = CreateOptions { huge_pages: false, ..Default::default() };
            let medium = Medium::create_in_memory("chunks", 16 << 20, create).expect("memory");
            let options = MakeOptions {
                label: String::new(),
                copy_on_write: false,
                emulate_persistence: false,
                owner: Owner::default(),
                mode: 0o755,
                random: [3; 24],
                now: Time::now(),
            };
            make_with(&medium, &options, features, Vec::new()).expect("mkfs");
            assert_eq!(Disk::open(medium.clone()).expect("open").geometry().chunk_blocks, chunk_blocks);
            let attach = || {
                let options = AttachOptions {
                    index_bytes_max: 1 << 20,
                    copy_on_write: None,
                    access_times: Default::default(),
                    threads: 1,
                    users: Box::new(NoUsers),
                };
                LogFs::open_private(medium.clone(), options).expect("attach")
            };
            let text = |number: u32| format!("file {number}");
            let fs = attach();
            for number in 0..600 {
                let new = NewNode::regular(0o600, Owner::default());
                fs.create(fs.root(), Name::new(text(number).as_bytes()).expect("a name"), &new).expect("create");
            }
            // Not closed: the next one recovers.
            drop(fs);
            let fs = attach();
            for number in 0..600 {
                fs.lookup(fs.root(), Name::new(text(number).as_bytes()).expect("a name")).expect("lookup");
            }
            assert!(fs.detach().expect("detach"));
            drop(fs);
            let report = check(&medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
            assert!(report.outcome == Outcome::Sound, "{:?}", report.findings);
        }
    }
}
