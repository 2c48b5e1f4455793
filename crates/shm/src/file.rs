//! The arena's file: its name, its creation, the gate, the byte that says that a participant lives.
//!
//! * It is made without a name, filled, and linked when complete; its name derives from user and
//!   volume. Whatever else stands at that name is refused: another owner, other permissions, a
//!   symbolic link, not a regular file.
//! * **Gate**: a lock on byte 0 of the file by an open-file description. Who has it and sees that the
//!   name still leads to the locked file joins or leaves alone.
//! * **Life**: participant `i` keeps byte `1 + i` locked through an open file that nothing but one
//!   page of mapping refers to, and which is not the gate's: who takes the gate's descriptor away opens the
//!   gate, whatever it does. The mapping is not inherited by fork and no `close` or
//!   `close_range` touches it; the kernel drops it, and with it the lock, at exec and death.

use crate::descriptor::{Descriptor, KEPT_FROM, are_shared};
use crate::error::{Error, Result};
use crate::layout::PAGE_BYTES;
use crate::opened::{Coming, Opened, close_what_others_left};
use crate::{sys, user};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::{CapabilitySet, Timespec, capabilities, nanosleep, set_capabilities};

/// Where arenas live.
pub const ARENA_DIRECTORY: &str = "/dev/shm";

/// Nobody could be seen to live there.
const NO_OVERLAY: &str = "keep the shared state in /dev/shm: that is a directory of an overlay file system (overlayfs), where maps keep no locks; it must \
    be a tmpfs (mount -t tmpfs tmpfs /dev/shm)";

const GATE_BYTE: u64 = 0;
pub(crate) const FIRST_PARTICIPANT_BYTE: u64 = 1;
/// Descriptors that are kept over an exec are above the standard ones at least.
const KEPT_AT_LEAST: i32 = 3;

/// Which volume an arena belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VolumeIdentity {
    /// The volume's own identifier.
    pub uuid: [u8; 16],
    /// Tells apart what has the same identifier: copies of a volume (device and inode, say).
    pub nonce: u64,
}

impl VolumeIdentity {
    /// The nonce of a volume in the file with these numbers (`st_dev`, `st_ino`).
    pub fn nonce_of(device: u64, inode: u64) -> u64 {
        device.rotate_left(32) ^ inode
    }
}

/// Name of an arena's file, for this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArenaPath {
    pub(crate) path: String,
    /// Its owner, by the id that it has where arenas are named.
    pub(crate) uid: u32,
}

/// The gate, held. Dropped: open.
#[derive(Debug)]
pub(crate) struct Gate {
    /// `None` once it is [opened](Gate::open_keeping).
    opened: Option<Opened>,
    /// Size of the file.
    pub(crate) bytes: u64,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// A participant's locked byte. Dropped: given up.
#[derive(Debug)]
pub(crate) struct LifeLock {
    /// Address of the page that keeps the open file, and so the lock, alive.
    address: usize,
}

impl LifeLock {
    /// Keeps what `fd`'s open file has locked, without the descriptor.
    pub(crate) fn keep(fd: impl AsFd) -> Result<Self> {
        let len = PAGE_BYTES as usize;
        // SAFETY: a fresh mapping of one page that is never accessed; it only refers to the open file.
        let address = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, fd, 0) }
            .map_err(Error::system("keep the participant's byte"))?;
        Ok(Self { address: address as usize })
    }

    /// Keeps the byte locked; [`LifeLock::from_address`] undoes it.
    pub(crate) fn into_address(self) -> usize {
        std::mem::ManuallyDrop::new(self).address
    }

    /// From here on, children forked from this process do not inherit it.
    pub(crate) fn keep_from_children(&self) -> Result<()> {
        // SAFETY: advice on a page of ours that nobody accesses.
        unsafe { madvise(self.address as *mut _, PAGE_BYTES as usize, Advice::LinuxDontFork) }
            .map_err(Error::system("keep the participant's byte from children"))
    }

    /// The other way round; `address` must come from `into_address` in this very process.
    pub(crate) fn from_address(address: usize) -> Self {
        Self { address }
    }
}

