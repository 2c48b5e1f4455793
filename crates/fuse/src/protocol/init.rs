//! The negotiation: what the kernel offers, what the server wants, what is agreed.

use super::constants::{INIT_OUT_BYTES, InitFlags, MAJOR, MINOR_MAX, MINOR_MIN};
use super::request::InitRequest;
use super::wire::FixedReply;

/// Bytes of a page as the protocol counts them.
pub const PAGE_BYTES: usize = 4096;
/// The largest read or write asked of the kernel, in bytes: 256 pages, its own default limit.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// What the server would like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wishes {
    /// The volume has no other participant: the kernel may cache.
    pub exclusive: bool,
    /// Written pages may stay in the kernel for a while (with `exclusive` only).
    pub writeback: bool,
    /// The server keeps record locks and `flock` locks.
    pub locks: bool,
    /// Access control lists count.
    pub access_lists: bool,
    /// The kernel may remember where symbolic links lead.
    pub links: bool,
    /// The server is ready to serve the ring.
    pub ring: bool,
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The minor version spoken.
    pub minor: u32,
    /// The flags in force.
    pub flags: InitFlags,
    /// The largest write, in bytes.
    pub write_bytes_max: usize,
    /// The largest number of pages in one request.
    pub pages_max: u16,
}

impl Agreement {
    /// The longest payload of a request or reply, in bytes.
    pub fn payload_bytes_max(&self) -> usize {
        self.write_bytes_max.max(usize::from(self.pages_max) * PAGE_BYTES).max(8192)
    }
}

/// The answer to INIT.
#[allow(clippy::large_enum_variant, reason = "lives on the stack of one call")]
#[derive(Clone, Debug)]
pub enum Answer {
    /// Agreed; the reply says so.
    Agreed(Agreement, FixedReply),
    /// The kernel shall ask again with our major version.
    AskAgain(FixedReply),
    /// The kernel is too old.
    TooOld,
}

