//! What follows an entry that is stored. From there on the operation has happened, and nothing that still fails makes it not have: who
//! asked for it is not told that it failed, and what the arena says of the inode is what its log says.
//!
//! What cannot be given back is free after the next full count. An index that could not follow the log is built anew from it, before
//! anybody goes by it: a collection that did would drop what is missing there from the log as well. What goes beyond the operation, as
//! collecting, is left.

use crate::ops::{Locked, Op};
use gannet_vfs::Result;

impl<'s> Op<'s> {
    /// What an operation that has happened gave up, and could not be given back, is free after the next full count.
    #[inline(always)]
    pub(crate) fn or_count_again(&self, given_back: Result<()>) {
        if given_back.is_err() {
            self.count_again();
        }
    }

    #[cold]
    #[inline(never)]
    fn count_again(&self) {
        // The word is where the arena's layout has it.
        let _ = self.set_uncertain();
    }

    /// Whether one can go on with what the arena says of an inode, where its index `followed` an entry or was built anew. If not, the
    /// next user of the inode tries to load it.
    #[inline(always)]
    pub(crate) fn follows(&self, locked: &Locked<'s>, followed: Result<()>) -> bool {
        followed.is_ok() || self.load_again(locked)
    }

    #[cold]
    #[inline(never)]
    fn load_again(&self, locked: &Locked<'s>) -> bool {
        self.count_again();
        locked.record.unload();
        // It may have failed before it came to wait for who writes in place to what is taken away: whoever counts then would give that to
        // others. As behind one who was killed, all of the file's writers are waited for.
        locked.record.leave_writers();
        self.load(locked.inode, &locked.record).inspect_err(|_| locked.record.drop_index()).is_ok()
    }
}
