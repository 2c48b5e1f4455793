//! Path walks where the kernel is no oracle: out of the volume, and at the limits.

use std::sync::atomic::{AtomicUsize, Ordering};

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::namespace::{
    Access, Boundary, Capabilities, Credentials, Last, LastMode, Left, Namespace, OpenFlags, PathBuffer, Place,
    Resolution, ResolveFlags, Walker,
};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{
    Errno, FileSystem, FileType, InodeFlags, Name, NewNode, NodeId, Owner, RenameFlags, Time, TimeChange, XattrMode,
};

const ROOT: Credentials<'static> = Credentials::ROOT;
const USER: Credentials<'static> = Credentials {
    user: 1000,
    group: 100,
    groups: &[],
    capabilities: Capabilities::empty(),
    umask: 0o022,
    namespace: None,
};

fn volume() -> MemoryFs {
    MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap()
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn directory(fs: &MemoryFs, at: NodeId, text: &str) -> NodeId {
    fs.create(at, name(text), &NewNode::directory(0o755, Owner::default())).unwrap()
}

fn link(fs: &MemoryFs, at: NodeId, text: &str, target: &[u8]) -> NodeId {
    let new = NewNode { target, ..NewNode::of_type(FileType::Symlink, 0o777, Owner::default()) };
    fs.create(at, name(text), &new).unwrap()
}

/// Walks and copies out what matters: the node found, or what is left to walk.
fn walk(fs: &MemoryFs, path: &str, mode: LastMode) -> Result<Result<Option<NodeId>, String>, Errno> {
    let mut buffer = PathBuffer::new();
    let walked = Walker::new(fs, &ROOT).resolve(fs.root(), path.as_bytes(), mode, ResolveFlags::empty(), &mut buffer);
    match walked.map_err(|error| error.errno())? {
        Resolution::Place(place) => Ok(Ok(place.found.map(|found| found.node))),
        Resolution::Left(Left { rest, .. }) => Ok(Err(String::from_utf8(rest.to_vec()).unwrap())),
    }
}

#[test]
fn paths_that_leave_the_volume_say_what_is_left() {
    let fs = volume();
    let a = directory(&fs, fs.root(), "a");
    let b = directory(&fs, a, "b");
    for (text, target) in [
        ("up", "../../x/y"),
        ("out", "/etc/passwd"),
        ("slash", "/"),
        ("again", "out"),
        ("inside", "../a/b"),
        ("through", "inside/../../../z//w/"),
    ] {
        link(&fs, a, text, target.as_bytes());
    }
    let left = |path: &str| walk(&fs, path, LastMode::Follow).unwrap().unwrap_err();
    assert_eq!(left(".."), "");
    assert_eq!(left("../"), "");
    assert_eq!(left("../x"), "x");
    assert_eq!(left("a/../..//x//y/"), "x//y/");
    assert_eq!(left("a/up"), "x/y");
    assert_eq!(left("a/up/z"), "x/y/z");
    assert_eq!(left("a/out"), "/etc/passwd");
    assert_eq!(left("a/out/deeper/"), "/etc/passwd/deeper/");
    assert_eq!(left("a/slash"), "/");
    assert_eq!(left("a/slash/usr"), "//usr");
    assert_eq!(left("a/again/more"), "/etc/passwd/more");
    assert_eq!(left("a/through"), "z//w/");
    assert_eq!(walk(&fs, "a/inside", LastMode::Follow), Ok(Ok(Some(b))));
    assert_eq!(walk(&fs, "a/b/../inside/.", LastMode::Follow), Ok(Ok(Some(b))));
    // What is not followed does not leave.
    assert!(matches!(walk(&fs, "a/out", LastMode::NoFollow), Ok(Ok(Some(_)))));
    assert_eq!(walk(&fs, "a/out", LastMode::Parent), Ok(Ok(None)));
    assert_eq!(walk(&fs, "a/out/", LastMode::NoFollow).unwrap().unwrap_err(), "/etc/passwd/");
    // The caller goes on counting links.
    let (mut buffer, walker) = (PathBuffer::new(), Walker::new(&fs, &ROOT));
    match walker.resolve(fs.root(), b"a/again", LastMode::Follow, ResolveFlags::empty(), &mut buffer).unwrap() {
        Resolution::Left(left) => assert_eq!(left.links, 2),
        Resolution::Place(_) => panic!("it leaves"),
    }
    let flags = ResolveFlags::NO_XDEV;
    let stays = walker.resolve(fs.root(), b"a/out", LastMode::Follow, flags, &mut buffer);
    assert_eq!(stays.unwrap_err().errno(), Errno::XDEV);
}

#[test]
fn a_contained_walk_never_leaves() {
    let fs = volume();
    let a = directory(&fs, fs.root(), "a");
    let b = directory(&fs, a, "b");
    link(&fs, a, "out", b"/b");
    let who = ROOT;
    let walker = Walker { root: a, boundary: Boundary::Contain, ..Walker::new(&fs, &who) };
    let mut buffer = PathBuffer::new();
    let mut found = |path: &str| {
        let walked = walker.resolve(b, path.as_bytes(), LastMode::Follow, ResolveFlags::empty(), &mut buffer).unwrap();
        let Resolution::Place(place) = walked else { panic!("left") };
        place.existing().unwrap().node
    };
    assert_eq!([found("../../../.."), found("/"), found("/../.."), found("../out"), found("/out/..")], [a, a, a, b, a]);
}

#[test]
fn limits() {
    let fs = volume();
    let mut at = fs.root();
    link(&fs, at, "l0", b".");
    for index in 1..=41 {
        link(&fs, at, &format!("l{index}"), format!("l{}", index - 1).as_bytes());
    }
    assert_eq!(walk(&fs, "l39", LastMode::Follow), Ok(Ok(Some(fs.root()))), "40 links");
    assert_eq!(walk(&fs, "l40", LastMode::Follow), Err(Errno::LOOP), "41 links");
    assert_eq!(walk(&fs, &"l0/".repeat(40), LastMode::Follow), Ok(Ok(Some(fs.root()))));
    assert_eq!(walk(&fs, &"l0/".repeat(41), LastMode::Follow), Err(Errno::LOOP));
    assert_eq!(walk(&fs, "", LastMode::Follow), Err(Errno::NOENT));
    assert_eq!(walk(&fs, &"x".repeat(256), LastMode::Follow), Err(Errno::NAMETOOLONG));
    assert_eq!(walk(&fs, &format!("{}/y", "x".repeat(256)), LastMode::Parent), Err(Errno::NAMETOOLONG));
    assert_eq!(walk(&fs, &"./".repeat(2047), LastMode::Follow), Ok(Ok(Some(fs.root()))), "4094 bytes");
    assert_eq!(walk(&fs, &"./".repeat(2048), LastMode::Follow), Err(Errno::NAMETOOLONG), "4096 bytes");
    // A link of the greatest length before a path of the greatest length.
    let long = "./".repeat(2047);
    link(&fs, at, "long", long.as_bytes());
    let rest = "././".repeat(1022);
    assert_eq!(walk(&fs, &format!("long/{rest}"), LastMode::Follow), Ok(Ok(Some(fs.root()))));
    link(&fs, at, "longer", format!("long/{}", "./".repeat(2040)).as_bytes());
    assert_eq!(walk(&fs, &format!("longer/{rest}"), LastMode::Follow), Err(Errno::NAMETOOLONG));
    for _ in 0..1000 {
        at = directory(&fs, at, "d");
    }
    assert_eq!(walk(&fs, &"d/".repeat(1000), LastMode::Follow), Ok(Ok(Some(at))));
    assert_eq!(walk(&fs, "d/x/y", LastMode::Follow), Err(Errno::NOENT));
    assert_eq!(walk(&fs, "d/x", LastMode::Follow), Ok(Ok(None)));
}

#[test]
fn the_last_component_is_told() {
    let fs = volume();
    let a = directory(&fs, fs.root(), "a");
    link(&fs, a, "dangling", b"../new");
    let mut buffer = PathBuffer::new();
    let mut place = |path: &'static str, mode, flags| -> (NodeId, String, bool, bool) {
        let walked = Walker::new(&fs, &ROOT).resolve(a, path.as_bytes(), mode, flags, &mut buffer).unwrap();
        let Resolution::Place(Place { directory, last, found, wants_directory }) = walked else { panic!("left") };
        let text = match last {
            Last::Name(name) => name.to_string(),
            other => format!("{other:?}"),
        };
        (directory, text, found.is_some(), wants_directory)
    };
    let none = ResolveFlags::empty();
    assert_eq!(place("x//", LastMode::Parent, none), (a, "x".into(), false, true));
    assert_eq!(place("dangling", LastMode::Follow, none), (fs.root(), "new".into(), false, false));
    assert_eq!(place("dangling", LastMode::NoFollow, none), (a, "dangling".into(), true, false));
    assert_eq!(place(".", LastMode::Parent, none), (a, "Dot".into(), true, false));
    assert_eq!(place("./..", LastMode::Parent, none).1, "DotDot".to_string());
    assert_eq!(place("/", LastMode::Parent, none), (fs.root(), "Root".into(), true, true));
    assert_eq!(place("", LastMode::Follow, ResolveFlags::EMPTY_PATH), (a, "Dot".into(), true, false));
}

