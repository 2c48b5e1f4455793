//! The entries of a directory: by name for lookups, by cookie for reading.
//!
//! A cookie is given once and never again, in falling order: what is new stands before everything else. So a reader that goes on
//! behind the last cookie it saw meets every entry that stayed exactly once, whatever happened to the others, and comes to an
//! end also if it renames each entry that it meets.

use std::collections::BTreeMap;

use gannet_vfs::FileType;

/// The first cookie that is given. 1 and 2, which no directory lives to reach, belong to `.` and `..`.
const COOKIE_FIRST: u64 = 1 << 62;

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) file_type: FileType,
    cookie: u64,
}

/// The content of a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Number of the directory that holds this one.
    pub(crate) parent: u64,
    by_name: BTreeMap<Box<[u8]>, Entry>,
    by_cookie: BTreeMap<u64, Box<[u8]>>,
    next_cookie: u64,
}

impl Directory {
    pub(crate) fn new(parent: u64) -> Self {
        Self { parent, by_name: BTreeMap::new(), by_cookie: BTreeMap::new(), next_cookie: COOKIE_FIRST }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Entry> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn length(&self) -> u64 {
        self.by_name.len() as u64
    }

    /// Binds a name that is free.
    pub(crate) fn insert(&mut self, name: &[u8], number: u64, file_type: FileType) {
        let cookie = self.next_cookie;
        self.next_cookie -= 1;
        self.by_cookie.insert(cookie, name.into());
        let previous = self.by_name.insert(name.into(), Entry { number, file_type, cookie });
        debug_assert!(previous.is_none(), "the name was free");
    }

    /// Lets a name that exists stand for another inode, under its old cookie.
    pub(crate) fn rebind(&mut self, name: &[u8], number: u64, file_type: FileType) {
        if let Some(entry) = self.by_name.get_mut(name) {
            (entry.number, entry.file_type) = (number, file_type);
        }
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(entry) = self.by_name.remove(name) {
            self.by_cookie.remove(&entry.cookie);
        }
    }

    /// The entries behind `cookie`.
    pub(crate) fn behind(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Entry)> {
        self.by_cookie
            .range(cookie.saturating_add(1)..)
            .filter_map(|(&cookie, name)| Some((cookie, &**name, *self.by_name.get(name)?)))
    }
}
