//! Extended attributes, and the rules that access control lists add.

use gannet_vfs::namespace::AccessList as StoredList;
use gannet_vfs::{Errno, Error, InodeFlags, NodeId, Result, XattrMode};

use super::Dispatcher;
use super::acl::{self, AccessList};
use super::names::UNCHANGEABLE;
use super::set_id::{Capability, is_capable};
use crate::protocol::constants::SETXATTR_ACL_KILL_SGID;
use crate::protocol::request::Header;
use crate::protocol::wire::FixedReply;

/// `EOPNOTSUPP` for a name in no namespace that a file system here has, `EINVAL` for a namespace without a name. The kernel passes
/// everything on.
fn check_name(name: &[u8]) -> Result<()> {
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    for namespace in [&b"user."[..], b"trusted.", b"security."] {
        match name.strip_prefix(namespace) {
            Some([]) => return Err(Error::new(Errno::INVAL)),
            Some(_) => return Ok(()),
            None => {}
        }
    }
    Err(Error::new(Errno::OPNOTSUPP))
}

impl Dispatcher {
    /// A whole value; `None` when absent, also where the file system has no such attributes.
    pub(super) fn xattr_value(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        // It may grow between asking for the length and reading.
        for _ in 0..4 {
            let length_bytes = match self.file_system.xattr(node, name, &mut []) {
                Ok(length_bytes) => length_bytes,
                Err(error) if matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
                Err(error) => return Err(error),
            };
            if length_bytes == 0 {
                return Ok(None);
            }
            value.resize(length_bytes, 0);
            match self.file_system.xattr(node, name, &mut value) {
                Ok(length_bytes) => {
                    value.truncate(length_bytes);
                    return Ok(Some(value));
                }
                Err(error) if error.errno() == Errno::NODATA => return Ok(None),
                Err(error) if error.errno() != Errno::RANGE => return Err(error),
                Err(_) => {}
            }
        }
        Err(Error::new(Errno::RANGE))
    }

    pub(super) fn get_xattr(&self, header: &Header, size_bytes: u32, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let node = self.node(header.node)?;
        check_name(name)?;
        let absent_list = |error: Error| match error.errno() {
            // A file system without attributes has no lists; any other answer would fail every permission check.
            Errno::OPNOTSUPP if name == acl::ACCESS || name == acl::DEFAULT => Error::new(Errno::NODATA),
            _ => error,
        };
        if size_bytes == 0 {
            let length_bytes = self.file_system.xattr(node, name, &mut []).map_err(absent_list)?;
            return put_length(length_bytes, out);
        }
        let room = out.get_mut(..size_bytes as usize).ok_or(Error::new(Errno::RANGE))?;
        if name == acl::ACCESS {
            // What is stored may be older than the permission bits, by which the kernel goes for the owner only.
            return StoredList::tell(&*self.file_system, node, room).map_err(absent_list);
        }
        self.file_system.xattr(node, name, room).map_err(absent_list)
    }

    pub(super) fn list_xattrs(&self, header: &Header, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let node = self.node(header.node)?;
        let mut used_bytes = 0;
        let room_bytes = if size_bytes == 0 { 0 } else { out.len().min(size_bytes as usize) };
        let mut overflow = false;
        // Asked for if there is such a name: the answer may have to be looked up.
        let mut root = None;
        self.file_system.list_xattrs(node, &mut |name| {
            // As everywhere, `trusted.` is for the administrator's eyes only.
            if name.starts_with(b"trusted.") && !*root.get_or_insert_with(|| is_capable(header, Capability::Administer))
            {
                return;
            }
            let end = used_bytes + name.len() + 1;
            if end <= room_bytes {
                out[used_bytes..end - 1].copy_from_slice(name);
                out[end - 1] = 0;
            } else {
                overflow = true;
            }
            used_bytes = end;
        })?;
        match size_bytes {
            0 => put_length(used_bytes, out),
            _ if overflow => Err(Error::new(Errno::RANGE)),
            _ => Ok(used_bytes),
        }
    }

    pub(super) fn set_xattr(
        &self,
        header: &Header,
        name: &[u8],
        value: &[u8],
        flags: u32,
        set_flags: u32,
    ) -> Result<FixedReply> {
        let node = self.node(header.node)?;
        check_name(name)?;
        self.check_changeable(node)?;
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            // Both: refused whether it is there or not, as by file systems in the kernel.
            3 if self.file_system.xattr(node, name, &mut []).is_ok() => return Err(Error::new(Errno::EXIST)),
            3 => return Err(Error::new(Errno::NODATA)),
            _ => return Err(Error::new(Errno::INVAL)),
        };
        if name == acl::ACCESS {
            return self.set_access_list(node, value, set_flags);
        }
        if name == acl::DEFAULT {
            AccessList::decode(value)?;
        }
        self.file_system.set_xattr(node, name, value, mode)?;
        Ok(FixedReply::new())
    }

    /// Sets the access list and the permission bits it implies.
    fn set_access_list(&self, node: NodeId, value: &[u8], set_flags: u32) -> Result<FixedReply> {
        let known = self.file_system.permissions(node)?;
        let keeps_set_group_id = set_flags & SETXATTR_ACL_KILL_SGID == 0;
        StoredList::store(&*self.file_system, node, &known, value, keeps_set_group_id)?;
        Ok(FixedReply::new())
    }

    pub(super) fn remove_xattr(&self, header: &Header, name: &[u8]) -> Result<FixedReply> {
        let node = self.node(header.node)?;
        check_name(name)?;
        self.check_changeable(node)?;
        match self.file_system.remove_xattr(node, name) {
            // Removing a list that is not there is no error: `setfacl -b` does it.
            Err(error) if error.errno() == Errno::NODATA && (name == acl::ACCESS || name == acl::DEFAULT) => {}
            outcome => outcome?,
        }
        Ok(FixedReply::new())
    }

    fn check_changeable(&self, node: NodeId) -> Result<()> {
        let flags = self.file_system.permissions(node)?.flags;
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY) { Err(UNCHANGEABLE) } else { Ok(()) }
    }
}

/// `fuse_getxattr_out`.
fn put_length(length_bytes: usize, out: &mut [u8]) -> Result<usize> {
    let room = out.first_chunk_mut::<8>().ok_or(Error::new(Errno::RANGE))?;
    *room = (length_bytes as u64 & 0xffff_ffff).to_le_bytes();
    Ok(8)
}
