//! Walks that begin where earlier ones came to find what walks from the start find, whatever happens to the tree in between.

use gannet_logfs::{AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::namespace::{
    Capabilities, Credentials, LastMode, Namespace, PathBuffer, Place, Resolution, ResolveFlags, Walker,
};
use gannet_vfs::{AttributeChange, FileSystem, FileType, ModeChange, NewNode, NodeId, Owner, RenameFlags, Time};

fn volume() -> LogFs {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("volume", 16 << 20, options).expect("memory");
    let made = MakeOptions {
        label: String::new(),
        copy_on_write: false,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: *b"a fixed key for a volume",
        now: Time::now(),
    };
    make(&medium, &made).expect("mkfs");
    let options = AttachOptions {
        index_bytes_max: 16 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium, options).expect("attach")
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    /// A path of one to five components out of few names, now and then with dots, links, slashes too many.
    fn path(&mut self) -> String {
        let mut path = String::new();
        for index in 0..=self.below(5) {
            if index > 0 {
                path.push_str(if self.below(12) == 0 { "//" } else { "/" });
            }
            path.push_str(match self.below(20) {
                0 => ".",
                1 => "..",
                2 => "link",
                3 => "no-such-name",
                4..=9 => "a",
                10..=15 => "b",
                _ => "a-longer-name",
            });
        }
        if self.below(10) == 0 {
            path.push('/');
        }
        path
    }
}

/// Directories of three names in each other.
fn plant(fs: &LogFs, directory: NodeId, depth: u32) {
    for name in [&b"a"[..], b"b", b"a-longer-name"] {
        let new = NewNode::directory(0o755, Owner::default());
        let name = gannet_vfs::Name::new(name).expect("a name");
        let made = fs.create(directory, name, &new).or_else(|_| fs.lookup(directory, name).map(|found| found.node));
        if let (Ok(made), 1..) = (made, depth) {
            plant(fs, made, depth - 1);
        }
    }
}

/// Where a path leads, in words.
fn walk(fs: &LogFs, who: &Credentials<'_>, start: NodeId, path: &str, mode: LastMode, room: &mut PathBuffer) -> String {
    match Walker::new(fs, who).resolve(start, path.as_bytes(), mode, ResolveFlags::empty(), room) {
        Ok(Resolution::Place(Place { directory, last, found, wants_directory })) => {
            format!("{directory:?} {last:?} {found:?} {wants_directory}")
        }
        Ok(Resolution::Left(left)) => format!("left {:?}", left.rest),
        Err(error) => format!("{:?}", error.errno()),
    }
}

#[test]
fn kept_walks_find_what_fresh_ones_find() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 100 } else { 4 };
    let fs = volume();
    let groups = [7, 9];
    let somebody = Credentials {
        user: 5,
        group: 6,
        groups: &groups,
        capabilities: Capabilities::empty(),
        umask: 0,
        namespace: None,
    };
    let another = Credentials { user: 8, groups: &[], ..somebody };
    let mut kept = PathBuffer::new();
    let mut known = 0;
    for seed in 0..rounds {
        let mut random = Random(seed);
        let mut starts = vec![fs.root()];
        for step in 0..4000 {
            if step % 200 == 0 {
                plant(&fs, fs.root(), 3);
            }
            let namespace = Namespace::new(&fs, Credentials::ROOT);
            let mut room = PathBuffer::new();
            let mut place_of = |path: &str| -> Option<(NodeId, String)> {
                let walker = Walker::new(&fs, &Credentials::ROOT);
                let flags = ResolveFlags::empty();
                match walker.resolve(fs.root(), path.as_bytes(), LastMode::NoFollow, flags, &mut room).ok()? {
                    Resolution::Place(place) => Some((place.directory, path.rsplit('/').next()?.to_owned())),
                    Resolution::Left(_) => None,
                }
            };
            let (path, other) = (random.path(), random.path());
            let name = |text: &'static str| gannet_vfs::Name::new(text.as_bytes()).expect("a name");
            let names = ["a", "b", "a-longer-name", "link"];
            let (Some((from, last)), Some((to, target))) = (place_of(&path), place_of(&other)) else { continue };
            let (Some(last), Some(target)) = (
                names.iter().copied().find(|name| **name == last),
                names.iter().copied().find(|name| **name == target),
            ) else {
                continue;
            };
            let found = fs.lookup(from, name(last)).ok();
            match random.below(16) {
                0..=4 => {
                    let kind = if last == "link" { FileType::Symlink } else { FileType::Directory };
                    let text: &[u8] = if kind == FileType::Symlink {
                        [&b"a/b"[..], b"../b", b"/a"][random.below(3) as usize]
                    } else {
                        b""
                    };
                    let mut made = PathBuffer::new();
                    let walker = Walker::new(&fs, &Credentials::ROOT);
                    let place =
                        walker.resolve(from, last.as_bytes(), LastMode::Parent, ResolveFlags::empty(), &mut made);
                    if let Ok(Resolution::Place(place)) = place {
                        let _ = namespace.make(&place, kind, 0o755, 0, text);
                    }
                }
                5 => _ = fs.remove(from, name(last), gannet_vfs::RemoveKind::Directory),
                6 => _ = fs.remove(from, name(last), gannet_vfs::RemoveKind::NonDirectory),
                7 | 8 => _ = fs.rename(from, name(last), to, name(target), RenameFlags::empty()),
                9 => _ = fs.rename(from, name(last), to, name(target), RenameFlags::EXCHANGE),
                10 => {
                    if let Some(found) = found.filter(|found| found.file_type == FileType::Directory) {
                        let mode = [0o755, 0o700, 0o711, 0o070, 0o000, 0o750][random.below(6) as usize];
                        let owner = [0, 5, 8][random.below(3) as usize];
                        let change = AttributeChange {
                            mode: ModeChange::Set(mode),
                            user: Some(owner),
                            group: Some([6, 7, 12][random.below(3) as usize]),
                            ..AttributeChange::default()
                        };
                        fs.set_attributes(found.node, &change).expect("root may");
                        starts.push(found.node);
                    }
                }
                _ => {}
            }
            for who in [Credentials::ROOT, somebody, another] {
                let start = starts[random.below(starts.len() as u64) as usize];
                for start in [start, fs.root()] {
                    let mode = [LastMode::Follow, LastMode::NoFollow, LastMode::Parent][random.below(3) as usize];
                    let again = walk(&fs, &who, start, &path, mode, &mut kept);
                    let fresh = walk(&fs, &who, start, &path, mode, &mut PathBuffer::new());
                    assert_eq!(again, fresh, "seed {seed}, step {step}: {path} from {start:?} by {}", who.user);
                    known += usize::from(fresh.contains("Some"));
                }
            }
        }
    }
    assert!(known > 5000, "most paths must lead somewhere: {known}");
}
