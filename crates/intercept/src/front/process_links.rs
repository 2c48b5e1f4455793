//! Paths that lead to what only this process knows by way of the kernel's own links: `/proc/self/fd/N` of a descriptor of ours, `/proc/self/cwd`
//! while that is in a volume, and what leads to those: `/dev/stdin`, `/proc/self/root`, symbolic links of a volume and of the host.
//!
//! A path that begins so is known by its text ([`Front::resolve`]). One that comes there by symbolic links is not: the kernel would end at a
//! placeholder, or at the `/` where its working directory is meanwhile. So a path that a walk has left a volume with is followed here; one of the
//! host's is opened with `RESOLVE_NO_MAGICLINKS`, which costs some 110 ns and has the kernel say ELOOP at such a link; `stat` and `readlink` are
//! looked at behind the call ([`note_placeholder`], `patch::emit`); and before what changes something the kernel is asked whether there is such a
//! link on the way. All that, but for paths that leave a volume, only in a process that has something of a volume open.

use super::call::Call;
use super::paths::{self, Outside};
use super::table::Table;
use super::{Front, filters, held, links, running};
use crate::dispatch::Outcome;
use crate::interruptible;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicU64, Ordering};
use gannet_vfs::Errno;
use gannet_vfs::namespace::{LastMode, ResolveFlags};

const AT_FDCWD: usize = paths::AT_FDCWD as isize as usize;
pub(super) const ENOENT: isize = -2;
const EINTR: isize = -4;
pub(super) const EACCES: isize = -13;
pub(super) const ENOTDIR: isize = -20;
const EINVAL: isize = -22;
const ENOSYS: isize = -38;
pub(super) const ELOOP: isize = -40;
const O_NOFOLLOW: u64 = 0o400000;
const O_PATH_CLOEXEC: u64 = 0o12000000;
const RESOLVE_NO_MAGICLINKS: u64 = 2;
pub(super) const RESOLVE_NO_SYMLINKS: u64 = 4;

/// The inode number of the placeholders, 0 as long as there were none: what code in slots compares with what `stat` found.
static PLACEHOLDER: AtomicU64 = AtomicU64::new(0);

/// Where the slots' code finds it.
pub(crate) fn placeholder_address() -> usize {
    PLACEHOLDER.as_ptr() as usize
}

/// A descriptor is a placeholder: its inode is theirs.
#[inline]
pub(super) fn note_placeholder(descriptor: usize) {
    if PLACEHOLDER.load(Ordering::Relaxed) == 0 {
        let mut status = [0u64; 18];
        // SAFETY: struct stat is 144 bytes.
        if unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) } == 0 {
            PLACEHOLDER.store(status[1], Ordering::Relaxed);
        }
    }
}

/// What the kernel says of a path that may not lead by these kinds of links.
pub(super) fn probe(directory: usize, address: usize, follows: bool, resolve: u64) -> isize {
    let how = [O_PATH_CLOEXEC | if follows { 0 } else { O_NOFOLLOW }, 0, resolve];
    // SAFETY: the program's path, or one of ours; at worst an address that the kernel refuses.
    let tried = unsafe { syscall(OPENAT2, [directory, address, how.as_ptr() as usize, size_of_val(&how)]) };
    if !is_error(tried) {
        // SAFETY: the descriptor just made.
        unsafe { syscall(CLOSE, [tried as usize]) };
    }
    tried
}

impl Front {
    /// Where a path goes on that a walk has left a volume with.
    pub(super) fn outside(
        &self,
        table: &Table,
        text: Vec<u8>,
        mode: LastMode,
        flags: ResolveFlags,
    ) -> Result<Outside, Errno> {
        let follows = mode == LastMode::Follow;
        if !is_of_process(&text) {
            let mut normal = Vec::with_capacity(text.len() + 1);
            paths::normalise(&text, &mut normal);
            if let Some((mount, skip)) = self.mount_of(&normal) {
                return Ok(Outside::Volume(mount, self.file_system(mount)?.root(), normal[skip..].to_vec()));
            }
        } else if let Some(outside) = self.named_outside(table, &text, mode)? {
            return Ok(if flags.contains(ResolveFlags::NO_MAGICLINKS) { Outside::Host(text) } else { outside });
        }
        if filters::is_filtered() {
            return Ok(Outside::Host(text));
        }
        let whole = [&text[..], b"\0"].concat();
        if !matches!(probe(AT_FDCWD, whole.as_ptr() as usize, follows, RESOLVE_NO_MAGICLINKS), ENOENT | ENOTDIR | ELOOP)
        {
            return Ok(Outside::Host(text));
        }
        let Some(led) = self.walk_host(table, text.clone(), follows) else { return Ok(Outside::Host(text)) };
        if led.by_process && flags.contains(ResolveFlags::NO_MAGICLINKS) {
            // The kernel says so.
            return Ok(Outside::Host(text));
        }
        Ok(self.named_outside(table, &led.path, mode)?.unwrap_or(Outside::Host(text)))
    }

    /// The same of a path that begins with what is ours, as text; the link itself, if it is not followed, is the host's.
    fn named_outside(&self, table: &Table, text: &[u8], mode: LastMode) -> Result<Option<Outside>, Errno> {
        let follows = mode == LastMode::Follow;
        Ok(match self.named(table, text, follows)? {
            Some(Outside::Descriptor(_)) if !follows => Some(Outside::Host(text.to_vec())),
            named => named,
        })
    }

