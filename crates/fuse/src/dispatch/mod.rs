//! A request becomes a call on the file system, and its outcome a reply.
//!
//! Holds what belongs to the mount and not to the file system: the kernel's references ([`nodes`]), the agreement of INIT,
//! the policy about caches. Knows no descriptors: transports hand in bytes and send what comes back. Data is not copied
//! here: a write's source is the request buffer, a read's destination the reply buffer.
//!
//! | file | what |
//! | --- | --- |
//! | `mod.rs` | [`Dispatcher`]: entry points for both transports, the great match |
//! | `names.rs` | lookup, create, link, remove, rename, forget |
//! | `moved.rs`, `again.rs` | files that others move while a program here renames them, or replace while it opens them |
//! | `attributes.rs` | stat, setattr, inode flags |
//! | `data.rs` | open, read, write, allocate, copy |
//! | `direct.rs` | transfers past the kernel's pages, whose pieces come all at once |
//! | `appends.rs`, `cuts.rs` | the order of such pieces of an append; the kernel's cut behind one that failed |
//! | `callers.rs` | what a calling thread is doing |
//! | `seek.rs` | data and holes |
//! | `guarded.rs` | writes to immutable and append-only files |
//! | `directory.rs` | readdir, readdirplus |
//! | `set_id.rs` | set-id bits that fall with changes of content |
//! | `xattr.rs`, `acl.rs` | extended attributes, access control lists |
//! | `locks.rs`, `circles.rs` | record locks, `flock`; who waits for whom, interrupts |
//! | `waiting.rs` | requests that wait: for locks, for room, for what the kernel has yet to write back |
//! | `signals.rs`, `closing.rs` | signals to who waits, where the kernel does not tell; locks that a close is about to drop |
//! | `ending.rs` | the end of a mount, and of who waits |
//! | `users.rs` | open files, as others who share the volume see them |
//! | `caching.rs` | what the kernel may remember, and until when |
//! | `nodes/` | node ids and reference counts; through which pages a file is open |
//! | `policy.rs` | what a mount was asked to do and the file system knows nothing of |
//! | `room.rs` | waiting for room in a full file system |

mod acl;
mod again;
mod appends;
mod attributes;
mod caching;
mod callers;
mod circles;
mod closing;
mod cuts;
mod data;
mod direct;
mod directory;
mod ending;
mod guarded;
mod locks;
mod moved;
mod names;
mod nodes;
mod policy;
mod room;
mod seek;
mod set_id;
mod signals;
mod users;
mod waiting;
mod xattr;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use gannet_vfs::{Errno, Error, FileSystem, NodeId, Result};

use crate::protocol::constants::InitFlags;
use crate::protocol::init::{Agreement, Answer, Wishes, negotiate};
use crate::protocol::reply::{self, Validity};
use crate::protocol::request::{BulkOperation, Header, InitRequest, Operation, Request};
use crate::protocol::wire::{FixedReply, Malformed};
use again::Again;
use caching::Caching;
pub(crate) use caching::Kernel;
use direct::Direct;
use ending::Ending;
use locks::Locks;
use moved::Moved;
use nodes::Nodes;
pub use policy::CachePolicy;
pub(crate) use policy::Policy;
use room::{Raw, Room};
use users::Users;
pub(crate) use waiting::Wait;

/// The longest name of an extended attribute, in bytes: the kernel's limit.
const XATTR_NAME_BYTES_MAX: usize = 255;

/// What a transport does with a request that was dispatched.
pub(crate) enum Outcome {
    /// Send this many bytes of the reply buffer.
    Reply(usize),
    /// Send an error.
    Error(Errno),
    /// Send this reply, which has not been put into the buffer.
    Late(Box<FixedReply>),
    /// Send nothing.
    Silent,
    /// Start the wait, and send its outcome when it ends.
    Waits(Box<Wait>),
}

/// Requests to one mounted file system.
pub(crate) struct Dispatcher {
    file_system: Arc<dyn FileSystem>,
    policy: Policy,
    nodes: Nodes,
    agreement: OnceLock<Agreement>,
    users: Users,
    locks: Locks,
    caching: Caching,
    kernel: OnceLock<Arc<dyn Kernel>>,
    room: Room,
    moved: Moved,
    again: Again,
    direct: Direct,
    ending: Ending,
}

