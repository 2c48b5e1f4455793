//! Capabilities of programs, which stand in an extended attribute: its format, and that a change of the program takes them away.
//!
//! A volume grants none (it is `nosuid`), but keeps them as any file system does: archives carry them, and the same volume may be
//! mounted where they count.

use super::{Capabilities, Namespace};
use crate::{Errno, Error, FileType, NodeId, Permissions, Result};

pub(super) const NAME: &[u8] = b"security.capability";

/// Two sets of 64 bits behind the head.
const LENGTH_2: usize = 20;
/// Also the user who is root in the name space that they are for.
const LENGTH_3: usize = 24;
const REVISION_2: u32 = 0x0200_0000;
const REVISION_3: u32 = 0x0300_0000;
const FLAG_EFFECTIVE: u32 = 1;

fn word(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Whether a value is one that the kernel takes.
fn is_sound(value: &[u8]) -> bool {
    match (value.len(), word(value, 0).map(|head| head & !FLAG_EFFECTIVE)) {
        (LENGTH_2, Some(REVISION_2)) => true,
        (LENGTH_3, Some(REVISION_3)) => word(value, LENGTH_2) != Some(u32::MAX),
        _ => false,
    }
}

impl Namespace<'_, '_> {
    /// Before a value is set: `EINVAL` for one in no format, which is said before `EPERM`. In a user namespace the kernel would make it one for
    /// the namespace's root, which is not done.
    pub(super) fn check_capability(&self, value: &[u8]) -> Result<()> {
        if !value.is_empty() && !is_sound(value) {
            return Err(Error::new(Errno::INVAL));
        }
        if self.who.may(Capabilities::SETFCAP) { Ok(()) } else { Err(Error::new(Errno::PERM)) }
    }

    /// The value as the kernel tells it: what is for everybody's root is told in the older format. `EINVAL` for one in none.
    pub(super) fn capability(&self, node: NodeId, value: &mut [u8]) -> Result<usize> {
        let mut room = [0u8; LENGTH_3];
        let stored = match self.fs.xattr(node, NAME, &mut room) {
            Ok(length) => &mut room[..length],
            Err(error) if error.errno() == Errno::RANGE => return Err(Error::new(Errno::INVAL)),
            Err(error) => return Err(error),
        };
        if !is_sound(stored) {
            return Err(Error::new(Errno::INVAL));
        }
        let told = match word(stored, LENGTH_2) {
            Some(0) => {
                let head = word(stored, 0).unwrap_or_default() & FLAG_EFFECTIVE | REVISION_2;
                stored[..4].copy_from_slice(&head.to_le_bytes());
                &stored[..LENGTH_2]
            }
            _ => &stored[..],
        };
        if !value.is_empty() {
            value.get_mut(..told.len()).ok_or(Error::new(Errno::RANGE))?.copy_from_slice(told);
        }
        Ok(told.len())
    }

    /// Before the content or owner of what is not a directory changes, whoever does it.
    pub(super) fn drop_capability(&self, node: NodeId, known: &Permissions) -> Result<()> {
        if known.file_type == FileType::Directory || !self.fs.may_have_privileges(node) {
            return Ok(());
        }
        match self.fs.xattr(node, NAME, &mut []).and_then(|_| self.fs.remove_xattr(node, NAME)) {
            Err(error) if !matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_formats_are_sound() {
        let value = |head: u32, length: usize| {
            let mut value = vec![0u8; length];
            value[..4].copy_from_slice(&head.to_le_bytes());
            value
        };
        assert!(is_sound(&value(REVISION_2, LENGTH_2)) && is_sound(&value(REVISION_2 | FLAG_EFFECTIVE, LENGTH_2)));
        assert!(is_sound(&value(REVISION_3, LENGTH_3)) && is_sound(&value(REVISION_3 | FLAG_EFFECTIVE, LENGTH_3)));
        assert!(!is_sound(&value(REVISION_3, LENGTH_2)) && !is_sound(&value(REVISION_2, LENGTH_3)));
        assert!(!is_sound(&value(REVISION_2 | 2, LENGTH_2)) && !is_sound(&value(REVISION_2, LENGTH_2 - 1)));
        assert!(!is_sound(b"") && !is_sound(b"abc"));
        let mut nobody = value(REVISION_3, LENGTH_3);
        nobody[LENGTH_2..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!is_sound(&nobody));
    }
}
