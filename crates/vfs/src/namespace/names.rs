//! Operations on names: make, link, remove, rename.
//!
//! Places come from [`super::LastMode::Parent`] walks; these operations look the name up themselves where a check needs it.

use super::access_list::{ACCESS_NAME, AccessList, DEFAULT_NAME};
use super::{Access, Capabilities, Credentials, Last, Namespace, Place};
use crate::{
    Errno, Error, FileType, Found, InodeFlags, Name, NewNode, NodeId, Owner, Permissions, RemoveKind, RenameFlags,
    Result,
};

/// How often names are looked at that others move meanwhile.
const LOOKS_MAX: u32 = 100;

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

impl Namespace<'_, '_> {
    /// Finds a name, or `None`.
    pub(super) fn look(&self, directory: NodeId, name: Name<'_>) -> Result<Option<Found>> {
        match self.fs.lookup(directory, name) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The name to be made at a place: `EEXIST` for what always exists; a slash behind it is for directories only.
    fn name_to_make<'a>(&self, place: &Place<'a>, file_type: FileType) -> Result<Name<'a>> {
        let Last::Name(name) = place.last else { return fail(Errno::EXIST) };
        if place.wants_directory && file_type != FileType::Directory {
            let exists = self.look(place.directory, name)?.is_some();
            return fail(if exists { Errno::EXIST } else { Errno::NOENT });
        }
        Ok(name)
    }

    /// Makes what `mkdir`, `mknod` and `symlink` make. `mode` is the wish, before umask or default list; `target` is
    /// where a symbolic link leads. `EEXIST`, `EACCES`, `EPERM` for devices without `CAP_MKNOD`.
    pub fn make(
        &self,
        place: &Place<'_>,
        file_type: FileType,
        mode: u32,
        device: u64,
        target: &[u8],
    ) -> Result<NodeId> {
        let name = self.name_to_make(place, file_type)?;
        let is_whiteout = file_type == FileType::CharacterDevice && device == 0;
        let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
        if !is_device {
            let new = |holder: &Permissions| {
                self.may_create(place.directory, holder)?;
                Ok(NewNode { target, ..self.plain_node(holder, file_type, mode)? })
            };
            if let Some(node) = self.fs.create_if(place.directory, name, &new)? {
                return Ok(node);
            }
        }
        // What exists is told before what is forbidden, as the kernel looks up first.
        let holder =
            self.check_create(place.directory).map_err(|error| self.exists_or(place.directory, name, error))?;
        if is_device && !is_whiteout && !self.who.may(Capabilities::MKNOD) {
            return Err(self.exists_or(place.directory, name, Error::new(Errno::PERM)));
        }
        self.with_new_node(place.directory, &holder, file_type, mode, |new| {
            self.fs.create(place.directory, name, &NewNode { device, target, ..*new })
        })
    }

    /// `EEXIST` if the name exists, else `error`.
    pub(super) fn exists_or(&self, directory: NodeId, name: Name<'_>, error: Error) -> Error {
        if self.fs.lookup(directory, name).is_ok() { Error::new(Errno::EXIST) } else { error }
    }

    /// Calls `make` with the attributes that a new inode in `directory` gets: owner, set-group-id inheritance, umask or
    /// default list.
    pub(super) fn with_new_node<T>(
        &self,
        directory: NodeId,
        holder: &Permissions,
        file_type: FileType,
        mode: u32,
        make: impl FnOnce(&NewNode<'_>) -> Result<T>,
    ) -> Result<T> {
        let inherits = || self.fs.xattr(directory, DEFAULT_NAME, &mut []).is_ok_and(|length| length > 0);
        if file_type != FileType::Symlink && inherits() {
            let (mode, owner) = self.mode_and_owner(holder, file_type, mode)?;
            let flags = holder.flags.inherited(file_type);
            return self.with_inherited_list(
                directory,
                NewNode { flags, ..NewNode::of_type(file_type, mode, owner) },
                make,
            );
        }
        make(&self.plain_node(holder, file_type, mode)?)
    }

    /// A new inode in a directory without a default list.
    pub(super) fn plain_node(&self, holder: &Permissions, file_type: FileType, mode: u32) -> Result<NewNode<'static>> {
        let (mode, owner) = self.mode_and_owner(holder, file_type, mode)?;
        let mode = if file_type == FileType::Symlink { 0o777 } else { mode & !self.who.umask };
        Ok(NewNode { flags: holder.flags.inherited(file_type), ..NewNode::of_type(file_type, mode, owner) })
    }

    /// Mode before the umask, and owner, of a new inode. `EOVERFLOW` if who asks is not known: nobody could own it.
    fn mode_and_owner(&self, holder: &Permissions, file_type: FileType, mode: u32) -> Result<(u32, Owner)> {
        if [self.who.user, self.who.group].contains(&Credentials::UNKNOWN) {
            return Err(Error::because(Errno::OVERFLOW, "who makes the file is not known"));
        }
        let mut owner = Owner { user: self.who.user, group: self.who.group };
        let mut mode = mode & if file_type == FileType::Directory { 0o1777 } else { 0o7777 };
        if holder.mode & 0o2000 != 0 {
            owner.group = holder.owner.group;
            if file_type == FileType::Directory {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && !self.keeps_set_group_id(holder.owner) {
                mode &= !0o2000;
            }
        }
        Ok((mode, owner))
    }

    /// [`Namespace::with_new_node`] below a directory with a default list: it takes the umask's place, which `new` is without.
    #[cold]
    fn with_inherited_list<T>(
        &self,
        directory: NodeId,
        new: NewNode<'static>,
        make: impl FnOnce(&NewNode<'_>) -> Result<T>,
    ) -> Result<T> {
        let NewNode { file_type, mode, .. } = new;
        let (mut room, mut default_room) = (AccessList::ROOM, AccessList::ROOM);
        let Some(mut list) = AccessList::read_default(self.fs, directory, &mut room)? else {
            return make(&NewNode { mode: mode & !self.who.umask, ..new });
        };
        let default = &mut default_room[..list.bytes().len()];
        default.copy_from_slice(list.bytes());
        let mode = mode & !0o777 | mode & list.mode();
        list.set_mode(mode);
        let access: (&[u8], &[u8]) = (ACCESS_NAME, list.bytes());
        let default: (&[u8], &[u8]) = (DEFAULT_NAME, default);
        let both = [access, default];
        let xattrs = match (list.is_minimal(), file_type == FileType::Directory) {
            (true, true) => &both[1..],
            (true, false) => &[],
            (false, true) => &both[..],
            (false, false) => &both[..1],
        };
        make(&NewNode { xattrs, mode, ..new })
    }

    /// Gives an inode another name. `EPERM` for directories and for immutable and append-only files.
    pub fn link(&self, node: NodeId, place: &Place<'_>) -> Result<()> {
        let known = self.fs.permissions(node)?;
        let name = self.name_to_make(place, FileType::Regular)?;
        if !self.is_owner(&known) && !self.is_safe_to_link(node, &known) {
            return Err(self.exists_or(place.directory, name, Error::new(Errno::PERM)));
        }
        self.check_create(place.directory).map_err(|error| self.exists_or(place.directory, name, error))?;
        let fixed = known.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY);
        if fixed || known.file_type == FileType::Directory {
            return Err(self.exists_or(place.directory, name, Error::new(Errno::PERM)));
        }
        self.fs.link(node, place.directory, name)
    }

    /// Whether those who do not own a file may link it all the same: as with `protected_hardlinks`, which distributions
    /// set, only what they can read and write and what gives no rights.
    fn is_safe_to_link(&self, node: NodeId, known: &Permissions) -> bool {
        known.file_type == FileType::Regular
            && known.mode & 0o4000 == 0
            && known.mode & 0o2010 != 0o2010
            && self.check_known(node, known, Access::READ | Access::WRITE).is_ok()
    }

    /// Removes a name that is not a directory's; returns what it led to.
    pub fn unlink(&self, place: &Place<'_>) -> Result<Found> {
        let Last::Name(name) = place.last else { return fail(Errno::ISDIR) };
        if !place.wants_directory
            && let Some(found) = self.remove_at_once(place.directory, name, RemoveKind::NonDirectory)?
        {
            return Ok(found);
        }
        let found = self.fs.lookup(place.directory, name)?;
        if place.wants_directory {
            return fail(if found.file_type == FileType::Directory { Errno::ISDIR } else { Errno::NOTDIR });
        }
        self.check_remove(place.directory, found.node)?;
        let node = self.fs.remove(place.directory, name, RemoveKind::NonDirectory)?;
        Ok(Found { node, ..found })
    }

    /// Removes an empty directory; returns its inode.
    pub fn remove_directory(&self, place: &Place<'_>) -> Result<NodeId> {
        let name = match place.last {
            Last::Name(name) => name,
            Last::Dot => return fail(Errno::INVAL),
            Last::DotDot => return fail(Errno::NOTEMPTY),
            Last::Root => return fail(Errno::BUSY),
        };
        if let Some(found) = self.remove_at_once(place.directory, name, RemoveKind::Directory)? {
            return Ok(found.node);
        }
        let found = self.fs.lookup(place.directory, name)?;
        self.check_remove(place.directory, found.node)?;
        self.fs.remove(place.directory, name, RemoveKind::Directory)
    }

    /// Checks and removes in one step, where the file system can.
    fn remove_at_once(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<Option<Found>> {
        self.fs.remove_if(directory, name, kind, &|holder, victim| self.may_remove(directory, holder, victim))
    }

    /// The flags of `renameat2` from its argument. `EINVAL` for unknown ones and for those that contradict each other, which is
    /// said before any look at the paths.
    pub fn rename_flags(bits: u32) -> Result<RenameFlags> {
        let flags = RenameFlags::from_bits(bits).ok_or(Error::new(Errno::INVAL))?;
        let others = RenameFlags::NO_REPLACE | RenameFlags::WHITEOUT;
        let contradicts = flags.contains(RenameFlags::EXCHANGE) && flags.intersects(others);
        if contradicts { fail(Errno::INVAL) } else { Ok(flags) }
    }

    /// `renameat2`.
    pub fn rename(&self, from: &Place<'_>, to: &Place<'_>, flags: RenameFlags) -> Result<()> {
        let exchange = Self::rename_flags(flags.bits())?.contains(RenameFlags::EXCHANGE);
        let (old, new) = match (from.last, to.last) {
            (Last::Name(old), Last::Name(new)) => (old, new),
            (Last::Name(_), _) if flags.contains(RenameFlags::NO_REPLACE) => return fail(Errno::EXIST),
            _ => return fail(Errno::BUSY),
        };
        let mut source = self.fs.lookup(from.directory, old)?;
        let mut target = self.look(to.directory, new)?;
        let mut looks = 1;
        while target.is_some_and(|target| target.node == source.node)
            && !self.has_both_names(source, (from.directory, old), (to.directory, new))?
        {
            // Another has moved it from here to there between the two looks. Who believes that one would tell both that they moved it.
            if looks == LOOKS_MAX {
                return Err(Error::because(Errno::BUSY, "the names change faster than they can be renamed"));
            }
            looks += 1;
            source = self.fs.lookup(from.directory, old)?;
            target = self.look(to.directory, new)?;
        }
        if flags.contains(RenameFlags::NO_REPLACE) && target.is_some() {
            return fail(Errno::EXIST);
        }
        if exchange && target.is_none() {
            return fail(Errno::NOENT);
        }
        if source.file_type != FileType::Directory && (from.wants_directory || !exchange && to.wants_directory) {
            return fail(Errno::NOTDIR);
        }
        let other_place = target.filter(|target| target.file_type != FileType::Directory && exchange);
        if other_place.is_some() && to.wants_directory {
            return fail(Errno::NOTDIR);
        }
        if target.is_some_and(|target| target.node == source.node) {
            return Ok(());
        }
        self.check_rename(from.directory, source, to.directory, target, exchange).map_err(|error| {
            // That a directory cannot go below itself is said before what is forbidden.
            if self.is_within(to.directory, source.node) {
                Error::new(Errno::INVAL)
            } else if target.is_some_and(|target| self.is_within(from.directory, target.node)) {
                Error::new(if exchange { Errno::INVAL } else { Errno::NOTEMPTY })
            } else {
                error
            }
        })?;
        self.fs.rename(from.directory, old, to.directory, new, flags)
    }

    /// Whether an inode that was found under `one` and then under `other` is there under both. Whoever does anything but look leaves that to
    /// the file system.
    fn has_both_names(&self, found: Found, one: (NodeId, Name<'_>), other: (NodeId, Name<'_>)) -> Result<bool> {
        Ok(one == other
            || found.file_type != FileType::Directory
                && self.fs.attributes(found.node)?.links > 1
                && self.fs.lookup(one.0, one.1)?.node == found.node)
    }

    /// Checks that an entry may be moved.
    fn check_rename(
        &self,
        from_directory: NodeId,
        source: Found,
        to_directory: NodeId,
        target: Option<Found>,
        exchange: bool,
    ) -> Result<()> {
        self.check_remove(from_directory, source.node)?;
        match target {
            Some(target) => {
                self.check_remove(to_directory, target.node)?;
                let is_directory = |found: Found| found.file_type == FileType::Directory;
                match (is_directory(source), is_directory(target)) {
                    (true, false) if !exchange => return fail(Errno::NOTDIR),
                    (false, true) if !exchange => return fail(Errno::ISDIR),
                    _ => {}
                }
            }
            None => _ = self.check_create(to_directory)?,
        }
        if from_directory != to_directory {
            // A directory that gets another parent is written to.
            for moved in [Some(source), target.filter(|_| exchange)].into_iter().flatten() {
                if moved.file_type == FileType::Directory {
                    self.check_access(moved.node, Access::WRITE)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the directory `inner` is `outer` or lies below it, as far as can be seen.
    #[cold]
    fn is_within(&self, inner: NodeId, outer: NodeId) -> bool {
        const DEPTH_MAX: usize = 1 << 16;
        let mut at = inner;
        for _ in 0..DEPTH_MAX {
            if at == outer {
                return true;
            }
            match self.fs.parent(at) {
                Ok(parent) if parent != at => at = parent,
                _ => break,
            }
        }
        false
    }
}
