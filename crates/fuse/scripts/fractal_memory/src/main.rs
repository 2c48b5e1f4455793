//! The benchmark's file system over fractal-fuse (FUSE over io_uring only): one directory of files in memory, as lean as its peers
//! `examples/mount_flat.rs` and `libfuse_memory.c`. Direct I/O, nothing cached, permissions checked by the kernel.
//!
//! `fractal_memory DIRECTORY`

use fractal_fuse::{
    EEXIST, ENOENT, ENOSPC, FileAttr, FileHandleId, FileType, Filesystem, FsResult, InodeId, MountOptions, ReplyAttr,
    ReplyCreate, ReplyEntry, ReplyOpen, Request, Session, SetAttr, Timestamp,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, RwLock};
use std::time::Duration;

const FILES_MAX: usize = 65_536;
const PIECE_BYTES: usize = 64 << 10;
/// Tables of 64 pieces, 64 of them: what a small file touches first is one of each.
const TABLE: usize = 64;
const ROOT: u64 = 1;
/// FOPEN_DIRECT_IO and FOPEN_PARALLEL_DIRECT_WRITES.
const OPEN_FLAGS: u32 = 1 | 64;

type Piece = OnceLock<RwLock<Box<[u8]>>>;
type Table<T> = OnceLock<Box<[T]>>;

#[derive(Default)]
struct File {
    size: AtomicU64,
    pieces: Table<Table<Piece>>,
}

impl File {
    fn piece(&self, offset: u64) -> (&RwLock<Box<[u8]>>, usize) {
        let index = offset as usize / PIECE_BYTES;
        let tables = self.pieces.get_or_init(|| (0..TABLE).map(|_| OnceLock::new()).collect());
        let piece = &tables[index / TABLE].get_or_init(|| (0..TABLE).map(|_| OnceLock::new()).collect())[index % TABLE];
        (piece.get_or_init(|| RwLock::new(vec![0; PIECE_BYTES].into())), offset as usize % PIECE_BYTES)
    }
}

struct Flat {
    names: RwLock<HashMap<OsString, u64>>,
    free: Mutex<Vec<u64>>,
    files: Vec<File>,
}

impl Flat {
    fn attributes(&self, inode: u64) -> FileAttr {
        let root = inode == ROOT;
        let size = self.files[inode as usize].size.load(Ordering::Relaxed);
        let zero = Timestamp::new(0, 0);
        FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: zero,
            mtime: zero,
            ctime: zero,
            mode: if root { FileType::Directory.to_mode() | 0o777 } else { FileType::RegularFile.to_mode() | 0o644 },
            nlink: if root { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Flat {
    async fn lookup(&self, _: Request, _: InodeId, name: &OsStr) -> FsResult<ReplyEntry> {
        let inode = *self.names.read().unwrap().get(name).ok_or(ENOENT)?;
        Ok(ReplyEntry { ttl: Duration::ZERO, attr: self.attributes(inode), generation: 0 })
    }

    async fn getattr(&self, _: Request, inode: InodeId, _: Option<FileHandleId>, _: u32) -> FsResult<ReplyAttr> {
        Ok(ReplyAttr { ttl: Duration::ZERO, attr: self.attributes(inode.0) })
    }

    async fn setattr(&self, _: Request, inode: InodeId, _: Option<FileHandleId>, set: SetAttr) -> FsResult<ReplyAttr> {
        if let Some(size) = set.size {
            self.files[inode.0 as usize].size.store(size, Ordering::Relaxed);
        }
        Ok(ReplyAttr { ttl: Duration::ZERO, attr: self.attributes(inode.0) })
    }

    async fn open(&self, _: Request, _: InodeId, _: u32) -> FsResult<ReplyOpen> {
        Ok(ReplyOpen { fh: FileHandleId(0), flags: OPEN_FLAGS, backing_id: 0 })
    }

    async fn create(&self, _: Request, _: InodeId, name: &OsStr, _: u32, _: u32) -> FsResult<ReplyCreate> {
        let mut names = self.names.write().unwrap();
        if names.contains_key(name) {
            return Err(EEXIST);
        }
        let inode = self.free.lock().unwrap().pop().ok_or(ENOSPC)?;
        self.files[inode as usize].size.store(0, Ordering::Relaxed);
        names.insert(name.to_owned(), inode);
        let attr = self.attributes(inode);
        Ok(ReplyCreate { ttl: Duration::ZERO, attr, generation: 0, fh: FileHandleId(0), flags: OPEN_FLAGS })
    }

    async fn unlink(&self, _: Request, _: InodeId, name: &OsStr) -> FsResult<()> {
        let inode = self.names.write().unwrap().remove(name).ok_or(ENOENT)?;
        self.free.lock().unwrap().push(inode);
        Ok(())
    }

    async fn read(&self, _: Request, inode: InodeId, _: FileHandleId, offset: u64, buf: &mut [u8]) -> FsResult<usize> {
        let file = &self.files[inode.0 as usize];
        let left = file.size.load(Ordering::Relaxed).saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < left {
            let (piece, at) = file.piece(offset + done as u64);
            let count = (left - done).min(PIECE_BYTES - at);
            buf[done..done + count].copy_from_slice(&piece.read().unwrap()[at..at + count]);
            done += count;
        }
        Ok(done)
    }

    async fn write(
        &self,
        _: Request,
        inode: InodeId,
        _: FileHandleId,
        offset: u64,
        data: &[u8],
        _: u32,
        _: u32,
    ) -> FsResult<usize> {
        let file = &self.files[inode.0 as usize];
        let mut done = 0;
        while done < data.len() {
            let (piece, at) = file.piece(offset + done as u64);
            let count = (data.len() - done).min(PIECE_BYTES - at);
            piece.write().unwrap()[at..at + count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        file.size.fetch_max(offset + done as u64, Ordering::Relaxed);
        Ok(done)
    }
}

fn main() -> std::io::Result<()> {
    let target = std::env::args().nth(1).expect("usage: fractal_memory DIRECTORY");
    let flat = Flat {
        names: RwLock::default(),
        free: Mutex::new((2..FILES_MAX as u64).rev().collect()),
        files: (0..FILES_MAX).map(|_| File::default()).collect(),
    };
    let options = MountOptions::new().fs_name("fractal").default_permissions(true);
    Session::new(target.into(), options)?.run(flat)
}