impl Drop for LifeLock {
    fn drop(&mut self) {
        // SAFETY: one page that we mapped for this purpose and that nobody reads or writes.
        let _ = unsafe { munmap(self.address as *mut _, PAGE_BYTES as usize) };
    }
}

impl ArenaPath {
    pub(crate) fn new(identity: &VolumeIdentity) -> Self {
        let uid = user::user_of_process();
        let uuid = u128::from_be_bytes(identity.uuid);
        Self { path: format!("{ARENA_DIRECTORY}/gannet-{uid}-{uuid:032x}-{:016x}", identity.nonce), uid }
    }

    /// Opens the arena's file, to map it or to look at locks; `None` if there is none.
    pub(crate) fn open(&self) -> Result<Option<Descriptor>> {
        self.open_for(OFlags::RDWR)
    }

    /// Opens the arena's file for locking by it: no child keeps it.
    fn open_listed(&self) -> Result<Option<Opened>> {
        loop {
            let named = match rustix::fs::lstat(self.path.as_str()) {
                Ok(named) => named,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(Error::in_directory("examine the arena")(errno)),
            };
            self.check(&named)?;
            let listed = Coming::new(named.st_ino);
            let Some(fd) = self.open_unchecked(OFlags::RDWR)? else { return Ok(None) };
            // Else somebody has made another one in between, or the program has given the number to another file.
            if let Some(fd) = Descriptor::out_of_the_way(fd, &named) {
                self.prove(&fd)?;
                return Ok(Some(listed.is(fd)));
            }
        }
    }

    /// Opens the gate's file once more, or, if the name leads elsewhere by now, another: the caller looks.
    pub(crate) fn open_again(&self, gate: &Gate) -> Result<Descriptor> {
        let fd = self.open_unchecked(OFlags::RDWR)?.ok_or(Error::displaced())?;
        Ok(Descriptor::supposed(fd, gate.opened().file()))
    }

    fn open_for(&self, access: OFlags) -> Result<Option<Descriptor>> {
        let Some(fd) = self.open_unchecked(access)? else { return Ok(None) };
        let (fd, status) = Descriptor::of(fd).ok_or(Error::displaced())?;
        self.check(&status)?;
        self.prove(&fd)?;
        Ok(Some(fd))
    }

