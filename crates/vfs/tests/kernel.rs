//! The namespace against the best oracle there is: the same random calls on the kernel's tmpfs, errno by errno, as root and
//! as two users. Without root only the calling user's part runs.

use std::os::fd::{AsFd, OwnedFd};

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::namespace::{
    Access, Boundary, Capabilities, Credentials, LastMode, Namespace, PathBuffer, Place, Resolution, ResolveFlags,
    Walker,
};
use gannet_vfs::{Errno, Error, FileSystem, FileType, NodeId, Owner, RenameFlags, Time, TimeChange, XattrMode};
use rustix::fs::{self as kernel, AtFlags, Mode, OFlags};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn path(&mut self) -> String {
        let mut path = String::new();
        for index in 0..=self.pick(&[0, 0, 0, 1, 1, 1, 2, 3]) {
            if index > 0 {
                path.push_str(self.pick(&["/", "/", "/", "//"]));
            }
            path.push_str(self.pick(&["a", "a", "b", "b", "c", "d", ".", ".."]));
        }
        path.push_str(self.pick(&["", "", "", "", "", "", "", "", "", "", "/", "/.", "//"]));
        path
    }
}

#[derive(Clone, Copy, Debug)]
struct Actor {
    user: u32,
    group: u32,
    groups: &'static [u32],
}

const ACTORS: [Actor; 3] = [
    Actor { user: 0, group: 0, groups: &[] },
    Actor { user: 1000, group: 100, groups: &[200] },
    Actor { user: 1001, group: 101, groups: &[200, 201] },
];

impl Actor {
    fn credentials(&self, umask: u32) -> Credentials<'static> {
        let capabilities = if self.user == 0 { Capabilities::all() } else { Capabilities::empty() };
        Credentials { user: self.user, group: self.group, groups: self.groups, capabilities, umask }
    }

    /// Runs a closure as this user, on a thread of its own.
    fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                if self.user != 0 {
                    let groups: Vec<_> = self.groups.iter().map(|&id| rustix::process::Gid::from_raw(id)).collect();
                    let (uid, gid) =
                        (rustix::process::Uid::from_raw(self.user), rustix::process::Gid::from_raw(self.group));
                    set_thread_groups(&groups).expect("set groups");
                    set_thread_res_gid(gid, gid, gid).expect("set group");
                    set_thread_res_uid(uid, uid, uid).expect("set user");
                }
                work()
            });
            work.join().expect("the calls do not panic")
        })
    }
}

#[derive(Clone, Debug)]
enum Call {
    Open(String, OFlags, u32),
    Mkdir(String, u32),
    Mknod(String, u32),
    Symlink(String, String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u32),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    Truncate(String, u64),
    Access(String, u32),
    Times(String, u32),
    SetXattr(String, usize),
    RemoveXattr(String, usize),
    GetXattr(String, usize),
    SetList(String, bool, u64),
}

const XATTRS: [&str; 4] = ["user.x", "trusted.x", "security.x", "system.x"];