/// For how long the kernel believes what it was told on an exclusive mount. Only the file system itself can change
/// things then, and the kernel learns of that from its own requests.
const EXCLUSIVE: Validity = Validity { seconds: 86_400, nanoseconds: 0 };

impl Dispatcher {
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, policy: Policy) -> Self {
        let nodes = Nodes::new(file_system.root());
        Self {
            file_system,
            policy,
            nodes,
            agreement: OnceLock::new(),
            users: Users::default(),
            locks: Locks::default(),
            caching: Caching::default(),
            kernel: OnceLock::new(),
            room: Room::default(),
            moved: Moved::default(),
            again: Again::default(),
            direct: Direct::default(),
            ending: Ending::default(),
        }
    }

    /// Answers INIT; must happen before anything else.
    pub(crate) fn initialize(&self, offer: &InitRequest, ring: bool) -> Answer {
        let (exclusive, writeback) = match self.policy.cache {
            CachePolicy::Automatic | CachePolicy::Coherent => (false, false),
            CachePolicy::Exclusive { writeback } => (true, writeback),
        };
        let locks = !exclusive && !self.policy.local_locks;
        let wishes = Wishes {
            exclusive,
            writeback,
            locks,
            access_lists: self.policy.umask.is_none(),
            links: !self.policy.strict_access_time,
            ring,
        };
        let answer = negotiate(offer, wishes);
        if let Answer::Agreed(agreement, _) = answer {
            let _ = self.agreement.set(agreement);
        }
        answer
    }

    /// Installs the way to the kernel for what it does not ask.
    pub(crate) fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        let _ = self.kernel.set(kernel);
    }

    /// How many inodes the kernel holds references to.
    pub(crate) fn nodes_held(&self) -> usize {
        self.nodes.held()
    }

    fn agreed(&self, flags: InitFlags) -> bool {
        self.agreement.get().is_some_and(|agreement| agreement.flags.contains(flags))
    }

    fn exclusive(&self) -> bool {
        matches!(self.policy.cache, CachePolicy::Exclusive { .. })
    }

    fn node(&self, id: u64) -> Result<NodeId> {
        Ok(self.nodes.node(id)?)
    }

    /// Serves a request as `/dev/fuse` delivers it. Returns its name and what to send.
    pub(crate) fn serve_contiguous(self: &Arc<Self>, bytes: &[u8], out: &mut [u8]) -> (u64, Outcome) {
        let parsed = Request::parse_contiguous(bytes, self.agreed(InitFlags::SETXATTR_EXT));
        let unique = match &parsed {
            Ok(request) => request.header.unique,
            Err(Malformed) => Header::parse(bytes).map_or(0, |header| header.unique),
        };
        let outcome = match parsed {
            Err(Malformed) => Outcome::Error(Errno::INVAL),
            Ok(Request { operation: None, .. }) => Outcome::Error(Errno::NOSYS),
            Ok(Request { header, operation: Some(Operation::GetXattr { size_bytes, name }) }) => {
                self.named_xattr(&header, size_bytes, name, out)
            }
            Ok(Request { header, operation: Some(Operation::Bulk(operation)) }) => self.bulk(&header, &operation, out),
            Ok(Request { header, operation: Some(operation) }) => {
                match self.fixed(&header, &operation, Raw::Whole(bytes)) {
                    FixedOutcome::Reply(reply) => copy_out(&reply, out),
                    FixedOutcome::Other(outcome) => outcome,
                }
            }
        };
        (unique, outcome)
    }

    /// Serves a request as the ring delivers it: the reply replaces the payload (of which the first `payload_bytes` are the
    /// request's).
    pub(crate) fn serve_split(
        self: &Arc<Self>,
        header: Header,
        structure: &[u8],
        payload: &mut [u8],
        payload_bytes: usize,
    ) -> Outcome {
        let Some(request_payload) = payload.get(..payload_bytes) else { return Outcome::Error(Errno::INVAL) };
        match Request::parse_split(header, structure, request_payload) {
            Err(Malformed) => Outcome::Error(Errno::INVAL),
            Ok(Request { operation: None, .. }) => Outcome::Error(Errno::NOSYS),
            Ok(Request { operation: Some(Operation::GetXattr { size_bytes, name }), .. }) => {
                // The value goes where the name stands.
                let mut copy = [0; XATTR_NAME_BYTES_MAX];
                match copy.get_mut(..name.len()) {
                    Some(room) => {
                        room.copy_from_slice(name);
                        let length_bytes = name.len();
                        self.named_xattr(&header, size_bytes, &copy[..length_bytes], payload)
                    }
                    None => Outcome::Error(Errno::RANGE),
                }
            }
            Ok(Request { operation: Some(Operation::Bulk(operation)), .. }) => self.bulk(&header, &operation, payload),
            Ok(Request { operation: Some(operation), .. }) => {
                let raw = Raw::Split(structure, request_payload);
                match self.fixed(&header, &operation, raw) {
                    FixedOutcome::Reply(reply) => copy_out(&reply, payload),
                    FixedOutcome::Other(outcome) => outcome,
                }
            }
        }
    }

    /// The outcome of an error, and whether its caller tries again.
    fn error(&self, header: &Header, error: &Error) -> Outcome {
        if error.errno() == Errno::STALE {
            self.again.told(header.process, caching::now_ms());
        }
        Outcome::Error(error.errno())
    }

    /// Serves an operation with a reply of fixed size.
    fn fixed_once(self: &Arc<Self>, header: &Header, operation: &Operation<'_>) -> Result<FixedOutcome> {
        let done = || Ok(FixedOutcome::Reply(FixedReply::new()));
        if !matches!(operation, Operation::Write { .. } | Operation::SetAttr(_)) {
            self.no_cut_follows(header);
        }
        let reply = match *operation {
            Operation::Write { handle, offset_bytes, write_flags, open_flags, data } => {
                return self.write(header, handle, offset_bytes, write_flags, open_flags, data);
            }
            Operation::Lookup { name } => self.lookup(header, name)?,
            Operation::GetAttr { by_file } => self.get_attributes(header, by_file)?,
            Operation::StatX { .. } => self.get_extended_attributes(header)?,
            Operation::Open { flags, .. } => self.open(header, flags)?,
            Operation::Flush { handle, lock_owner } => self.flush(header, handle, lock_owner)?,
            Operation::Release { handle, .. } | Operation::ReleaseDirectory { handle } => {
                self.release(header.node, handle);
                return done();
            }
            Operation::Forget { count } => {
                self.forget(header.node, count);
                return Ok(FixedOutcome::Other(Outcome::Silent));
            }
            Operation::BatchForget { entries } => {
                entries.for_each(|(id, count)| self.forget(id, count));
                return Ok(FixedOutcome::Other(Outcome::Silent));
            }
            Operation::Interrupt { unique } => {
                self.interrupt(unique);
                return Ok(FixedOutcome::Other(Outcome::Silent));
            }
            Operation::SetLock { ref lock, wait } => {
                return self.set_lock(header, lock, wait).map(FixedOutcome::Other);
            }
            Operation::GetLock(ref lock) => self.get_lock(header, lock)?,
            Operation::SetAttr(ref change) => self.set_attributes(header, change)?,
            Operation::Create { name, flags, mode, umask, .. } => self.create(header, name, flags, mode, umask)?,
            Operation::TmpFile { flags, mode, umask } => self.create_unnamed(header, flags, mode, umask)?,
            Operation::MakeNode { name, mode, device, umask } => self.make_node(header, name, mode, device, umask)?,
            Operation::MakeDirectory { name, mode, umask } => self.make_directory(header, name, mode, umask)?,
            Operation::Symlink { name, target } => self.make_symlink(header, name, target)?,
            Operation::Unlink { name } => self.remove(header, name, gannet_vfs::RemoveKind::NonDirectory)?,
            Operation::RemoveDirectory { name } => self.remove(header, name, gannet_vfs::RemoveKind::Directory)?,
            Operation::Rename { from, to_directory, to, flags } => {
                self.rename(header, from, to_directory, to, flags)?
            }
            Operation::Link { node, name } => self.link(header, node, name)?,
            Operation::StatFs => {
                self.relieve();
                reply::statistics(&self.file_system.statistics()?)
            }
            Operation::FSync { flags } => self.sync(header, flags)?,
            // Directories are synchronous.
            Operation::FSyncDirectory { .. } => return done(),
            Operation::SyncFileSystem => {
                self.file_system.sync_all()?;
                return done();
            }
            Operation::SetXattr { name, value, flags, set_flags } => {
                self.set_xattr(header, name, value, flags, set_flags)?
            }
            Operation::RemoveXattr { name } => self.remove_xattr(header, name)?,
            Operation::OpenDirectory { flags } => self.open_directory(header, flags)?,
            Operation::Allocate { offset_bytes, length_bytes, mode } => {
                self.allocate(header, offset_bytes, length_bytes, mode)?
            }
            Operation::Seek { offset_bytes, whence } => {
                return self.seek(header, offset_bytes, whence).map(FixedOutcome::Other);
            }
            Operation::CopyRange { offset_bytes, to_node, to_offset_bytes, length_bytes, wide } => {
                self.copy_range(header, offset_bytes, to_node, to_offset_bytes, length_bytes, wide)?
            }
            Operation::Destroy => return done(),
            // The kernel checks permissions: it does not ask again.
            Operation::Access { .. } | Operation::Unserved => return Err(Error::new(Errno::NOSYS)),
            // Answered by the session, once; and handled by `bulk`.
            Operation::Init(_) | Operation::GetXattr { .. } | Operation::Bulk(_) => return Err(Error::new(Errno::IO)),
        };
        Ok(FixedOutcome::Reply(reply))
    }

    /// Serves an operation whose reply fills the buffer.
    fn bulk(self: &Arc<Self>, header: &Header, operation: &BulkOperation, out: &mut [u8]) -> Outcome {
        self.no_cut_follows(header);
        let result = match operation {
            BulkOperation::Read { offset_bytes, size_bytes, open_flags, .. } => {
                self.read(header, *offset_bytes, *size_bytes, *open_flags, out)
            }
            BulkOperation::ReadDirectory { cookie, size_bytes, plus, .. } => {
                self.read_directory(header, *cookie, *size_bytes, *plus, out)
            }
            BulkOperation::ReadLink => self.read_link(header, out),
            BulkOperation::ListXattr { size_bytes } => self.list_xattrs(header, *size_bytes, out),
            BulkOperation::Ioctl { command, input, out_bytes, .. } => {
                let outcome = self.ioctl(header, *command, input, *out_bytes, out);
                return outcome.unwrap_or_else(|error| self.error(header, &error));
            }
        };
        result.map_or_else(|error| self.error(header, &error), Outcome::Reply)
    }

    fn named_xattr(&self, header: &Header, size_bytes: u32, name: &[u8], out: &mut [u8]) -> Outcome {
        self.get_xattr(header, size_bytes, name, out).map_or_else(|error| self.error(header, &error), Outcome::Reply)
    }

    /// The last descriptor of an open file is closed.
    fn release(&self, file: u64, handle: u64) {
        self.drop_locks_of_handle(file, handle);
        self.close_handle(file, handle);
        self.end_of_handle(handle);
    }

    /// Nobody else serves requests: there is nothing to wait for in a full file system.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn lose_patience(&self) {
        self.room.lose_patience();
        self.again.lose_patience();
        self.direct.lose_patience();
    }
}

#[allow(clippy::large_enum_variant, reason = "lives on the stack of one call")]
enum FixedOutcome {
    Reply(FixedReply),
    Other(Outcome),
}

fn copy_out(reply: &FixedReply, out: &mut [u8]) -> Outcome {
    let bytes = reply.bytes();
    match out.get_mut(..bytes.len()) {
        Some(room) => {
            room.copy_from_slice(bytes);
            Outcome::Reply(bytes.len())
        }
        None => Outcome::Error(Errno::RANGE),
    }
}