#[test]
fn flags_of_inodes_forbid() {
    let fs = volume();
    let (file, holder) = (
        fs.create(fs.root(), name("f"), &NewNode::regular(0o666, Owner::default())).unwrap(),
        directory(&fs, fs.root(), "d"),
    );
    let root = Namespace::new(&fs, ROOT);
    let place = |at, text| Place { directory: at, last: Last::Name(name(text)), found: None, wants_directory: false };
    let found = |node| gannet_vfs::Found { node, file_type: FileType::Regular };
    let errno = |result: gannet_vfs::Result<()>| result.err().map(|error| error.errno());
    let perm = Some(Errno::PERM);

    root.set_flags(file, InodeFlags::APPEND_ONLY).unwrap();
    assert_eq!(errno(root.open_found(found(file), OpenFlags::WRONLY).map(drop)), perm);
    root.open_found(found(file), OpenFlags::WRONLY | OpenFlags::APPEND).unwrap();
    assert_eq!(errno(root.open_found(found(file), OpenFlags::RDONLY | OpenFlags::TRUNC).map(drop)), perm);
    assert_eq!(errno(root.truncate(file, 0)), perm);
    assert_eq!(errno(root.truncate_open(file, 0)), perm);
    assert_eq!(errno(root.unlink(&place(fs.root(), "f")).map(drop)), perm);
    assert_eq!(errno(root.link(file, &place(fs.root(), "g"))), perm);
    assert_eq!(errno(root.set_mode(file, 0).map(drop)), perm);
    assert_eq!(errno(root.set_owner(file, Some(0), None).map(drop)), perm);
    root.set_owner(file, None, None).unwrap();
    assert_eq!(errno(root.set_times(file, TimeChange::Set(Time(1)), TimeChange::Keep)), perm);
    root.set_times(file, TimeChange::Now, TimeChange::Now).unwrap();
    assert_eq!(errno(root.check_write_open(file, true)), None);
    assert_eq!(errno(root.check_write_open(file, false)), perm);

    root.set_flags(file, InodeFlags::IMMUTABLE).unwrap();
    assert_eq!(errno(root.check_access(file, Access::WRITE)), perm);
    assert_eq!(errno(root.check_access(file, Access::READ)), None);
    assert_eq!(errno(root.set_owner(file, Some(1), None).map(drop)), perm);
    assert_eq!(errno(root.set_owner(file, None, None).map(drop)), perm);
    assert_eq!(errno(root.set_times(file, TimeChange::Now, TimeChange::Now)), perm);
    assert_eq!(errno(root.set_xattr(file, b"user.x", b"", XattrMode::Any)), perm);
    assert_eq!(errno(root.rename(&place(fs.root(), "f"), &place(fs.root(), "g"), RenameFlags::empty())), perm);

    root.set_flags(holder, InodeFlags::APPEND_ONLY).unwrap();
    let made = root.make(&place(holder, "x"), FileType::Directory, 0o755, 0, &[]);
    assert!(made.is_ok(), "entries can be added");
    assert_eq!(errno(root.remove_directory(&place(holder, "x")).map(drop)), perm);
    root.set_flags(holder, InodeFlags::IMMUTABLE).unwrap();
    assert_eq!(errno(root.make(&place(holder, "y"), FileType::Directory, 0o755, 0, &[]).map(drop)), perm);
    root.set_flags(holder, InodeFlags::empty()).unwrap();

    let owner = Namespace::new(&fs, USER);
    assert_eq!(errno(owner.set_flags(holder, InodeFlags::NO_DUMP)), perm);
    fs.set_attributes(holder, &gannet_vfs::AttributeChange { user: Some(1000), ..Default::default() }).unwrap();
    assert_eq!(errno(owner.set_flags(holder, InodeFlags::IMMUTABLE)), perm);
    owner.set_flags(holder, InodeFlags::NO_DUMP).unwrap();
}

