//! Descriptors and the working directory over `execve`, told in `GANNET_RUN_DESCRIPTORS`.
//!
//! `TEMPLATE [1];MOUNT NUMBER GENERATION [DESCRIPTION];FD MOUNT DESCRIPTION …;FD NUMBER GENERATION NAME …` in decimal; the first part has a 1 where the program has put a filter of system calls on itself ([`super::filters`]), the second is empty when
//! the working directory is the host's, and has a description when it was removed ([`super::working_directory`]), the fourth has names ([`super::open_names`]) in hexadecimal with a letter in front, the fifth
//! `MOUNT INDEX GENERATION LIFE INODE` of the places that keep all that ([`super::over_exec`]), the last `MOUNT IDENTITY` of the volumes that
//! all that is of: where another has taken the place of one since, the new program can use neither. The new program adopts each description, also when the
//! kernel closed the descriptor on exec, and then lets go of it.

use super::open_names::OpenName;
use super::over_exec::{self, Place, Wanted};
use super::placeholder::{self, O_PATH};
use super::table::OpenFile;
use super::{Front, filters, locks, table};
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use gannet_vfs::shared::{AccessMode, Description};
use gannet_vfs::{Errno, NodeId};
use std::fmt::Write;

const F_DUPFD: usize = 0;
const F_ADD_SEALS: usize = 1033;

fn numbers(text: &[u8]) -> impl Iterator<Item = u64> + '_ {
    text.split(|byte| *byte == b' ').filter_map(|word| core::str::from_utf8(word).ok()?.parse().ok())
}

fn three_numbers<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Option<[u64; 3]> {
    let mut number = || core::str::from_utf8(words.next()?).ok()?.parse().ok();
    Some([number()?, number()?, number()?])
}

fn from_hexadecimal(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    text.strip_prefix(b"n")?.chunks(2).map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?)).collect()
}

/// The template: inherited, or made now; or why there is none.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn template(text: &[u8]) -> Result<i32, &'static str> {
    let mut head = numbers(text.split(|byte| *byte == b';').next().unwrap_or_default());
    let inherited = head.next();
    if head.next() == Some(1) {
        filters::note(head.next().unwrap_or(0) as u8);
    }
    // Another thread of the program before may have had it make way while this one was executed; one that was not intercepted, anything.
    let places = inherited.into_iter().flat_map(|first| first as usize..first as usize + TEMPLATE_STEPS_MAX);
    match places.into_iter().find(|place| placeholder::is_template(*place)) {
        Some(place) => Ok(place as i32),
        None => make_template(),
    }
}

/// Where the template is kept: above what programs number by hand, yet low, because a fork goes through the table of
/// descriptors up to the highest one (6 ns each: 120 µs below a limit of 20,000).
const TEMPLATE_START: usize = 230;
/// So far an inherited one is looked for from where it was.
const TEMPLATE_STEPS_MAX: usize = 64;

/// Another number for the template, above this one if there is one.
pub(crate) fn another(template: usize) -> Option<i32> {
    // SAFETY: duplicates our own descriptor.
    let moved = unsafe { syscall(FCNTL, [template, F_DUPFD, template + 1]) };
    (!is_error(moved) && moved < crate::entry::DESCRIPTOR_LIMIT as isize)
        .then_some(moved as i32)
        .or_else(|| highest(template))
}

/// The limit of descriptors.
fn limit() -> usize {
    let mut limits = [0u64; 2];
    const RLIMIT_NOFILE: usize = 7;
    // SAFETY: a buffer for `rlimit`.
    unsafe { syscall(PRLIMIT64, [0, RLIMIT_NOFILE, 0, limits.as_mut_ptr() as usize]) };
    limits[0].min(1 << 20) as usize
}

/// A duplicate with the highest number that is free: below the limit, and not higher than those of media are.
fn highest(descriptor: usize) -> Option<i32> {
    const HIGHEST: usize = 1024;
    (3..limit().min(HIGHEST)).rev().find_map(|from| {
        // SAFETY: duplicates our own descriptor.
        let moved = unsafe { syscall(FCNTL, [descriptor, F_DUPFD, from]) };
        (!is_error(moved)).then_some(moved as i32)
    })
}

