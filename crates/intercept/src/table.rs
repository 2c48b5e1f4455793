//! What happens to each system call: data, from which the filter's classes and the documentation are made.
//!
//! A system call that is not listed names neither a file nor a descriptor and goes straight to the kernel.
//! `docs/SYSCALLS.md` is generated from here ([`markdown`]); a test checks that it is current.

use crate::number::*;

/// Highest system call number the filter knows, plus one; a power of two. Higher numbers pass.
pub(crate) const NUMBER_LIMIT: usize = 512;

/// How the filter in front of a rewritten `syscall` instruction sorts a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Class {
    /// Straight to the kernel.
    Pass = 0,
    /// To the handler if the first argument may be one of our descriptors.
    Descriptor = 1,
    /// Always to the handler.
    Handler = 2,
    /// To the handler while placeholders of closed descriptors are kept, which it could tell from closed ones.
    Table = 3,
    /// To the handler if the first argument may be ours, or as [`Class::Table`].
    DescriptorOrTable = 4,
}

/// What becomes of a call that names a file or descriptor of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Treatment {
    /// Done on the volume.
    Handled,
    /// Done by the kernel on the placeholder descriptor, which gives the right answer.
    Passed,
    /// Fails with this error.
    Refused(i32),
    /// Concerns the interception itself: handled for every caller, whatever it names.
    Machinery,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Its number on x86-64.
    pub(crate) number: usize,
    /// Its name in the manual.
    pub(crate) name: &'static str,
    /// How the filter sorts it.
    pub(crate) class: Class,
    /// What becomes of it when it is ours.
    pub(crate) treatment: Treatment,
    /// What a user must know beyond that.
    pub(crate) note: &'static str,
}

const fn entry(number: usize, name: &'static str, class: Class, treatment: Treatment, note: &'static str) -> Entry {
    Entry { number, name, class, treatment, note }
}

use Class::{Descriptor, DescriptorOrTable, Handler, Table};
use Treatment::{Handled, Machinery, Passed, Refused};

const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ENOTTY: i32 = 25;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;
const ENODEV: i32 = 19;
const ENOTBLK: i32 = 15;

