//! The benchmark's file system: one directory of files in memory, as lean as its peer in C (`scripts/libfuse_memory.c`).
//!
//! Locks cover the names, and 64 KiB of data each; what is not measured is left out. `mount_flat DIRECTORY [OPTION,…]`

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use gannet_fuse::MountOptions;
use gannet_vfs::shared::{Shared, SharedLimits};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{
    AttributeChange, Attributes, DirectoryEntry, Errno, Error, FileSystem, FileType, Found, InodeFlags, Name, NewNode,
    NodeId, Owner, RemoveKind, RenameFlags, Result, Statistics, SyncScope, Time, WriteFlags, WritePosition, Written,
};

const FILES_MAX: usize = 65_536;
const PIECE_BYTES: usize = 64 << 10;
/// Tables of 64 pieces, 64 of them: what a small file touches first is one of each.
const TABLE: usize = 64;
const ROOT: NodeId = NodeId::new(1, 0);

type Piece = OnceLock<RwLock<Box<[u8]>>>;
type Table<T> = OnceLock<Box<[T]>>;

#[derive(Default)]
struct File {
    size_bytes: AtomicU64,
    pieces: Table<Table<Piece>>,
}

impl File {
    /// The piece that holds a byte, and where in it.
    fn piece(&self, offset_bytes: u64) -> Result<(&RwLock<Box<[u8]>>, usize)> {
        let index = offset_bytes as usize / PIECE_BYTES;
        let tables = self.pieces.get_or_init(|| (0..TABLE).map(|_| OnceLock::new()).collect());
        let table = tables.get(index / TABLE).ok_or(Error::new(Errno::FBIG))?;
        let piece = &table.get_or_init(|| (0..TABLE).map(|_| OnceLock::new()).collect())[index % TABLE];
        Ok((piece.get_or_init(|| RwLock::new(vec![0; PIECE_BYTES].into())), offset_bytes as usize % PIECE_BYTES))
    }
}

struct Flat {
    shared: Arc<Shared>,
    names: RwLock<HashMap<Vec<u8>, u64>>,
    free: Mutex<Vec<u64>>,
    files: Vec<File>,
}

impl Flat {
    fn file(&self, node: NodeId) -> Result<&File> {
        self.files.get(node.number as usize).ok_or(Error::new(Errno::STALE))
    }
}

const NOT_HERE: Error = Error::because(Errno::OPNOTSUPP, "left out of the benchmark");

impl FileSystem for Flat {
    fn kind(&self) -> &'static str {
        "flat"
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn statistics(&self) -> Result<Statistics> {
        Ok(Statistics { block_bytes: 4096, ..Statistics::default() })
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        let is_root = node == ROOT;
        let size_bytes = self.file(node)?.size_bytes.load(Ordering::Relaxed);
        Ok(Attributes {
            node,
            file_type: if is_root { FileType::Directory } else { FileType::Regular },
            mode: if is_root { 0o777 } else { 0o644 },
            links: 1 + u64::from(is_root),
            owner: Owner::default(),
            device: 0,
            size_bytes,
            sectors: size_bytes.div_ceil(512),
            block_bytes: 4096,
            flags: InodeFlags::empty(),
            accessed: Time(0),
            modified: Time(0),
            changed: Time(0),
            created: Time(0),
        })
    }

    fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        if let Some(size_bytes) = change.size_bytes {
            self.file(node)?.size_bytes.store(size_bytes, Ordering::Relaxed);
        }
        self.attributes(node)
    }

    fn lookup(&self, _: NodeId, name: Name<'_>) -> Result<Found> {
        let number = *self.names.read().unwrap().get(name.bytes()).ok_or(Error::new(Errno::NOENT))?;
        Ok(Found { node: NodeId::new(number, 0), file_type: FileType::Regular })
    }

    fn parent(&self, _: NodeId) -> Result<NodeId> {
        Ok(ROOT)
    }

    fn create(&self, _: NodeId, name: Name<'_>, _: &NewNode<'_>) -> Result<NodeId> {
        let mut names = self.names.write().unwrap();
        if names.contains_key(name.bytes()) {
            return Err(Error::new(Errno::EXIST));
        }
        let number = self.free.lock().unwrap().pop().ok_or(Error::new(Errno::NOSPC))?;
        self.files[number as usize].size_bytes.store(0, Ordering::Relaxed);
        names.insert(name.bytes().to_vec(), number);
        Ok(NodeId::new(number, 0))
    }

    fn link(&self, _: NodeId, _: NodeId, _: Name<'_>) -> Result<()> {
        Err(NOT_HERE)
    }

    fn remove(&self, _: NodeId, name: Name<'_>, _: RemoveKind) -> Result<NodeId> {
        let number = self.names.write().unwrap().remove(name.bytes()).ok_or(Error::new(Errno::NOENT))?;
        self.free.lock().unwrap().push(number);
        Ok(NodeId::new(number, 0))
    }

    fn rename(&self, _: NodeId, _: Name<'_>, _: NodeId, _: Name<'_>, _: RenameFlags) -> Result<()> {
        Err(NOT_HERE)
    }

    fn read_link(&self, _: NodeId, _: &mut [u8]) -> Result<usize> {
        Err(NOT_HERE)
    }

    fn read_directory(&self, _: NodeId, _: u64, _: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool) -> Result<()> {
        Ok(())
    }

    fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        let file = self.file(node)?;
        let left = file.size_bytes.load(Ordering::Relaxed).saturating_sub(offset_bytes);
        into.truncate(left.min(into.remaining() as u64) as usize);
        let mut done = 0;
        while !into.is_empty() {
            let (piece, at) = file.piece(offset_bytes + done as u64)?;
            let count = into.remaining().min(PIECE_BYTES - at);
            into.write_from(&piece.read().unwrap()[at..at + count])?;
            done += count;
        }
        Ok(done)
    }

    fn write(&self, node: NodeId, position: WritePosition, from: &mut Source<'_>, _: WriteFlags) -> Result<Written> {
        let file = self.file(node)?;
        let offset_bytes = match position {
            WritePosition::At(offset_bytes) => offset_bytes,
            WritePosition::Append => file.size_bytes.load(Ordering::Relaxed),
        };
        let mut count_bytes = 0;
        while !from.is_empty() {
            let (piece, at) = file.piece(offset_bytes + count_bytes as u64)?;
            let count = from.remaining().min(PIECE_BYTES - at);
            from.read_into(&mut piece.write().unwrap()[at..at + count])?;
            count_bytes += count;
        }
        file.size_bytes.fetch_max(offset_bytes + count_bytes as u64, Ordering::Relaxed);
        Ok(Written { offset_bytes, count_bytes })
    }

    fn sync(&self, _: NodeId, _: SyncScope) -> Result<()> {
        Ok(())
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn retire(&self, _: NodeId) -> Result<()> {
        Ok(())
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().expect("usage: mount_flat DIRECTORY [OPTION,…]");
    let mut options = MountOptions::default();
    options.parse(&arguments.next().unwrap_or_default()).expect("options");
    let flat = Flat {
        shared: Shared::private(&SharedLimits::default()).expect("shared memory"),
        names: RwLock::default(),
        free: Mutex::new((2..FILES_MAX as u64).rev().collect()),
        files: (0..FILES_MAX).map(|_| File::default()).collect(),
    };
    match gannet_fuse::serve(Arc::new(flat), target.as_ref(), &options) {
        Ok(mounted) => {
            println!("mounted on {} ({:?})", mounted.target().display(), mounted.transport());
            mounted.wait();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mount_flat: {error}");
            ExitCode::FAILURE
        }
    }
}
