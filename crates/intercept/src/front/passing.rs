//! Descriptors in messages between processes (SCM_RIGHTS).
//!
//! A placeholder says nothing of what it stands for. So a memory file that names the description goes in its stead, and the
//! description is held in transit; the receiver's `recvmsg`, once the kernel has done it, adopts the description and puts a placeholder
//! in the memory file's place. Receivers outside of the tree get a memory file of no use.

use super::call::{Answer, Call, done};
use super::links::RECHECK;
use super::table::OpenFile;
use super::{changes, identity_of, placeholder, sockets, table};
use crate::dispatch::Outcome;
use crate::interruptible;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::PathScratch;
use gannet_vfs::{Errno, FileSystem};

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
/// Length, level and type of a control message.
const CONTROL_HEAD_BYTES: usize = 16;
const CONTROL_BYTES_MAX: usize = 8192;
/// The kernel passes no more in one message.
const DESCRIPTORS_MAX: usize = 253;
const MAGIC: u64 = u64::from_le_bytes(*b"GNTPASS2");
const TRANSIT_BYTES: usize = 32;

/// What the entry is given for a `recvmsg` that brought control messages; the result is in the upper half.
pub(crate) const RECEIVED: usize = RECHECK + RECVMSG;

/// Likewise for `recvmmsg`.
pub(crate) const RECEIVED_SEVERAL: usize = RECHECK + RECVMMSG;
/// `struct mmsghdr`: a message and the length of what was sent.
const SEVERAL_STRIDE: usize = 64;
const SEVERAL_LENGTH_OFFSET: usize = 56;
/// The kernel sends no more at once.
const SEVERAL_MAX: usize = 1024;

/// Descriptions sent, and the memory files that stand for them.
type Sent = Vec<(OpenFile, usize)>;

/// Positions of the descriptors in control messages.
fn descriptors_in(control: &[u8]) -> Vec<usize> {
    let mut positions = Vec::new();
    let mut at = 0;
    while let Some(head) = control.get(at..at + CONTROL_HEAD_BYTES) {
        let word = |from: usize| u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let length = word(0) as usize;
        if length < CONTROL_HEAD_BYTES || at + length > control.len() || word(4) != 0 {
            break;
        }
        if (word(8), word(12)) == (SOL_SOCKET, SCM_RIGHTS) {
            let count = ((length - CONTROL_HEAD_BYTES) / 4).min(DESCRIPTORS_MAX);
            positions.extend((0..count).map(|index| at + CONTROL_HEAD_BYTES + index * 4));
        }
        at += length.next_multiple_of(8);
    }
    positions
}

