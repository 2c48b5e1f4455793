//! A file system that is too simple to be wrong: whole files as byte vectors, directories as maps, no space, no times.
//!
//! It states results as Linux gives them, in Linux's order of checks, and shares no code with any file system.

use std::collections::BTreeMap;

use gannet_vfs::{AllocateMode, Errno, FileType, ModeChange, Owner, RemoveKind, RenameFlags, XattrMode};

/// Names an inode of the model.
pub type Id = usize;

/// An inode of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Its type.
    pub file_type: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Its owner.
    pub owner: Owner,
    /// The bytes of a file, or where a link leads.
    pub bytes: Vec<u8>,
    /// The entries of a directory.
    pub entries: BTreeMap<Vec<u8>, Id>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// It was made without a name and may still get one.
    pub linkable: bool,
    /// How many users it has.
    pub users: usize,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    inodes: BTreeMap<Id, Inode>,
    next: Id,
    block_bytes: u64,
}

/// The root of the model.
pub const ROOT: Id = 0;

type Result<T> = core::result::Result<T, Errno>;

impl Model {
    /// An empty one whose root has these attributes; `block_bytes` is the unit of collapse, insert and clone.
    pub fn new(mode: u32, owner: Owner, block_bytes: u64) -> Self {
        let mut model = Self { inodes: BTreeMap::new(), next: ROOT, block_bytes };
        model.add(FileType::Directory, mode, owner, &[]);
        model
    }