    fn open_unchecked(&self, access: OFlags) -> Result<Option<OwnedFd>> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match rustix::fs::open(self.path.as_str(), flags, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(self.foreign("a symbolic link")),
            Err(Errno::ACCESS | Errno::PERM) => Err(self.foreign("belongs to another user")),
            Err(Errno::ISDIR | Errno::NXIO) => Err(self.foreign("not a regular file")),
            Err(errno) => Err(Error::in_directory("open the arena")(errno)),
        }
    }

    fn check(&self, status: &Stat) -> Result<()> {
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(self.foreign("a symbolic link")),
            _ => return Err(self.foreign("not a regular file")),
        }
        if self.uid == user::UNKNOWN || status.st_uid != user::as_seen(self.uid).id {
            return Err(self.foreign("belongs to another user"));
        }
        if status.st_mode & 0o7777 != 0o600 {
            return Err(self.foreign("others have access to it"));
        }
        Ok(())
    }

    /// Where the owner looks as others do, too: only who owns a file may set its mode, to what it is, without CAP_FOWNER. With it also who has a
    /// user among those it counts for who is 65534 inside, and looks like who is not known. `check` has been passed.
    fn prove(&self, fd: impl AsFd) -> Result<()> {
        if !user::as_seen(self.uid).is_shared {
            return Ok(());
        }
        let set = || rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR);
        as_owner_alone(set).map_err(|errno| match errno {
            Errno::PERM => self.foreign("belongs to another user"),
            errno => Error::system("examine the arena")(errno),
        })
    }

    pub(crate) fn foreign(&self, why: &'static str) -> Error {
        Error::Foreign { path: self.path.clone(), why }
    }

    pub(crate) fn stat(&self, fd: impl AsFd) -> Result<Stat> {
        rustix::fs::fstat(fd).map_err(Error::system("examine the arena"))
    }

    /// Waits for the gate of the file that the name leads to; `None` if there is no file.
    pub(crate) fn gate(&self) -> Result<Option<Gate>> {
        loop {
            let Some(fd) = self.open_listed()? else { return Ok(None) };
            // It was looked at a moment ago.
            let locked = lock_gate(&fd);
            let status = self.stat(&fd);
            // The program may have given the number to another file while we waited.
            if status.as_ref().map_or(true, |status| status.st_ino != fd.inode()) {
                continue;
            }
            locked.map_err(Error::system("wait for the arena's gate"))?;
            let status = status?;
            let gate = Gate { opened: Some(fd), bytes: status.st_size as u64 };
            // Its last participant may have removed its only name, and somebody may have made another, likewise.
            if status.st_nlink > 0 {
                return Ok(Some(gate));
            }
        }
    }

    /// The gate of the file that the name leads to, if there is one and nobody has it.
    pub(crate) fn gate_if_open(&self) -> Result<Option<Gate>> {
        let Some(fd) = self.open_listed()? else { return Ok(None) };
        let locked = sys::lock_bytes_try(&fd, GATE_BYTE, 1).map_err(Error::system("try the arena's gate"))?;
        let bytes = size(&fd)?;
        Ok(locked.then_some(Gate { opened: Some(fd), bytes }))
    }

    /// Whether the name still leads to this open file.
    pub(crate) fn leads_to(&self, fd: impl AsFd) -> Result<bool> {
        let ours = self.stat(fd)?;
        match rustix::fs::lstat(self.path.as_str()) {
            Ok(named) => Ok(ours.st_ino == named.st_ino && ours.st_dev == named.st_dev),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(Error::system("examine the arena")(errno)),
        }
    }

    /// Makes a file of `bytes`, the first `head` of them with memory behind, with the gate held, not
    /// yet visible.
    pub(crate) fn create_hidden(&self, bytes: u64, head: u64) -> Result<Gate> {
        let doing = "create the shared state in /dev/shm";
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(ARENA_DIRECTORY, flags, Mode::RUSR | Mode::WUSR).map_err(Error::in_directory(doing))?;
        let status = self.stat(&fd)?;
        let listed = Coming::new(status.st_ino);
        // What is changed below has no name, and nothing in it.
        let is_new = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile && status.st_nlink == 0;
        let fd = Descriptor::out_of_the_way(fd, &status).filter(|_| is_new && status.st_size == 0);
        let fd = listed.is(fd.ok_or(Error::displaced())?);
        // The umask may have taken bits away, an ACL of the directory added some.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(Error::system(doing))?;
        // The kernel would answer with SIGXFSZ, too, which ends the program.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < bytes) {
            let doing = "create the shared state in /dev/shm: the limit of file sizes (ulimit -f) is too small for it";
            return Err(Error::System { doing, errno: Errno::FBIG });
        }
        rustix::fs::ftruncate(&fd, bytes).map_err(Error::system(doing))?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, head)
            .map_err(Error::in_directory("get memory for the shared state in /dev/shm"))?;
        sys::lock_bytes_wait(&fd, GATE_BYTE, 1).map_err(Error::system(doing))?;
        Ok(Gate { opened: Some(fd), bytes })
    }

    /// Gives a hidden file its name: `false` if somebody else was faster.
    pub(crate) fn reveal(&self, gate: &Gate) -> Result<bool> {
        let by_number = format!("/proc/self/fd/{}", gate.fd().as_raw_fd());
        let linked = rustix::fs::linkat(CWD, by_number, CWD, self.path.as_str(), AtFlags::SYMLINK_FOLLOW);
        let linked = match linked {
            // No /proc: newer kernels let the owner of the open file link it directly.
            Err(Errno::NOENT) => rustix::fs::linkat(gate.fd(), "", CWD, self.path.as_str(), AtFlags::EMPTY_PATH),
            other => other,
        };
        match linked {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(Error::system("give the arena its name")(errno)),
        }
    }

    /// Opens the file for keeping a participant's byte over an exec: nothing can be written by it, and its number is out of the way
    /// of programs that use low ones without being asked.
    pub(crate) fn open_to_keep(&self) -> Result<OwnedFd> {
        let low = self.open_for(OFlags::RDONLY)?.ok_or(Error::Detached)?;
        let keep = |number| rustix::io::fcntl_dupfd_cloexec(&low, number);
        // Where the limit is lower than that.
        keep(KEPT_FROM).or_else(|_| keep(KEPT_AT_LEAST)).map_err(Error::system("keep a descriptor"))
    }

    /// Locks the byte of participant `index` for this open file: `false` if somebody has it. The caller is behind the gate.
    pub(crate) fn share_byte(fd: impl AsFd, index: u32) -> Result<bool> {
        let (byte, doing) = (FIRST_PARTICIPANT_BYTE + u64::from(index), "lock the participant's byte");
        // What can only be read cannot be locked but together with others who do no more: there must be none.
        if sys::bytes_locked_by_others(&fd, byte, 1).map_err(Error::system(doing))? {
            return Ok(false);
        }
        sys::share_bytes_try(&fd, byte, 1).map_err(Error::system(doing))
    }

    /// Gives up what [`ArenaPath::share_byte`] locked.
    pub(crate) fn unshare_byte(fd: impl AsFd, index: u32) -> Result<()> {
        let byte = FIRST_PARTICIPANT_BYTE + u64::from(index);
        sys::unlock_bytes(fd, byte, 1).map_err(Error::system("unlock the participant's byte"))
    }

    /// Removes the name. The caller holds the gate of the file that it leads to.
    pub(crate) fn unlink(&self) -> Result<()> {
        match rustix::fs::unlink(self.path.as_str()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::system("remove the arena")(errno)),
        }
    }
}

