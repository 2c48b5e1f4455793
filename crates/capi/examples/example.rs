//! The same in Rust, which needs no C in between: `gannet-open` opens a volume, `gannet-vfs` says what can be done with it.
//!
//! `gannet mkfs /dev/shm/notes --size 64M && cargo run -p gannet-capi --example example -- /dev/shm/notes`

use gannet_open::{Options, open};
use gannet_vfs::namespace::{
    Boundary, Credentials, LastMode, Namespace, OpenFlags, PathBuffer, Resolution, ResolveFlags, Walker,
};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{Errno, Error, FileSystem, FileType, WriteFlags, WritePosition};
use std::path::Path;

/// Does `work` where a path leads to.
fn at<T>(
    fs: &dyn FileSystem,
    path: &str,
    mode: LastMode,
    work: impl FnOnce(&Namespace<'_, '_>, &gannet_vfs::namespace::Place<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let who = Credentials::ROOT;
    let walker = Walker { fs, who: &who, root: fs.root(), boundary: Boundary::Contain, links: 0 };
    let mut room = PathBuffer::new();
    match walker.resolve(fs.root(), path.as_bytes(), mode, ResolveFlags::empty(), &mut room)? {
        Resolution::Place(place) => work(&Namespace::new(fs, who), &place),
        Resolution::Left(_) => Err(Error::new(Errno::XDEV)),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let volume = std::env::args_os().nth(1).ok_or("usage: example VOLUME")?;
    let volume = open(Path::new(&volume), Options::default())?;
    let fs = &*volume;

    let made =
        at(fs, "journal", LastMode::Parent, |as_root, place| as_root.make(place, FileType::Directory, 0o755, 0, b""));
    match made {
        Err(error) if error.errno() != Errno::EXIST => return Err(error.into()),
        _ => {}
    }
    let flags = OpenFlags::RDWR | OpenFlags::CREATE;
    let (walk, _) = Namespace::open_mode(flags)?;
    let file = at(fs, "journal/rust", walk, |as_root, place| as_root.open(place, flags, 0o644))?;

    // The description keeps the file while we use it, should another process remove it.
    let description = fs.shared().open(fs, file.node, AccessMode::READ | AccessMode::WRITE, 0)?;
    let note = b"a note in Rust\n";
    // Durable when it returns.
    let written = fs.write(file.node, WritePosition::Append, &mut Source::from_slice(note), WriteFlags::empty())?;
    let mut back = [0; 15];
    fs.read(file.node, written.offset_bytes, &mut Destination::from_slice(&mut back))?;
    assert_eq!(&back, note);
    println!("journal/rust: {} bytes", fs.attributes(file.node)?.size_bytes);
    fs.shared().close(fs, description)?;
    Ok(())
}