impl Call {
    fn random(r: &mut Random) -> Self {
        let mode = |r: &mut Random| r.pick(&[0o644, 0o600, 0o666, 0o777, 0o4755, 0o2755, 0o2644, 0o060, 0o400, 0o070]);
        let directory_mode =
            |r: &mut Random| r.pick(&[0o755, 0o700, 0o777, 0o1777, 0o2777, 0o711, 0o733, 0o555, 0o070]);
        match r.below(100) {
            0..30 => {
                let mut flags = r.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR]);
                for flag in [OFlags::CREATE, OFlags::CREATE, OFlags::EXCL, OFlags::TRUNC, OFlags::APPEND] {
                    if r.below(3) == 0 {
                        flags |= flag;
                    }
                }
                for flag in [OFlags::DIRECTORY, OFlags::NOFOLLOW, OFlags::PATH, OFlags::NOATIME, OFlags::TMPFILE] {
                    if r.below(8) == 0 {
                        flags |= flag;
                    }
                }
                Self::Open(r.path(), flags, mode(r))
            }
            30..42 => Self::Mkdir(r.path(), directory_mode(r)),
            42..44 => Self::Mknod(r.path(), mode(r)),
            44..50 => Self::Symlink(r.path(), r.path()),
            50..55 => Self::Link(r.path(), r.path()),
            55..59 => Self::Unlink(r.path()),
            59..62 => Self::Rmdir(r.path()),
            62..70 => Self::Rename(r.path(), r.path(), r.pick(&[0, 0, 0, 1, 2, 3])),
            70..76 => Self::Chmod(r.path(), if r.below(2) == 0 { mode(r) } else { directory_mode(r) }),
            76..84 => {
                let id = |r: &mut Random| r.pick(&[None, Some(0), Some(1000), Some(1001)]);
                let group = |r: &mut Random| r.pick(&[None, Some(100), Some(101), Some(200), Some(201)]);
                Self::Chown(r.path(), id(r), group(r))
            }
            84..86 => Self::Truncate(r.path(), r.below(10_000)),
            86..90 => Self::Access(r.path(), r.below(8) as u32),
            90..92 => Self::Times(r.path(), r.below(3) as u32),
            92..94 => Self::SetXattr(r.path(), r.below(4) as usize),
            94..95 => Self::RemoveXattr(r.path(), r.below(4) as usize),
            95..97 => Self::GetXattr(r.path(), r.below(4) as usize),
            _ => Self::SetList(r.path(), r.below(2) == 0, r.next()),
        }
    }

    fn paths(&self) -> (&str, Option<&str>) {
        match self {
            Self::Open(path, ..)
            | Self::Mkdir(path, ..)
            | Self::Mknod(path, ..)
            | Self::Symlink(path, _)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Chmod(path, ..)
            | Self::Chown(path, ..)
            | Self::Truncate(path, ..)
            | Self::Access(path, ..)
            | Self::Times(path, ..)
            | Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, ..)
            | Self::GetXattr(path, ..)
            | Self::SetList(path, ..) => (path, None),
            Self::Link(from, to) | Self::Rename(from, to, _) => (from, Some(to)),
        }
    }

    /// How the first and second path are walked.
    fn modes(&self) -> Result<(LastMode, LastMode, ResolveFlags), Error> {
        let mut rules = ResolveFlags::empty();
        let first = match self {
            Self::Open(_, flags, _) => {
                let (mode, flags) = Namespace::open_mode(*flags)?;
                rules = flags;
                mode
            }
            Self::Link(..) => LastMode::NoFollow,
            Self::Mkdir(..) | Self::Mknod(..) | Self::Symlink(..) | Self::Unlink(..) => LastMode::Parent,
            Self::Rmdir(..) => LastMode::Parent,
            Self::Rename(_, _, flags) => {
                Namespace::rename_flags(*flags)?;
                LastMode::Parent
            }
            _ => LastMode::Follow,
        };
        Ok((first, LastMode::Parent, rules))
    }

    /// What the kernel says. Umask 0, since that belongs to the process, not the thread.
    fn on_kernel(&self, at: &OwnedFd) -> Result<u64, Errno> {
        let at = at.as_fd();
        let path_fd = |path: &str| kernel::openat(at, path, OFlags::PATH, Mode::empty());
        // There is no setxattrat before Linux 6.13; a descriptor's magic link leads to the same inode.
        let through = |path: &str, call: &dyn Fn(String) -> Result<u64, Errno>| -> Result<u64, Errno> {
            let fd = path_fd(path)?;
            call(format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
        };
        let mode = |bits: &u32| Mode::from_raw_mode(*bits);
        match self {
            Self::Open(path, flags, bits) => {
                // Pipes must not block here. That nobody reads one is said after all that the namespace checks.
                match kernel::openat(at, path.as_str(), *flags | OFlags::NONBLOCK, mode(bits)) {
                    Ok(_) | Err(Errno::NXIO) => Ok(0),
                    Err(errno) => Err(errno),
                }
            }
            Self::Mkdir(path, bits) => kernel::mkdirat(at, path.as_str(), mode(bits)).map(|()| 0),
            Self::Mknod(path, bits) => {
                kernel::mknodat(at, path.as_str(), kernel::FileType::Fifo, mode(bits), 0).map(|()| 0)
            }
            Self::Symlink(path, target) => kernel::symlinkat(target.as_str(), at, path.as_str()).map(|()| 0),
            Self::Link(from, to) => kernel::linkat(at, from.as_str(), at, to.as_str(), AtFlags::empty()).map(|()| 0),
            Self::Unlink(path) => kernel::unlinkat(at, path.as_str(), AtFlags::empty()).map(|()| 0),
            Self::Rmdir(path) => kernel::unlinkat(at, path.as_str(), AtFlags::REMOVEDIR).map(|()| 0),
            Self::Rename(from, to, flags) => {
                let flags = kernel::RenameFlags::from_bits_retain(*flags);
                kernel::renameat_with(at, from.as_str(), at, to.as_str(), flags).map(|()| 0)
            }
            Self::Chmod(path, bits) => kernel::chmodat(at, path.as_str(), mode(bits), AtFlags::empty()).map(|()| 0),
            Self::Chown(path, user, group) => {
                let user = user.map(rustix::process::Uid::from_raw);
                let group = group.map(rustix::process::Gid::from_raw);
                kernel::chownat(at, path.as_str(), user, group, AtFlags::empty()).map(|()| 0)
            }
            Self::Truncate(path, size) => {
                // There is no truncateat; a directory and a pipe are told by their type.
                let fd = path_fd(path)?;
                match kernel::FileType::from_raw_mode(kernel::fstat(&fd)?.st_mode) {
                    kernel::FileType::Directory => return Err(Errno::ISDIR),
                    kernel::FileType::RegularFile => {}
                    _ => return Err(Errno::INVAL),
                }
                let fd = kernel::openat(at, path.as_str(), OFlags::WRONLY, Mode::empty())?;
                kernel::ftruncate(fd, *size).map(|()| 0)
            }
            Self::Access(path, bits) => {
                let access = kernel::Access::from_bits_retain(*bits);
                kernel::accessat(at, path.as_str(), access, AtFlags::empty()).map(|()| 0)
            }
            Self::Times(path, kind) => {
                let time = |now| kernel::Timespec {
                    tv_sec: 77,
                    tv_nsec: if now { kernel::UTIME_NOW } else { kernel::UTIME_OMIT },
                };
                let set = kernel::Timespec { tv_sec: 77, tv_nsec: 5 };
                let times = match kind {
                    0 => kernel::Timestamps { last_access: time(true), last_modification: time(true) },
                    1 => kernel::Timestamps { last_access: set, last_modification: set },
                    2 => kernel::Timestamps { last_access: time(true), last_modification: time(false) },
                    _ => kernel::Timestamps { last_access: time(false), last_modification: time(false) },
                };
                kernel::utimensat(at, path.as_str(), &times, AtFlags::empty()).map(|()| 0)
            }
            Self::SetXattr(path, index) => {
                let flags = kernel::XattrFlags::empty();
                through(path, &|path| kernel::setxattr(path, XATTRS[*index], b"v", flags).map(|()| 0))
            }
            Self::RemoveXattr(path, index) => {
                through(path, &|path| kernel::removexattr(path, XATTRS[*index]).map(|()| 0))
            }
            Self::GetXattr(path, index) => {
                let get = |path| kernel::getxattr(path, XATTRS[*index], &mut [0_u8; 16]).map(|length| length as u64);
                through(path, &get)
            }
            Self::SetList(path, default, seed) => {
                let (name, value) = (list_name(*default), list_of(*seed));
                let flags = kernel::XattrFlags::empty();
                through(path, &|path| kernel::setxattr(path, name, &value, flags).map(|()| 0))
            }
        }
    }

    fn on_namespace(
        &self,
        view: &Namespace<'_, '_>,
        first: &Place<'_>,
        second: Option<&Place<'_>>,
    ) -> Result<u64, Error> {
        let second = || second.expect("the call has two paths");
        match self {
            Self::Open(_, flags, mode) => view.open(first, *flags, *mode).map(|_| 0),
            Self::Mkdir(_, mode) => view.make(first, FileType::Directory, *mode, 0, &[]).map(|_| 0),
            Self::Mknod(_, mode) => view.make(first, FileType::Fifo, *mode, 0, &[]).map(|_| 0),
            Self::Symlink(_, target) => view.make(first, FileType::Symlink, 0, 0, target.as_bytes()).map(|_| 0),
            Self::Link(..) => view.link(first.existing()?.node, second()).map(|()| 0),
            Self::Unlink(_) => view.unlink(first).map(|_| 0),
            Self::Rmdir(_) => view.remove_directory(first).map(|_| 0),
            Self::Rename(_, _, flags) => {
                view.rename(first, second(), RenameFlags::from_bits_retain(*flags)).map(|()| 0)
            }
            Self::Chmod(_, mode) => view.set_mode(first.existing()?.node, *mode).map(|_| 0),
            Self::Chown(_, user, group) => view.set_owner(first.existing()?.node, *user, *group).map(|_| 0),
            Self::Truncate(_, size) => view.truncate(first.existing()?.node, *size).map(|()| 0),
            Self::Access(_, bits) => {
                view.check_access(first.existing()?.node, Access::from_bits_retain(*bits)).map(|()| 0)
            }
            Self::Times(_, kind) => {
                let set = TimeChange::Set(Time::from_parts(77, 5));
                let (accessed, modified) = match kind {
                    0 => (TimeChange::Now, TimeChange::Now),
                    1 => (set, set),
                    2 => (TimeChange::Now, TimeChange::Keep),
                    _ => (TimeChange::Keep, TimeChange::Keep),
                };
                view.set_times(first.existing()?.node, accessed, modified).map(|()| 0)
            }
            Self::SetXattr(_, index) => {
                view.set_xattr(first.existing()?.node, XATTRS[*index].as_bytes(), b"v", XattrMode::Any).map(|()| 0)
            }
            Self::RemoveXattr(_, index) => {
                view.remove_xattr(first.existing()?.node, XATTRS[*index].as_bytes()).map(|()| 0)
            }
            Self::GetXattr(_, index) => {
                let mut room = [0; 16];
                view.xattr(first.existing()?.node, XATTRS[*index].as_bytes(), &mut room).map(|length| length as u64)
            }
            Self::SetList(_, default, seed) => {
                let (name, value) = (list_name(*default), list_of(*seed));
                view.set_xattr(first.existing()?.node, name.as_bytes(), &value, XattrMode::Any).map(|()| 0)
            }
        }
    }
}

