//! Attributes and inode flags: what is shown, and how changes are understood.

use std::sync::Arc;

use gannet_vfs::{
    AttributeChange, Attributes, Errno, Error, FileType, InodeFlags, ModeChange, NodeId, Permissions, Result, Time,
    TimeChange,
};

use super::names::UNCHANGEABLE;
use super::set_id::{Capability, SET_ID, is_capable};
use super::{Dispatcher, Outcome};
use crate::protocol::constants::{InitFlags, SetAttrValid};
use crate::protocol::reply;
use crate::protocol::request::{Header, IoctlInput, SetAttrRequest};
use crate::protocol::wire::FixedReply;

/// `FS_IOC_GETFLAGS`, and as 32-bit programs call it.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// `FS_IOC_SETFLAGS`. The kernel makes it of what 32-bit programs call, and looks then who may; the number that they use it passes on
/// without a look if a 64-bit program says it.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`: the same flags in another structure.
const GET_EXTENDED_FLAGS: u32 = 0x801c_581f;
const SET_EXTENDED_FLAGS: u32 = 0x401c_5820;
const EXTENDED_FLAGS_BYTES: usize = 28;

impl Dispatcher {
    /// Attributes as this mount shows them.
    pub(super) fn shown(&self, mut attributes: Attributes) -> Attributes {
        attributes.owner.user = self.policy.user.unwrap_or(attributes.owner.user);
        attributes.owner.group = self.policy.group.unwrap_or(attributes.owner.group);
        attributes.sectors = self.shown_sectors(&attributes);
        if let Some(umask) = self.policy.umask
            && attributes.file_type != FileType::Symlink
        {
            attributes.mode = attributes.mode & !0o777 | 0o777 & !umask;
        }
        attributes
    }

    pub(super) fn get_attributes(&self, header: &Header, by_file: bool) -> Result<FixedReply> {
        let mut attributes = self.file_system.attributes(self.node(header.node)?)?;
        if by_file {
            self.refresh_pages(header.node, &mut attributes);
        }
        Ok(reply::attributes(&self.shown(attributes), self.attribute_validity(header.node)))
    }

    pub(super) fn get_extended_attributes(&self, header: &Header) -> Result<FixedReply> {
        let attributes = self.file_system.attributes(self.node(header.node)?)?;
        Ok(reply::extended_attributes(&self.shown(attributes), self.attribute_validity(header.node)))
    }

    pub(super) fn set_attributes(&self, header: &Header, request: &SetAttrRequest) -> Result<FixedReply> {
        let node = self.node(header.node)?;
        let valid = request.valid;
        let times_of_pages = valid.contains(SetAttrValid::CTIME) && !self.agreed(InitFlags::WRITEBACK_CACHE);
        let size_bytes = self.size_to_set(header, node, request)?;
        if times_of_pages || size_bytes.is_none() && valid.contains(SetAttrValid::SIZE) {
            // Nobody asked: with ctime come only the times that the kernel remembers, after it wrote back a map's pages. They are
            // older than those of that very write, and of others' changes. And a size may be the kernel's own idea.
            let attributes = self.file_system.attributes(node)?;
            return Ok(reply::attributes(&self.shown(attributes), self.unguarded_validity()));
        }
        let now = self.file_system.permissions(node)?;
        let set_time = |set, set_now, (seconds, nanoseconds): (i64, u32)| {
            if valid.contains(set_now) {
                TimeChange::Now
            } else if valid.contains(set) {
                TimeChange::Set(Time::from_parts(seconds, nanoseconds.min(999_999_999)))
            } else {
                TimeChange::Keep
            }
        };
        let mut change = AttributeChange {
            size_bytes,
            user: valid.contains(SetAttrValid::UID).then_some(request.user),
            group: valid.contains(SetAttrValid::GID).then_some(request.group),
            accessed: set_time(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, request.accessed),
            modified: set_time(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, request.modified),
            ..AttributeChange::default()
        };
        let owner_changes = valid.intersects(SetAttrValid::UID | SetAttrValid::GID);
        if valid.contains(SetAttrValid::MODE) {
            change.mode = ModeChange::Set(request.mode & 0o7777);
        } else if owner_changes && now.file_type != FileType::Directory {
            // The kernel leaves this to us (HANDLE_KILLPRIV_V2). Also root's chown drops the bits.
            let bits = now.mode & SET_ID != 0 && !is_capable(header, Capability::SetId);
            change.mode = if bits { self.mode_after_change(header, &now) } else { ModeChange::DropSetId };
        } else if valid.contains(SetAttrValid::KILL_SUIDGID) {
            change.mode = self.mode_after_change(header, &now);
        } else if valid.is_empty() {
            change.mode = self.mode_before_change(header, &now);
        }
        let others = SetAttrValid::MODE | SetAttrValid::UID | SetAttrValid::GID | SetAttrValid::SIZE;
        let touches_only = !valid.intersects(others) && self.only_touches(&now, change.accessed, change.modified);
        if now.flags.contains(InodeFlags::IMMUTABLE) || (now.flags.contains(InodeFlags::APPEND_ONLY) && !touches_only) {
            return Err(UNCHANGEABLE);
        }
        // With `uid=` and `gid=` everything seems to belong to one owner already; the volume keeps its own.
        if self.policy.user.is_some() {
            change.user = None;
        }
        if self.policy.group.is_some() {
            change.group = None;
        }
        let attributes = self.file_system.set_attributes(node, &change)?;
        if change.size_bytes.is_some() || owner_changes && now.file_type != FileType::Directory {
            self.drop_capabilities(node);
        }
        Ok(reply::attributes(&self.shown(attributes), self.unguarded_validity()))
    }

