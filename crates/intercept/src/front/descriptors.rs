//! Descriptors as such: closing, duplicating, `fcntl`, `ioctl`, and the calls that hand them elsewhere.

use super::call::{Answer, Call, done};
use super::data::O_NOATIME;
use super::table::CREATED;
use super::{changes, credentials, data, flags, held, listing, locks, own_tables, placeholder, sharing};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall, syscall6};
use core::sync::atomic::{AtomicU64, Ordering};
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{Errno, FileType};

/// `close`: ours is let go, then the kernel closes the placeholder.
pub(crate) fn close(call: &mut Call<'_>) -> Answer {
    let descriptor = call.arguments[0] as u32 as usize;
    if call.is_internal(descriptor) {
        return Err(Errno::BADF);
    }
    if !call.is_ours(descriptor) {
        if !call.in_child {
            if held::is_held(descriptor) {
                return Err(Errno::BADF);
            }
            held::closing(descriptor);
        }
        return Ok(Outcome::Pass);
    }
    let table = call.table_to_change()?;
    if let Some(file) = table.take(descriptor) {
        call.front.let_go(table, &file);
    }
    if !call.in_child {
        if held::keep(descriptor) {
            return done(0);
        }
        held::closing(descriptor);
    }
    Ok(Outcome::Pass)
}

/// `close_range`, which must leave the interception's own descriptors alone.
pub(crate) fn close_range(call: &mut Call<'_>) -> Answer {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    let [first, last, flags, ..] = call.arguments;
    let (first, last, flags) = (first as u32, last as u32, flags as u32);
    if flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 || first > last {
        return Ok(Outcome::Pass);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        own_tables::refuse_if_shared(call.in_child, call.record)?;
    }
    if !call.in_child {
        if flags & CLOSE_RANGE_CLOEXEC == 0 {
            held::closing(first as usize);
        }
        held::all_changed();
    }
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        let table = call.table_to_change()?;
        for (descriptor, _) in table.iter() {
            if (first..=last).contains(&(descriptor as u32))
                && let Some(file) = table.take(descriptor)
            {
                call.front.let_go(table, &file);
            }
        }
    }
    super::alone_with_descriptors(call.in_child, || Ok(Outcome::Done(close_around(first, last, flags))))
}

/// `close_range` around what is ours. While nobody changes that.
fn close_around(first: u32, last: u32, flags: u32) -> isize {
    let mut from = first;
    for kept in super::internal::sorted() {
        if !(from..=last).contains(&kept) {
            continue;
        }
        if from < kept {
            // SAFETY: the program's call, on part of its range.
            let result = unsafe { syscall(CLOSE_RANGE, [from as usize, kept as usize - 1, flags as usize]) };
            if is_error(result) {
                return result;
            }
        }
        from = kept + 1;
    }
    if from > last {
        return 0;
    }
    // SAFETY: as above.
    unsafe { syscall(CLOSE_RANGE, [from as usize, last as usize, flags as usize]) }
}

/// `dup`.
pub(crate) fn duplicate(call: &mut Call<'_>) -> Answer {
    let descriptor = call.arguments[0] as u32 as usize;
    if call.is_internal(descriptor) {
        return Err(Errno::BADF);
    }
    duplicate_with(call, descriptor)
}

/// Makes the program's call that duplicates `descriptor`, and enters the new one.
fn duplicate_with(call: &mut Call<'_>, descriptor: usize) -> Answer {
    if !call.is_ours(descriptor) {
        return Ok(listing::duplicated(call, descriptor));
    }
    let table = call.table_to_change()?;
    let (answer, stale) = changes::change(call.in_child, || {
        let Some(file) = table.get_to_share(descriptor) else { return (Ok(Outcome::Pass), None) };
        // SAFETY: the program's call.
        let new = unsafe { syscall6(call.number, call.arguments) };
        if is_error(new) {
            return (Ok(Outcome::Done(new)), None);
        }
        if new as usize >= crate::entry::DESCRIPTOR_LIMIT {
            // SAFETY: the descriptor just made.
            unsafe { syscall(CLOSE, [new as usize]) };
            return (Err(Errno::MFILE), None);
        }
        let stale = table.set(new as usize, &file);
        if let Some(name) = table.open_name(descriptor, &file) {
            table.set_open_name(new as usize, &file, &name);
        }
        (done(new as usize), stale)
    });
    if let Some(stale) = stale {
        call.front.let_go(table, &stale);
    }
    answer
}