fn descriptor_at(control: &[u8], position: usize) -> usize {
    let bytes = control.get(position..position + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(usize::MAX, |bytes| u32::from_le_bytes(bytes) as usize)
}

/// A memory file that names a description, and the volume that it is of.
fn transit_file(file: &OpenFile, fs: &dyn FileSystem) -> Option<usize> {
    const MFD_CLOEXEC: usize = 1;
    let words = [MAGIC, file.mount as u64, file.description.word(), identity_of(fs)];
    // SAFETY: a string that ends in zero; our own words.
    unsafe {
        let made = syscall(MEMFD_CREATE, [c"gannet-descriptor".as_ptr() as usize, MFD_CLOEXEC]);
        if is_error(made) {
            return None;
        }
        syscall(WRITE, [made as usize, words.as_ptr() as usize, TRANSIT_BYTES]);
        Some(made as usize)
    }
}

/// `sendmmsg`: one after the other, if any message has control messages or an address.
pub(crate) fn send_several(call: &mut Call<'_>, first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    let [socket, messages, count, flags, ..] = call.arguments;
    let count = (count as u32 as usize).min(SEVERAL_MAX);
    let concerns = (0..count).any(|index| {
        let mut header = [0usize; 7];
        let read = memory::read_value(messages.wrapping_add(index * SEVERAL_STRIDE), &mut header);
        read.is_ok() && (header[0] != 0 || header[5] != 0)
    });
    // To the kernel, which knows that ours is no socket.
    if !concerns || call.is_ours(socket) {
        return Ok(Outcome::Pass);
    }
    for index in 0..count {
        let message = messages.wrapping_add(index * SEVERAL_STRIDE);
        call.number = SENDMSG;
        call.arguments = [socket, message, flags, 0, 0, 0];
        let sent = match send(call, first, second) {
            Err(_) if index > 0 => return done(index),
            Err(error) => return Err(error),
            Ok(Outcome::Done(sent)) => sent,
            Ok(Outcome::Again) => return if index > 0 { done(index) } else { Ok(Outcome::Again) },
            // SAFETY: the program's message.
            Ok(Outcome::Pass) => unsafe { interruptible::syscall6(SENDMSG, [socket, message, flags, 0, 0, 0]) },
        };
        if is_error(sent) {
            return if index > 0 { done(index) } else { Ok(interruptible::outcome(sent)) };
        }
        let _ = memory::write_value(message.wrapping_add(SEVERAL_LENGTH_OFFSET), &(sent as u32));
    }
    done(count)
}

/// The control messages of a message with descriptors of ours replaced, and what stands in which descriptor's stead; nothing if they
/// have none. `EMFILE` without a descriptor for that.
fn replaced(call: &Call<'_>, address: usize, length: usize) -> Result<(Vec<u8>, Sent), Errno> {
    let mut sent = Sent::new();
    if address == 0 || !(CONTROL_HEAD_BYTES..=CONTROL_BYTES_MAX).contains(&length) {
        return Ok((Vec::new(), sent));
    }
    let mut control = vec![0u8; length];
    if memory::read_bytes(address, &mut control).is_err() {
        return Ok((Vec::new(), sent));
    }
    for position in descriptors_in(&control) {
        let Some((file, fs)) = held_in_transit(call, descriptor_at(&control, position)) else { continue };
        let Some(transit) = transit_file(&file, fs) else {
            let _ = fs.shared().release_in_transit(fs, file.description);
            put_away(call, &sent, true);
            return Err(Errno::MFILE);
        };
        control[position..position + 4].copy_from_slice(&(transit as u32).to_le_bytes());
        sent.push((file, transit));
    }
    Ok((control, sent))
}

/// What a descriptor stands for, held in transit. What another thread puts in its place meanwhile is as good.
fn held_in_transit(call: &Call<'_>, descriptor: usize) -> Option<(OpenFile, &'static dyn FileSystem)> {
    loop {
        let count = changes::count();
        if let Some(file) = call.open_file(descriptor) {
            let fs = call.file_system(&file).ok()?;
            if fs.shared().hold_in_transit(file.description).is_ok() {
                return Some((file, fs));
            }
        }
        if !changes::happened_since(count) {
            return None;
        }
    }
}

/// Closes the memory files, and ends what they stood for if they were not sent.
fn put_away(call: &Call<'_>, sent: &[(OpenFile, usize)], unsent: bool) {
    for (file, transit) in sent {
        // SAFETY: the file made above.
        unsafe { syscall(CLOSE, [*transit]) };
        if unsent && let Ok(fs) = call.file_system(file) {
            let _ = fs.shared().release_in_transit(fs, file.description);
        }
    }
}

/// `sendmsg`.
pub(crate) fn send(call: &Call<'_>, first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    let [socket, message, flags, ..] = call.arguments;
    let mut header = [0usize; 7];
    if call.is_ours(socket) || memory::read_value(message, &mut header).is_err() {
        return Ok(Outcome::Pass);
    }
    let room = &mut second.host;
    let to = if header[0] == 0 { None } else { sockets::address_of(call, header[0], header[1], first, room)? };
    if let Some(length) = to {
        (header[0], header[1]) = (room.as_ptr() as usize, length);
    }
    let (control, sent) = replaced(call, header[4], header[5])?;
    if sent.is_empty() && to.is_none() {
        return Ok(Outcome::Pass);
    }
    if !sent.is_empty() {
        header[4] = control.as_ptr() as usize;
    }
    // SAFETY: the program's call, with address and control messages replaced. Made here, as its outcome must be known.
    let result = unsafe { interruptible::syscall6(SENDMSG, [socket, header.as_ptr() as usize, flags, 0, 0, 0]) };
    put_away(call, &sent, is_error(result));
    Ok(interruptible::outcome(result))
}

/// A `recvmsg` or `recvmmsg` that the kernel has done, with this result.
pub(crate) fn received(call: &mut Call<'_>, result: usize) -> Answer {
    const MSG_PEEK: usize = 2;
    let [_, messages, third, fourth, ..] = call.arguments;
    let (count, flags) = if call.number == RECVMMSG { (result.min(SEVERAL_MAX), fourth) } else { (1, third) };
    if flags & MSG_PEEK == 0 {
        for index in 0..count {
            take_over(call, messages.wrapping_add(index * SEVERAL_STRIDE))?;
        }
    }
    done(result)
}

/// Takes over the descriptors in a message.
fn take_over(call: &mut Call<'_>, message: usize) -> Result<(), Errno> {
    let mut header = [0usize; 7];
    if memory::read_value(message, &mut header).is_err() {
        return Ok(());
    }
    let mut control = vec![0u8; header[5].min(CONTROL_BYTES_MAX)];
    if memory::read_bytes(header[4], &mut control).is_err() {
        return Ok(());
    }
    for position in descriptors_in(&control) {
        let descriptor = descriptor_at(&control, position);
        let Some((mount, word, identity)) = named_by(descriptor) else { continue };
        // Who sent it may have another volume there: then it names nothing here.
        if !call.front.file_system(mount).is_ok_and(|fs| identity_of(fs) == identity) {
            continue;
        }
        table::note_received();
        let Some(file) = call.front.adopt(mount, word) else { continue };
        let Ok(fs) = call.file_system(&file) else { continue };
        let entered = enter(call, descriptor, &file);
        if entered.is_ok() && !crate::thread::is_alone() {
            // Another thread may have closed the last descriptor of it that the process had before this one was entered.
            changes::wait_for_endings();
            if call.open_file(descriptor).is_some_and(|now| (now.mount, now.description) == (mount, file.description)) {
                let _ = fs.shared().adopt(file.description);
            }
        }
        let _ = fs.shared().release_in_transit(fs, file.description);
        entered?;
    }
    Ok(())
}

/// Makes a received descriptor ours.
fn enter(call: &mut Call<'_>, descriptor: usize, file: &OpenFile) -> Result<(), Errno> {
    if put_placeholder(call, descriptor, file) {
        let table = call.table_to_change()?;
        if let Some(stale) = table.set(descriptor, file) {
            call.front.let_go(table, &stale);
        }
    } else {
        // Not as by a close of the program's, which would end its record locks.
        call.front.end_use(call.table(), file.mount, file.description, true);
    }
    Ok(())
}

/// Mount, description and volume that a received memory file names.
fn named_by(descriptor: usize) -> Option<(usize, u64, u64)> {
    let mut status = [0u64; 18];
    let mut words = [0u64; 4];
    // SAFETY: struct stat is 144 bytes; the words are our own.
    unsafe {
        let known = syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]);
        // A regular file without a name and of just that size.
        if is_error(known)
            || status[2] != 0
            || status[3] as u32 & 0o170000 != 0o100000
            || status[6] != TRANSIT_BYTES as u64
        {
            return None;
        }
        let read = syscall(PREAD64, [descriptor, words.as_mut_ptr() as usize, TRANSIT_BYTES, 0]);
        (read == TRANSIT_BYTES as isize && words[0] == MAGIC).then_some((words[1] as usize, words[2], words[3]))
    }
}

/// Makes a received descriptor a placeholder.
fn put_placeholder(call: &Call<'_>, descriptor: usize, file: &OpenFile) -> bool {
    const F_GETFD: usize = 1;
    // SAFETY: asks about the descriptor.
    let closes = unsafe { syscall(FCNTL, [descriptor, F_GETFD]) } & 1 != 0;
    placeholder::put(call.front, file.flags, descriptor, closes)
}

/// `pidfd_getfd`: what another process has open of a volume is refused, since only its own table says what it is.
pub(crate) fn take_from_process(call: &Call<'_>) -> Answer {
    // SAFETY: the program's call.
    let taken = unsafe { crate::raw::syscall6(call.number, call.arguments) };
    // Whatever it was opened with.
    if is_error(taken) || !placeholder::is_one(taken as usize, call.front.template(), placeholder::O_PATH) {
        return Ok(Outcome::Done(taken));
    }
    // SAFETY: a descriptor that was made just now.
    unsafe { syscall(CLOSE, [taken as usize]) };
    Err(Errno::PERM)
}
