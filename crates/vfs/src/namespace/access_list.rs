//! POSIX access control lists in the form of `system.posix_acl_access` and `system.posix_acl_default`: a version (2) and
//! entries of tag, permissions and id, little-endian.
//!
//! One rule keeps lists and permission bits from disagreeing, and makes `chmod` a single atomic change: **the permission bits
//! of the inode stand for the entries of the owner, of others and of the mask** (of the owning group where there is no
//! mask). The stored list's values of these are ignored when it is checked and replaced when it is read.

use super::Credentials;
use crate::{Errno, Error, FileSystem, NodeId, Permissions, Result};

/// The most entries of a list.
pub const ACCESS_LIST_ENTRIES_MAX: usize = 256;

const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const VERSION: u32 = 2;
const BYTES_MAX: usize = HEADER_BYTES + ENTRY_BYTES * ACCESS_LIST_ENTRIES_MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

pub(super) const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

/// A checked list.
#[derive(Debug)]
pub struct AccessList<'a> {
    bytes: &'a mut [u8],
}

struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl<'a> AccessList<'a> {
    /// Room to read a list into.
    pub const ROOM: [u8; BYTES_MAX] = [0; BYTES_MAX];

    /// Checks `bytes` as a list: version, order of entries, exactly one of each that must be, a mask where somebody is
    /// named. `EINVAL`; `EOPNOTSUPP` for another version; `E2BIG`.
    pub fn new(bytes: &'a mut [u8]) -> Result<Self> {
        let invalid = Error::because(Errno::INVAL, "access control list");
        let version = bytes.first_chunk().ok_or(invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::because(Errno::OPNOTSUPP, "version of an access control list"));
        }
        if bytes.len() > BYTES_MAX {
            return Err(Error::because(Errno::TOOBIG, "access control list"));
        }
        if !(bytes.len() - HEADER_BYTES).is_multiple_of(ENTRY_BYTES) {
            return Err(invalid);
        }
        let list = Self { bytes };
        let (mut previous, mut counts, mut named) = (0, [0; 6], false);
        for entry in list.entries() {
            let single = matches!(entry.tag, OWNER | OWNING_GROUP | MASK | OTHER);
            if !(single || matches!(entry.tag, USER | GROUP)) || entry.tag < previous || entry.permissions > 7 {
                return Err(invalid);
            }
            let count = &mut counts[entry.tag.trailing_zeros() as usize];
            *count += 1;
            if single && *count > 1 {
                return Err(invalid);
            }
            named |= !single;
            previous = entry.tag;
        }
        if [OWNER, OWNING_GROUP, OTHER].iter().any(|tag| counts[tag.trailing_zeros() as usize] != 1)
            || named && counts[MASK.trailing_zeros() as usize] == 0
        {
            return Err(invalid);
        }
        Ok(list)
    }

    /// Checks what is said of a value before anything about the inode: its version, length and kinds of entries, and that who is named can be.
    pub(super) fn check_form(bytes: &[u8]) -> Result<()> {
        let invalid = Error::because(Errno::INVAL, "access control list");
        let (version, entries) = bytes.split_first_chunk().ok_or(invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::because(Errno::OPNOTSUPP, "version of an access control list"));
        }
        let is_known = |entry: &[u8]| {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let is_nobody = entry[4..] == [0xff; 4];
            matches!(tag, OWNER | OWNING_GROUP | MASK | OTHER) || matches!(tag, USER | GROUP) && !is_nobody
        };
        let entries = entries.chunks_exact(ENTRY_BYTES);
        let sound = entries.remainder().is_empty() && entries.clone().all(is_known);
        if sound { Ok(()) } else { Err(invalid) }
    }

    /// Reads the access list of an inode; `None` if it has none.
    pub(super) fn read_access(fs: &dyn FileSystem, node: NodeId, room: &'a mut [u8]) -> Result<Option<Self>> {
        Self::read(fs, node, ACCESS_NAME, room)
    }

    /// Reads the default list of a directory; `None` if it has none.
    pub(super) fn read_default(fs: &dyn FileSystem, node: NodeId, room: &'a mut [u8]) -> Result<Option<Self>> {
        Self::read(fs, node, DEFAULT_NAME, room)
    }

    fn read(fs: &dyn FileSystem, node: NodeId, name: &[u8], room: &'a mut [u8]) -> Result<Option<Self>> {
        match fs.xattr(node, name, room) {
            Ok(0) => Ok(None),
            Ok(length) => {
                // What is stored was checked when it was set; a volume may be damaged all the same.
                let damaged = Error::damaged("access control list of an inode", node.number);
                Self::new(room.get_mut(..length).ok_or(damaged)?).map(Some).map_err(|_| damaged)
            }
            Err(error) if matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the attribute of this name is a list.
    pub fn is_named(name: &[u8]) -> bool {
        matches!(name, ACCESS_NAME | DEFAULT_NAME)
    }

    /// Whether a value can be stored as a list: what reads it takes an empty one for none.
    pub fn can_be_stored(value: &[u8]) -> bool {
        let mut room = AccessList::ROOM;
        let Some(copy) = room.get_mut(..value.len()) else { return false };
        copy.copy_from_slice(value);
        value.is_empty() || AccessList::new(copy).is_ok()
    }

    /// Whether a value is that of a list without entries: to set it removes the list.
    pub fn is_none(value: &[u8]) -> bool {
        value.is_empty() || value == VERSION.to_le_bytes()
    }

    /// The list as stored.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.bytes[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).map(|bytes| Entry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
    }

    fn has_mask(&self) -> bool {
        self.entries().any(|entry| entry.tag == MASK)
    }

    /// Whether the list says no more than permission bits can.
    pub fn is_minimal(&self) -> bool {
        self.entries().all(|entry| matches!(entry.tag, OWNER | OWNING_GROUP | OTHER))
    }

    /// Which of the permission bits an entry stands for, as a shift; `None` if it stands for none.
    fn shift(tag: u16, has_mask: bool) -> Option<u32> {
        match tag {
            OWNER => Some(6),
            MASK => Some(3),
            OWNING_GROUP if !has_mask => Some(3),
            OTHER => Some(0),
            _ => None,
        }
    }

    /// The permission bits (`0o777`) that stand for this list.
    pub fn mode(&self) -> u32 {
        let has_mask = self.has_mask();
        let bits = |entry: Entry| Some(u32::from(entry.permissions) << Self::shift(entry.tag, has_mask)?);
        self.entries().filter_map(bits).fold(0, |mode, bits| mode | bits)
    }

    /// Puts the permission bits `mode` in place of what they stand for.
    pub fn set_mode(&mut self, mode: u32) {
        let has_mask = self.has_mask();
        for bytes in self.bytes[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES) {
            if let Some(shift) = Self::shift(u16::from_le_bytes([bytes[0], bytes[1]]), has_mask) {
                bytes[2..4].copy_from_slice(&((mode >> shift & 7) as u16).to_le_bytes());
            }
        }
    }

    /// Whether somebody who is not the owner is granted all of `wanted`.
    pub(super) fn grants(&self, who: &Credentials<'_>, known: &Permissions, wanted: u32) -> bool {
        let has_mask = self.has_mask();
        let mask = if has_mask { known.mode >> 3 & 7 } else { 7 };
        let mut in_some_group = false;
        for entry in self.entries() {
            let permissions = u32::from(entry.permissions);
            let granted = permissions & mask & wanted == wanted;
            match entry.tag {
                USER if entry.id == who.user => return granted,
                OWNING_GROUP if who.is_in_group(known.owner.group) => {
                    in_some_group = true;
                    let permissions = if has_mask { permissions & mask } else { known.mode >> 3 & 7 };
                    if permissions & wanted == wanted {
                        return true;
                    }
                }
                GROUP if who.is_in_group(entry.id) => {
                    in_some_group = true;
                    if granted {
                        return true;
                    }
                }
                _ => {}
            }
        }
        !in_some_group && known.mode & wanted == wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileType, InodeFlags, Owner};

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn malformed_lists_are_refused() {
        let none = u32::MAX;
        let many = vec![(USER, 7, none); ACCESS_LIST_ENTRIES_MAX + 1];
        assert_eq!(AccessList::new(&mut list(&many)).unwrap_err().errno(), Errno::TOOBIG);
        assert!(
            AccessList::is_none(&list(&[])) && !AccessList::is_none(&[2, 0, 0]) && !AccessList::is_none(&[3, 0, 0, 0])
        );
        let good = [(OWNER, 7, none), (OWNING_GROUP, 5, none), (OTHER, 0, none)];
        assert_eq!(AccessList::new(&mut list(&good)).unwrap().mode(), 0o750);
        for bad in [
            &good[..2],
            &good[1..],
            &[good[0], good[2], good[1]],
            &[good[0], good[0], good[1], good[2]],
            &[good[0], (USER, 7, 5), good[1], good[2]],
            &[good[0], good[1], (OTHER, 8, none)],
            &[good[0], good[1], (0x40, 0, none)],
            &[good[0], good[1], (3, 0, none), good[2]],
            &[],
        ] {
            assert_eq!(AccessList::new(&mut list(bad)).unwrap_err().errno(), Errno::INVAL, "{bad:?}");
        }
        let mut cut = list(&good);
        cut.pop();
        assert_eq!(AccessList::new(&mut cut).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(AccessList::new(&mut [1, 0, 0, 0]).unwrap_err().errno(), Errno::OPNOTSUPP);
        assert_eq!(AccessList::new(&mut []).unwrap_err().errno(), Errno::INVAL);
    }

    #[test]
    fn the_algorithm_of_posix() {
        let none = u32::MAX;
        let mut bytes = list(&[
            (OWNER, 7, none),
            (USER, 6, 10),
            (USER, 0, 11),
            (OWNING_GROUP, 4, none),
            (GROUP, 2, 20),
            (GROUP, 6, 21),
            (MASK, 6, none),
            (OTHER, 1, none),
        ]);
        let list = AccessList::new(&mut bytes).unwrap();
        assert_eq!(list.mode(), 0o761);
        let known = |mode| Permissions {
            file_type: FileType::Regular,
            mode,
            owner: Owner { user: 1, group: 2 },
            has_access_list: true,
            flags: InodeFlags::empty(),
        };
        let granted = |user, groups: &[u32], wanted, mode| {
            let who =
                Credentials { user, group: 99, groups, capabilities: Default::default(), umask: 0, namespace: None };
            list.grants(&who, &known(mode), wanted)
        };
        assert!(granted(10, &[], 6, 0o761) && !granted(10, &[], 7, 0o761));
        assert!(!granted(10, &[], 6, 0o741), "the mask, as it is now, cuts");
        assert!(!granted(11, &[21], 4, 0o761), "a named user is not asked for groups");
        assert!(granted(50, &[2], 4, 0o761) && !granted(50, &[2], 2, 0o761));
        assert!(granted(50, &[2, 20], 2, 0o761), "any group will do");
        assert!(!granted(50, &[2, 20], 6, 0o761), "but one alone must grant all");
        assert!(granted(50, &[2, 21], 6, 0o761));
        assert!(!granted(50, &[20], 1, 0o761), "who is in a group is not another");
        assert!(granted(50, &[], 1, 0o761) && !granted(50, &[], 4, 0o761));
        assert!(!granted(50, &[], 1, 0o760), "others: the permission bits as they are now");
    }
}