    fn add(&mut self, file_type: FileType, mode: u32, owner: Owner, target: &[u8]) -> Id {
        let id = self.next;
        self.next += 1;
        let inode = Inode {
            file_type,
            mode,
            owner,
            bytes: target.to_vec(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            linkable: false,
            users: 0,
        };
        self.inodes.insert(id, inode);
        id
    }

    /// An inode that exists.
    pub fn inode(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    fn inode_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("the inode exists")
    }

    /// Whether an inode exists.
    pub fn exists(&self, id: Id) -> bool {
        self.inodes.contains_key(&id)
    }

    /// How many inodes exist.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// All inodes with names, and where.
    fn names(&self) -> impl Iterator<Item = (Id, &Vec<u8>, Id)> {
        self.inodes.iter().flat_map(|(&holder, inode)| inode.entries.iter().map(move |(name, &id)| (holder, name, id)))
    }

    /// The number of links, counted.
    pub fn links(&self, id: Id) -> u64 {
        let names = self.names().filter(|entry| entry.2 == id).count() as u64;
        if self.inode(id).file_type != FileType::Directory {
            return names;
        }
        if id != ROOT && names == 0 {
            return 0;
        }
        let below = self.inode(id).entries.values().filter(|id| self.inode(**id).file_type == FileType::Directory);
        2 + below.count() as u64
    }

    fn directory(&self, id: Id) -> Result<&Inode> {
        Some(self.inode(id)).filter(|inode| inode.file_type == FileType::Directory).ok_or(Errno::NOTDIR)
    }

    fn is_alive(&self, directory: Id) -> bool {
        self.links(directory) > 0
    }

    /// Forgets what has neither name nor user.
    fn sweep(&mut self) {
        let dead: Vec<Id> =
            self.inodes.keys().copied().filter(|&id| self.links(id) == 0 && self.inode(id).users == 0).collect();
        for id in dead {
            self.inodes.remove(&id);
        }
    }

    /// Finds a name.
    pub fn lookup(&self, directory: Id, name: &[u8]) -> Result<Id> {
        self.directory(directory)?.entries.get(name).copied().ok_or(Errno::NOENT)
    }

    /// The directory that holds a directory.
    pub fn parent(&self, directory: Id) -> Result<Id> {
        self.directory(directory)?;
        if directory == ROOT {
            return Ok(ROOT);
        }
        self.names().find(|entry| entry.2 == directory).map(|entry| entry.0).ok_or(Errno::NOENT)
    }

    fn check_free(&self, directory: Id, name: &[u8]) -> Result<()> {
        if self.directory(directory)?.entries.contains_key(name) {
            return Err(Errno::EXIST);
        }
        if self.is_alive(directory) { Ok(()) } else { Err(Errno::NOENT) }
    }

    /// Makes an inode.
    pub fn create(
        &mut self,
        directory: Id,
        name: &[u8],
        file_type: FileType,
        mode: u32,
        owner: Owner,
        target: &[u8],
    ) -> Result<Id> {
        self.check_free(directory, name)?;
        let id = self.add(file_type, if file_type == FileType::Symlink { 0o777 } else { mode }, owner, target);
        self.inode_mut(directory).entries.insert(name.to_vec(), id);
        Ok(id)
    }

    /// Makes a file without a name and with one user.
    pub fn create_unnamed(&mut self, directory: Id, mode: u32, owner: Owner) -> Result<Id> {
        self.directory(directory)?;
        let id = self.add(FileType::Regular, mode, owner, &[]);
        let inode = self.inode_mut(id);
        (inode.linkable, inode.users) = (true, 1);
        Ok(id)
    }

    /// Links.
    pub fn link(&mut self, id: Id, directory: Id, name: &[u8]) -> Result<()> {
        self.check_free(directory, name)?;
        if self.inode(id).file_type == FileType::Directory {
            return Err(Errno::PERM);
        }
        if self.links(id) == 0 && !self.inode(id).linkable {
            return Err(Errno::NOENT);
        }
        self.inode_mut(directory).entries.insert(name.to_vec(), id);
        self.inode_mut(id).linkable = false;
        Ok(())
    }

    /// Removes a name.
    pub fn remove(&mut self, directory: Id, name: &[u8], kind: RemoveKind) -> Result<()> {
        let id = self.lookup(directory, name)?;
        let inode = self.inode(id);
        match (kind, inode.file_type == FileType::Directory) {
            (RemoveKind::NonDirectory, true) => return Err(Errno::ISDIR),
            (RemoveKind::Directory, false) => return Err(Errno::NOTDIR),
            (RemoveKind::Directory, true) if !inode.entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.inode_mut(directory).entries.remove(name);
        self.sweep();
        Ok(())
    }

    fn is_within(&self, inner: Id, outer: Id) -> bool {
        inner == outer || inner != ROOT && self.parent(inner).is_ok_and(|parent| self.is_within(parent, outer))
    }

    /// Renames; `whiteout` is what a whiteout looks like: mode and owner.
    pub fn rename(
        &mut self,
        from_directory: Id,
        from: &[u8],
        to_directory: Id,
        to: &[u8],
        flags: RenameFlags,
        whiteout: (u32, Owner),
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags != RenameFlags::EXCHANGE {
            return Err(Errno::INVAL);
        }
        self.directory(from_directory)?;
        self.directory(to_directory)?;
        let source = self.lookup(from_directory, from)?;
        let target = self.lookup(to_directory, to).ok();
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return Err(Errno::EXIST);
        }
        if exchange && target.is_none() {
            return Err(Errno::NOENT);
        }
        if self.is_within(to_directory, source) {
            return Err(Errno::INVAL);
        }
        if target.is_some_and(|target| self.is_within(from_directory, target)) {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if target == Some(source) {
            return Ok(());
        }
        if let (Some(target), false) = (target, exchange) {
            let is_directory = |id| self.inode(id).file_type == FileType::Directory;
            match (is_directory(source), is_directory(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.inode(target).entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.inode_mut(from_directory).entries.remove(from);
        self.inode_mut(to_directory).entries.insert(to.to_vec(), source);
        if let (Some(target), true) = (target, exchange) {
            self.inode_mut(from_directory).entries.insert(from.to_vec(), target);
        }
        if flags.contains(RenameFlags::WHITEOUT) {
            let id = self.add(FileType::CharacterDevice, whiteout.0, whiteout.1, &[]);
            self.inode_mut(from_directory).entries.insert(from.to_vec(), id);
        }
        self.sweep();
        Ok(())
    }

    /// Adds a user.
    pub fn hold(&mut self, id: Id) {
        self.inode_mut(id).users += 1;
    }

    /// Takes a user away.
    pub fn release(&mut self, id: Id) {
        self.inode_mut(id).users -= 1;
        self.sweep();
    }

    /// The bytes of a regular file; `EISDIR` for a directory, `other` for the rest.
    fn file(&mut self, id: Id, other: Errno) -> Result<&mut Vec<u8>> {
        let inode = self.inode_mut(id);
        match inode.file_type {
            FileType::Regular => Ok(&mut inode.bytes),
            FileType::Directory => Err(Errno::ISDIR),
            _ => Err(other),
        }
    }

    /// Reads.
    pub fn read(&mut self, id: Id, offset: usize, length: usize) -> Result<Vec<u8>> {
        let bytes = self.file(id, Errno::INVAL)?;
        let start = offset.min(bytes.len());
        Ok(bytes[start..(start + length).min(bytes.len())].to_vec())
    }

    /// Writes at an offset or, without one, at the end; returns where.
    pub fn write(&mut self, id: Id, offset: Option<usize>, from: &[u8]) -> Result<u64> {
        let bytes = self.file(id, Errno::INVAL)?;
        let start = offset.unwrap_or(bytes.len());
        if !from.is_empty() {
            let end = start + from.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(from);
        }
        Ok(start as u64)
    }

    /// Truncates or extends.
    pub fn resize(&mut self, id: Id, size: usize) -> Result<()> {
        self.file(id, Errno::INVAL)?.resize(size, 0);
        Ok(())
    }

    /// Changes owner and mode.
    pub fn change(&mut self, id: Id, mode: ModeChange, user: Option<u32>, group: Option<u32>) {
        let inode = self.inode_mut(id);
        match mode {
            ModeChange::Keep => {}
            ModeChange::Set(mode) => inode.mode = mode,
            ModeChange::DropSetId if inode.file_type == FileType::Directory => {}
            ModeChange::DropSetId => {
                let set_group_id = if inode.mode & 0o010 != 0 { 0o2000 } else { 0 };
                inode.mode &= !(0o4000 | set_group_id);
            }
        }
        inode.owner.user = user.unwrap_or(inode.owner.user);
        inode.owner.group = group.unwrap_or(inode.owner.group);
    }

    /// `fallocate`.
    pub fn allocate(&mut self, id: Id, mode: AllocateMode, offset: usize, length: usize) -> Result<()> {
        let block = self.block_bytes as usize;
        let bytes = self.file(id, Errno::NODEV)?;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let (size, end) = (bytes.len(), offset + length);
        let aligned = offset.is_multiple_of(block) && length.is_multiple_of(block);
        match mode {
            AllocateMode::Extend | AllocateMode::Unshare => bytes.resize(size.max(end), 0),
            AllocateMode::KeepSize | AllocateMode::UnshareKeepSize => {}
            AllocateMode::PunchHole | AllocateMode::ZeroKeepSize | AllocateMode::Zero => {
                if mode == AllocateMode::Zero {
                    bytes.resize(size.max(end), 0);
                }
                let size = bytes.len();
                bytes[offset.min(size)..end.min(size)].fill(0);
            }
            AllocateMode::Collapse if !aligned || end >= size => return Err(Errno::INVAL),
            AllocateMode::Collapse => drop(bytes.drain(offset..end)),
            AllocateMode::Insert if !aligned || offset >= size => return Err(Errno::INVAL),
            AllocateMode::Insert => drop(bytes.splice(offset..offset, core::iter::repeat_n(0, length))),
        }
        Ok(())
    }

    /// Clones.
    pub fn clone_range(&mut self, from: Id, from_offset: usize, to: Id, to_offset: usize, length: usize) -> Result<()> {
        let block = self.block_bytes as usize;
        let source = self.file(from, Errno::INVAL)?.clone();
        let target = self.file(to, Errno::INVAL)?;
        let (from_end, to_end) = (from_offset + length, to_offset + length);
        let overlap = from == to && from_offset < to_end && to_offset < from_end;
        let ragged = !length.is_multiple_of(block) && (from_end != source.len() || to_end < target.len());
        if !from_offset.is_multiple_of(block)
            || !to_offset.is_multiple_of(block)
            || from_end > source.len()
            || ragged
            || overlap
        {
            return Err(Errno::INVAL);
        }
        if length > 0 {
            target.resize(target.len().max(to_end), 0);
            target[to_offset..to_end].copy_from_slice(&source[from_offset..from_end]);
        }
        Ok(())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, id: Id, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let xattrs = &mut self.inode_mut(id).xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(Errno::EXIST),
            (XattrMode::Replace, false) => Err(Errno::NODATA),
            _ => {
                xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, id: Id, name: &[u8]) -> Result<()> {
        self.inode_mut(id).xattrs.remove(name).map(|_| ()).ok_or(Errno::NODATA)
    }
}