#[test]
fn what_is_made_inherits_the_flags_that_chattr_passes_on() {
    let fs = volume();
    let holder = directory(&fs, fs.root(), "d");
    let root = Namespace::new(&fs, ROOT);
    let place = |text| Place { directory: holder, last: Last::Name(name(text)), found: None, wants_directory: false };
    let by_all = InodeFlags::NO_DUMP | InodeFlags::NO_ACCESS_TIME;
    let all = by_all | InodeFlags::SYNCHRONOUS | InodeFlags::COPY_ON_WRITE;
    root.set_flags(holder, all).unwrap();
    let made = |file_type, text| root.make(&place(text), file_type, 0o755, 0, b"target").unwrap();
    let flags = |node| fs.permissions(node).unwrap().flags;
    assert_eq!(flags(made(FileType::Directory, "directory")), all);
    assert_eq!(flags(made(FileType::Regular, "file")), all);
    assert_eq!(flags(made(FileType::Symlink, "link")), by_all);
    assert_eq!(flags(made(FileType::Fifo, "fifo")), by_all);
    assert_eq!(flags(root.open(&place("opened"), OpenFlags::CREATE, 0o644).unwrap().node), all);
    let unnamed =
        Place { found: Some(gannet_vfs::Found { node: holder, file_type: FileType::Directory }), ..place("d") };
    assert_eq!(flags(root.open(&unnamed, OpenFlags::TMPFILE | OpenFlags::RDWR, 0o644).unwrap().node), all);
    // Below a default list, too; and what only holds for the directory itself stays there.
    let list = [2u32.to_le_bytes(), [1, 0, 7, 0], [255; 4], [4, 0, 5, 0], [255; 4], [32, 0, 5, 0], [255; 4]].concat();
    fs.set_xattr(holder, b"system.posix_acl_default", &list, XattrMode::Any).unwrap();
    root.set_flags(holder, all | InodeFlags::APPEND_ONLY).unwrap();
    assert_eq!(flags(made(FileType::Regular, "listed")), all);
    assert_eq!(flags(made(FileType::Directory, "listed directory")), all);
}