    /// The path that a path of the host leads to by links of this process, as text that tells so; `None` if there are none on its way. Before calls
    /// that change something: they must not change a placeholder, or what is at `/`.
    pub(super) fn through_process(
        &self,
        table: &Table,
        directory: usize,
        address: usize,
        follows: bool,
    ) -> Option<Vec<u8>> {
        if !table.has_any() || filters::is_filtered() {
            return None;
        }
        if probe(directory, address, follows, RESOLVE_NO_MAGICLINKS) != ELOOP {
            return None;
        }
        held::flush();
        self.led_through(table, directory, address, follows)
    }
}

/// Whether a path begins like what leads to descriptors or directories of the process.
fn is_of_process(path: &[u8]) -> bool {
    path.starts_with(b"/dev/") || running::own_entry(path).is_some()
}

/// What became of a host's file that was to be opened.
pub(super) enum OpenedOnHost {
    /// The kernel's answer.
    Done(Outcome),
    /// The path leads to what is ours: opened anew by this text.
    Inside(Vec<u8>),
    /// The program's own instruction may make the call as it is.
    Pass,
}

/// Opens a path of the host, if there is anything that a link of the process could lead to. By the handler: what the program's instruction passes
/// to the kernel could not be another call, as it gets its registers back. A signal ends the wait for a FIFO's other end as the kernel would;
/// others do not wait. `refuses`: the program itself does not want such links.
pub(super) fn open(call: &Call<'_>, arguments: [usize; 6], is_open2: bool, refuses: bool) -> OpenedOnHost {
    const FLAGS: u64 = 0o3 | 0o37777700;
    const O_LARGEFILE: u64 = 0o100000;
    const O_PATH: u64 = 0o10000000;
    const WITH_O_PATH: u64 = O_PATH | 0o200000 | 0o400000 | 0o2000000;
    const CREATE_OR_TMPFILE: u64 = 0o100 | 0o20000000;
    const CREATE_NEW: u64 = 0o100 | 0o200;
    let table = call.table();
    let [directory, address, flags, mode, ..] = arguments;
    // As walks have it: a name that is to be made is not followed.
    let follows = flags as u64 & O_NOFOLLOW == 0 && flags as u64 & CREATE_NEW != CREATE_NEW;
    if !(table.may_have_any() || refuses) || filters::is_filtered() {
        return OpenedOnHost::Pass;
    }
    if call.in_child {
        let inside = call.front.through_process(table, directory, address, follows);
        return match inside.filter(|inside| is_named(call, inside, follows)) {
            Some(inside) => OpenedOnHost::Inside(inside),
            None => OpenedOnHost::Pass,
        };
    }
    // As the kernel has it of an `open`, which ignores what `openat2` refuses.
    let mut flags = flags as u64 & FLAGS | if is_open2 { 0 } else { O_LARGEFILE };
    if flags & O_PATH != 0 {
        flags &= WITH_O_PATH;
    }
    let mode = if flags & CREATE_OR_TMPFILE != 0 { mode as u64 & 0o7777 } else { 0 };
    let how = [flags, mode, RESOLVE_NO_MAGICLINKS];
    let changed = [directory, address, how.as_ptr() as usize, size_of_val(&how), 0, 0];
    // SAFETY: the program's own call, by other means.
    match unsafe { interruptible::syscall6(OPENAT2, changed) } {
        EINVAL | ENOSYS => OpenedOnHost::Pass,
        EINTR if !may_wait(directory, address) => OpenedOnHost::Done(Outcome::Again),
        answer @ (ENOENT | ENOTDIR | ELOOP) => {
            let inside = match refuses && answer == ELOOP {
                true => None,
                false => call.front.through_links(table, directory, address, follows),
            };
            match inside.filter(|inside| is_named(call, inside, follows)) {
                Some(inside) => OpenedOnHost::Inside(inside),
                // By a link of `/proc` to something of the host.
                None if answer == ELOOP && !refuses => {
                    held::flush();
                    OpenedOnHost::Done(Call::on_host(OPENAT, arguments))
                }
                None => OpenedOnHost::Done(Outcome::Done(answer)),
            }
        }
        answer => OpenedOnHost::Done(interruptible::outcome(answer)),
    }
}

/// Whether text begins with what is ours: not where a link is itself what is meant.
fn is_named(call: &Call<'_>, text: &[u8], follows: bool) -> bool {
    !matches!(call.front.named(call.table(), text, follows), Ok(None))
}

/// Whether the opening of a file may have to wait: it is a FIFO or a device.
fn may_wait(directory: usize, address: usize) -> bool {
    const S_IFMT: u32 = 0o170000;
    const S_IFIFO: u32 = 0o010000;
    const S_IFCHR: u32 = 0o020000;
    let mut status = [0u64; 18];
    // SAFETY: the program's path, and room for struct stat.
    let result = unsafe { syscall(NEWFSTATAT, [directory, address, status.as_mut_ptr() as usize, 0]) };
    result == 0 && matches!(status[3] as u32 & S_IFMT, S_IFIFO | S_IFCHR)
}

/// Whether a call on a path of the host may change something there, or moves to it. What only looks is looked at behind the call.
pub(super) fn is_asked_before(number: usize) -> bool {
    links::takes_path(number)
        && !matches!(
            number,
            STAT | LSTAT | NEWFSTATAT | STATX | ACCESS | FACCESSAT | FACCESSAT2 | READLINK | READLINKAT
        )
}
