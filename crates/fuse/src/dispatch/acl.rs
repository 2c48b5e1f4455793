//! POSIX access control lists: inheritance at creation.
//!
//! The kernel checks permissions; what it leaves to the server is what a file system in the kernel would do when a file is made below a
//! default list, and that lists and permission bits agree (`vfs` does that). Works on the bytes of `system.posix_acl_*` values only:
//! version 2, then (tag, permissions, id) entries.

use gannet_vfs::namespace::ACCESS_LIST_ENTRIES_MAX;
use gannet_vfs::{Errno, Error, Result};

/// The access list.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that files made in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

const USER_OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One line of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AccessList(Vec<Entry>);

impl AccessList {
    /// Decodes a value; `EINVAL` for one that is not a valid list, `E2BIG` for one that other front ends could not read.
    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let invalid = Error::because(Errno::INVAL, "not an access control list");
        let (version, entries) = value.split_first_chunk::<4>().ok_or(invalid)?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY_BYTES != 0 {
            return Err(invalid);
        }
        if entries.len() / ENTRY_BYTES > ACCESS_LIST_ENTRIES_MAX {
            return Err(Error::because(Errno::TOOBIG, "an access control list"));
        }
        let list: Vec<Entry> = entries
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| Entry {
                tag: u16::from_le_bytes([entry[0], entry[1]]),
                permissions: u16::from_le_bytes([entry[2], entry[3]]),
                id: u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]),
            })
            .collect();
        let count = |tag| list.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let well_formed = list.iter().all(|entry| {
            entry.permissions & !7 == 0 && matches!(entry.tag, USER_OWNER | USER | GROUP_OWNER | GROUP | MASK | OTHER)
        });
        let complete = [USER_OWNER, GROUP_OWNER, OTHER].into_iter().all(|tag| count(tag) == 1);
        if !well_formed || !complete || count(MASK) > 1 || (named > 0 && count(MASK) == 0) {
            return Err(invalid);
        }
        Ok(Self(list))
    }

    /// The value of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.permissions.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    fn permissions_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.permissions)
    }

    fn permissions(&self, tag: u16) -> Option<u32> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.permissions))
    }

    /// The permission bits (`0o777`) that say the same as far as they can: the mask stands for the group.
    pub(crate) fn mode(&self) -> u32 {
        let group = self.permissions(MASK).or_else(|| self.permissions(GROUP_OWNER));
        let of = |tag| self.permissions(tag).unwrap_or(0);
        of(USER_OWNER) << 6 | group.unwrap_or(0) << 3 | of(OTHER)
    }

    /// Whether permission bits say all that the list says.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, USER_OWNER | GROUP_OWNER | OTHER))
    }

    /// A file is made with `mode` below this default list: its permission bits, and the access list it begins with unless
    /// the bits say it all.
    pub(crate) fn inherit(&self, mode: u32) -> (u32, Option<Self>) {
        let mut list = self.clone();
        let group_tag = if self.permissions(MASK).is_some() { MASK } else { GROUP_OWNER };
        for (tag, bits) in [(USER_OWNER, mode >> 6), (group_tag, mode >> 3), (OTHER, mode)] {
            if let Some(permissions) = list.permissions_mut(tag) {
                *permissions &= bits as u16 & 7;
            }
        }
        let mode = mode & !0o777 | list.mode();
        (mode, (!list.is_minimal()).then_some(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> AccessList {
        AccessList(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect())
    }

    #[test]
    fn values_survive_the_round_trip_and_nonsense_is_refused() {
        let full = list(&[(1, 7, !0), (2, 6, 1000), (4, 5, !0), (8, 4, 100), (0x10, 7, !0), (0x20, 0, !0)]);
        assert_eq!(AccessList::decode(&full.encode()).unwrap(), full);
        for bad in [
            list(&[(1, 7, 0), (4, 5, 0)]),
            list(&[(1, 7, 0), (2, 7, 5), (4, 5, 0), (0x20, 0, 0)]),
            list(&[(1, 8, 0), (4, 5, 0), (0x20, 0, 0)]),
            list(&[(1, 7, 0), (1, 7, 0), (4, 5, 0), (0x20, 0, 0)]),
            list(&[(1, 7, 0), (4, 5, 0), (0x20, 0, 0), (0x40, 0, 0)]),
        ] {
            assert!(AccessList::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        assert!(AccessList::decode(&[1, 0, 0, 0]).is_err());
        let mut many = vec![(2, 7, 5); ACCESS_LIST_ENTRIES_MAX - 4];
        many.extend([(1, 7, !0), (4, 5, !0), (0x10, 7, !0), (0x20, 0, !0)]);
        assert!(AccessList::decode(&list(&many).encode()).is_ok());
        many.push((2, 7, 6));
        assert_eq!(AccessList::decode(&list(&many).encode()).unwrap_err().errno(), Errno::TOOBIG);
        assert!(AccessList::decode(&full.encode()[..9]).is_err());
    }

    #[test]
    fn the_mask_stands_for_the_group() {
        let full = list(&[(1, 7, 0), (2, 6, 1000), (4, 5, 0), (0x10, 6, 0), (0x20, 1, 0)]);
        assert_eq!((full.mode(), full.is_minimal()), (0o761, false));
        let minimal = list(&[(1, 7, 0), (4, 5, 0), (0x20, 1, 0)]);
        assert_eq!((minimal.mode(), minimal.is_minimal()), (0o751, true));
    }

    #[test]
    fn inheritance_is_the_intersection() {
        let (mode, inherited) = list(&[(1, 7, 0), (4, 5, 0), (0x20, 0, 0)]).inherit(0o666);
        assert_eq!((mode, inherited), (0o640, None));
        let parent = list(&[(1, 7, 0), (2, 7, 1000), (4, 5, 0), (0x10, 7, 0), (0x20, 5, 0)]);
        let (mode, inherited) = parent.inherit(0o2664);
        assert_eq!(mode, 0o2664);
        let inherited = inherited.unwrap();
        assert_eq!(inherited.permissions(MASK), Some(6));
        assert_eq!(inherited.permissions(USER), Some(7));
        assert_eq!(inherited.mode(), 0o664);
    }
}