fn list_name(default: bool) -> &'static str {
    if default { "system.posix_acl_default" } else { "system.posix_acl_access" }
}

/// A valid access control list.
fn list_of(seed: u64) -> Vec<u8> {
    let mut r = Random(seed);
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, permissions: u64, id: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((permissions as u16).to_le_bytes());
        bytes.extend(id.to_le_bytes());
    };
    let named = r.below(3) > 0;
    entry(1, r.below(8), u32::MAX);
    if named {
        entry(2, r.below(8), 1000);
        if r.below(2) == 0 {
            entry(2, r.below(8), 1001);
        }
    }
    entry(4, r.below(8), u32::MAX);
    if named {
        entry(8, r.below(8), 200);
        entry(8, r.below(8), 201);
    }
    if named || r.below(2) == 0 {
        entry(16, r.below(8), u32::MAX);
    }
    entry(32, r.below(8), u32::MAX);
    bytes
}

struct Both {
    fs: MemoryFs,
    at: OwnedFd,
    compared: u64,
    succeeded: u64,
    left: u64,
}

impl Both {
    fn call(&mut self, actor: Actor, call: &Call, buffers: &mut [PathBuffer; 2]) {
        let who = actor.credentials(0);
        let walker = Walker::new(&self.fs, &who);
        let [one, two] = buffers;
        let (first, second) = call.paths();
        let (first_mode, second_mode, rules) = match call.modes() {
            Ok(modes) => modes,
            Err(error) => {
                assert_eq!(actor.run(|| call.on_kernel(&self.at)), Err(error.errno()), "{call:?}");
                return;
            }
        };
        let root = self.fs.root();
        let resolve = |path: &str, mode, buffer: &mut PathBuffer| -> Option<Result<(), Error>> {
            match walker.resolve(root, path.as_bytes(), mode, rules, buffer) {
                Ok(Resolution::Left(_)) => None,
                other => Some(other.map(|_| ())),
            }
        };
        // What leaves the volume is not the kernel's to try: it would find other things there.
        let escapes = resolve(first, first_mode, one).is_none()
            || second.is_some_and(|second| resolve(second, second_mode, two).is_none());
        if escapes {
            self.left += 1;
            return;
        }
        let view = Namespace::new(&self.fs, who);
        let ours = (|| {
            let first = match walker.resolve(root, first.as_bytes(), first_mode, rules, one)? {
                Resolution::Place(place) => place,
                Resolution::Left(_) => unreachable!("looked at above"),
            };
            if matches!(call, Call::Link(..)) {
                first.existing()?;
            }
            let second = match second {
                None => None,
                Some(path) => match walker.resolve(root, path.as_bytes(), second_mode, ResolveFlags::empty(), two)? {
                    Resolution::Place(place) => Some(place),
                    Resolution::Left(_) => unreachable!("looked at above"),
                },
            };
            call.on_namespace(&view, &first, second.as_ref())
        })();
        let theirs = actor.run(|| call.on_kernel(&self.at));
        let ours = ours.map_err(|error| error.errno());
        // In a sticky directory O_CREAT on another's symbolic link is EACCES even where the administrator wants no
        // protection of that kind: an accident of the kernel's order of checks.
        let sticky = matches!(call, Call::Open(_, flags, _) if flags.contains(OFlags::CREATE));
        if sticky && (ours, theirs) == (Err(Errno::LOOP), Err(Errno::ACCESS)) {
            return;
        }
        assert_eq!(ours, theirs, "{actor:?} {call:?}: ours and the kernel's");
        self.compared += 1;
        self.succeeded += u64::from(ours.is_ok());
    }