/// Every system call that names a file or a descriptor, or that the interception itself must see.
#[rustfmt::skip]
pub(crate) const TABLE: &[Entry] = &[
    entry(READ, "read", Descriptor, Handled, ""),
    entry(WRITE, "write", Descriptor, Handled, ""),
    entry(OPEN, "open", Handler, Handled, ""),
    entry(CLOSE, "close", Descriptor, Handled, ""),
    entry(STAT, "stat", Handler, Handled, ""),
    entry(FSTAT, "fstat", Descriptor, Handled, ""),
    entry(LSTAT, "lstat", Handler, Handled, ""),
    entry(LSEEK, "lseek", Descriptor, Handled, ""),
    entry(MMAP, "mmap", Handler, Handled, ""),
    entry(MPROTECT, "mprotect", Handler, Handled, "a shared map that becomes writable is made anew"),
    entry(MREMAP, "mremap", Handler, Handled, ""),
    entry(MSYNC, "msync", Handler, Handled, ""),
    entry(MADVISE, "madvise", Handler, Handled, "MADV_REMOVE makes a hole in the file; other advice passes"),
    entry(MUNMAP, "munmap", Handler, Handled, ""),
    entry(RT_SIGACTION, "rt_sigaction", Handler, Machinery, "handlers are wrapped, so that a signal inside an operation is delivered after it"),
    entry(SIGALTSTACK, "sigaltstack", Handler, Machinery, "noted, so that the handler knows whether it runs on it"),
    entry(IOCTL, "ioctl", Descriptor, Refused(ENOTTY), "FIOCLEX, FIONCLEX, FIONBIO act on the placeholder; FICLONE, FICLONERANGE, FIDEDUPERANGE, FS_IOC_FIEMAP, and what chattr asks for (FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR and their opposites) are handled; a loop device is not given ours: EINVAL; the host's files are no clones of ours: EXDEV"),
    entry(PREAD64, "pread64", Descriptor, Handled, ""),
    entry(PWRITE64, "pwrite64", Descriptor, Handled, ""),
    entry(READV, "readv", Descriptor, Handled, ""),
    entry(WRITEV, "writev", Descriptor, Handled, ""),
    entry(ACCESS, "access", Handler, Handled, ""),
    entry(DUP, "dup", DescriptorOrTable, Handled, ""),
    entry(DUP2, "dup2", Handler, Handled, ""),
    entry(SENDFILE, "sendfile", Handler, Handled, "read and write through a buffer, from devices through a pipe"),
    entry(CONNECT, "connect", Handler, Handled, "to a Unix socket of the volume, by processes of one user"),
    entry(CLONE, "clone", Handler, Machinery, "fork and vfork inherit descriptors; threads pass, one without CLONE_FILES is refused with EPERM, and so is CLONE_NEWUSER with CLONE_VM or CLONE_SETTLS"),
    entry(FORK, "fork", Handler, Machinery, "the child inherits descriptors"),
    entry(VFORK, "vfork", Handler, Machinery, "the child has its own descriptor table"),
    entry(EXECVE, "execve", Handler, Handled, "the environment keeps the injection; programs of the volume run from a memory file"),
    entry(EXIT, "exit", Handler, Machinery, "frees the thread's engine stack"),
    entry(EXIT_GROUP, "exit_group", Handler, Machinery, "releases descriptions and locks"),
    entry(FCNTL, "fcntl", DescriptorOrTable, Handled, "leases and notifications are refused with EINVAL; owner and signal (F_SETOWN, F_SETSIG) are kept of the file that was given one last; F_SET_RW_HINT is checked and forgotten"),
    entry(FLOCK, "flock", Descriptor, Handled, ""),
    entry(FSYNC, "fsync", Descriptor, Handled, ""),
    entry(FDATASYNC, "fdatasync", Descriptor, Handled, ""),
    entry(TRUNCATE, "truncate", Handler, Handled, ""),
    entry(FTRUNCATE, "ftruncate", Descriptor, Handled, ""),
    entry(GETDENTS, "getdents", Descriptor, Handled, ""),
    entry(GETCWD, "getcwd", Handler, Handled, ""),
    entry(CHDIR, "chdir", Handler, Handled, ""),
    entry(FCHDIR, "fchdir", Handler, Handled, ""),
    entry(RENAME, "rename", Handler, Handled, "between volume and host: EXDEV"),
    entry(MKDIR, "mkdir", Handler, Handled, ""),
    entry(RMDIR, "rmdir", Handler, Handled, ""),
    entry(CREAT, "creat", Handler, Handled, ""),
    entry(LINK, "link", Handler, Handled, "between volume and host: EXDEV"),
    entry(UNLINK, "unlink", Handler, Handled, ""),
    entry(SYMLINK, "symlink", Handler, Handled, ""),
    entry(READLINK, "readlink", Handler, Handled, "/proc/self/fd names of our descriptors included"),
    entry(CHMOD, "chmod", Handler, Handled, ""),
    entry(FCHMOD, "fchmod", Descriptor, Handled, ""),
    entry(CHOWN, "chown", Handler, Handled, ""),
    entry(FCHOWN, "fchown", Descriptor, Handled, ""),
    entry(LCHOWN, "lchown", Handler, Handled, ""),
    entry(UMASK, "umask", Handler, Machinery, "noted; the kernel keeps it too"),
    entry(UTIME, "utime", Handler, Handled, ""),
    entry(PRCTL, "prctl", Handler, Passed, "PR_SET_SECCOMP as seccomp"),
    entry(MKNOD, "mknod", Handler, Handled, ""),
    entry(STATFS, "statfs", Handler, Handled, ""),
    entry(FSTATFS, "fstatfs", Descriptor, Handled, ""),
    entry(PIVOT_ROOT, "pivot_root", Handler, Refused(EINVAL), ""),
    entry(CHROOT, "chroot", Handler, Refused(EPERM), "into the volume only"),
    entry(ACCT, "acct", Handler, Refused(EPERM), ""),
    entry(MOUNT, "mount", Handler, Refused(EINVAL), ""),
    entry(UMOUNT2, "umount2", Handler, Refused(EINVAL), ""),
    entry(SWAPON, "swapon", Handler, Refused(EINVAL), ""),
    entry(READAHEAD, "readahead", Descriptor, Handled, "does nothing, successfully"),
    entry(SETXATTR, "setxattr", Handler, Handled, ""),
    entry(LSETXATTR, "lsetxattr", Handler, Handled, ""),
    entry(FSETXATTR, "fsetxattr", Descriptor, Handled, ""),
    entry(GETXATTR, "getxattr", Handler, Handled, ""),
    entry(LGETXATTR, "lgetxattr", Handler, Handled, ""),
    entry(FGETXATTR, "fgetxattr", Descriptor, Handled, ""),
    entry(LISTXATTR, "listxattr", Handler, Handled, ""),
    entry(LLISTXATTR, "llistxattr", Handler, Handled, ""),
    entry(FLISTXATTR, "flistxattr", Descriptor, Handled, ""),
    entry(REMOVEXATTR, "removexattr", Handler, Handled, ""),
    entry(LREMOVEXATTR, "lremovexattr", Handler, Handled, ""),
    entry(FREMOVEXATTR, "fremovexattr", Descriptor, Handled, ""),
    entry(IO_SUBMIT, "io_submit", Handler, Handled, "done at once"),
    entry(IO_GETEVENTS, "io_getevents", Handler, Handled, "those of requests that were done at once come through the kernel's ring"),
    entry(IO_PGETEVENTS, "io_pgetevents", Handler, Handled, "as io_getevents"),
    entry(IO_DESTROY, "io_destroy", Handler, Handled, ""),
    entry(GETDENTS64, "getdents64", Descriptor, Handled, ""),
    entry(FADVISE64, "fadvise64", Descriptor, Handled, "does nothing, successfully"),
    entry(EPOLL_CTL, "epoll_ctl", Handler, Passed, "the kernel answers EPERM, as for any regular file, EBADF with O_PATH"),
    entry(UTIMES, "utimes", Handler, Handled, ""),
    entry(INOTIFY_ADD_WATCH, "inotify_add_watch", Handler, Refused(EOPNOTSUPP), "the volume sends no notifications"),
    entry(OPENAT, "openat", Handler, Handled, ""),
    entry(MKDIRAT, "mkdirat", Handler, Handled, ""),
    entry(MKNODAT, "mknodat", Handler, Handled, ""),
    entry(FCHOWNAT, "fchownat", Handler, Handled, ""),
    entry(FUTIMESAT, "futimesat", Handler, Handled, ""),
    entry(NEWFSTATAT, "newfstatat", Handler, Handled, ""),
    entry(UNLINKAT, "unlinkat", Handler, Handled, ""),
    entry(RENAMEAT, "renameat", Handler, Handled, "between volume and host: EXDEV"),
    entry(LINKAT, "linkat", Handler, Handled, "between volume and host: EXDEV"),
    entry(SYMLINKAT, "symlinkat", Handler, Handled, ""),
    entry(READLINKAT, "readlinkat", Handler, Handled, ""),
    entry(FCHMODAT, "fchmodat", Handler, Handled, ""),
    entry(FACCESSAT, "faccessat", Handler, Handled, ""),
    entry(SPLICE, "splice", Handler, Handled, "read and write through a buffer"),
    entry(TEE, "tee", Handler, Handled, "EINVAL: no pipe"),
    entry(SYNC_FILE_RANGE, "sync_file_range", Descriptor, Handled, "as fdatasync"),
    entry(VMSPLICE, "vmsplice", Descriptor, Passed, "the kernel answers EBADF: no pipe"),
    entry(UTIMENSAT, "utimensat", Handler, Handled, ""),
    entry(FALLOCATE, "fallocate", Descriptor, Handled, ""),
    entry(DUP3, "dup3", Handler, Handled, ""),
    entry(PREADV, "preadv", Descriptor, Handled, ""),
    entry(PWRITEV, "pwritev", Descriptor, Handled, ""),
    entry(FANOTIFY_MARK, "fanotify_mark", Handler, Refused(ENODEV), ""),
    entry(NAME_TO_HANDLE_AT, "name_to_handle_at", Handler, Handled, "AT_HANDLE_CONNECTABLE is refused with EOPNOTSUPP"),
    entry(SYNCFS, "syncfs", Descriptor, Handled, ""),
    entry(SENDMSG, "sendmsg", Handler, Handled, "descriptors in it reach other processes of the tree"),
    entry(SENDMMSG, "sendmmsg", Handler, Handled, "as sendmsg"),
    entry(RECVMMSG, "recvmmsg", DescriptorOrTable, Passed, "as recvmsg"),
    entry(RECVMSG, "recvmsg", DescriptorOrTable, Passed, "descriptors in it are taken over behind it"),
    entry(RENAMEAT2, "renameat2", Handler, Handled, "between volume and host: EXDEV"),
    entry(FINIT_MODULE, "finit_module", Descriptor, Refused(EINVAL), ""),
    entry(EXECVEAT, "execveat", Handler, Handled, "as execve"),
    entry(COPY_FILE_RANGE, "copy_file_range", Handler, Handled, "shares blocks within a volume, else reads and writes through a buffer"),
    entry(PREADV2, "preadv2", Descriptor, Handled, ""),
    entry(PWRITEV2, "pwritev2", Descriptor, Handled, ""),
    entry(STATX, "statx", Handler, Handled, ""),
    entry(IO_URING_SETUP, "io_uring_setup", Handler, Refused(ENOSYS), "under `gannet run` always: its requests name descriptors where nobody can look; programs fall back"),
    entry(OPEN_TREE, "open_tree", Handler, Handled, "as an open with O_PATH; with OPEN_TREE_CLONE EOPNOTSUPP"),
    entry(MOVE_MOUNT, "move_mount", Handler, Refused(EOPNOTSUPP), ""),
    entry(FSPICK, "fspick", Handler, Refused(EOPNOTSUPP), ""),
    entry(CLONE3, "clone3", Handler, Machinery, "as clone"),
    entry(CLOSE_RANGE, "close_range", Handler, Handled, "CLOSE_RANGE_UNSHARE by one of several threads is refused with EPERM"),
    entry(REMAP_FILE_PAGES, "remap_file_pages", Handler, Handled, ""),
    entry(PKEY_MPROTECT, "pkey_mprotect", Handler, Handled, "as mprotect"),
    entry(PROCESS_MADVISE, "process_madvise", Handler, Passed, "but MADV_REMOVE, where something of a volume is mapped: EINVAL"),
    entry(OPENAT2, "openat2", Handler, Handled, "with the rules of RESOLVE_BENEATH and the others"),
    entry(FACCESSAT2, "faccessat2", Handler, Handled, ""),
    entry(CACHESTAT, "cachestat", Descriptor, Handled, "nothing is in a cache"),
    entry(FCHMODAT2, "fchmodat2", Handler, Handled, ""),
    entry(BIND, "bind", Handler, Handled, "a Unix socket in the volume, for processes of one user"),
    entry(SETXATTRAT, "setxattrat", Handler, Handled, ""),
    entry(GETXATTRAT, "getxattrat", Handler, Handled, ""),
    entry(LISTXATTRAT, "listxattrat", Handler, Handled, ""),
    entry(REMOVEXATTRAT, "removexattrat", Handler, Handled, ""),
    entry(OPEN_TREE_ATTR, "open_tree_attr", Handler, Refused(EOPNOTSUPP), ""),
    entry(FILE_GETATTR, "file_getattr", Handler, Handled, ""),
    entry(FILE_SETATTR, "file_setattr", Handler, Handled, ""),
    entry(SENDTO, "sendto", Handler, Handled, "to the address of a Unix socket of the volume"),
    entry(RECVFROM, "recvfrom", Descriptor, Passed, "the kernel answers ENOTSOCK"),
    entry(USELIB, "uselib", Handler, Refused(ENOSYS), ""),
    entry(SETUID, "setuid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETGID, "setgid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETREUID, "setreuid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETREGID, "setregid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETRESUID, "setresuid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETRESGID, "setresgid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETFSUID, "setfsuid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETFSGID, "setfsgid", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(SETGROUPS, "setgroups", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(CAPSET, "capset", Handler, Machinery, "made by the handler, which then forgets who the caller was"),
    entry(QUOTACTL, "quotactl", Handler, Refused(ENOTBLK), ""),
    entry(POLL, "poll", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PPOLL, "ppoll", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(SELECT, "select", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PSELECT6, "pselect6", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(SOCKET, "socket", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(SOCKETPAIR, "socketpair", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(ACCEPT, "accept", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(ACCEPT4, "accept4", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PIPE, "pipe", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PIPE2, "pipe2", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(EVENTFD, "eventfd", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(EVENTFD2, "eventfd2", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(EPOLL_CREATE, "epoll_create", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(EPOLL_CREATE1, "epoll_create1", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(SIGNALFD, "signalfd", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(SIGNALFD4, "signalfd4", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(TIMERFD_CREATE, "timerfd_create", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(INOTIFY_INIT, "inotify_init", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(INOTIFY_INIT1, "inotify_init1", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(MEMFD_CREATE, "memfd_create", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(MEMFD_SECRET, "memfd_secret", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PERF_EVENT_OPEN, "perf_event_open", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(FANOTIFY_INIT, "fanotify_init", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(USERFAULTFD, "userfaultfd", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PIDFD_OPEN, "pidfd_open", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(PIDFD_GETFD, "pidfd_getfd", Handler, Refused(EPERM), "a process's descriptor of a volume; those of the host are the kernel's to give"),
    entry(OPEN_BY_HANDLE_AT, "open_by_handle_at", Handler, Handled, ""),
    entry(FSOPEN, "fsopen", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(FSMOUNT, "fsmount", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(BPF, "bpf", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(KCMP, "kcmp", Handler, Handled, "what another process has under a number is taken to be what this one has"),
    entry(LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", Handler, Refused(EOPNOTSUPP), "under `gannet run` always, as where the kernel has it disabled: a volume could not be kept from who restricts itself"),
    entry(MQ_OPEN, "mq_open", Table, Passed, "closes the placeholders kept of closed descriptors first"),
    entry(SECCOMP, "seccomp", Handler, Passed, "before a filter is installed the volumes are opened, which it may forbid; closes the placeholders kept of closed descriptors first"),
    entry(UNSHARE, "unshare", Handler, Passed, "CLONE_FILES by one of several threads is refused with EPERM, and so is CLONE_NEWUSER by a vfork child; closes the placeholders kept of closed descriptors first"),
    entry(MOUNT_SETATTR, "mount_setattr", Handler, Refused(EINVAL), ""),
    entry(GETSOCKNAME, "getsockname", Handler, Handled, "what this process bound a Unix socket of the volume to"),
    entry(GETPEERNAME, "getpeername", Handler, Handled, "what this process connected to, as getsockname"),
    entry(SETSOCKOPT, "setsockopt", Descriptor, Passed, "the kernel answers ENOTSOCK"),
    entry(GETSOCKOPT, "getsockopt", Descriptor, Passed, "the kernel answers ENOTSOCK"),
    entry(LISTEN, "listen", Descriptor, Passed, "the kernel answers ENOTSOCK"),
    entry(SHUTDOWN, "shutdown", Descriptor, Passed, "the kernel answers ENOTSOCK"),
    entry(EPOLL_WAIT, "epoll_wait", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(EPOLL_PWAIT, "epoll_pwait", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(EPOLL_PWAIT2, "epoll_pwait2", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(TIMERFD_SETTIME, "timerfd_settime", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(TIMERFD_GETTIME, "timerfd_gettime", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(INOTIFY_RM_WATCH, "inotify_rm_watch", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(FSCONFIG, "fsconfig", Descriptor, Passed, "the kernel answers EINVAL"),
    entry(LANDLOCK_ADD_RULE, "landlock_add_rule", Descriptor, Passed, "the kernel answers EBADFD; a rule's directory is the placeholder's"),
    entry(SETNS, "setns", Handler, Passed, "the kernel answers EINVAL; into another user namespace than one right below the own, by a pidfd, or by a vfork child: EPERM"),
    entry(PIDFD_SEND_SIGNAL, "pidfd_send_signal", Descriptor, Passed, "the kernel answers EBADF"),
    entry(QUOTACTL_FD, "quotactl_fd", Descriptor, Refused(ENOSYS), ""),
    entry(PRLIMIT64, "prlimit64", Handler, Machinery, "as setrlimit"),
    entry(SETRLIMIT, "setrlimit", Handler, Machinery, "closes the placeholders kept of closed descriptors first; the size that files may have is noted; opens the volumes before it takes nearly all descriptors"),
];

/// The classes of all numbers, as the filter reads them.
pub(crate) static CLASSES: [u8; NUMBER_LIMIT] = classes();

const fn classes() -> [u8; NUMBER_LIMIT] {
    let mut all = [Class::Pass as u8; NUMBER_LIMIT];
    let mut index = 0;
    while index < TABLE.len() {
        all[TABLE[index].number] = TABLE[index].class as u8;
        index += 1;
    }
    all
}

/// The class of `number`.
pub(crate) fn class_of(number: usize) -> Class {
    match CLASSES.get(number) {
        Some(1) => Class::Descriptor,
        Some(2) => Class::Handler,
        Some(3) => Class::Table,
        Some(4) => Class::DescriptorOrTable,
        _ => Class::Pass,
    }
}

/// What becomes of each system call. By number and without a word of text: the table's would be three pages of addresses, for the loader to
/// write to at each start.
static TREATMENTS: [Treatment; NUMBER_LIMIT] = {
    let mut all = [Passed; NUMBER_LIMIT];
    let mut index = 0;
    while index < TABLE.len() {
        all[TABLE[index].number] = TABLE[index].treatment;
        index += 1;
    }
    all
};

/// What becomes of `number` when it names something of a volume.
pub(crate) fn treatment_of(number: usize) -> Treatment {
    TREATMENTS.get(number).copied().unwrap_or(Passed)
}

/// The table as the documentation shows it.
pub fn markdown() -> String {
    use std::fmt::Write;
    let mut text = String::from(
        "# System calls under `gannet run`\n\n\
         What happens to a system call that names a file or a descriptor of a volume. Calls that are not listed name\n\
         neither and go to the kernel untouched, as do the listed ones when what they name is not ours.\n\
         This page is generated from `crates/intercept/src/table.rs`.\n\n\
         | system call | becomes | note |\n| --- | --- | --- |\n",
    );
    let mut rows: Vec<&Entry> = TABLE.iter().collect();
    rows.sort_by_key(|entry| entry.name);
    for row in rows {
        let becomes = match row.treatment {
            Handled => "handled".to_owned(),
            Passed => "passed".to_owned(),
            Machinery => "machinery".to_owned(),
            Refused(error) => format!("refused: {}", error_name(error)),
        };
        let _ = writeln!(text, "| `{}` | {becomes} | {} |", row.name, row.note);
    }
    text
}

fn error_name(error: i32) -> &'static str {
    match error {
        EPERM => "EPERM",
        EBADF => "EBADF",
        ENOTBLK => "ENOTBLK",
        ENODEV => "ENODEV",
        EINVAL => "EINVAL",
        ENOTTY => "ENOTTY",
        ENOSYS => "ENOSYS",
        EOPNOTSUPP => "EOPNOTSUPP",
        _ => "an error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_listed_once() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert!(
                !TABLE[..index].iter().any(|other| other.number == entry.number || other.name == entry.name),
                "{} twice",
                entry.name
            );
            assert!(entry.number < NUMBER_LIMIT);
        }
    }

    #[test]
    fn documentation_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SYSCALLS.md");
        if std::env::var_os("GANNET_UPDATE").is_some() {
            std::fs::write(path, markdown()).expect("writing docs/SYSCALLS.md");
        }
        let page = std::fs::read_to_string(path).expect("docs/SYSCALLS.md");
        assert!(page == markdown(), "docs/SYSCALLS.md is out of date: run this test with GANNET_UPDATE=1");
    }
}