impl Gate {
    fn opened(&self) -> &Opened {
        self.opened.as_ref().expect("only who opens the gate takes it")
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.opened().as_fd()
    }

    /// Before another descriptor of the same file is opened that is to be on the list.
    pub(crate) fn expect_another(&self) {
        self.opened.iter().for_each(Opened::expect_another);
    }

    /// Opens the gate; its place on the list is another descriptor's, which was expected.
    pub(crate) fn open_keeping(mut self, other: impl AsFd) -> Option<Coming> {
        self.unlock();
        let listed = self.opened.take().map(Opened::close);
        listed.iter().for_each(|listed| listed.note(&other));
        listed
    }

    /// Explicitly, since a child forked meanwhile has the same open file.
    fn unlock(&self) {
        if let Some(opened) = self.opened.as_ref().filter(|opened| opened.is_ours()) {
            let _ = sys::unlock_bytes(opened, GATE_BYTE, 1);
        }
    }

    /// Locks the byte of participant `index` for as long as the result is kept: `None` if somebody has it. `inherited`: by
    /// children, too.
    pub(crate) fn lock_life(&self, path: &ArenaPath, index: u32, inherited: bool) -> Result<Option<LifeLock>> {
        self.expect_another();
        let lock = self.lock_life_by_another(path, index, inherited);
        self.opened.iter().for_each(Opened::expect_no_more);
        // What the kernel says of a file to which the program gave the number is said of nothing.
        if lock.is_err() && !self.opened.as_ref().is_some_and(Opened::is_ours) { Err(Error::displaced()) } else { lock }
    }