    /// Compares the trees: type, mode, owner, links, size, lists.
    fn compare(&self, node: NodeId, at: &OwnedFd) {
        let mut listed = Vec::new();
        let mut sink = |entry: &gannet_vfs::DirectoryEntry<'_>| {
            listed.push(String::from_utf8(entry.name.bytes().to_vec()).unwrap());
            true
        };
        self.fs.read_directory(node, 0, &mut sink).unwrap();
        let mut theirs: Vec<String> = kernel::Dir::read_from(at)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
            .filter(|name| name != "." && name != "..")
            .collect();
        listed.sort();
        theirs.sort();
        assert_eq!(listed, theirs);
        for text in &listed {
            let found = self.fs.lookup(node, gannet_vfs::Name::new(text.as_bytes()).unwrap()).unwrap();
            let ours = self.fs.attributes(found.node).unwrap();
            let stat = kernel::statat(at, text.as_str(), AtFlags::SYMLINK_NOFOLLOW).unwrap();
            assert_eq!(
                (ours.mode_and_type(), ours.owner.user, ours.owner.group, ours.links),
                (stat.st_mode, stat.st_uid, stat.st_gid, stat.st_nlink as u64),
                "{text}: {:o} and {:o}",
                ours.mode_and_type(),
                stat.st_mode
            );
            if ours.file_type == FileType::Symlink {
                continue;
            }
            if ours.file_type == FileType::Regular {
                assert_eq!(ours.size_bytes, stat.st_size as u64, "{text}");
            }
            let fd = kernel::openat(at, text.as_str(), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            for default in [false, true] {
                let (mut ours, mut theirs) = ([0; 512], [0_u8; 512]);
                let view = Namespace::new(&self.fs, Credentials::ROOT);
                let ours = view.xattr(found.node, list_name(default).as_bytes(), &mut ours).map(|n| ours[..n].to_vec());
                let theirs = kernel::getxattr(&path, list_name(default), &mut theirs).map(|n| theirs[..n].to_vec());
                assert_eq!(ours.map_err(|error| error.errno()), theirs, "{text}: list");
            }
            if ours.file_type == FileType::Directory {
                let below = kernel::openat(at, text.as_str(), OFlags::RDONLY, Mode::empty()).unwrap();
                self.compare(found.node, &below);
            }
        }
    }
}

