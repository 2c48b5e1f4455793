//! Replies as the kernel reads them.

use std::ops::Range;

use super::constants::{ATTR_BYTES, DIRENT_BYTES, ENTRY_BYTES, OUT_HEADER_BYTES, OpenReplyFlags};
use super::wire::FixedReply;
use gannet_vfs::{Attributes, Statistics};

/// For how long the kernel may believe a name or attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validity {
    /// Whole seconds.
    pub seconds: u64,
    /// Nanoseconds past them.
    pub nanoseconds: u32,
}

impl Validity {
    /// Not at all.
    pub const NONE: Self = Self { seconds: 0, nanoseconds: 0 };
}

/// The header before a reply of `payload_bytes`; `error` is a positive errno or 0.
pub fn out_header(unique: u64, error: i32, payload_bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    let mut header = [0; OUT_HEADER_BYTES];
    let length_bytes = (OUT_HEADER_BYTES + payload_bytes) as u32;
    header[..4].copy_from_slice(&length_bytes.to_le_bytes());
    header[4..8].copy_from_slice(&error.wrapping_neg().to_le_bytes());
    header[8..].copy_from_slice(&unique.to_le_bytes());
    header
}

/// The kernel's 32-bit device number (`new_encode_dev`) of a `dev_t`.
pub fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// The `dev_t` of the kernel's 32-bit device number.
pub fn decode_device(encoded: u32) -> u64 {
    rustix::fs::makedev((encoded & 0xfff00) >> 8, (encoded & 0xff) | (encoded >> 12 & 0xfff00))
}

/// `fuse_attr`, 88 bytes, in one piece: constant places become plain stores.
fn put_attributes(reply: &mut FixedReply, attributes: &Attributes) {
    let mut bytes = [0; ATTR_BYTES];
    let longs = [
        attributes.node.number,
        attributes.size_bytes,
        attributes.sectors,
        attributes.accessed.seconds() as u64,
        attributes.modified.seconds() as u64,
        attributes.changed.seconds() as u64,
    ];
    let words = [
        attributes.accessed.nanoseconds(),
        attributes.modified.nanoseconds(),
        attributes.changed.nanoseconds(),
        attributes.mode_and_type(),
        attributes.links.min(u64::from(u32::MAX)) as u32,
        attributes.owner.user,
        attributes.owner.group,
        encode_device(attributes.device),
        attributes.block_bytes,
    ];
    for (index, long) in longs.into_iter().enumerate() {
        bytes[8 * index..8 * index + 8].copy_from_slice(&long.to_le_bytes());
    }
    for (index, word) in words.into_iter().enumerate() {
        bytes[48 + 4 * index..52 + 4 * index].copy_from_slice(&word.to_le_bytes());
    }
    reply.put(&bytes);
}

/// `fuse_attr_out`.
pub fn attributes(attributes: &Attributes, validity: Validity) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u64(validity.seconds).u32(validity.nanoseconds).u32(0);
    put_attributes(&mut reply, attributes);
    reply
}

/// `fuse_entry_out`: the inode `node` of the kernel's numbering under a name.
pub fn entry(node: u64, attributes: &Attributes, name_validity: Validity, validity: Validity) -> FixedReply {
    let mut reply = FixedReply::new();
    reply
        .u64(node)
        .u64(u64::from(attributes.node.generation))
        .u64(name_validity.seconds)
        .u64(validity.seconds)
        .u32(name_validity.nanoseconds)
        .u32(validity.nanoseconds);
    put_attributes(&mut reply, attributes);
    reply
}

/// `fuse_entry_out` for a name that does not exist, which the kernel may believe for a while.
pub fn negative_entry(name_validity: Validity) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u64(0).u64(0).u64(name_validity.seconds).u64(0).u32(name_validity.nanoseconds).u32(0);
    reply.zeros(ENTRY_BYTES - 40);
    reply
}

/// `fuse_statx_out`.
pub fn extended_attributes(attributes: &Attributes, validity: Validity) -> FixedReply {
    /// `STATX_BASIC_STATS | STATX_BTIME`.
    const MASK: u32 = 0xfff;
    /// Compressed, immutable, append-only, no-dump, encrypted: of these the middle three are told.
    const ATTRIBUTES_MASK: u64 = 0x10 | 0x20 | 0x40;
    let mut reply = FixedReply::new();
    reply.u64(validity.seconds).u32(validity.nanoseconds).u32(0).zeros(16);
    reply
        .u32(MASK)
        .u32(attributes.block_bytes)
        .u64(u64::from(attributes.flags.bits()) & ATTRIBUTES_MASK)
        .u32(attributes.links.min(u64::from(u32::MAX)) as u32)
        .u32(attributes.owner.user)
        .u32(attributes.owner.group)
        .u16(attributes.mode_and_type() as u16)
        .u16(0)
        .u64(attributes.node.number)
        .u64(attributes.size_bytes)
        .u64(attributes.sectors)
        .u64(ATTRIBUTES_MASK);
    for time in [attributes.accessed, attributes.created, attributes.changed, attributes.modified] {
        reply.u64(time.seconds() as u64).u32(time.nanoseconds()).u32(0);
    }
    reply.u32(rustix::fs::major(attributes.device)).u32(rustix::fs::minor(attributes.device));
    reply.zeros(8 + 14 * 8);
    reply
}