/// `dup2`, `dup3`.
pub(crate) fn duplicate_onto(call: &mut Call<'_>) -> Answer {
    const O_CLOEXEC: usize = 0o2000000;
    let [old, new, flags, ..] = call.arguments.map(|argument| argument as u32 as usize);
    if call.number == DUP3 && (flags & !O_CLOEXEC != 0 || old == new) {
        return Err(Errno::INVAL);
    }
    const F_GETFD: usize = 1;
    let takes_ours = call.is_internal(new);
    // SAFETY: asks whether a descriptor is open.
    let is_open = |descriptor| !is_error(unsafe { syscall(FCNTL, [descriptor, F_GETFD]) });
    if call.is_internal(old) || takes_ours && (call.in_child || !is_open(old) || !call.front.make_way(new)) {
        return Err(Errno::BADF);
    }
    // What could not take the number leaves it free, as it was for the program; unless another thread has taken it.
    let template = call.front.template();
    let close_unless_taken = |result: isize| {
        if takes_ours && is_error(result) && placeholder::is_one(new, template, 0) {
            // SAFETY: a number that was ours until now.
            unsafe { syscall(CLOSE, [new]) };
        }
    };
    if !call.is_ours(old) && !call.is_ours(new) || new >= crate::entry::DESCRIPTOR_LIMIT {
        if call.is_ours(old) {
            return Err(Errno::BADF);
        }
        if !takes_ours {
            return Ok(Outcome::Pass);
        }
        // SAFETY: the program's call.
        let result = unsafe { syscall6(call.number, call.arguments) };
        close_unless_taken(result);
        return Ok(Outcome::Done(result));
    }
    let table = call.table_to_change()?;
    let (result, before) = changes::change(call.in_child, || {
        let file = if old == new { table.get(old) } else { table.get_to_share(old) };
        if file.is_some() && old != new && !call.in_child {
            // Calls of other threads come here from now on, and wait.
            crate::entry::mark_descriptor(new);
        }
        // SAFETY: the program's call.
        let result = unsafe { syscall6(call.number, call.arguments) };
        close_unless_taken(result);
        if is_error(result) || old == new {
            return (result, None);
        }
        let Some(file) = file else { return (result, table.take(new)) };
        let before = table.set(new, &file);
        if let Some(name) = table.open_name(old, &file) {
            table.set_open_name(new, &file, &name);
        }
        (result, before)
    });
    if let Some(file) = before {
        call.front.let_go(table, &file);
    }
    Ok(Outcome::Done(result))
}

/// The description whose owner and signal the kernel's placeholder keeps. All placeholders are one open file to the kernel, so that
/// it is the one asked about last that has them: nothing is ever sent.
static OWNED: AtomicU64 = AtomicU64::new(0);

/// Takes owner and signal from the placeholders.
fn forget_owner(placeholder: usize) {
    const F_SETOWN: usize = 8;
    const F_SETSIG: usize = 10;
    // SAFETY: a placeholder of ours.
    unsafe {
        syscall(FCNTL, [placeholder, F_SETOWN, 0]);
        syscall(FCNTL, [placeholder, F_SETSIG, 0]);
    }
}