fn campaign(seed: u64, calls: u64) -> (u64, u64, u64) {
    let top = tempfile::Builder::new().prefix("gannet-vfs-").tempdir_in("/dev/shm").unwrap();
    let root = top.path().join("w/x/y/z/r");
    std::fs::create_dir_all(&root).unwrap();
    let at = kernel::open(&root, OFlags::RDONLY, Mode::empty()).unwrap();
    for path in root.ancestors().take(6) {
        kernel::chmod(path, Mode::from_raw_mode(0o755)).unwrap();
    }
    kernel::fchmod(&at, Mode::from_raw_mode(0o777)).unwrap();
    let fs = MemoryFs::new(Limits::default(), 0o777, Owner::default()).unwrap();
    let mut both = Both { fs, at, compared: 0, succeeded: 0, left: 0 };
    let mut buffers = [PathBuffer::new(), PathBuffer::new()];
    let mut random = Random(seed);
    for index in 0..calls {
        let actor = if index < 12 { ACTORS[0] } else { random.pick(&ACTORS) };
        let call = match index {
            // Directories for all to begin with.
            0..12 => Call::Mkdir(
                ["a", "b", "a/a", "a/b", "b/c", "b/d", "a/b/a", "a/a/a", "b/c/a", "b/b", "c", "c/a"][index as usize]
                    .into(),
                if seed.is_multiple_of(2) { 0o777 } else { 0o2775 },
            ),
            _ => Call::random(&mut random),
        };
        both.call(actor, &call, &mut buffers);
    }
    both.compare(both.fs.root(), &both.at);
    (both.compared, both.succeeded, both.left)
}

