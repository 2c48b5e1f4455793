//! Ids of files in user namespaces ([`super::users`]): how those that a volume has look to the process, and which those are that it names.

use super::users::{NOBODY, maps};
use gannet_vfs::namespace::IdMap;
use gannet_vfs::{Errno, Owner};

/// How an inode's owner looks here.
#[inline]
pub(crate) fn owner_seen(owner: Owner) -> Owner {
    let Some(maps) = maps() else { return owner };
    Owner {
        user: maps.users.inside(owner.user).unwrap_or(NOBODY),
        group: maps.groups.inside(owner.group).unwrap_or(NOBODY),
    }
}

/// The ids that `chown` is to give, as the origin has them. `EINVAL` for one that is not known here.
pub(crate) fn wanted(user: Option<u32>, group: Option<u32>) -> Result<(Option<u32>, Option<u32>), Errno> {
    let Some(maps) = maps() else { return Ok((user, group)) };
    let of = |map: &IdMap, id: Option<u32>| id.map(|id| map.outside(id).ok_or(Errno::INVAL)).transpose();
    Ok((of(&maps.users, user)?, of(&maps.groups, group)?))
}

/// An access control list, as an extended attribute has it, that goes in: its ids become the origin's. `EINVAL` for one that is not known
/// here.
pub(crate) fn list_wanted(name: &[u8], value: &mut [u8]) -> Result<(), Errno> {
    each_id_of_list(name, value, |map, id| map.outside(id).ok_or(Errno::INVAL))
}

/// One that comes out. Who is not known here is nobody.
pub(crate) fn list_seen(name: &[u8], value: &mut [u8]) {
    let _ = each_id_of_list(name, value, |map, id| Ok(map.inside(id).unwrap_or(u32::MAX)));
}

/// Whether the value of an attribute has ids that look otherwise here.
pub(crate) fn has_ids(name: &[u8]) -> bool {
    is_list(name) && maps().is_some()
}

fn is_list(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

fn each_id_of_list(
    name: &[u8],
    value: &mut [u8],
    change: impl Fn(&IdMap, u32) -> Result<u32, Errno>,
) -> Result<(), Errno> {
    const HEAD_BYTES: usize = 4;
    const ENTRY_BYTES: usize = 8;
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    let Some(maps) = maps().filter(|_| is_list(name)) else { return Ok(()) };
    for entry in value.get_mut(HEAD_BYTES..).unwrap_or_default().chunks_exact_mut(ENTRY_BYTES) {
        let map = match u16::from_le_bytes([entry[0], entry[1]]) {
            USER => &maps.users,
            GROUP => &maps.groups,
            _ => continue,
        };
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        entry[4..].copy_from_slice(&change(map, id)?.to_le_bytes());
    }
    Ok(())
}