    /// Whether times are set as `touch` does, both to now, which an append-only file allows.
    fn only_touches(&self, now: &Permissions, accessed: TimeChange, modified: TimeChange) -> bool {
        use TimeChange::{Keep, Now, Set};
        if self.agreed(InitFlags::WRITEBACK_CACHE) && now.file_type == FileType::Regular {
            // The kernel keeps the second one: it sends that of its writes, which cannot be told apart from a program's, and what now is.
            return matches!((accessed, modified), (Keep, Keep | Set(_)) | (Now, Now | Set(_)));
        }
        matches!((accessed, modified), (Keep, Keep) | (Now, Now))
    }

    /// Removes file capabilities, as a change of owner or content does.
    pub(super) fn drop_capabilities(&self, node: NodeId) {
        let name = b"security.capability";
        if self.file_system.may_have_privileges(node) && self.file_system.xattr(node, name, &mut []).is_ok() {
            let _ = self.file_system.remove_xattr(node, name);
        }
    }

    /// The inode-flag calls; `ENOTTY` for any other. The reply is `fuse_ioctl_out` and the output.
    pub(super) fn ioctl(
        self: &Arc<Self>,
        header: &Header,
        command: u32,
        input: &IoctlInput,
        out_bytes: u32,
        out: &mut [u8],
    ) -> Result<Outcome> {
        let node = self.node(header.node)?;
        let [a, b, c, d, ..] = input.bytes;
        let wanted = u32::from_le_bytes([a, b, c, d]);
        let now = || Ok::<_, Error>(self.file_system.permissions(node)?.flags);
        let mut output = [0u8; EXTENDED_FLAGS_BYTES];
        let output_bytes = if GET_FLAGS.contains(&command) {
            output[..8].copy_from_slice(&u64::from(now()?.bits()).to_le_bytes());
            8
        } else if command == SET_FLAGS {
            return self.set_flags(header, node, now()?.with_bits(wanted)?);
        } else if command == GET_EXTENDED_FLAGS {
            output[..4].copy_from_slice(&u32::to_le_bytes(now()?.extended()));
            EXTENDED_FLAGS_BYTES
        } else if command == SET_EXTENDED_FLAGS {
            // Extent size hints and project ids have no meaning here: none or an error.
            if input.bytes[4..28].iter().any(|&byte| byte != 0) {
                return Err(Error::new(Errno::OPNOTSUPP));
            }
            return self.set_flags(header, node, now()?.with_extended(wanted)?);
        } else {
            return Err(Error::new(Errno::NOTTY));
        };
        let reply = reply::ioctl_result(0);
        let head_bytes = reply.bytes().len();
        let total_bytes = head_bytes + output_bytes.min(out_bytes as usize);
        let room = out.get_mut(..total_bytes).ok_or(Error::new(Errno::RANGE))?;
        room[..head_bytes].copy_from_slice(reply.bytes());
        room[head_bytes..].copy_from_slice(&output[..total_bytes - head_bytes]);
        Ok(Outcome::Reply(total_bytes))
    }
}