#[test]
fn the_namespace_says_what_the_kernel_says() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it needs root to act as several users");
        return;
    }
    rustix::process::umask(Mode::empty());
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 3000 } else { 60 };
    let (mut compared, mut succeeded, mut left) = (0, 0, 0);
    for seed in 0..rounds {
        let (c, s, l) = campaign(seed, 250);
        (compared, succeeded, left) = (compared + c, succeeded + s, left + l);
    }
    println!("{compared} calls compared, {succeeded} of them successful; {left} left the volume");
    assert!(compared > rounds * 100 && succeeded * 6 > compared, "{compared} compared, {succeeded} successful");
}

#[test]
fn openat2_agrees_on_boundaries() {
    let top = tempfile::Builder::new().prefix("gannet-vfs-").tempdir_in("/dev/shm").unwrap();
    let fs = MemoryFs::new(Limits::default(), 0o777, Owner::default()).unwrap();
    let at = kernel::open(top.path(), OFlags::RDONLY, Mode::empty()).unwrap();
    let view = Namespace::new(&fs, Credentials::ROOT);
    let (who, mut buffer) = (Credentials::ROOT, PathBuffer::new());
    let mut make = |path: &str, file_type, target: &str| {
        let walker = Walker { boundary: Boundary::Contain, ..Walker::new(&fs, &who) };
        let flags = ResolveFlags::empty();
        let place = walker.resolve(fs.root(), path.as_bytes(), LastMode::Parent, flags, &mut buffer).unwrap();
        let Resolution::Place(place) = place else { panic!("left") };
        view.make(&place, file_type, 0o777, 0, target.as_bytes()).unwrap();
        match file_type {
            FileType::Directory => kernel::mkdirat(&at, path, Mode::from_raw_mode(0o777)).unwrap(),
            _ => kernel::symlinkat(target, &at, path).unwrap(),
        }
    };
    for path in ["a", "a/b", "a/b/c"] {
        make(path, FileType::Directory, "");
    }
    let targets =
        ["b", "../a/b", "../../a", "/a/b", "/", "..", "../..", ".", "up/../../a", "/a/up", "loop", "b/c/../../../a"];
    for (index, target) in targets.iter().enumerate() {
        make(&format!("a/l{index}"), FileType::Symlink, target);
    }
    make("a/up", FileType::Symlink, "..");
    make("a/loop", FileType::Symlink, "loop");
    let mut paths: Vec<String> = ["a", "a/..", "a/../..", "/a", "/", "../x", "a/b/../../..", "a/b/../../../a", "x"]
        .into_iter()
        .map(String::from)
        .collect();
    for index in 0..targets.len() {
        for tail in ["", "/", "/b", "/..", "/../..", "/c/.."] {
            paths.push(format!("a/l{index}{tail}"));
        }
    }
    let (mut same, mut buffer) = (0, PathBuffer::new());
    for path in &paths {
        for (ours, theirs) in [
            (ResolveFlags::BENEATH, kernel::ResolveFlags::BENEATH),
            (ResolveFlags::IN_ROOT, kernel::ResolveFlags::IN_ROOT),
            (
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
                kernel::ResolveFlags::BENEATH | kernel::ResolveFlags::NO_SYMLINKS,
            ),
            (
                ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
                kernel::ResolveFlags::IN_ROOT | kernel::ResolveFlags::NO_SYMLINKS,
            ),
        ] {
            for mode in [LastMode::Follow, LastMode::NoFollow] {
                let flags = if mode == LastMode::Follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
                let kernels = kernel::openat2(&at, path.as_str(), flags, Mode::empty(), theirs).map(|fd| {
                    let stat = kernel::fstat(&fd).unwrap();
                    (kernel::FileType::from_raw_mode(stat.st_mode) == kernel::FileType::Symlink, stat.st_nlink as u64)
                });
                let found = Walker::new(&fs, &who)
                    .resolve(fs.root(), path.as_bytes(), mode, ours, &mut buffer)
                    .and_then(|resolution| match resolution {
                        Resolution::Place(place) => place.existing(),
                        Resolution::Left(_) => panic!("{path} left"),
                    })
                    .map(|found| (found.file_type == FileType::Symlink, fs.attributes(found.node).unwrap().links));
                assert_eq!(found.map_err(|error| error.errno()), kernels, "{path} {ours:?} {mode:?}");
                same += 1;
            }
        }
    }
    assert!(same > 500);
}