    /// By an open file of its own: a map of the gate's would keep the gate as well, if the program takes the gate's number
    /// before it is opened.
    fn lock_life_by_another(&self, path: &ArenaPath, index: u32, inherited: bool) -> Result<Option<LifeLock>> {
        let fd = path.open_unchecked(OFlags::RDWR)?.ok_or(Error::displaced())?;
        let (fd, status) = Descriptor::of(fd).ok_or(Error::displaced())?;
        if self.opened.as_ref().is_none_or(|gate| gate.inode() != status.st_ino) {
            return Err(Error::displaced());
        }
        let byte = FIRST_PARTICIPANT_BYTE + u64::from(index);
        let kept = (|| {
            if !sys::lock_bytes_try(&fd, byte, 1).map_err(Error::system("lock the participant's byte"))? {
                return Ok(None);
            }
            let lock = LifeLock::keep(&fd)?;
            if !inherited {
                lock.keep_from_children()?;
            }
            Ok(Some(lock))
        })();
        match kept {
            Err(_) if !fd.is_ours() => Err(Error::displaced()),
            Ok(Some(lock)) => {
                // From here on nothing but the map keeps the open file.
                drop(fd);
                // Others must see it, whatever the program did with the number in between.
                match life(self.fd(), index)? {
                    true => Ok(Some(lock)),
                    false if lies_on_overlay(rustix::fs::statfs(ARENA_DIRECTORY)) => {
                        Err(Error::System { doing: NO_OVERLAY, errno: Errno::OPNOTSUPP })
                    }
                    false => Err(Error::displaced()),
                }
            }
            kept => kept,
        }
    }
}

/// Whether what was asked is an overlay file system: its maps are of files below, and an open file of its own, with what it has locked,
/// is gone when its last descriptor is closed.
pub(crate) fn lies_on_overlay(answer: rustix::io::Result<rustix::fs::StatFs>) -> bool {
    const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;
    answer.is_ok_and(|below| below.f_type as u64 == OVERLAYFS_SUPER_MAGIC)
}

/// Makes an attempt of this thread's without CAP_FOWNER.
pub(crate) fn as_owner_alone<T>(attempt: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let before = capabilities(None)?;
    if !before.effective.contains(CapabilitySet::FOWNER) {
        return attempt();
    }
    let mut without = before;
    without.effective -= CapabilitySet::FOWNER;
    set_capabilities(None, without)?;
    let result = attempt();
    // It is among the permitted ones.
    set_capabilities(None, before)?;
    result
}

/// Waits for the gate. That the number is ours was seen just before.
fn lock_gate(fd: &Opened) -> std::result::Result<(), Errno> {
    const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };
    while are_shared() {
        if sys::lock_bytes_try(fd, GATE_BYTE, 1)? {
            return Ok(());
        }
        // It can be in this process's own table that the gate was left by one that was killed.
        close_what_others_left();
        let _ = nanosleep(&TURN);
        if !fd.is_ours() {
            // Nothing of the program's is locked.
            return Err(Errno::BADF);
        }
    }
    sys::lock_bytes_wait(fd, GATE_BYTE, 1)
}

fn size(fd: impl AsFd) -> Result<u64> {
    rustix::fs::fstat(fd).map(|status| status.st_size as u64).map_err(Error::system("examine the arena"))
}

/// Whether some open file other than `fd` has a participant's byte locked. Whatever their number:
/// the arena may be of another version's layout.
pub(crate) fn any_life(fd: impl AsFd) -> Result<bool> {
    const TO_THE_END: u64 = 0;
    sys::bytes_locked_by_others(fd, FIRST_PARTICIPANT_BYTE, TO_THE_END).map_err(Error::system("look for participants"))
}

/// Whether participant `index` has its byte locked, seen through `fd`, which must not hold it.
pub(crate) fn life(fd: impl AsFd, index: u32) -> Result<bool> {
    sys::bytes_locked_by_others(fd, FIRST_PARTICIPANT_BYTE + u64::from(index), 1)
        .map_err(Error::system("look for a participant"))
}

#[cfg(test)]
impl Gate {
    pub(crate) fn become_that_of(&self, other: &std::process::Child) {
        self.opened.iter().for_each(|opened| opened.become_that_of(other));
    }
}
