//! One system call that may concern a volume, and who handles it.

use super::paths::Target;
use super::table::{self, OpenFile, Table};
use super::{
    Front, asynchronous, attributes, compare, credentials, data, descriptors, directory, extent, flags, handles, held,
    linking, locks, maps, names, rules, sockets, status, transfer,
};
use crate::dispatch::Outcome;
use crate::interruptible;
use crate::number::*;
use crate::raw::syscall6;
use crate::table::{Class, Treatment, class_of, treatment_of};
use crate::thread::{PathScratch, Record, Scratch};
use gannet_vfs::namespace::{Credentials, Last, LastMode, Namespace, Place, ResolveFlags};
use gannet_vfs::{Errno, FileSystem, Found};

/// What a handler answers: an outcome, or an error for the program.
pub(crate) type Answer = Result<Outcome, Errno>;

/// The call.
pub(crate) struct Call<'r> {
    pub(crate) front: &'static Front,
    pub(crate) number: usize,
    pub(crate) arguments: [usize; 6],
    pub(crate) in_child: bool,
    pub(crate) record: &'r mut Record,
    /// What the program's own instruction is to make instead, if the call passes.
    pub(crate) passed: Option<(usize, [usize; 6])>,
}

/// An answer with a result.
pub(crate) fn done(result: usize) -> Answer {
    Ok(Outcome::Done(result as isize))
}