/// `fcntl`.
pub(crate) fn control(call: &mut Call<'_>) -> Answer {
    const F_DUPFD: usize = 0;
    const F_GETFD: usize = 1;
    const F_SETFD: usize = 2;
    const F_GETFL: usize = 3;
    const F_SETFL: usize = 4;
    const F_LOCKS: [usize; 6] = [5, 6, 7, 36, 37, 38];
    const F_DUPFD_CLOEXEC: usize = 1030;
    const F_DUPFD_QUERY: usize = 1027;
    const F_CREATED_QUERY: usize = 1028;
    const F_SETOWN: usize = 8;
    const F_GETOWN: usize = 9;
    const F_SETSIG: usize = 10;
    const F_GETSIG: usize = 11;
    const F_SETOWN_EX: usize = 15;
    const F_GETOWN_EX: usize = 16;
    const F_GETLEASE: usize = 1025;
    const F_UNLCK: usize = 2;
    const F_SETPIPE_SZ: usize = 1031;
    const F_GETPIPE_SZ: usize = 1032;
    const F_ADD_SEALS: usize = 1033;
    const F_GET_RW_HINT: usize = 1035;
    const F_SET_RW_HINT: usize = 1036;
    const RW_HINT_MAX: u64 = 5;
    const F_NOTIFY: usize = 1026;
    const DN_MULTISHOT: u32 = 0x8000_0000;
    /// What F_SETFL changes: O_APPEND, O_NONBLOCK, O_DIRECT, O_NOATIME. Files send no signals: O_ASYNC stays as it is.
    const CHANGEABLE: u32 = 0o2000 | 0o4000 | O_DIRECT | 0o1000000;
    const O_DIRECT: u32 = 0o40000;
    const O_PATH: u32 = 0o10000000;
    let [descriptor, command, argument, ..] = call.arguments;
    let descriptor = descriptor as u32 as usize;
    if call.is_internal(descriptor) {
        return Err(Errno::BADF);
    }
    let Some(file) = call.open_file(descriptor) else {
        return Ok(match command as u32 as usize {
            F_DUPFD | F_DUPFD_CLOEXEC => listing::duplicated(call, descriptor),
            _ => Outcome::Pass,
        });
    };
    let fs = call.file_system(&file)?;
    let shared = fs.shared();
    match command as u32 as usize {
        F_DUPFD | F_DUPFD_CLOEXEC => duplicate_with(call, descriptor),
        F_GETFD => match held::closes_on_exec(descriptor).filter(|_| !call.in_child) {
            Some(closes) => done(usize::from(closes)),
            None => Ok(Outcome::Pass),
        },
        F_SETFD if !call.in_child && held::set_closes_on_exec(descriptor, argument & 1 != 0) => done(0),
        F_SETFD => {
            held::changed(descriptor);
            Ok(Outcome::Pass)
        }
        F_GETFL => {
            let info = shared.info(file.description).map_err(|error| error.errno())?;
            // O_LARGEFILE, as on every 64-bit kernel; O_PATH keeps few flags.
            const KEPT_WITH_O_PATH: u32 = O_PATH | 0o200000 | 0o400000;
            let of_path = file.flags & O_PATH != 0;
            done(if of_path { info.status & KEPT_WITH_O_PATH } else { info.status | 0o100000 } as usize)
        }
        F_CREATED_QUERY => done(usize::from(file.flags & CREATED != 0)),
        F_DUPFD_QUERY => {
            let other = argument as u32 as usize;
            match call.table().get(other) {
                Some(other) => done(usize::from(other.description == file.description)),
                // SAFETY: asks whether a descriptor is open.
                None if is_error(unsafe { syscall(FCNTL, [other, F_GETFD]) }) => Err(Errno::BADF),
                None => done(0),
            }
        }
        _ if file.flags & O_PATH != 0 => Err(Errno::BADF),
        F_SETFL => {
            let now = shared.info(file.description).map_err(|error| error.errno())?.status;
            let fs = call.file_system(&file)?;
            Namespace::new(fs, credentials::effective())
                .check_status(file.node, now, argument as u32)
                .map_err(|error| error.errno())?;
            if argument as u32 & O_DIRECT != 0 && file.file_type != FileType::Regular {
                return Err(Errno::INVAL);
            }
            shared.set_status(file.description, CHANGEABLE, argument as u32).map_err(|error| error.errno())?;
            if argument as u32 & O_NOATIME != 0 {
                call.table().add_flags(file.description, O_NOATIME);
            }
            done(0)
        }
        F_GETLEASE => done(F_UNLCK),
        // Before it is found that only memory files have seals.
        F_ADD_SEALS if data::check_writable(&file).is_err() => Err(Errno::PERM),
        F_GETOWN | F_GETSIG | F_GETOWN_EX => {
            if OWNED.load(Ordering::Relaxed) == file.description.word() {
                return Ok(Outcome::Pass);
            }
            if command as u32 as usize == F_GETOWN_EX {
                memory::write_value(argument, &0u64).map_err(|_| Errno::FAULT)?;
            }
            done(0)
        }
        F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            if OWNED.swap(file.description.word(), Ordering::Relaxed) != file.description.word() {
                forget_owner(descriptor);
            }
            Ok(Outcome::Pass)
        }
        // Without events it takes notifications back, of which there are none.
        F_NOTIFY if argument as u32 & !DN_MULTISHOT == 0 => done(0),
        F_NOTIFY if file.file_type != FileType::Directory => Err(Errno::NOTDIR),
        F_GETPIPE_SZ | F_SETPIPE_SZ => Err(Errno::BADF),
        F_GET_RW_HINT => {
            memory::write_value(argument, &0u64).map_err(|_| Errno::FAULT)?;
            done(0)
        }
        F_SET_RW_HINT => {
            // An owner's affair, as that the file is read without its times moving.
            Namespace::new(fs, credentials::effective())
                .check_status(file.node, 0, O_NOATIME)
                .map_err(|error| error.errno())?;
            let mut hint = 0u64;
            memory::read_value(argument, &mut hint).map_err(|_| Errno::FAULT)?;
            if hint <= RW_HINT_MAX { done(0) } else { Err(Errno::INVAL) }
        }
        command if F_LOCKS.contains(&command) => locks::record_lock(call, &file, command, argument),
        _ => Err(Errno::INVAL),
    }
}

