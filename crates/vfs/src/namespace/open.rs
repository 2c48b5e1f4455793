//! Opening and creating.

use super::{Access, Last, LastMode, Namespace, Place, ResolveFlags};
use crate::{
    AttributeChange, Errno, Error, FileType, Found, InodeFlags, ModeChange, NewNode, NodeId, Permissions, Result,
};

/// The flags of `open(2)`, with Linux's values.
pub use rustix::fs::OFlags as OpenFlags;

use super::Capabilities;

/// What an open found or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The inode.
    pub node: NodeId,
    /// Its type. Pipes are the front end's to open.
    pub file_type: FileType,
    /// It was made by this call.
    pub created: bool,
}

/// A volume is mounted `nodev`.
const NO_DEVICES: Error = Error::because(Errno::ACCESS, "devices are not opened on a volume");

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

/// How often an open looks again when another process makes or removes the name meanwhile.
const ATTEMPTS_MAX: usize = 100;

impl Namespace<'_, '_> {
    /// The flags without those that `O_PATH` makes meaningless.
    fn effective(flags: OpenFlags) -> OpenFlags {
        let of_path = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
        if flags.contains(OpenFlags::PATH) { flags & of_path } else { flags }
    }

    /// How a path is to be walked for an open with these flags. `EINVAL` if they contradict each other, which is said
    /// before any look at the path.
    pub fn open_mode(flags: OpenFlags) -> Result<(LastMode, ResolveFlags)> {
        let flags = Self::effective(flags);
        let create = flags.contains(OpenFlags::CREATE);
        // Of the two bits of O_TMPFILE one is O_DIRECTORY.
        let unnamed = flags.contains(OpenFlags::TMPFILE.difference(OpenFlags::DIRECTORY));
        if create && flags.contains(OpenFlags::DIRECTORY)
            || unnamed && (create || !flags.contains(OpenFlags::DIRECTORY) || flags.bits() & 3 == 0)
        {
            return fail(Errno::INVAL);
        }
        let mode = if create && flags.contains(OpenFlags::EXCL) {
            // Making the name tells whether it is taken: one look instead of two.
            LastMode::Parent
        } else if flags.contains(OpenFlags::NOFOLLOW) {
            LastMode::NoFollow
        } else {
            LastMode::Follow
        };
        Ok((mode, if create { ResolveFlags::CREATE_FILE } else { ResolveFlags::empty() }))
    }

    /// What the flags ask of the inode.
    fn access_of(flags: OpenFlags) -> Access {
        let access = match flags.bits() & 3 {
            0 => Access::READ,
            1 => Access::WRITE,
            _ => Access::READ | Access::WRITE,
        };
        if flags.contains(OpenFlags::TRUNC) { access | Access::WRITE } else { access }
    }

    /// Opens what is at a place that was walked to with [`Namespace::open_mode`]; creates and truncates as the flags say.
    /// `mode` is the wish for a new file.
    pub fn open(&self, place: &Place<'_>, flags: OpenFlags, mode: u32) -> Result<Opened> {
        let flags = Self::effective(flags);
        let follow = Self::open_mode(flags)?.0 == LastMode::Follow;
        if flags.contains(OpenFlags::TMPFILE) {
            return self.open_unnamed(place, mode);
        }
        let create = flags.contains(OpenFlags::CREATE);
        let mut found = place.found;
        for _ in 0..ATTEMPTS_MAX {
            match (found, place.last) {
                (Some(_), _) if create && flags.contains(OpenFlags::EXCL) => return fail(Errno::EXIST),
                (Some(found), _) => {
                    let is_directory = found.file_type == FileType::Directory;
                    if create && (is_directory || place.wants_directory) {
                        return fail(Errno::ISDIR);
                    }
                    return self.open_found(found, flags);
                }
                (None, Last::Name(name)) if create => {
                    if place.wants_directory {
                        return fail(Errno::ISDIR);
                    }
                    match self.create_file(place, mode) {
                        Err(error) if error.errno() == Errno::EXIST && !flags.contains(OpenFlags::EXCL) => {
                            // Somebody was faster. What they made is opened, unless it is a link that were to be followed.
                            found = self.look(place.directory, name)?;
                            if follow && found.is_some_and(|found| found.file_type == FileType::Symlink) {
                                return fail(Errno::LOOP);
                            }
                        }
                        result => return result,
                    }
                }
                _ => return fail(Errno::NOENT),
            }
        }
        fail(Errno::BUSY)
    }

