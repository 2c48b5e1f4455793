//! The same tree twice: the kernel's and ours, changed by the same calls and compared.

use crate::actors::Actor;
use crate::calls::{Call, list_name};
use std::os::fd::OwnedFd;

use gannet_memfs::MemoryFs;
use gannet_vfs::namespace::{Credentials, Namespace, PathBuffer, Resolution, ResolveFlags, Walker};
use gannet_vfs::{Errno, Error, FileSystem, FileType, NodeId};
use rustix::fs::{self as kernel, AtFlags, Mode, OFlags};

pub(crate) struct Both {
    pub(crate) fs: MemoryFs,
    pub(crate) at: OwnedFd,
    pub(crate) compared: u64,
    pub(crate) succeeded: u64,
    pub(crate) left: u64,
}

impl Both {
    pub(crate) fn call(&mut self, actor: Actor, call: &Call, buffers: &mut [PathBuffer; 2]) {
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
    pub(crate) fn compare(&self, node: NodeId, at: &OwnedFd) {
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