#[test]
fn the_right_capability_opens_the_right_door() {
    let fs = volume();
    let node = fs.create(fs.root(), name("f"), &NewNode::regular(0o600, Owner { user: 5, group: 5 })).unwrap();
    let locked = directory(&fs, fs.root(), "d");
    fs.set_attributes(
        locked,
        &gannet_vfs::AttributeChange { mode: gannet_vfs::ModeChange::Set(0), ..Default::default() },
    )
    .unwrap();
    let may = |capabilities, node, access| {
        Namespace::new(&fs, Credentials { capabilities, ..USER }).check_access(node, access).is_ok()
    };
    let (read, search) = (Capabilities::DAC_READ_SEARCH, Access::EXECUTE);
    assert!(!may(Capabilities::empty(), node, Access::READ));
    assert!(may(read, node, Access::READ) && !may(read, node, Access::WRITE));
    assert!(may(Capabilities::DAC_OVERRIDE, node, Access::READ | Access::WRITE));
    assert!(!may(Capabilities::DAC_OVERRIDE, node, search), "nobody may execute it");
    assert!(may(read, locked, Access::READ | search) && !may(read, locked, Access::WRITE));
    assert!(may(Capabilities::DAC_OVERRIDE, locked, Access::WRITE | search));
    let with = |capabilities| Namespace::new(&fs, Credentials { capabilities, ..USER });
    assert!(with(Capabilities::DAC_OVERRIDE).set_mode(node, 0o644).is_err());
    assert!(with(Capabilities::FOWNER).set_mode(node, 0o644).is_ok());
    assert!(with(Capabilities::FOWNER).set_owner(node, Some(1000), None).is_err());
    assert!(with(Capabilities::CHOWN).set_owner(node, Some(1000), None).is_ok());
    let device = Place { directory: fs.root(), last: Last::Name(name("dev")), found: None, wants_directory: false };
    let all_but = with(Capabilities::all().difference(Capabilities::MKNOD));
    let make = |view: &Namespace<'_, '_>| view.make(&device, FileType::CharacterDevice, 0o600, 0x101, &[]);
    assert_eq!(make(&all_but).unwrap_err().errno(), Errno::PERM);
    let node = make(&with(Capabilities::all())).unwrap();
    assert_eq!(fs.attributes(node).unwrap().device, 0x101);
    // Kept open without any right: a description is not a check.
    let description = fs.shared().open(&fs, node, AccessMode::PATH, 0).unwrap();
    fs.shared().close(&fs, description).unwrap();
}

