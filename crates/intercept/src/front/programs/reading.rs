//! What a program's file holds, as far as that decides how it is executed: its first bytes, the interpreter that they name, and for libraries all
//! of it.
//!
//! For [`super`] and for `launch`. Files of the host are opened and closed again; nothing is kept.

use crate::front::call::CWD;
use crate::front::{Front, credentials, libraries};
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_usermem::Destination;
use gannet_vfs::namespace::{Access, Namespace};
use gannet_vfs::{Errno, FileType, NodeId};

/// The interpreter and its argument that a `#!` line names, as the kernel reads it (`load_script` in `fs/binfmt_script.c`).
pub(crate) fn interpreter_of(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    const LOOKED_AT_BYTES: usize = 256;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let ends_word = |byte: &u8| matches!(byte, b' ' | b'\t' | 0);
    let rest = head[..head.len().min(LOOKED_AT_BYTES)].strip_prefix(b"#!")?;
    let line = match rest.iter().position(|&byte| byte == b'\n') {
        Some(end) => &rest[..end],
        // A short file ends the word.
        None if head.len() < LOOKED_AT_BYTES => rest,
        None => &rest[..rest.len() - 1],
    };
    let is_cut = line.len() + 3 == LOOKED_AT_BYTES;
    let line = &line[line.iter().position(|byte| !is_blank(byte))?..];
    let line = &line[..=line.iter().rposition(|byte| !is_blank(byte))?];
    let end = match line.iter().position(ends_word) {
        Some(end) => end,
        // There may be more of the name.
        None if is_cut && !rest.contains(&b'\n') => return None,
        None => line.len(),
    };
    let name = Some(&line[..end]).filter(|name| !name.is_empty())?;
    let behind = line[end..].split(|&byte| byte == 0).next()?;
    let argument = behind.iter().position(|byte| !is_blank(byte)).map(|start| &behind[start..]);
    Some((name, argument))
}

/// Whether a program of the host is a script, which may have its interpreter in a volume.
pub(super) fn is_host_script(path: &[u8]) -> bool {
    let mut start = [0; 2];
    read_host(path, &mut start).is_some_and(|_| start == *b"#!")
}

/// A program of the host that a search path in a volume concerns.
pub(super) fn read_whole_host(path: &[u8]) -> Option<Vec<u8>> {
    const SIZE_WORD: usize = 6;
    with_host(path, |descriptor| {
        let mut status = [0u64; 18];
        // SAFETY: room for struct stat.
        let result = unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) };
        if is_error(result) || status[SIZE_WORD] > libraries::LIBRARY_BYTES_MAX {
            return None;
        }
        let mut content = vec![0u8; status[SIZE_WORD] as usize];
        let length = read_start(descriptor, &mut content)?;
        content.truncate(length);
        Some(content)
    })
}

/// Whether there is nothing under a path of the host, as is found out for most directories of a search path.
pub(super) fn is_missing(path: &[u8]) -> bool {
    const ENOENT: isize = -2;
    let mut text = path.to_vec();
    text.push(0);
    // SAFETY: a path that ends in zero.
    unsafe { syscall(FACCESSAT, [CWD, text.as_ptr() as usize, 0]) == ENOENT }
}

/// The first bytes of a program of the host.
pub(super) fn read_host(path: &[u8], head: &mut [u8]) -> Option<usize> {
    with_host(path, |descriptor| read_start(descriptor, head))
}

fn with_host<T>(path: &[u8], use_it: impl FnOnce(usize) -> Option<T>) -> Option<T> {
    const O_CLOEXEC_NONBLOCK: usize = 0o2000000 | 0o4000;
    let mut text = path.to_vec();
    text.push(0);
    // SAFETY: a path that ends in zero.
    let descriptor = unsafe { syscall(OPENAT, [CWD, text.as_ptr() as usize, O_CLOEXEC_NONBLOCK, 0]) };
    if is_error(descriptor) {
        return None;
    }
    let result = use_it(descriptor as usize);
    // SAFETY: the descriptor just opened.
    unsafe { syscall(CLOSE, [descriptor as usize]) };
    result
}

/// What a file begins with; returns how many bytes.
fn read_start(descriptor: usize, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: our own buffer.
    let length = unsafe { syscall(PREAD64, [descriptor, buffer.as_mut_ptr() as usize, buffer.len(), 0]) };
    usize::try_from(length).ok()
}

/// The first bytes of a program of a volume, which must be executable by the caller.
pub(super) fn read_volume(front: &Front, mount: usize, node: NodeId, head: &mut [u8]) -> Result<usize, Errno> {
    let fs = front.file_system(mount)?;
    let known = fs.permissions(node).map_err(|error| error.errno())?;
    if known.file_type == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    if known.file_type != FileType::Regular {
        return Err(Errno::ACCESS);
    }
    let namespace = Namespace::new(fs, credentials::effective());
    namespace.check_access(node, Access::EXECUTE).map_err(|error| error.errno())?;
    fs.read(node, 0, &mut Destination::from_slice(head)).map_err(|error| error.errno())
}