impl Call<'_> {
    /// The descriptor table to read.
    pub(crate) fn table(&self) -> &'static Table {
        table::current(self.record)
    }

    /// The descriptor table to change: a `vfork` child gets its own.
    pub(crate) fn table_to_change(&mut self) -> Result<&'static Table, Errno> {
        if self.in_child {
            table::make_private(self.record).ok_or(Errno::NOMEM)?;
        }
        Ok(self.table())
    }

    /// What a descriptor stands for, if it is ours.
    #[inline]
    pub(crate) fn open_file(&self, descriptor: usize) -> Option<OpenFile> {
        self.table().get(descriptor as u32 as usize)
    }

    /// Whether a descriptor is ours.
    pub(crate) fn is_ours(&self, descriptor: usize) -> bool {
        self.table().get(descriptor as u32 as usize).is_some()
    }

    /// Whether a descriptor is the one that the interception itself needs.
    pub(crate) fn is_internal(&self, descriptor: usize) -> bool {
        super::internal::is_internal(descriptor as i32)
    }

    /// A call about a descriptor that is not ours: the kernel's, unless it is the interception's own.
    pub(crate) fn by_host_descriptor(&self, descriptor: usize) -> Answer {
        if self.is_internal(descriptor) { Err(Errno::BADF) } else { Ok(Outcome::Pass) }
    }

    /// Makes the program's call, with other arguments.
    pub(crate) fn on_host(number: usize, arguments: [usize; 6]) -> Outcome {
        // SAFETY: the program's own call; only paths and directories were replaced.
        interruptible::outcome(unsafe { interruptible::syscall6(number, arguments) })
    }

    /// Does `work` at the place a path leads to, if that is in a volume. `at` is the call in its `*at` form, with the
    /// positions of directory and path; that is made instead when the path leads out of a volume. The walk is made again where
    /// somebody removes meanwhile what it found: `work` says ESTALE then, and has done nothing yet.
    #[inline(always)]
    pub(crate) fn at_path(
        &self,
        at: AtForm,
        mode: LastMode,
        flags: ResolveFlags,
        scratch: &mut PathScratch,
        work: impl FnMut(&Namespace<'_, '_>, usize, &Place<'_>) -> Answer,
    ) -> Answer {
        self.at_path_by(credentials::effective, at, mode, flags, scratch, work)
    }

    /// The same, by who may be another than the process acts as.
    pub(crate) fn at_path_by(
        &self,
        who: fn() -> Credentials<'static>,
        at: AtForm,
        mode: LastMode,
        flags: ResolveFlags,
        scratch: &mut PathScratch,
        mut work: impl FnMut(&Namespace<'_, '_>, usize, &Place<'_>) -> Answer,
    ) -> Answer {
        self.at_path_for(who, at, mode, flags, scratch, &mut work)
    }

    /// Once for all kinds of work: each time over it would be 24 KiB of what a start runs first.
    #[inline(never)]
    fn at_path_for(
        &self,
        who: fn() -> Credentials<'static>,
        at: AtForm,
        mode: LastMode,
        flags: ResolveFlags,
        scratch: &mut PathScratch,
        work: &mut dyn FnMut(&Namespace<'_, '_>, usize, &Place<'_>) -> Answer,
    ) -> Answer {
        let directory = at.arguments[at.directory] as i32;
        let path = at.arguments[at.path];
        let asks = super::process_links::is_asked_before(self.number);
        let resolve = if asks { Front::resolve_asking } else { Front::resolve_by };
        again(|| match resolve(self.front, who, self.table(), (directory, path), mode, flags, scratch)? {
            Target::Host => Ok(Outcome::Pass),
            Target::HostPath(path) => Ok(at.on_host(path)),
            Target::Place(mount, place) => {
                let fs = self.front.file_system(mount)?;
                work(&Namespace::new(fs, who()), mount, &place)
            }
            // The link in /proc itself is the kernel's.
            Target::Descriptor(_) if mode != LastMode::Follow => Ok(Outcome::Pass),
            Target::Descriptor(descriptor) => {
                let file = self.open_file(descriptor).ok_or(Errno::NOENT)?;
                let found = Some(Found { node: file.node, file_type: file.file_type });
                let place = Place { directory: file.node, last: Last::Dot, found, wants_directory: false };
                let fs = self.front.file_system(file.mount)?;
                work(&Namespace::new(fs, who()), file.mount, &place)
            }
        })
    }

    /// The file system of an open file.
    #[inline]
    pub(crate) fn file_system(&self, file: &OpenFile) -> Result<&'static dyn FileSystem, Errno> {
        self.front.file_system(file.mount)
    }
}

/// Flags of calls about mounts that the kernel knows; it refuses others, whatever the path.
const FSPICK_FLAGS: u32 = 0xf;
const MOVE_MOUNT_FLAGS: u32 = 0x377;

/// How often a path is walked anew when others remove what it led to.
const WALKS_MAX: usize = 100;

/// Does what begins with a walk, and again while it finds what others remove meanwhile; then there is nothing, as ever for a path
/// from a directory that was removed.
#[inline]
pub(crate) fn again(mut attempt: impl FnMut() -> Answer) -> Answer {
    for _ in 0..WALKS_MAX {
        match attempt() {
            Err(Errno::STALE) => {}
            answer => return answer,
        }
    }
    Err(Errno::NOENT)
}

/// A call in its form with a directory descriptor.
#[derive(Clone, Copy)]
pub(crate) struct AtForm {
    pub(crate) number: usize,
    pub(crate) arguments: [usize; 6],
    /// Position of the directory's descriptor.
    pub(crate) directory: usize,
    /// Position of the path.
    pub(crate) path: usize,
}

/// The working directory as an argument.
pub(crate) const CWD: usize = super::paths::AT_FDCWD as isize as usize;

impl AtForm {
    /// Directory first, path second.
    pub(crate) fn new(number: usize, arguments: [usize; 6]) -> AtForm {
        AtForm { number, arguments, directory: 0, path: 1 }
    }

    /// Makes the call for a path of the host.
    pub(crate) fn on_host(&self, path: &[u8]) -> Outcome {
        let mut arguments = self.arguments;
        arguments[self.directory] = CWD;
        arguments[self.path] = path.as_ptr() as usize;
        Call::on_host(self.number, arguments)
    }
}

/// Finds the handler.
pub(crate) fn perform(call: &mut Call<'_>, scratch: &mut Scratch) -> Answer {
    let [a, b, c, d, e, _] = call.arguments;
    if held::any() && !call.in_child && could_tell(call) {
        held::flush();
    }
    if maps::any_lazy() {
        maps::fill_for(call);
    }
    let [first, second] = &mut scratch.paths;
    match call.number {
        READ | PREAD64 | READV | PREADV | PREADV2 => data::read(call),
        WRITE | PWRITE64 | WRITEV | PWRITEV | PWRITEV2 => data::write(call),
        LSEEK => extent::seek(call),
        SENDFILE | COPY_FILE_RANGE | SPLICE => transfer::transfer(call, &mut scratch.bytes),
        TEE => transfer::refuse_tee(call),
        FSYNC | FDATASYNC | SYNC_FILE_RANGE | SYNCFS => extent::sync(call),
        FTRUNCATE => extent::truncate(call),
        FALLOCATE => extent::allocate(call),
        FADVISE64 | READAHEAD => extent::advise(call),

        OPEN => names::open(call, AtForm::new(OPENAT, [CWD, a, b, c, 0, 0]), first, second),
        CREAT => names::open(call, AtForm::new(OPENAT, [CWD, a, 0o1101, b, 0, 0]), first, second),
        OPENAT => names::open(call, AtForm::new(OPENAT, [a, b, c, d, 0, 0]), first, second),
        OPENAT2 => rules::open2(call, first, second),
        MKDIR => names::make_directory(call, AtForm::new(MKDIRAT, [CWD, a, b, 0, 0, 0]), first),
        MKDIRAT => names::make_directory(call, AtForm::new(MKDIRAT, [a, b, c, 0, 0, 0]), first),
        MKNOD => names::make_node(call, AtForm::new(MKNODAT, [CWD, a, b, c, 0, 0]), first),
        MKNODAT => names::make_node(call, AtForm::new(MKNODAT, [a, b, c, d, 0, 0]), first),
        UNLINK => names::unlink(call, AtForm::new(UNLINKAT, [CWD, a, 0, 0, 0, 0]), first),
        RMDIR => names::unlink(call, AtForm::new(UNLINKAT, [CWD, a, names::AT_REMOVEDIR, 0, 0, 0]), first),
        UNLINKAT => names::unlink(call, AtForm::new(UNLINKAT, [a, b, c, 0, 0, 0]), first),
        RENAME => names::rename(call, [CWD, a, CWD, b, 0, 0], first, second),
        RENAMEAT => names::rename(call, [a, b, c, d, 0, 0], first, second),
        RENAMEAT2 => names::rename(call, [a, b, c, d, e, 0], first, second),
        LINK => linking::link(call, [CWD, a, CWD, b, 0, 0], first, second),
        LINKAT => linking::link(call, [a, b, c, d, e, 0], first, second),
        SYMLINK => linking::symlink(call, [a, CWD, b, 0, 0, 0], first, second),
        SYMLINKAT => linking::symlink(call, [a, b, c, 0, 0, 0], first, second),
        READLINK => linking::read_link(call, AtForm::new(READLINKAT, [CWD, a, b, c, 0, 0]), first),
        READLINKAT => linking::read_link(call, AtForm::new(READLINKAT, [a, b, c, d, 0, 0]), first),

        STAT => status::stat(call, AtForm::new(NEWFSTATAT, [CWD, a, b, 0, 0, 0]), first),
        LSTAT => status::stat(call, AtForm::new(NEWFSTATAT, [CWD, a, b, status::AT_SYMLINK_NOFOLLOW, 0, 0]), first),
        NEWFSTATAT => status::stat(call, AtForm::new(NEWFSTATAT, [a, b, c, d, 0, 0]), first),
        FSTAT => status::stat_descriptor(call),
        STATX => status::statx(call, first),
        STATFS => status::statistics(call, first),
        FSTATFS => status::statistics_of_descriptor(call),
        GETDENTS | GETDENTS64 => status::read_directory(call, &mut scratch.bytes),
        ACCESS => status::access(call, AtForm::new(FACCESSAT2, [CWD, a, b, 0, 0, 0]), first),
        FACCESSAT => status::access(call, AtForm::new(FACCESSAT2, [a, b, c, 0, 0, 0]), first),
        FACCESSAT2 => status::access(call, AtForm::new(FACCESSAT2, [a, b, c, d, 0, 0]), first),

        TRUNCATE => attributes::truncate(call, first),
        CHMOD => attributes::change_mode(call, AtForm::new(FCHMODAT, [CWD, a, b, 0, 0, 0]), first),
        FCHMODAT => attributes::change_mode(call, AtForm::new(FCHMODAT, [a, b, c, 0, 0, 0]), first),
        FCHMODAT2 => attributes::change_mode(call, AtForm::new(FCHMODAT2, [a, b, c, d, 0, 0]), first),
        FCHMOD => attributes::change_mode_of_descriptor(call),
        CHOWN => attributes::change_owner(call, AtForm::new(FCHOWNAT, [CWD, a, b, c, 0, 0]), first),
        LCHOWN => {
            attributes::change_owner(call, AtForm::new(FCHOWNAT, [CWD, a, b, c, status::AT_SYMLINK_NOFOLLOW, 0]), first)
        }
        FCHOWNAT => attributes::change_owner(call, AtForm::new(FCHOWNAT, [a, b, c, d, e, 0]), first),
        FCHOWN => attributes::change_owner_of_descriptor(call),
        UTIME | UTIMES | FUTIMESAT | UTIMENSAT => attributes::change_times(call, first),
        SETXATTR | LSETXATTR | GETXATTR | LGETXATTR | LISTXATTR | LLISTXATTR | REMOVEXATTR | LREMOVEXATTR => {
            attributes::xattr(call, first)
        }
        SETXATTRAT | GETXATTRAT | LISTXATTRAT | REMOVEXATTRAT => attributes::xattr_by_form(call, first),
        FSETXATTR | FGETXATTR | FLISTXATTR | FREMOVEXATTR => attributes::xattr_of_descriptor(call),

        CLOSE => descriptors::close(call),
        CLOSE_RANGE => descriptors::close_range(call),
        UNSHARE => super::own_tables::unshare(call),
        SETNS => super::enter_users::set(call),
        DUP => descriptors::duplicate(call),
        DUP2 | DUP3 => descriptors::duplicate_onto(call),
        FCNTL => descriptors::control(call),
        IOCTL => descriptors::ioctl(call),
        FLOCK => locks::lock_whole(call),

        CHDIR => directory::change(call, first),
        FCHDIR => directory::change_to_descriptor(call),
        GETCWD => directory::current(call),
        CHROOT => directory::refuse_root(call, first),
        PRCTL | SECCOMP => {
            super::filters::before(call);
            Ok(Outcome::Pass)
        }

        MMAP => maps::map(call),
        MUNMAP => maps::unmap(call),
        MPROTECT | PKEY_MPROTECT => maps::protect(call),
        MADVISE => maps::advise(call),
        PROCESS_MADVISE => maps::advise_process(call),
        REMAP_FILE_PAGES => maps::remap_pages(call),
        MREMAP => maps::remap(call),
        MSYNC => maps::sync(call),

        SETRLIMIT | PRLIMIT64 => super::limits::set(call),
        IO_URING_SETUP => Err(Errno::NOSYS),
        LANDLOCK_CREATE_RULESET => refused(call.number),
        PIDFD_GETFD => super::passing::take_from_process(call),
        IO_SUBMIT => asynchronous::submit(call),
        IO_GETEVENTS | IO_PGETEVENTS => asynchronous::events(call),
        IO_DESTROY => asynchronous::destroy(call),
        SENDMSG => super::passing::send(call, first, second),
        SENDMMSG => super::passing::send_several(call, first, second),
        BIND => sockets::bind(call, first),
        CONNECT | SENDTO => sockets::to_address(call, first, second),
        GETSOCKNAME | GETPEERNAME => sockets::name(call),
        // To the kernel, which sees that ours sends no notifications.
        INOTIFY_ADD_WATCH | FANOTIFY_MARK if call.is_ours(a) => Ok(Outcome::Pass),
        INOTIFY_ADD_WATCH => refuse_watch(call, [a, 0, c, 0, 0, 0], CWD, b, first),
        FANOTIFY_MARK => refuse_watch(call, [a, b, c, CWD, 0, 0], d, e, first),
        NAME_TO_HANDLE_AT => handles::name_to_handle(call, first),
        OPEN_BY_HANDLE_AT => handles::open_by_handle(call, first),
        KCMP => compare::compare(call),
        OPEN_TREE => rules::open_tree(call, first, second),
        OPEN_TREE_ATTR => refuse_path(call, a, b, first),
        FSPICK if c as u32 & !FSPICK_FLAGS != 0 => Ok(Outcome::Pass),
        MOUNT_SETATTR => refuse_path(call, a, b, first),
        FSPICK => refuse_path(call, a, b, first),
        FILE_GETATTR | FILE_SETATTR => flags::by_path(call, first),
        CACHESTAT => extent::cache_statistics(call),
        MOUNT => match refuse_path(call, CWD, b, first)? {
            // What is mounted need not be a path.
            Outcome::Pass => refuse_path(call, CWD, a, second).or(Ok(Outcome::Pass)),
            done => Ok(done),
        },
        MOVE_MOUNT if e as u32 & !MOVE_MOUNT_FLAGS != 0 => Ok(Outcome::Pass),
        MOVE_MOUNT => refuse_either(call, [a, b, c, d], first, second),
        PIVOT_ROOT => refuse_either(call, [CWD, a, CWD, b], first, second),
        ACCT | UMOUNT2 | SWAPON | USELIB => refuse_path(call, CWD, a, first),
        // Some commands name no device.
        QUOTACTL if b != 0 => refuse_path(call, CWD, b, first),
        EPOLL_CTL | QUOTACTL => Ok(Outcome::Pass),
        _ => {
            if matches!(class_of(call.number), Class::Descriptor | Class::DescriptorOrTable) && call.is_ours(a) {
                refused(call.number)
            } else {
                Ok(Outcome::Pass)
            }
        }
    }
}

/// Whether a call could tell a placeholder that is kept from a descriptor that is closed. Of those with paths,
/// [`Front::resolve`](super::Front::resolve) and the opens see to it themselves.
fn could_tell(call: &Call<'_>) -> bool {
    const MAP_ANONYMOUS: usize = 0x20;
    const F_DUPFD: usize = 0;
    const F_DUPFD_CLOEXEC: usize = 1030;
    let [a, b, c, d, e, _] = call.arguments;
    match call.number {
        CLOSE | MUNMAP | MPROTECT | PKEY_MPROTECT | MREMAP | MSYNC | MADVISE | REMAP_FILE_PAGES | GETCWD | PRCTL => {
            false
        }
        RENAMEAT | RENAMEAT2 | LINKAT => held::is_held(a) || held::is_held(c),
        SYMLINKAT => held::is_held(b),
        MMAP => d & MAP_ANONYMOUS == 0 && !call.is_ours(e),
        SENDFILE => !call.is_ours(a) || !call.is_ours(b),
        COPY_FILE_RANGE | SPLICE => !call.is_ours(a) || !call.is_ours(c),
        FCNTL => matches!(b as u32 as usize, F_DUPFD | F_DUPFD_CLOEXEC) || !call.is_ours(a),
        DUP => true,
        number if class_of(number) == Class::Descriptor => !call.is_ours(a),
        // A directory, or the descriptor itself with an empty path.
        number => held::is_held(a) || !super::links::takes_path(number),
    }
}

/// What the table says of a call that is not done.
fn refused(number: usize) -> Answer {
    match treatment_of(number) {
        Treatment::Refused(error) => Err(Errno::from_raw_os_error(error)),
        Treatment::Handled => Err(Errno::NOSYS),
        Treatment::Passed | Treatment::Machinery => Ok(Outcome::Pass),
    }
}

/// Refuses a call if its path is a volume's.
pub(crate) fn refuse_path(call: &Call<'_>, directory: usize, path: usize, scratch: &mut PathScratch) -> Answer {
    if path == 0 {
        return Ok(Outcome::Pass);
    }
    let flags = ResolveFlags::EMPTY_PATH;
    let from = (directory as i32, path);
    let follow = LastMode::Follow;
    match call.front.resolve_asking(credentials::effective, call.table(), from, follow, flags, scratch)? {
        Target::Host => Ok(Outcome::Pass),
        Target::Place(_, place) => {
            place.existing().map_err(|error| error.errno())?;
            refused(call.number)
        }
        _ => refused(call.number),
    }
}

/// Refuses a watch of a volume's path, once the kernel has found nothing wrong with everything else.
fn refuse_watch(
    call: &Call<'_>,
    mut probe: [usize; 6],
    directory: usize,
    path: usize,
    scratch: &mut PathScratch,
) -> Answer {
    let refused = match refuse_path(call, directory, path, scratch) {
        Ok(Outcome::Pass) => return Ok(Outcome::Pass),
        refused => refused,
    };
    let position = if call.number == INOTIFY_ADD_WATCH { 1 } else { 4 };
    probe[position] = c"".as_ptr() as usize;
    // SAFETY: the program's call for the empty path, which is never found.
    let result = unsafe { syscall6(call.number, probe) };
    const ENOENT: isize = -2;
    if crate::raw::is_error(result) && result != ENOENT { Ok(Outcome::Done(result)) } else { refused }
}

/// Refuses a call if either of its paths is a volume's.
fn refuse_either(call: &Call<'_>, at: [usize; 4], first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    match refuse_path(call, at[0], at[1], first)? {
        Outcome::Pass => refuse_path(call, at[2], at[3], second),
        done => Ok(done),
    }
}