/// Answers INIT.
pub fn negotiate(offer: &InitRequest, wishes: Wishes) -> Answer {
    if offer.major > MAJOR {
        let mut reply = FixedReply::new();
        reply.u32(MAJOR).u32(MINOR_MAX).zeros(INIT_OUT_BYTES - 8);
        return Answer::AskAgain(reply);
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return Answer::TooOld;
    }
    // Without ASYNC_DIO the kernel does not move on the position of what io_uring reads or writes directly, which then goes on after a
    // short transfer where it began.
    let mut wanted = InitFlags::ASYNC_READ
        | InitFlags::ASYNC_DIO
        | InitFlags::BIG_WRITES
        | InitFlags::MAX_PAGES
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::DONT_MASK
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::SETXATTR_EXT
        | InitFlags::ALLOW_IDMAP
        | InitFlags::INIT_EXT;
    if wishes.exclusive {
        wanted |= InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::EXPLICIT_INVAL_DATA
            | InitFlags::NO_OPEN_SUPPORT
            | InitFlags::NO_OPENDIR_SUPPORT;
        if wishes.writeback {
            wanted |= InitFlags::WRITEBACK_CACHE;
        }
    } else {
        // Not ATOMIC_O_TRUNC: the kernel looks whether a file is being executed only after a server has truncated it.
        wanted |= InitFlags::AUTO_INVAL_DATA | InitFlags::DIRECT_IO_ALLOW_MMAP;
    }
    if wishes.links {
        wanted |= InitFlags::CACHE_SYMLINKS;
    }
    if wishes.access_lists {
        wanted |= InitFlags::POSIX_ACL;
    }
    if wishes.locks {
        wanted |= InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
    }
    if wishes.ring {
        wanted |= InitFlags::OVER_IO_URING;
    }
    let flags = wanted & offer.flags;
    let pages_max = if flags.contains(InitFlags::MAX_PAGES) { TRANSFER_BYTES_MAX / PAGE_BYTES } else { 32 } as u16;
    let agreement = Agreement {
        minor: offer.minor.min(MINOR_MAX),
        flags,
        write_bytes_max: usize::from(pages_max) * PAGE_BYTES,
        pages_max,
    };
    let mut reply = FixedReply::new();
    reply
        .u32(MAJOR)
        .u32(agreement.minor)
        .u32(offer.readahead_bytes_max)
        .u32(flags.bits() as u32)
        .u16(64) // background requests
        .u16(48) // of them, before the device counts as congested
        .u32(agreement.write_bytes_max as u32)
        .u32(1) // granularity of times, in nanoseconds
        .u16(pages_max)
        .u16(0)
        .u32((flags.bits() >> 32) as u32)
        .zeros(28);
    Answer::Agreed(agreement, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: Wishes =
        Wishes { exclusive: false, writeback: false, locks: false, access_lists: true, links: true, ring: true };

    fn agree(offer: &InitRequest, wishes: Wishes) -> (Agreement, FixedReply) {
        match negotiate(offer, wishes) {
            Answer::Agreed(agreement, reply) => (agreement, reply),
            other => panic!("{other:?}"),
        }
    }

    fn offer(flags: InitFlags) -> InitRequest {
        InitRequest { major: 7, minor: 45, readahead_bytes_max: 131_072, flags }
    }

    #[test]
    fn nothing_is_accepted_that_was_not_offered() {
        for bit in 0..64 {
            let offered = InitFlags::from_bits_retain(1 << bit);
            for exclusive in [false, true] {
                let wishes =
                    Wishes { exclusive, writeback: true, locks: true, access_lists: true, links: true, ring: true };
                let (agreement, reply) = agree(&offer(offered), wishes);
                assert!(offered.contains(agreement.flags), "bit {bit}");
                assert_eq!(reply.bytes().len(), INIT_OUT_BYTES);
            }
        }
    }

    #[test]
    fn versions_are_the_smaller_of_both() {
        let mut request = offer(InitFlags::all());
        assert_eq!(agree(&request, WISHES).0.minor, 45);
        request.minor = 50;
        assert_eq!(agree(&request, WISHES).0.minor, 45);
        request.minor = 31;
        assert_eq!(agree(&request, WISHES).0.minor, 31);
        request.minor = 30;
        assert!(matches!(negotiate(&request, WISHES), Answer::TooOld));
        request.major = 8;
        let Answer::AskAgain(reply) = negotiate(&request, WISHES) else { panic!("a newer major version") };
        assert_eq!(reply.bytes()[..4], 7u32.to_le_bytes());
    }

    #[test]
    fn without_max_pages_transfers_stay_small() {
        let (agreement, _) = agree(&offer(InitFlags::empty()), WISHES);
        assert_eq!(agreement.payload_bytes_max(), 131_072);
        let (agreement, _) = agree(&offer(InitFlags::all()), WISHES);
        assert_eq!(agreement.payload_bytes_max(), TRANSFER_BYTES_MAX);
    }

    #[test]
    fn exclusive_and_coherent_mounts_differ() {
        let (coherent, _) = agree(&offer(InitFlags::all()), WISHES);
        assert!(!coherent.flags.intersects(InitFlags::NO_OPEN_SUPPORT | InitFlags::WRITEBACK_CACHE));
        assert!(coherent.flags.contains(InitFlags::ASYNC_DIO), "io_uring is told the truth about short transfers");
        assert!(coherent.flags.contains(InitFlags::AUTO_INVAL_DATA | InitFlags::DIRECT_IO_ALLOW_MMAP));
        assert!(coherent.flags.contains(InitFlags::CACHE_SYMLINKS));
        let (strict, _) = agree(&offer(InitFlags::all()), Wishes { links: false, ..WISHES });
        assert_eq!(strict.flags, coherent.flags - InitFlags::CACHE_SYMLINKS);
        let wishes = Wishes { exclusive: true, ..WISHES };
        let (exclusive, _) = agree(&offer(InitFlags::all()), wishes);
        assert!(
            exclusive
                .flags
                .contains(InitFlags::NO_OPEN_SUPPORT | InitFlags::EXPLICIT_INVAL_DATA | InitFlags::ASYNC_DIO)
        );
        assert!(!exclusive.flags.contains(InitFlags::WRITEBACK_CACHE));
    }
}