/// `ioctl`.
pub(crate) fn ioctl(call: &Call<'_>) -> Answer {
    const FIOCLEX: usize = 0x5451;
    const FIONCLEX: usize = 0x5450;
    const FIONBIO: usize = 0x5421;
    const FIONREAD: usize = 0x541b;
    const FIOASYNC: usize = 0x5452;
    const FIOQSIZE: usize = 0x5460;
    const SECTOR_BYTES: u64 = 512;
    const FIBMAP: usize = 1;
    const FIGETBSZ: usize = 2;
    const FS_IOC_GETFLAGS: usize = 0x8008_6601;
    const FS_IOC_SETFLAGS: usize = 0x4008_6602;
    const FS_IOC_FSGETXATTR: usize = 0x801c_581f;
    const FS_IOC_FSSETXATTR: usize = 0x401c_5820;
    const O_NONBLOCK: u32 = 0o4000;
    const O_PATH: u32 = 0o10000000;
    let [descriptor, request, argument, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return ioctl_of_host(call, request, argument) };
    match request as u32 as usize {
        FIOCLEX | FIONCLEX => {
            held::changed(descriptor as u32 as usize);
            Ok(Outcome::Pass)
        }
        _ if file.flags & O_PATH != 0 => Err(Errno::BADF),
        FIONBIO => {
            let mut on = 0i32;
            memory::read_value(argument, &mut on).map_err(|_| Errno::FAULT)?;
            let flags = if on != 0 { O_NONBLOCK } else { 0 };
            let shared = call.file_system(&file)?.shared();
            shared.set_status(file.description, O_NONBLOCK, flags).map_err(|error| error.errno())?;
            done(0)
        }
        FIOASYNC => {
            let mut on = 0i32;
            memory::read_value(argument, &mut on).map_err(|_| Errno::FAULT)?;
            if on == 0 { done(0) } else { Err(Errno::NOTTY) }
        }
        FIOQSIZE => {
            let all = call.file_system(&file)?.attributes(file.node).map_err(|error| error.errno())?;
            let bytes = if file.file_type == FileType::Directory { all.size_bytes } else { all.sectors * SECTOR_BYTES };
            memory::write_value(argument, &bytes).map_err(|_| Errno::FAULT)?;
            done(0)
        }
        FIGETBSZ => {
            let bytes = call.file_system(&file)?.statistics().map_err(|error| error.errno())?.block_bytes;
            memory::write_value(argument, &(bytes as i32)).map_err(|_| Errno::FAULT)?;
            done(0)
        }
        FIBMAP if file.file_type == FileType::Regular => {
            memory::write_value(argument, &0i32).map_err(|_| Errno::FAULT)?;
            Err(Errno::INVAL)
        }
        FS_IOC_GETFLAGS => {
            let all = call.file_system(&file)?.attributes(file.node).map_err(|error| error.errno())?;
            memory::write_value(argument, &all.flags.bits()).map_err(|_| Errno::FAULT)?;
            done(0)
        }
        FS_IOC_SETFLAGS => {
            let mut wanted = 0u32;
            memory::read_value(argument, &mut wanted).map_err(|_| Errno::FAULT)?;
            flags::set(call.file_system(&file)?, file.node, |now| now.with_bits(wanted))
        }
        FS_IOC_FSGETXATTR => {
            let all = call.file_system(&file)?.attributes(file.node).map_err(|error| error.errno())?;
            let about = [all.flags.extended(), 0, 0, 0, 0, 0, 0];
            memory::write_value(argument, &about).map_err(|_| Errno::FAULT)?;
            done(0)
        }
        FS_IOC_FSSETXATTR => {
            let mut about = [0u32; 7];
            memory::read_value(argument, &mut about).map_err(|_| Errno::FAULT)?;
            // Extent size hints and project ids have no meaning here: none or an error.
            let [extended, rest @ ..] = about;
            if rest != [0; 6] {
                return Err(Errno::OPNOTSUPP);
            }
            flags::set(call.file_system(&file)?, file.node, |now| now.with_extended(extended))
        }
        FIONREAD if file.file_type == FileType::Regular => {
            let all = call.file_system(&file)?.attributes(file.node).map_err(|error| error.errno())?;
            let offset =
                call.file_system(&file)?.shared().offset(file.description).map_err(|error| error.errno())?.get();
            // The kernel's number is as wide: behind the end it is less than nothing.
            memory::write_value(argument, &(all.size_bytes.wrapping_sub(offset) as i32)).map_err(|_| Errno::FAULT)?;
            done(0)
        }
        sharing::FICLONE | sharing::FICLONERANGE => sharing::clone(call, &file, request as u32 as usize, argument),
        sharing::FIDEDUPERANGE => sharing::dedupe(call, &file, argument),
        sharing::FIEMAP => sharing::extents(call, &file, argument),
        _ => Err(Errno::NOTTY),
    }
}

