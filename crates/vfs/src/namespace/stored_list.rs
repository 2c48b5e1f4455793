//! An inode's access list beside its permission bits, which are the truth: how both are told as one, and set as one.
//!
//! For all front ends, also those for which a kernel checks permissions. Calls the file system through the trait only.

use super::access_list::{ACCESS_NAME, AccessList};
use crate::{AttributeChange, Errno, Error, FileSystem, ModeChange, NodeId, Permissions, Result, XattrMode};

/// How often list and bits are looked at where others change them meanwhile.
const LOOKS_MAX: u32 = 64;

impl AccessList<'_> {
    /// Reads an inode's access list into `value`, with the permission bits as they are now in place of what they stand for; its length.
    /// `ENODATA` if there is none, `ERANGE` if `value` is too short.
    pub fn tell(fs: &dyn FileSystem, node: NodeId, value: &mut [u8]) -> Result<usize> {
        // A time of change may be that of two, where clocks have ticks.
        let look = || fs.attributes(node).map(|now| (now.mode, now.changed, fs.stamp(node)));
        let mut looks = 0;
        loop {
            let (before, changed_before, stamp_before) = look()?;
            let length_bytes = fs.xattr(node, ACCESS_NAME, value)?;
            let (now, changed, stamp) = look()?;
            looks += 1;
            // A list of one moment under the mask of another could grant what neither did.
            let of_one_moment = before == now && changed_before == changed && stamp_before == stamp;
            if of_one_moment || looks == LOOKS_MAX {
                let damaged = Error::damaged("access control list of an inode", node.number);
                let list = value.get_mut(..length_bytes).ok_or(damaged)?;
                AccessList::new(list).map_err(|_| damaged)?.set_mode(before & now);
                return Ok(length_bytes);
            }
        }
    }

    /// Gives an inode, whose permissions are `known`, the access list `value` and the permission bits that stand for it; one that says no
    /// more than bits can is not kept. Between its steps less is granted than before or after. Errors of [`AccessList::new`].
    pub fn store(
        fs: &dyn FileSystem,
        node: NodeId,
        known: &Permissions,
        value: &[u8],
        keeps_set_group_id: bool,
    ) -> Result<()> {
        let mut room = AccessList::ROOM;
        let copy = room.get_mut(..value.len()).ok_or(Error::new(Errno::TOOBIG))?;
        copy.copy_from_slice(value);
        let list = AccessList::new(copy)?;
        let kept = if keeps_set_group_id { 0o7000 } else { 0o5000 };
        let bits = known.mode & kept | list.mode();
        let set_mode = |mode| {
            let change = AttributeChange { mode: ModeChange::Set(mode), ..Default::default() };
            fs.set_attributes(node, &change).map(|_| ())
        };
        if list.is_minimal() && !known.has_access_list {
            return set_mode(bits);
        }
        set_mode(bits & known.mode & !0o070 | known.mode & 0o7000 & kept)?;
        let stored = if list.is_minimal() {
            match fs.remove_xattr(node, ACCESS_NAME) {
                Err(error) if error.errno() == Errno::NODATA => Ok(()),
                removed => removed,
            }
        } else {
            fs.set_xattr(node, ACCESS_NAME, list.bytes(), XattrMode::Any)
        };
        set_mode(if stored.is_ok() { bits } else { known.mode })?;
        stored
    }
}