/// `fuse_open_out`.
pub fn opened(handle: u64, flags: OpenReplyFlags) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u64(handle).u32(flags.bits()).u32(0);
    reply
}

/// `fuse_write_out`, also the reply to COPY_FILE_RANGE.
pub fn written(count_bytes: u32) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u32(count_bytes).u32(0);
    reply
}

/// `fuse_lseek_out` and `fuse_copy_file_range_out`.
pub fn position(value: u64) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u64(value);
    reply
}

/// `fuse_lk_out`.
pub fn lock(start: u64, end: u64, kind: u32, process: u32) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u64(start).u64(end).u32(kind).u32(process);
    reply
}

/// `fuse_statfs_out`.
pub fn statistics(statistics: &Statistics) -> FixedReply {
    let mut reply = FixedReply::new();
    reply
        .u64(statistics.blocks)
        .u64(statistics.blocks_free)
        .u64(statistics.blocks_available)
        .u64(statistics.inodes)
        .u64(statistics.inodes_free)
        .u32(statistics.block_bytes)
        .u32(gannet_vfs::NAME_BYTES_MAX as u32)
        .u32(statistics.block_bytes)
        .zeros(4 + 24);
    reply
}

/// `fuse_ioctl_out` for a restricted ioctl.
pub fn ioctl_result(result: i32) -> FixedReply {
    let mut reply = FixedReply::new();
    reply.u32(result as u32).zeros(12);
    reply
}

/// `fuse_notify_inval_inode_out` with its header: the kernel shall forget the attributes of an inode, and its pages in a part.
pub fn invalidate(node: u64, pages: Option<Range<u64>>) -> [u8; OUT_HEADER_BYTES + 24] {
    /// `FUSE_NOTIFY_INVAL_INODE`, where an error stands in a reply; and no request's name.
    const INVALIDATE_INODE: i32 = 2;
    let mut message = [0; OUT_HEADER_BYTES + 24];
    message[..OUT_HEADER_BYTES].copy_from_slice(&out_header(0, -INVALIDATE_INODE, 24));
    message[OUT_HEADER_BYTES..OUT_HEADER_BYTES + 8].copy_from_slice(&node.to_le_bytes());
    // A negative offset: no pages. Length 0: to the end.
    let (offset_bytes, length_bytes) = match pages {
        None => (-1, 0),
        Some(bytes) if bytes.end > i64::MAX as u64 => (bytes.start as i64, 0),
        Some(bytes) => (bytes.start as i64, (bytes.end - bytes.start) as i64),
    };
    message[OUT_HEADER_BYTES + 8..OUT_HEADER_BYTES + 16].copy_from_slice(&offset_bytes.to_le_bytes());
    message[OUT_HEADER_BYTES + 16..].copy_from_slice(&length_bytes.to_le_bytes());
    message
}

/// Directory entries, packed into a reply until it is full.
pub struct DirectoryWriter<'a> {
    out: &'a mut [u8],
    used_bytes: usize,
}

