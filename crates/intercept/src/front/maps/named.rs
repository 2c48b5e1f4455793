//! What memory a call names: where that lies in holes that are filled when they are used (see [lazy](super::lazy)), it gets its blocks before.
//!
//! Into a large buffer no more comes than there is: only so much of it is filled.

use super::PAGE_BYTES;
use super::lazy::{MADV_POPULATE_READ, MADV_POPULATE_WRITE, PIECE_BYTES_MAX, fill_range};
use crate::front::call::Call;
use crate::memory::read_value;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::FileType;

/// As many parts as a vector may have, and as many bytes as a call moves (writev(2), write(2)).
const IOV_MAX: usize = 1024;
const COUNT_MAX: usize = 0x7fff_f000;
/// The longest value and the longest list of names of extended attributes (xattr(7)).
const ATTRIBUTE_BYTES_MAX: usize = 65536;
/// `struct sockaddr_storage`, and its length.
const ADDRESS_BYTES: usize = 128;
const LENGTH_BYTES: usize = 4;
const MMSGHDR_BYTES: usize = 64;
const EPOLL_EVENT_BYTES: usize = 12;

/// A buffer that a call fills or reads, part after part.
struct Buffer<'c, 'r> {
    call: &'c Call<'r>,
    /// Whether it is filled, with what may be less.
    receives: bool,
    /// How long its parts are so far.
    length: usize,
    /// How much can come into it; asked where it is large.
    limit: Option<usize>,
}

impl<'c, 'r> Buffer<'c, 'r> {
    fn new(call: &'c Call<'r>, receives: bool) -> Buffer<'c, 'r> {
        Buffer { call, receives, length: 0, limit: None }
    }

    /// Fills the next part of it.
    fn fill(&mut self, start: usize, length: usize) {
        let length = length.min(COUNT_MAX);
        let before = self.length;
        self.length += length;
        if self.receives && self.length > PIECE_BYTES_MAX && self.limit.is_none() {
            self.limit = Some(may_come(self.call));
        }
        let wanted = self.limit.map_or(length, |limit| length.min(limit.saturating_sub(before)));
        fill_range(self.call, start, wanted);
    }

    /// Likewise the parts of a `struct iovec` array (readv(2)).
    fn fill_vector(&mut self, vector: usize, count: usize) {
        let count = count.min(IOV_MAX);
        fill_range(self.call, vector, count * size_of::<[usize; 2]>());
        for index in 0..count {
            let mut part = [0usize; 2];
            if read_value(vector.saturating_add(index * size_of_val(&part)), &mut part).is_err() {
                return;
            }
            self.fill(part[0], part[1]);
        }
    }

    /// Likewise of a `struct msghdr` (recvmsg(2)): name, vector, control data.
    fn fill_message(mut self, message: usize) {
        let mut header = [0usize; 6];
        fill_range(self.call, message, size_of_val(&header));
        if read_value(message, &mut header).is_ok() {
            let [name, name_length, vector, count, control, control_length] = header;
            fill_range(self.call, name, name_length as u32 as usize);
            self.fill_vector(vector, count);
            fill_range(self.call, control, control_length.min(COUNT_MAX));
        }
    }
}

/// How many bytes at most a call that reads is to find room for. Where more comes, the kernel says how much it has put there, and the next
/// call gets the rest.
#[cold]
fn may_come(call: &Call<'_>) -> usize {
    const MSG_WAITALL: usize = 0x100;
    const S_IFMT: u32 = 0o170000;
    const S_IFCHR: u32 = 0o020000;
    const S_IFBLK: u32 = 0o060000;
    const S_IFREG: u32 = 0o100000;
    let [descriptor, _, c, d, ..] = call.arguments;
    let waits = match call.number {
        RECVFROM | RECVMMSG => d & MSG_WAITALL != 0,
        RECVMSG => c & MSG_WAITALL != 0,
        _ => false,
    };
    if waits {
        return usize::MAX;
    }
    let offset = match call.number {
        PREAD64 | PREADV => d as u64,
        PREADV2 if d != usize::MAX => d as u64,
        _ => 0,
    };
    let size = match call.open_file(descriptor) {
        Some(file) if file.file_type == FileType::Regular => call
            .file_system(&file)
            .and_then(|fs| fs.attributes(file.node).map_err(|error| error.errno()))
            .map_or(u64::MAX, |all| all.size_bytes),
        Some(_) => 0,
        None => {
            let mut status = [0u64; 18];
            // SAFETY: room for struct stat.
            let result = unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) };
            match status[3] as u32 & S_IFMT {
                _ if is_error(result) => 0,
                S_IFREG => status[6],
                // They give as much as they are asked for.
                S_IFCHR | S_IFBLK => u64::MAX,
                _ => 0,
            }
        }
    };
    // Files of /proc have no size.
    usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).max(PIECE_BYTES_MAX)
}

/// Before a call while there are such maps: what memory it names gets its blocks. Where that cannot be, the call finds out.
#[cold]
#[inline(never)]
pub(crate) fn fill_for(call: &Call<'_>) {
    let [a, b, c, d, e, f] = call.arguments;
    let fill = |start, length| fill_range(call, start, length);
    let pages = |addresses: &[usize]| addresses.iter().for_each(|address| fill(*address, PAGE_BYTES));
    match call.number {
        READ | PREAD64 => Buffer::new(call, true).fill(b, c),
        WRITE | PWRITE64 | GETDENTS | GETDENTS64 => fill(b, c),
        RECVFROM | SENDTO => {
            Buffer::new(call, call.number == RECVFROM).fill(b, c);
            fill(e, ADDRESS_BYTES);
            fill(f, LENGTH_BYTES);
        }
        MADVISE if matches!(c, MADV_POPULATE_READ | MADV_POPULATE_WRITE) => fill(a, b),
        READV | PREADV | PREADV2 => Buffer::new(call, true).fill_vector(b, c),
        WRITEV | PWRITEV | PWRITEV2 | VMSPLICE => Buffer::new(call, false).fill_vector(b, c),
        RECVMSG | SENDMSG => Buffer::new(call, call.number == RECVMSG).fill_message(b),
        RECVMMSG | SENDMMSG => {
            for index in 0..c.min(IOV_MAX) {
                Buffer::new(call, call.number == RECVMMSG).fill_message(b.saturating_add(index * MMSGHDR_BYTES));
            }
            // The time that the first waits.
            pages(&[e]);
        }
        GETXATTR | LGETXATTR | FGETXATTR | SETXATTR | LSETXATTR | FSETXATTR => {
            pages(&[a, b]);
            fill(c, d.min(ATTRIBUTE_BYTES_MAX));
        }
        LISTXATTR | LLISTXATTR | FLISTXATTR => {
            pages(&[a]);
            fill(b, c.min(ATTRIBUTE_BYTES_MAX));
        }
        EPOLL_WAIT | EPOLL_PWAIT | EPOLL_PWAIT2 => {
            fill(b, (c as u32 as usize * EPOLL_EVENT_BYTES).min(PIECE_BYTES_MAX));
            pages(&[d, e]);
        }
        // They are about the map itself.
        MMAP | MUNMAP | MREMAP | MPROTECT | PKEY_MPROTECT | MSYNC | MADVISE | REMAP_FILE_PAGES => {}
        // They name no memory.
        CLOSE | CLOSE_RANGE | DUP | DUP2 | DUP3 | LSEEK | FSYNC | FDATASYNC | FTRUNCATE | FLOCK => {}
        // Paths and structures: no longer than a page, as a rule, but they may lie across the end of one.
        _ => pages(&call.arguments),
    }
}
