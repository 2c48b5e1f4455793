//! Stores to the medium and the fence that makes them durable.

use super::{Disk, access_error};
use gannet_media::MediumOffset;
use gannet_vfs::Result;

/// Stores that are on their way to the medium, of one operation of one thread.
#[must_use = "stores are durable only after a fence"]
pub(crate) struct Commit<'d> {
    disk: &'d Disk,
}

/// Evidence that the stores of an operation are durable.
pub(crate) struct Durable(());

impl Durable {
    /// What an operation that has returned, and therefore let go of its inodes, has stored: it executed its fence before.
    /// For who has locked such an inode since.
    pub(crate) const fn before_unlock() -> Self {
        Self(())
    }
}

impl<'d> Commit<'d> {
    pub(super) const fn new(disk: &'d Disk) -> Self {
        Self { disk }
    }

    /// The volume.
    pub(crate) fn disk(&self) -> &'d Disk {
        self.disk
    }

    /// Stores one 8-byte word.
    #[track_caller]
    pub(crate) fn store(&mut self, at: u64, value: u64) -> Result<()> {
        self.disk.medium.store_u64(MediumOffset(at), value).map_err(access_error)
    }

    /// Stores bytes.
    #[track_caller]
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.disk.medium.write(MediumOffset(at), bytes).map_err(access_error)
    }

    /// Stores whole lines that were just put together in words.
    #[inline]
    #[track_caller]
    pub(crate) fn write_lines(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.disk.medium.write_lines(MediumOffset(at), bytes).map_err(access_error)
    }

    /// Stores two words of one line.
    #[inline]
    #[track_caller]
    pub(crate) fn store_two(&mut self, first: (u64, u64), second: (u64, u64)) -> Result<()> {
        let [first, second] = [first, second].map(|(at, value)| (MediumOffset(at), value));
        self.disk.medium.store_two(first, second).map_err(access_error)
    }

    /// Stores two words of one line, to be flushed later.
    #[inline]
    #[track_caller]
    pub(crate) fn store_two_cached(&mut self, first: (u64, u64), second: (u64, u64)) -> Result<()> {
        let [first, second] = [first, second].map(|(at, value)| (MediumOffset(at), value));
        self.disk.medium.store_two_cached(first, second).map_err(access_error)
    }

    /// Stores one word, to be flushed later.
    #[inline]
    #[track_caller]
    pub(crate) fn store_cached(&mut self, at: u64, value: u64) -> Result<()> {
        self.disk.medium.store_cached(MediumOffset(at), value).map_err(access_error)
    }

    /// Leaves it to a later fence of this thread to make the stores durable: of the same operation, or what waits for it is in
    /// limbo.
    pub(crate) fn without_fence(self) {}

    /// Stores zeros.
    #[track_caller]
    pub(crate) fn zero(&mut self, at: u64, length_bytes: u64) -> Result<()> {
        self.disk.medium.zero(MediumOffset(at), length_bytes).map_err(access_error)
    }

    /// Writes back what a dead thread or a map has stored.
    #[track_caller]
    pub(crate) fn flush(&mut self, at: u64, length_bytes: u64) -> Result<()> {
        self.disk.medium.flush(MediumOffset(at), length_bytes).map_err(access_error)
    }

    /// Makes all of it durable.
    #[track_caller]
    pub(crate) fn fence(self) -> Durable {
        self.disk.medium.fence();
        Durable(())
    }
}