/// Where two make the same rename, one of them is told that the file is gone.
#[test]
fn one_of_two_renames_a_file() {
    const FILES: usize = 20_000;
    let fs = volume();
    let (from, to) = (directory(&fs, fs.root(), "from"), directory(&fs, fs.root(), "to"));
    let names: Vec<String> = (0..FILES).map(|number| number.to_string()).collect();
    let place =
        |directory, text| Place { directory, last: Last::Name(name(text)), found: None, wants_directory: false };
    names.iter().for_each(|text| _ = fs.create(from, name(text), &NewNode::regular(0o644, Owner::default())).unwrap());
    let reached = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let work = &|me: usize| {
        let namespace = Namespace::new(&fs, ROOT);
        let mut renamed = 0;
        for (number, text) in names.iter().enumerate() {
            // Both begin together, one now and then a little later.
            reached[me].store(number, Ordering::SeqCst);
            for look in 0.. {
                if reached[1 - me].load(Ordering::SeqCst) >= number {
                    break;
                }
                if look > 1000 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
            (0..number % 64 * me).for_each(|_| std::hint::spin_loop());
            match namespace.rename(&place(from, text), &place(to, text), RenameFlags::empty()) {
                Ok(()) => renamed += 1,
                Err(error) => assert_eq!(error.errno(), Errno::NOENT),
            }
        }
        reached[me].store(usize::MAX, Ordering::SeqCst);
        renamed
    };
    let renamed =
        std::thread::scope(|scope| [0, 1].map(|me| scope.spawn(move || work(me))).map(|one| one.join().unwrap()));
    assert_eq!(renamed.iter().sum::<usize>(), FILES, "{renamed:?}");
}

/// Who is not known (a user namespace whose maps cannot be read) owns nothing.
#[test]
fn nobody_makes_inodes_for_who_is_not_known() {
    let fs = MemoryFs::new(Limits::default(), 0o777, Owner::default()).unwrap();
    let place = Place { directory: fs.root(), last: Last::Name(name("new")), found: None, wants_directory: false };
    let make = |who| Namespace::new(&fs, who).make(&place, FileType::Directory, 0o777, 0, &[]);
    for who in [Credentials { user: Credentials::UNKNOWN, ..USER }, Credentials { group: Credentials::UNKNOWN, ..USER }]
    {
        assert_eq!(make(who).unwrap_err().errno(), Errno::OVERFLOW);
    }
    make(USER).unwrap();
}
