//! Who uses an inode through this mount, told to those who share the volume: open files, and inodes without names that the
//! kernel still holds.
//!
//! On a coherent mount each open file is an open file description of `vfs::shared`, whose word is the handle that the kernel
//! gets: others do not free the inode then, and locks have an owner. On an exclusive mount nobody else could. When this mount
//! itself removes a name, it keeps the inode with a description for as long as the kernel does; also one that a caller found at a
//! second try.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gannet_vfs::shared::{AccessMode, Description, Place, User};
use gannet_vfs::{Errno, NodeId, Result};

use super::Dispatcher;
use super::nodes::OpenMode;
use super::set_id::{NOT_TOLD, user_of};
use crate::protocol::constants::InitFlags;
use crate::protocol::request::Header;

const SHARDS: usize = 16;

/// What this mount has open.
#[derive(Default)]
pub(super) struct Users {
    /// Handles of open files and directories.
    handles: [Mutex<HashMap<u64, Open>>; SHARDS],
    /// Descriptions that keep inodes without names, by the kernel's id.
    kept: Mutex<HashMap<u64, Description>>,
}

/// What is known of a handle.
#[derive(Clone, Copy, Default)]
struct Open {
    /// How the kernel opened it; of files of automatic mounts only.
    mode: Option<OpenMode>,
    /// It can be written to.
    written: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Users {
    fn shard(&self, handle: u64) -> &Mutex<HashMap<u64, Open>> {
        &self.handles[(handle ^ handle >> 16) as usize % SHARDS]
    }

    pub(super) fn set_mode(&self, handle: u64, mode: OpenMode) {
        lock(self.shard(handle)).entry(handle).or_default().mode = Some(mode);
    }

    /// How the kernel opened a file of an automatic mount.
    pub(super) fn mode(&self, handle: u64) -> Option<OpenMode> {
        lock(self.shard(handle)).get(&handle).and_then(|open| open.mode)
    }

    pub(super) fn set_written(&self, handle: u64) {
        lock(self.shard(handle)).entry(handle).or_default().written = true;
    }
}

impl Dispatcher {
    /// Does for the user of a request what takes room among open files and locks.
    ///
    /// Where mounts may map owners (Linux 6.12 and later) the kernel says whose a program is only in requests that make an inode, and then as the
    /// mount maps that: root may be a container's. So all get what is there for every user, and who finds that taken is looked at: its thread
    /// waits for the answer, so it is still who asked. Who cannot be looked at gets no more.
    pub(super) fn for_user<T>(&self, header: &Header, mut take: impl FnMut(User) -> Result<T>) -> Result<T> {
        if header.user != NOT_TOLD && !self.agreed(InitFlags::ALLOW_IDMAP) {
            return take(User::new(header.user));
        }
        match take(User::UNKNOWN) {
            Err(error) if matches!(error.errno(), Errno::NFILE | Errno::NOLCK) => match user_of(header) {
                Some(user) => take(User::new(user)),
                None => Err(error),
            },
            outcome => outcome,
        }
    }

    /// A handle for a file that is being opened with the flags of `open(2)`.
    pub(super) fn open_handle(&self, header: &Header, node: NodeId, flags: u32) -> Result<u64> {
        self.open_at(self.place(header)?, node, flags)
    }

    /// Room for an open file of the caller's, to be had before a file is made: `ENFILE` if there is none. Nothing where the kernel opens files by
    /// itself.
    pub(super) fn place(&self, header: &Header) -> Result<Option<Place<'_>>> {
        if self.exclusive() {
            return Ok(None);
        }
        let file_system = &*self.file_system;
        self.for_user(header, |user| file_system.shared().reserve(user, file_system)).map(Some)
    }

    /// [`Dispatcher::open_handle`], with the room that was had for it.
    pub(super) fn open_at(&self, place: Option<Place<'_>>, node: NodeId, flags: u32) -> Result<u64> {
        let Some(place) = place else { return Ok(0) };
        let access = match flags & 3 {
            0 => AccessMode::READ,
            1 => AccessMode::WRITE,
            _ => AccessMode::READ | AccessMode::WRITE,
        };
        let handle = place.open(&*self.file_system, node, access, flags)?.word();
        lock(self.users.shard(handle)).insert(handle, Open::default());
        Ok(handle)
    }

    /// The file that the kernel knows as `id` and opened as `handle` was closed by its last user.
    pub(super) fn close_handle(&self, id: u64, handle: u64) {
        let known = lock(self.users.shard(handle)).remove(&handle);
        if let Some(open) = known {
            self.close_description(handle);
            if let Some(mode) = open.mode {
                self.nodes.closed(id, mode);
            }
            if open.written {
                self.nodes.written_no_more(id);
            }
        }
    }

    fn close_description(&self, handle: u64) {
        if let Some(description) = Description::from_word(handle) {
            // Should it be gone already, there is nothing left to close.
            let _ = self.file_system.shared().close(&*self.file_system, description);
        }
    }

    /// Before a name of `node` goes: a description that keeps the inode, should that be its last one.
    pub(super) fn keep(&self, header: &Header, node: NodeId) -> Result<Keeper<'_>> {
        let file_system = &*self.file_system;
        let open = |user| file_system.shared().open_for(user, file_system, node, AccessMode::PATH, 0);
        let description = self.for_user(header, open)?;
        Ok(Keeper { dispatcher: self, node, description: Some(description) })
    }

    /// Whether the kernel holds inodes that this mount took the last name of.
    pub(super) fn keeps_nameless(&self) -> bool {
        !lock(&self.users.kept).is_empty()
    }

    /// The kernel forgot the inode.
    pub(super) fn drop_kept(&self, id: u64) {
        if let Some(description) = lock(&self.users.kept).remove(&id) {
            self.close_description(description.word());
        }
    }

    /// The mount is gone.
    pub(super) fn drop_users(&self) {
        for shard in &self.users.handles {
            for (handle, _) in lock(shard).drain() {
                self.close_description(handle);
            }
        }
        for (_, description) in lock(&self.users.kept).drain() {
            self.close_description(description.word());
        }
    }
}

/// Keeps an inode over the removal of a name. Dropping it lets the inode go.
pub(super) struct Keeper<'a> {
    dispatcher: &'a Dispatcher,
    node: NodeId,
    description: Option<Description>,
}

impl Keeper<'_> {
    /// The name is gone. An inode without any is kept on until the kernel forgets it, if the kernel knows it.
    pub(super) fn removed(mut self) {
        let dispatcher = self.dispatcher;
        let nameless = dispatcher.file_system.attributes(self.node).is_ok_and(|attributes| attributes.links == 0);
        if nameless {
            dispatcher.nodes.if_held(self.node, |id| {
                // Counted when it is kept: or somebody would find it counted and nothing kept, and wait for it no more.
                self.until_forgotten(id);
                dispatcher.room.note_removal();
            });
        }
    }

    /// Others may take the name. The inode is kept until the kernel forgets it, if the kernel knows it.
    pub(super) fn found(mut self) {
        let dispatcher = self.dispatcher;
        dispatcher.nodes.if_held(self.node, |id| self.until_forgotten(id));
    }

    fn until_forgotten(&mut self, id: u64) {
        let dispatcher = self.dispatcher;
        let former = self.description.take().and_then(|kept| lock(&dispatcher.users.kept).insert(id, kept));
        if let Some(former) = former {
            dispatcher.close_description(former.word());
        }
    }
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        if let Some(description) = self.description {
            self.dispatcher.close_description(description.word());
        }
    }
}
