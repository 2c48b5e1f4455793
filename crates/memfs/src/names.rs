//! The operations that bind, remove and move names.
//!
//! Each first checks everything that can fail, then changes: a failed operation leaves no trace.

use gannet_vfs::{Errno, Error, FileType, Name, NewNode, NodeId, RemoveKind, RenameFlags, Result, Time};

use crate::directory::Entry;
use crate::table::Inode;
use crate::tree::Tree;

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

impl Tree {
    /// What `name` is in a directory; `None` where nothing is.
    fn entry(&self, directory: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        Ok(self.table.get(directory)?.directory()?.get(name.bytes()))
    }

    /// Checks that a name can be bound: the directory lives and the name is free.
    fn check_free(&self, directory: NodeId, name: Name<'_>) -> Result<()> {
        let holder = self.table.get(directory)?;
        if holder.directory()?.get(name.bytes()).is_some() {
            return fail(Errno::EXIST);
        }
        if holder.links == 0 { fail(Errno::NOENT) } else { Ok(()) }
    }

    /// Binds a free name.
    fn bind(&mut self, directory: NodeId, name: Name<'_>, number: u64, file_type: FileType, now: Time) -> Result<()> {
        let holder = self.table.get_mut(directory)?;
        holder.directory_mut()?.insert(name.bytes(), number, file_type);
        holder.links += u64::from(file_type == FileType::Directory);
        holder.touch_modified(now);
        Ok(())
    }

    /// Takes a name away; the inode's link count is the caller's to change.
    fn unbind(&mut self, directory: NodeId, name: Name<'_>, file_type: FileType, now: Time) -> Result<()> {
        let holder = self.table.get_mut(directory)?;
        holder.directory_mut()?.remove(name.bytes());
        holder.links -= u64::from(file_type == FileType::Directory);
        holder.touch_modified(now);
        Ok(())
    }