impl<'a> DirectoryWriter<'a> {
    /// Packs into `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, used_bytes: 0 }
    }

    /// How many bytes were packed.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Whether an entry with this name would fit.
    pub fn fits(&self, name: &[u8], plus: bool) -> bool {
        self.out.len() - self.used_bytes >= Self::record_bytes(name, plus)
    }

    fn record_bytes(name: &[u8], plus: bool) -> usize {
        let head_bytes = if plus { ENTRY_BYTES } else { 0 };
        head_bytes + (DIRENT_BYTES + name.len()).next_multiple_of(8)
    }

    /// Appends an entry; with `entry` (a `fuse_entry_out`) in the form of READDIRPLUS. False when it does not fit.
    pub fn push(&mut self, number: u64, cookie: u64, file_type: u32, name: &[u8], entry: Option<&FixedReply>) -> bool {
        let record_bytes = Self::record_bytes(name, entry.is_some());
        let Some(record) = self.out.get_mut(self.used_bytes..self.used_bytes + record_bytes) else { return false };
        let (head, body) = match entry {
            Some(_) => record.split_at_mut(ENTRY_BYTES),
            None => record.split_at_mut(0),
        };
        if let Some(entry) = entry {
            head.copy_from_slice(entry.bytes());
        }
        body[..8].copy_from_slice(&number.to_le_bytes());
        body[8..16].copy_from_slice(&cookie.to_le_bytes());
        body[16..20].copy_from_slice(&(name.len() as u32).to_le_bytes());
        body[20..24].copy_from_slice(&file_type.to_le_bytes());
        body[24..24 + name.len()].copy_from_slice(name);
        body[24 + name.len()..].fill(0);
        self.used_bytes += record_bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::constants::{ATTR_BYTES, ENTRY_BYTES};
    use super::*;
    use gannet_vfs::{FileType, InodeFlags, NodeId, Owner, Time};

    fn sample() -> Attributes {
        Attributes {
            node: NodeId::new(7, 3),
            file_type: FileType::Regular,
            mode: 0o640,
            links: 2,
            owner: Owner { user: 10, group: 20 },
            device: 0,
            size_bytes: 0x1234,
            sectors: 16,
            block_bytes: 4096,
            flags: InodeFlags::APPEND_ONLY,
            accessed: Time(-1),
            modified: Time(2_000_000_003),
            changed: Time(4),
            created: Time(5_000_000_000),
        }
    }

    #[test]
    fn sizes_are_the_protocols() {
        let one = Validity { seconds: 1, nanoseconds: 2 };
        assert_eq!(attributes(&sample(), one).bytes().len(), 16 + ATTR_BYTES);
        assert_eq!(entry(7, &sample(), one, one).bytes().len(), ENTRY_BYTES);
        assert_eq!(negative_entry(one).bytes().len(), ENTRY_BYTES);
        assert_eq!(extended_attributes(&sample(), one).bytes().len(), 288);
        assert_eq!(statistics(&Statistics::default()).bytes().len(), 80);
        assert_eq!(opened(1, OpenReplyFlags::DIRECT_IO).bytes().len(), 16);
        assert_eq!(lock(0, 1, 2, 3).bytes().len(), 24);
        assert_eq!(ioctl_result(0).bytes().len(), 16);
    }

    #[test]
    fn attributes_lie_where_the_kernel_reads_them() {
        let reply = attributes(&sample(), Validity { seconds: 9, nanoseconds: 8 });
        let bytes = reply.bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((long(0), word(8)), (9, 8));
        assert_eq!((long(16), long(24), long(32)), (7, 0x1234, 16));
        // One nanosecond before the epoch is second -1 and 999,999,999 nanoseconds.
        assert_eq!((long(40) as i64, word(64)), (-1, 999_999_999));
        assert_eq!((long(48), word(68)), (2, 3));
        assert_eq!((word(76), word(80), word(84), word(88)), (0o100_640, 2, 10, 20));
        assert_eq!(word(96), 4096);
    }

    #[test]
    fn device_numbers_survive_the_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 0xf_ffff), (0xfff, 0x100)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn errors_are_negated_in_the_header() {
        let header = out_header(0x1122, 2, 0);
        assert_eq!(header[..4], 16u32.to_le_bytes());
        assert_eq!(header[4..8], (-2i32).to_le_bytes());
        assert_eq!(header[8..], 0x1122u64.to_le_bytes());
    }

    #[test]
    fn notifications_carry_their_code_and_no_name() {
        assert_eq!(invalidate(1, None)[24..32], [0xff; 8]);
        let message = invalidate(0x55, Some(0..u64::MAX));
        assert_eq!(message[..4], 40u32.to_le_bytes());
        assert_eq!(message[4..8], 2i32.to_le_bytes());
        assert_eq!(message[8..16], [0; 8]);
        assert_eq!(message[16..24], 0x55u64.to_le_bytes());
        assert_eq!(message[24..], [0; 16]);
        let part = invalidate(0x55, Some(4096..5000));
        assert_eq!((&part[24..32], &part[32..]), (&4096u64.to_le_bytes()[..], &904u64.to_le_bytes()[..]));
    }

    #[test]
    fn directory_entries_are_padded_and_stop_when_full() {
        let mut room = [0xffu8; 64];
        let mut writer = DirectoryWriter::new(&mut room);
        assert!(writer.push(5, 1, 4, b".", None));
        assert!(writer.fits(b"12345678", false));
        assert!(writer.push(6, 2, 8, b"12345678", None));
        assert!(!writer.push(7, 3, 8, b"x", None));
        assert_eq!(writer.used_bytes(), 64);
        assert_eq!(room[16..20], 1u32.to_le_bytes());
        assert_eq!(room[24..32], [b'.', 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&room[56..64], b"12345678");
    }
}
