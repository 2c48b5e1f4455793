//! How much of the tables one user may take: a program that opens files or takes locks without end must not keep everybody else out.
//!
//! As with Linux' `fs.file-max` the last part is for root. Of the rest each user may take most, and a small part that few others share
//! ([`gannet_shm::Share`]); so what is left when one has taken all that it can is little, but enough to look around and to end things. Small
//! tables, which only tests make, are everybody's.

use gannet_shm::Share;

use super::{DESCRIPTIONS, RECORDS};

/// Tables with fewer objects are not shared out.
const OBJECTS_MIN: u64 = 8192;
/// The part for root, and as large a one for users among themselves.
const PART: u64 = 8;
/// In so many that one is divided.
const USERS: u64 = 16;

/// The user for whom a file is opened or a lock taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User(Option<u32>);

impl User {
    /// Nobody knows who: what all users may take is there for it, and nothing else.
    pub const UNKNOWN: Self = Self(None);

    /// The user with this number.
    pub const fn new(id: u32) -> Self {
        Self(Some(id))
    }

    /// Whose this process is.
    pub fn of_process() -> Self {
        Self::new(rustix::process::geteuid().as_raw())
    }

    /// What of a table with `count` objects may be taken.
    #[inline]
    pub(super) const fn share(self, count: u64) -> Share {
        let (part, common) = (count / PART, common(count));
        match self.0 {
            _ if count < OBJECTS_MIN => Share::ALL,
            Some(0) => Share::ALL,
            Some(id) => {
                let own = common + id as u64 % USERS * (part / USERS);
                Share::new(common, &(own..own + part / USERS))
            }
            None => Share::new(common, &(common..common)),
        }
    }

    /// What is said where there is none left for it in a table with `count` objects.
    pub(super) const fn says(self, count: u64, full: &Full) -> &'static str {
        match self.0 {
            _ if count < OBJECTS_MIN => full.for_all,
            Some(0) => full.for_all,
            Some(_) => full.for_users,
            None => full.for_unknown,
        }
    }
}

/// What all users may take.
const fn common(count: u64) -> u64 {
    count - 2 * (count / PART)
}

/// What is said where a table is full.
pub(super) struct Full {
    for_all: &'static str,
    for_users: &'static str,
    for_unknown: &'static str,
}

// The numbers are those that file systems have.
pub(super) const DESCRIPTIONS_FULL: Full = Full {
    for_all: "no room for another open file: all processes together have 131072 open on the volume, the most there can be; close some",
    for_users: "no room for another open file: of the 131072 that can be open on the volume one user may have 99328, all but root 114688, and so many are; close some",
    for_unknown: "no room for another open file: of the 131072 that can be open on the volume who cannot be seen in /proc may have 98304, all but root 114688, and so many are; close some",
};
pub(super) const RECORDS_FULL: Full = Full {
    for_all: "no room for another lock on a part of a file: all processes together have 65536 on the volume, the most there can be; unlock some",
    for_users: "no room for another lock on a part of a file: of the 65536 that there can be on the volume one user may have 49664, all but root 57344, and so many are there; unlock some",
    for_unknown: "no room for another lock on a part of a file: of the 65536 that there can be on the volume who cannot be seen in /proc may have 49152, all but root 57344, and so many are there; unlock some",
};
const fn most(count: u64) -> (u64, u64) {
    (common(count) + count / PART / USERS, count - count / PART)
}
const _: () = assert!(DESCRIPTIONS == 131_072 && RECORDS == 65_536);
const _: () = assert!(common(DESCRIPTIONS as u64) == 98_304 && common(RECORDS as u64) == 49_152);
const _: () = assert!(matches!(most(DESCRIPTIONS as u64), (99_328, 114_688)));
const _: () = assert!(matches!(most(RECORDS as u64), (49_664, 57_344)));