    fn create_file(&self, place: &Place<'_>, mode: u32) -> Result<Opened> {
        let Last::Name(name) = place.last else { return fail(Errno::ISDIR) };
        let new = |holder: &Permissions| {
            self.may_create(place.directory, holder)?;
            self.plain_node(holder, FileType::Regular, mode)
        };
        if let Some(node) = self.fs.create_if(place.directory, name, &new)? {
            return Ok(Opened { node, file_type: FileType::Regular, created: true });
        }
        // What exists is told before what is forbidden: it may not have been looked up.
        let opened = self.check_create(place.directory).and_then(|holder| {
            self.with_new_node(place.directory, &holder, FileType::Regular, mode, |new| {
                let node = self.fs.create(place.directory, name, new)?;
                Ok(Opened { node, file_type: FileType::Regular, created: true })
            })
        });
        opened.map_err(|error| self.exists_or(place.directory, name, error))
    }

    fn open_unnamed(&self, place: &Place<'_>, mode: u32) -> Result<Opened> {
        let found = place.existing()?;
        if found.file_type != FileType::Directory {
            return fail(Errno::NOTDIR);
        }
        let holder = self.check_create(found.node)?;
        self.with_new_node(found.node, &holder, FileType::Regular, mode, |new: &NewNode<'_>| {
            let node = self.fs.create_unnamed(found.node, new)?;
            Ok(Opened { node, file_type: FileType::Regular, created: true })
        })
    }

    /// Opens an inode that exists: by name, or again through a descriptor (`/proc/self/fd`).
    pub fn open_found(&self, found: Found, flags: OpenFlags) -> Result<Opened> {
        let (flags, Found { node, file_type }) = (Self::effective(flags), found);
        let opened = Opened { node, file_type, created: false };
        if flags.contains(OpenFlags::DIRECTORY) && file_type != FileType::Directory {
            return fail(Errno::NOTDIR);
        }
        if flags.contains(OpenFlags::PATH) {
            return Ok(opened);
        }
        let access = Self::access_of(flags);
        match file_type {
            FileType::Symlink => return fail(Errno::LOOP),
            FileType::Directory if access.contains(Access::WRITE) => return fail(Errno::ISDIR),
            FileType::CharacterDevice | FileType::BlockDevice => return Err(NO_DEVICES),
            _ => {}
        }
        let known = self.fs.permissions(node)?;
        self.check_known(node, &known, access)?;
        if file_type == FileType::Socket {
            return fail(Errno::NXIO);
        }
        if known.flags.contains(InodeFlags::APPEND_ONLY)
            && access.contains(Access::WRITE)
            && (!flags.contains(OpenFlags::APPEND) || flags.contains(OpenFlags::TRUNC))
        {
            return fail(Errno::PERM);
        }
        if flags.contains(OpenFlags::NOATIME) && !self.is_owner(&known) {
            return fail(Errno::PERM);
        }
        if flags.contains(OpenFlags::TRUNC) && file_type == FileType::Regular {
            self.cut(node, 0, &known)?;
        }
        Ok(opened)
    }

    /// Whether the status flags of an open file may become others (`F_SETFL`): `EPERM` for `O_NOATIME` that somebody else than the owner
    /// asks for, and where an append-only file's `O_APPEND` changes.
    pub fn check_status(&self, node: NodeId, now: u32, wanted: u32) -> Result<()> {
        let (now, wanted) = (OpenFlags::from_bits_retain(now), OpenFlags::from_bits_retain(wanted));
        let quiet = (wanted - now).contains(OpenFlags::NOATIME);
        let appends = (wanted ^ now).contains(OpenFlags::APPEND);
        if !quiet && !appends {
            return Ok(());
        }
        let known = self.fs.permissions(node)?;
        let refused = appends && known.flags.contains(InodeFlags::APPEND_ONLY) || quiet && !self.is_owner(&known);
        if refused { fail(Errno::PERM) } else { Ok(()) }
    }

    /// Changes the size; capabilities go, and set-id bits unless privilege keeps them.
    pub(super) fn cut(&self, node: NodeId, size_bytes: u64, known: &Permissions) -> Result<()> {
        self.drop_capability(node, known)?;
        let keeps = self.who.may(Capabilities::FSETID);
        let mode = if keeps { ModeChange::Keep } else { self.set_id_change(known) };
        let change = AttributeChange { size_bytes: Some(size_bytes), mode, ..Default::default() };
        self.fs.set_attributes(node, &change).map(|_| ())
    }
}
