//! The arguments of an `execve` that was changed: the interpreter's in front of the program's own, in memory that lives until the call is over.

use super::Program;
use crate::exec::Scratch;
use crate::memory;
use crate::thread::Record;
use gannet_vfs::Errno;

const ARGUMENTS_MAX: usize = 1 << 20;

/// Addresses of what the kernel is given.
pub(super) struct Arguments {
    pub(super) path: usize,
    pub(super) list: usize,
}

/// Puts path and argument list where they live until the call is over.
pub(super) fn put_arguments(
    record: &mut Record,
    prefix: &[Vec<u8>],
    arguments: usize,
    program: &Program,
) -> Result<Arguments, Errno> {
    let mut count = 0;
    let mut entry = 0usize;
    loop {
        if arguments == 0 {
            break;
        }
        memory::read_value(arguments + count * 8, &mut entry).map_err(|_| Errno::FAULT)?;
        if entry == 0 {
            break;
        }
        count += 1;
        if count > ARGUMENTS_MAX {
            return Err(Errno::TOOBIG);
        }
    }
    let (path, known_by): (&[u8], &[u8]) = match program {
        Program::Host(path) => (path, b""),
        Program::Volume(_, _, path) => (b"", path),
    };
    let text: usize = prefix.iter().map(|part| part.len() + 1).sum::<usize>() + path.len() + known_by.len() + 2;
    let mut room = Scratch::new(record, text + (count + prefix.len() + 2) * 8 + 64).ok_or(Errno::NOMEM)?;
    let path = room.string(&[path]).ok_or(Errno::NOMEM)?;
    record.exec_path = (room.string(&[known_by]).ok_or(Errno::NOMEM)?, known_by.len());
    if prefix.is_empty() {
        return Ok(Arguments { path, list: arguments });
    }
    let mut addresses = Vec::with_capacity(prefix.len());
    for part in prefix {
        addresses.push(room.string(&[part]).ok_or(Errno::NOMEM)?);
    }
    let words = room.words(count + prefix.len() + 2).ok_or(Errno::NOMEM)?;
    words[..addresses.len()].copy_from_slice(&addresses);
    let mut used = addresses.len();
    // The script's own name was argument 0; the path in the prefix stands for it.
    for index in 1..count {
        memory::read_value(arguments + index * 8, &mut words[used]).map_err(|_| Errno::FAULT)?;
        used += 1;
    }
    words[used] = 0;
    Ok(Arguments { path, list: words.as_ptr() as usize })
}