    pub(crate) fn create(&mut self, directory: NodeId, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId> {
        self.check_free(directory, name)?;
        let now = Time::now();
        let node = self.table.insert(Inode::new(new, directory.number, now)?)?;
        self.bind(directory, name, node.number, new.file_type, now)?;
        Ok(node)
    }

    pub(crate) fn create_unnamed(&mut self, directory: NodeId, new: &NewNode<'_>) -> Result<NodeId> {
        self.table.get(directory)?.directory()?;
        if new.file_type != FileType::Regular {
            return fail(Errno::INVAL);
        }
        let mut inode = Inode::new(new, directory.number, Time::now())?;
        (inode.links, inode.linkable) = (0, true);
        self.table.insert(inode)
    }

    pub(crate) fn link(&mut self, node: NodeId, directory: NodeId, name: Name<'_>) -> Result<()> {
        let inode = self.table.get(node)?;
        self.check_free(directory, name)?;
        if inode.file_type == FileType::Directory {
            return fail(Errno::PERM);
        }
        if inode.links == 0 && !inode.linkable {
            return fail(Errno::NOENT);
        }
        let (file_type, now) = (inode.file_type, Time::now());
        self.bind(directory, name, node.number, file_type, now)?;
        let inode = self.table.get_mut(node)?;
        inode.links += 1;
        inode.linkable = false;
        inode.changed = now;
        Ok(())
    }

    /// Takes a name's share of an inode's links and frees what is then neither named nor used.
    fn drop_link(&mut self, number: u64, now: Time) -> Result<NodeId> {
        let node = self.table.node(number);
        let inode = self.table.get_mut(node)?;
        inode.links = if inode.file_type == FileType::Directory { 0 } else { inode.links - 1 };
        inode.changed = now;
        self.release(node);
        Ok(node)
    }

    pub(crate) fn remove(&mut self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId> {
        let Some(entry) = self.entry(directory, name)? else { return fail(Errno::NOENT) };
        match (kind, entry.file_type) {
            (RemoveKind::NonDirectory, FileType::Directory) => return fail(Errno::ISDIR),
            (RemoveKind::Directory, FileType::Directory) => self.check_empty(entry.number)?,
            (RemoveKind::Directory, _) => return fail(Errno::NOTDIR),
            (RemoveKind::NonDirectory, _) => {}
        }
        let now = Time::now();
        self.unbind(directory, name, entry.file_type, now)?;
        self.drop_link(entry.number, now)
    }

    fn check_empty(&self, number: u64) -> Result<()> {
        let length = self.table.get(self.table.node(number))?.directory()?.length();
        if length == 0 { Ok(()) } else { fail(Errno::NOTEMPTY) }
    }

    /// Whether the directory `inner` is `outer` or lies below it.
    fn is_within(&self, inner: u64, outer: u64) -> Result<bool> {
        let mut at = inner;
        loop {
            if at == outer {
                return Ok(true);
            }
            let parent = self.table.get(self.table.node(at))?.directory()?.parent;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
    }

    pub(crate) fn rename(
        &mut self,
        from_directory: NodeId,
        from: Name<'_>,
        to_directory: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NO_REPLACE | RenameFlags::WHITEOUT)
            || !RenameFlags::all().contains(flags)
        {
            return fail(Errno::INVAL);
        }
        let source = self.entry(from_directory, from)?;
        let target = self.entry(to_directory, to)?;
        let Some(source) = source else { return fail(Errno::NOENT) };
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return fail(Errno::EXIST);
        }
        if exchange && target.is_none() || self.table.get(to_directory)?.links == 0 {
            return fail(Errno::NOENT);
        }
        // A directory can neither move into itself nor replace one that holds it.
        if source.file_type == FileType::Directory && self.is_within(to_directory.number, source.number)? {
            return fail(Errno::INVAL);
        }
        if let Some(target) = target {
            if target.file_type == FileType::Directory && self.is_within(from_directory.number, target.number)? {
                return fail(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            if target.number == source.number {
                return Ok(());
            }
            if !exchange {
                match (source.file_type, target.file_type) {
                    (FileType::Directory, FileType::Directory) => self.check_empty(target.number)?,
                    (FileType::Directory, _) => return fail(Errno::NOTDIR),
                    (_, FileType::Directory) => return fail(Errno::ISDIR),
                    _ => {}
                }
            }
        }
        let now = Time::now();
        if let (true, Some(target)) = (exchange, target) {
            self.replace(to_directory, to, source, target.file_type, now)?;
            self.replace(from_directory, from, target, source.file_type, now)?;
            return Ok(());
        }
        let whiteout = if flags.contains(RenameFlags::WHITEOUT) {
            let new = NewNode::of_type(FileType::CharacterDevice, 0, Default::default());
            Some(self.table.insert(Inode::new(&new, 0, now)?)?)
        } else {
            None
        };
        self.unbind(from_directory, from, source.file_type, now)?;
        if let Some(whiteout) = whiteout {
            self.bind(from_directory, from, whiteout.number, FileType::CharacterDevice, now)?;
        }
        match target {
            Some(target) => {
                self.replace(to_directory, to, source, target.file_type, now)?;
                self.drop_link(target.number, now)?;
            }
            None => {
                self.bind(to_directory, to, source.number, source.file_type, now)?;
                self.moved(source.number, to_directory, now)?;
            }
        }
        Ok(())
    }

    /// Lets an existing name stand for another inode.
    fn replace(&mut self, directory: NodeId, name: Name<'_>, by: Entry, old: FileType, now: Time) -> Result<()> {
        let holder = self.table.get_mut(directory)?;
        holder.directory_mut()?.rebind(name.bytes(), by.number, by.file_type);
        holder.links += u64::from(by.file_type == FileType::Directory);
        holder.links -= u64::from(old == FileType::Directory);
        holder.touch_modified(now);
        self.moved(by.number, directory, now)
    }

    /// Notes that an inode has a new place.
    fn moved(&mut self, number: u64, directory: NodeId, now: Time) -> Result<()> {
        let inode = self.table.get_mut(self.table.node(number))?;
        inode.changed = now;
        if let Ok(moved) = inode.directory_mut() {
            moved.parent = directory.number;
        }
        Ok(())
    }
}
