//! What a rename needs before it stores anything: room in the logs, and hands that say what becomes of link counts and parents. All of
//! it or nothing.

use crate::append::Prepared;
use crate::ops::{Locked, Op, shared_error};
use crate::rename::HAND_PARENT;
use gannet_shm::{Hand, HandContent};
use gannet_vfs::{Error, Result};

/// A directory that gets another parent: itself, its parents before and after.
pub(crate) type Reparented<'o, 's> = Option<(&'o Locked<'s>, u32, u32)>;

/// Room and hands of a rename.
pub(crate) struct RenameRoom {
    pub(crate) from: Prepared,
    /// `None` within one directory.
    pub(crate) to: Option<Prepared>,
    /// Of the inode that loses a name.
    pub(crate) links: Option<Hand>,
    pub(crate) parents: [Option<Hand>; 2],
}

impl<'s> Op<'s> {
    /// Takes all that a rename needs. `from` and `to` are the directories with the lines of their entries, `loses` who loses a name, with
    /// its link counts before and after.
    pub(crate) fn make_rename_room(
        &self,
        (from, from_lines): (&Locked<'s>, u32),
        to: Option<(&Locked<'s>, u32)>,
        loses: Option<(&Locked<'s>, u64, u64)>,
        reparented: [Reparented<'_, 's>; 2],
    ) -> Result<RenameRoom> {
        let from = self.prepare(from, from_lines, true)?;
        let mut room = RenameRoom { from, to: None, links: None, parents: [None, None] };
        match self.fill_rename_room(&mut room, to, loses, reparented) {
            Ok(()) => Ok(room),
            Err(error) => Err(self.give_room_back(room, error)),
        }
    }

    fn fill_rename_room(
        &self,
        room: &mut RenameRoom,
        to: Option<(&Locked<'s>, u32)>,
        loses: Option<(&Locked<'s>, u64, u64)>,
        reparented: [Reparented<'_, 's>; 2],
    ) -> Result<()> {
        if let Some((to, lines)) = to {
            room.to = Some(self.prepare(to, lines, false)?);
        }
        if let Some((target, before, after)) = loses {
            room.links = Some(self.links_hand(target.inode, before, after)?);
        }
        for (hand, change) in room.parents.iter_mut().zip(reparented) {
            if let Some((moved, before, after)) = change {
                let content =
                    HandContent { kind: HAND_PARENT, a: moved.inode as u64, b: before as u64 | (after as u64) << 32 };
                *hand = Some(self.thread.hand_set(content).map_err(shared_error)?);
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn give_room_back(&self, room: RenameRoom, error: Error) -> Error {
        let hands = room.links.into_iter().chain(room.parents.into_iter().flatten());
        hands.for_each(|hand| self.thread.hand_clear(hand));
        let error = room.to.map_or(error, |prepared| self.cancel_with(prepared, error));
        self.cancel_with(room.from, error)
    }
}
