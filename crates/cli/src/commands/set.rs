//! `gannet set`: how the data of files is written, set and shown. Who may write to the volume may set it for every file, as with the
//! rest of the volume; programs ask by `FS_IOC_SETFLAGS`, with permissions checked.

use crate::arguments::Set;
use crate::failure::Failure;
use crate::output::print;
use crate::volume;
use gannet_logfs::{LogFs, describe};
use gannet_vfs::namespace::{Boundary, Credentials, LastMode, PathBuffer, Resolution, ResolveFlags, Walker};
use gannet_vfs::{AttributeChange, Error, FileSystem, FileType, Name, NodeId};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;

/// A file or directory on the volume.
struct Place {
    node: NodeId,
    file_type: FileType,
    path: Vec<u8>,
}

/// Sets or shows how data is written.
pub(crate) fn run(arguments: &Set) -> Result<u8, Failure> {
    let path = &arguments.volume;
    let default = describe(&volume::open(path, true)?).map_err(|error| volume::failure(path, error))?.copy_on_write;
    let options = gannet_open::Options { read_only: arguments.data.is_none(), ..Default::default() };
    let volume = match arguments.data {
        Some(_) => gannet_open::open_volume(path, options),
        None => volume::join(path),
    };
    let volume = volume.map_err(Failure::new)?;
    for named in &arguments.paths {
        let place = find(&volume, named.as_bytes()).map_err(|error| about(named.as_bytes(), error))?;
        if !has_data(place.file_type) {
            let named = named.as_bytes().escape_ascii();
            return Err(Failure::new(format_args!("{named}: only files and directories say how data is written")));
        }
        let mut left = vec![place];
        while let Some(place) = left.pop() {
            one(arguments, &volume, default, &place).map_err(|error| about(&place.path, error))?;
            if arguments.recursive && place.file_type == FileType::Directory {
                below(&volume, &place, &mut left).map_err(|error| about(&place.path, error))?;
            }
        }
    }
    volume::leave(path, &*volume)?;
    Ok(0)
}

fn has_data(file_type: FileType) -> bool {
    matches!(file_type, FileType::Regular | FileType::Directory)
}

/// An error about a path on the volume.
fn about(path: &[u8], error: impl Into<Failed>) -> Failure {
    let path = path.escape_ascii();
    match error.into() {
        Failed::Volume(error) if error.errno() == Errno::NOENT => {
            Failure::new(format_args!("{path}: there is no such file on the volume"))
        }
        Failed::Volume(error) => Failure::new(format_args!("{path}: {error}")),
        Failed::Other(failure) => failure,
    }
}

/// Why one path could not be done.
enum Failed {
    Volume(Error),
    Other(Failure),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Volume(error)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

/// What stands at a path, which begins at the root in any case.
fn find(volume: &LogFs, path: &[u8]) -> Result<Place, Error> {
    let who = Credentials::ROOT;
    let walker = Walker { fs: volume, who: &who, root: volume.root(), boundary: Boundary::Contain, links: 0 };
    let mut buffer = Box::new(PathBuffer::new());
    match walker.resolve(volume.root(), path, LastMode::Follow, ResolveFlags::empty(), &mut buffer)? {
        Resolution::Place(place) => {
            let found = place.existing()?;
            Ok(Place { node: found.node, file_type: found.file_type, path: path.to_vec() })
        }
        Resolution::Left(_) => Err(Error::new(Errno::XDEV)),
    }
}

/// Sets or shows it of one file.
fn one(arguments: &Set, volume: &LogFs, default: bool, place: &Place) -> Result<(), Failed> {
    let now = match volume.permissions(place.node) {
        // Removed meanwhile by somebody else.
        Err(error) if error.errno() == Errno::STALE && arguments.recursive => return Ok(()),
        other => other?.flags,
    };
    let Some(data) = arguments.data else {
        let (mode, why) = match now.copy_on_write() {
            Some(copy_on_write) => (copy_on_write, "by its flag"),
            None => (default, "as the volume was made"),
        };
        let text = if mode { "copy-on-write" } else { "in place" };
        // A name can have line feeds in it, and what terminals obey: it is shown as `dump` shows it.
        print(&format!("{}: {text}, {why}\n", place.path.escape_ascii()))?;
        return Ok(());
    };
    let wanted = now.with_copy_on_write(data.copy_on_write());
    if wanted != now {
        volume.set_attributes(place.node, &AttributeChange { flags: Some(wanted), ..Default::default() })?;
    }
    Ok(())
}

/// Adds what a directory holds; not what is removed meanwhile.
fn below(volume: &LogFs, place: &Place, left: &mut Vec<Place>) -> Result<(), Error> {
    let mut names = Vec::new();
    volume.read_directory(place.node, 0, &mut |entry| {
        if has_data(entry.file_type) {
            names.push(entry.name.bytes().to_vec());
        }
        true
    })?;
    for name in names {
        if let Ok(found) = volume.lookup(place.node, Name::new(&name)?) {
            let slash: &[u8] = if place.path.ends_with(b"/") { b"" } else { b"/" };
            let path = [&place.path, slash, &name].concat();
            left.push(Place { node: found.node, file_type: found.file_type, path });
        }
    }
    Ok(())
}