/// Moves a descriptor out of the way of programs that count them or close all low ones.
fn hide(descriptor: i32) -> i32 {
    let from = TEMPLATE_START.min(limit().saturating_sub(16)).max(10);
    // SAFETY: duplicates our own descriptor.
    let moved = unsafe { syscall(FCNTL, [descriptor as usize, F_DUPFD, from]) };
    let moved = if is_error(moved) { highest(descriptor as usize) } else { Some(moved as i32) };
    let Some(moved) = moved else { return descriptor };
    // SAFETY: our own, which has another number now.
    unsafe { syscall(CLOSE, [descriptor as usize]) };
    moved
}

/// What placeholders are duplicates of: an empty file that can be neither read, nor written, nor mapped, and is always ready.
fn make_template() -> Result<i32, &'static str> {
    const MFD_ALLOW_SEALING: usize = 2;
    const MFD_NOEXEC_SEAL: usize = 8;
    const EINVAL: isize = -22;
    const O_WRONLY: usize = 1;
    // SAFETY: a string that ends in zero.
    let make = |flags: usize| unsafe { syscall(MEMFD_CREATE, [c"gannet".as_ptr() as usize, flags]) };
    // `vm.memfd_noexec` (Linux 6.3) can forbid all others.
    let mut descriptor = make(MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if descriptor == EINVAL {
        descriptor = make(MFD_ALLOW_SEALING);
    }
    if is_error(descriptor) {
        return Err(why_not(
            descriptor,
            "the kernel refuses memfd_create (a filter of system calls, as containers have them?)",
        ));
    }
    let mut path = String::with_capacity(32);
    let _ = write!(path, "/proc/self/fd/{descriptor}\0");
    // SAFETY: our own descriptor, and a path that ends in zero.
    unsafe {
        syscall(FCNTL, [descriptor as usize, F_ADD_SEALS, placeholder::SEALS]);
        let reopened = syscall(OPEN, [path.as_ptr() as usize, O_WRONLY, 0]);
        syscall(CLOSE, [descriptor as usize]);
        if is_error(reopened) {
            return Err(why_not(reopened, "it cannot be opened by /proc/self/fd (is /proc mounted?)"));
        }
        // Who comes to it by a link of the host hears EACCES, unless that is root, and is led on ([`super::process_links`]).
        syscall(FCHMOD, [reopened as usize, 0]);
        Ok(hide(reopened as i32))
    }
}

