//! One component of a path.

use crate::{Error, Result};
use rustix::io::Errno;

/// The longest name of a directory entry, in bytes (`NAME_MAX` of Linux).
pub const NAME_BYTES_MAX: usize = 255;

/// A checked directory-entry name: 1 to 255 bytes, neither `/` nor NUL inside, neither `.` nor `..`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks `bytes` as a name. `ENAMETOOLONG` over 255 bytes; `EINVAL` for what can never be an entry.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(Error::new(Errno::NAMETOOLONG));
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(Error::because(Errno::INVAL, "not a name of a directory entry"));
        }
        Ok(Self(bytes))
    }

    /// The name's bytes.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl core::fmt::Display for Name<'_> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_an_entry_is_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(bad).unwrap_err().errno(), Errno::INVAL);
        }
        assert_eq!(Name::new(&[b'a'; 256]).unwrap_err().errno(), Errno::NAMETOOLONG);
        assert_eq!(Name::new(&[b'a'; 255]).unwrap().bytes().len(), 255);
        assert!(Name::new(b"...").is_ok());
    }
}