/// The second lowest byte of the requests of the host's descriptors that name another descriptor: of loop devices, and of what clones. None of
/// another number is looked at.
pub(crate) const LOOP_REQUESTS: u8 = 0x4c;
pub(crate) const CLONE_REQUESTS: u8 = 0x94;

/// `ioctl` of a descriptor of the host, which may name one of ours. A loop device would read and write the placeholder: `EINVAL`, as for any file
/// that it cannot use.
fn ioctl_of_host(call: &Call<'_>, request: usize, argument: usize) -> Answer {
    const LOOP_SET_FD: usize = 0x4c00;
    const LOOP_CHANGE_FD: usize = 0x4c06;
    const LOOP_CONFIGURE: usize = 0x4c0a;
    let file = match request as u32 as usize {
        sharing::FICLONE | sharing::FICLONERANGE => {
            return sharing::clone_to_host(call, request as u32 as usize, argument);
        }
        LOOP_SET_FD | LOOP_CHANGE_FD => argument,
        LOOP_CONFIGURE => {
            let mut file = 0u32;
            memory::read_value(argument, &mut file).map_err(|_| Errno::FAULT)?;
            file as usize
        }
        _ => return Ok(Outcome::Pass),
    };
    if call.is_ours(file) { Err(Errno::INVAL) } else { Ok(Outcome::Pass) }
}