/// What a call of the kernel's failed for that was to give a descriptor.
fn why_not(error: isize, otherwise: &'static str) -> &'static str {
    const ENFILE: isize = -23;
    const EMFILE: isize = -24;
    match error {
        EMFILE => "the process may have no more descriptors (ulimit -n)",
        ENFILE => "the machine has no more open files",
        _ => otherwise,
    }
}

pub(super) fn closes_on_exec(descriptor: usize) -> bool {
    const F_GETFD: usize = 1;
    const FD_CLOEXEC: isize = 1;
    // SAFETY: asks about a descriptor.
    let flags = unsafe { syscall(FCNTL, [descriptor, F_GETFD]) };
    !is_error(flags) && flags & FD_CLOEXEC != 0
}

impl Front {
    /// Enters what the program before this one left open.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn take_inheritance(&self, text: &[u8]) {
        let mut parts = text.split(|byte| *byte == b';').skip(1);
        let mut volumes = numbers(parts.clone().nth(4).unwrap_or_default());
        while let (Some(mount), Some(identity)) = (volumes.next(), volumes.next()) {
            if let Some(mount) = self.mounts.get(mount as usize) {
                mount.expect(identity);
            }
        }
        let mut directory = numbers(parts.next().unwrap_or_default());
        let table = table::of_process();
        let mut directory_used = None;
        if let (Some(mount), Some(number), Some(generation)) = (directory.next(), directory.next(), directory.next())
            && (mount as usize) < self.mounts.len()
        {
            table.set_directory(Some((mount as usize, NodeId::new(number, generation as u32))));
            if let Some(word) = directory.next() {
                self.adopt_directory(mount as usize, word);
                directory_used = Description::from_word(word).map(|description| (mount as usize, description));
            }
        }
        let mut entries = numbers(parts.next().unwrap_or_default());
        let (mut uses, mut closed) = (Vec::from_iter(directory_used), Vec::new());
        while let (Some(descriptor), Some(mount), Some(word)) = (entries.next(), entries.next(), entries.next()) {
            uses.extend(Description::from_word(word).map(|description| (mount as usize, description)));
            let Some(file) = self.adopt(mount as usize, word) else { continue };
            if placeholder::is_one(descriptor as usize, self.template(), file.flags) {
                table.set(descriptor as usize, &file);
            } else {
                closed.push(file);
            }
        }
        let mut words = parts.next().unwrap_or_default().split(|byte| *byte == b' ');
        while let (Some([descriptor, number, generation]), Some(name)) = (three_numbers(&mut words), words.next()) {
            let (Some(file), Some(name)) = (table.get(descriptor as usize), from_hexadecimal(name)) else { continue };
            let directory = NodeId::new(number, generation as u32);
            table.set_open_name(descriptor as usize, &file, &OpenName::new(directory, &name));
        }
        let mut places = numbers(parts.next().unwrap_or_default());
        while let Some(place) = Place::read(&mut places) {
            place.take_over(self, &uses);
        }
        for file in closed {
            // Closed on exec.
            self.let_go(table, &file);
        }
    }

    /// Makes this process a user of a description that another has, or that is in transit.
    pub(crate) fn adopt(&self, mount: usize, word: u64) -> Option<OpenFile> {
        let fs = self.file_system(mount).ok()?;
        let description = Description::from_word(word)?;
        fs.shared().adopt(description).ok()?;
        let info = fs.shared().info(description).ok()?;
        const NEITHER: u32 = 3;
        let flags = match (info.access.contains(AccessMode::READ), info.access.contains(AccessMode::WRITE)) {
            (true, true) => 2,
            (false, true) => 1,
            (true, false) => 0,
            (false, false) if info.status & NEITHER == NEITHER && info.status & O_PATH == 0 => NEITHER,
            (false, false) => O_PATH,
        };
        // This process may have it already, under another number.
        let flags = flags | info.status & super::data::O_NOATIME | table::SHARED;
        let file_type = fs.permissions(info.node).ok()?.file_type;
        Some(OpenFile { description, mount, node: info.node, file_type, flags })
    }

    /// What the program about to be executed is told. What it inherits is kept until it adopts it.
    pub(crate) fn inheritance(&'static self, record: &mut Record, in_child: bool) -> Result<Vec<u8>, Errno> {
        // What is kept now is what is given back should the call fail: other threads must not change it meanwhile.
        if in_child && table::current(record).iter().next().is_some() {
            let _ = table::make_private(record);
        }
        let table = table::current(record);
        let mut text = String::with_capacity(128);
        let _ = write!(text, "{}", self.template());
        if filters::is_filtered() {
            let _ = write!(text, " 1 {}", filters::forbidden());
        }
        text.push(';');
        let with_locks = !in_child && locks::has_some();
        let mut wanted = Wanted { descriptions: Vec::new(), has_directory: false, with_locks };
        if let Some((mount, node)) = table.directory() {
            let _ = write!(text, "{mount} {} {}", node.number, node.generation);
            if let Some(description) = self.removed_directory(table) {
                let _ = write!(text, " {}", description.word());
                wanted.descriptions.push((mount, description));
                wanted.has_directory = true;
            }
        }
        text.push(';');
        // With locks also those that exec closes, which ends the locks on their files.
        let is_inherited = |descriptor| with_locks || !closes_on_exec(descriptor);
        let inherited: Vec<_> = table.iter().filter(|(descriptor, _)| is_inherited(*descriptor)).collect();
        for (descriptor, file) in &inherited {
            let _ = write!(text, "{descriptor} {} {} ", file.mount, file.description.word());
            wanted.descriptions.push((file.mount, file.description));
        }
        text.push(';');
        for (descriptor, file) in &inherited {
            // The kernel bounds a variable of the environment.
            const TEXT_BYTES_MAX: usize = 64 << 10;
            if let Some(name) = table.open_name(*descriptor, file).filter(|_| text.len() < TEXT_BYTES_MAX) {
                let _ = write!(text, "{descriptor} {} {} n", name.directory.number, name.directory.generation);
                name.name().iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
                text.push(' ');
            }
        }
        text.push(';');
        over_exec::keep(self, record, &wanted, in_child, &mut text)?;
        text.push(';');
        for (index, mount) in self.mounts.iter().enumerate().filter(|(_, mount)| mount.identity() != 0) {
            let _ = write!(text, "{index} {} ", mount.identity());
        }
        Ok(text.into_bytes())
    }
}
