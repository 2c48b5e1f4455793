//! Names that share one hash in a directory, and attributes that do: the index's key is 47 bits of the hash and a rank, so all
//! of them go through the ranks.
//!
//! | file | what |
//! | --- | --- |
//! | `hash` | names of a wanted hash, as many as are wanted |
//! | `crashes` | crashes in operations on such names |

mod crashes;
mod hash;

use crate::volume::{MODES, Mode, assert_sound, attach, make_options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{LogFs, MakeOptions, make};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Errno, Error, FileSystem, Name, NewNode, NodeId, Owner, RemoveKind, RenameFlags, XattrMode};
use hash::{DROPPED_BITS, HASH, KEY, RANK_BITS, colliding, key_for};
use std::collections::{BTreeMap, BTreeSet};

/// A new volume with this key, and the medium it is on.
fn volume(key: u64, mode: Mode) -> (LogFs, Medium) {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("collisions", 64 << 20, options).expect("memory");
    let mut random = [7; 24];
    random[16..].copy_from_slice(&key.to_le_bytes());
    make(&medium, &MakeOptions { random, ..make_options(mode) }).expect("mkfs");
    (attach(&medium).expect("attach"), medium)
}

/// Opens it again, after a clean detach or after nobody has closed it.
fn again(fs: LogFs, medium: &Medium, cleanly: bool) -> LogFs {
    if cleanly {
        assert!(fs.detach().expect("detach"));
    }
    drop(fs);
    assert_sound(medium, cleanly, "of colliding names");
    let fs = attach(medium).expect("attach again");
    assert_eq!(fs.recovery().is_none(), cleanly);
    fs
}

fn checked(bytes: &[u8; 8]) -> Name<'_> {
    Name::new(bytes).expect("a name")
}

fn new_file() -> NewNode<'static> {
    NewNode::regular(0o644, Owner::default())
}

/// The cookies of a directory's names.
fn cookies(fs: &LogFs, directory: NodeId) -> BTreeMap<Vec<u8>, u64> {
    let mut cookies = BTreeMap::new();
    let read = fs.read_directory(directory, 0, &mut |entry| {
        cookies.insert(entry.name.bytes().to_vec(), entry.cookie);
        true
    });
    read.expect("read a directory");
    cookies
}

/// That these are all of a directory's names, that each is found, and that all have one hash but are told apart.
fn assert_names(fs: &LogFs, directory: NodeId, names: &BTreeMap<[u8; 8], u64>, hash: u64) {
    let rig = Rig::new(fs);
    let listed: BTreeMap<Vec<u8>, u64> =
        rig.list(directory).into_iter().map(|(name, (inode, _))| (name, inode)).collect();
    let wanted: BTreeMap<Vec<u8>, u64> = names.iter().map(|(name, &inode)| (name.to_vec(), inode)).collect();
    assert_eq!(listed, wanted);
    for (name, &inode) in names {
        assert_eq!(fs.lookup(directory, checked(name)).expect("a name").node.number, inode);
    }
    for cookie in cookies(fs, directory).into_values() {
        assert_eq!(cookie >> RANK_BITS, hash.max(1), "these names do not collide: what is tested here is elsewhere");
    }
}

#[test]
fn random_operations_on_names_of_one_hash() {
    let steps = if long() { 200_000 } else { 4000 };
    for mode in MODES {
        let (mut fs, medium) = volume(KEY, mode);
        let names: Vec<[u8; 8]> = colliding(KEY, HASH).step_by(1009).take(96).collect();
        let absent: Vec<[u8; 8]> = colliding(KEY, HASH).skip(1).step_by(1009).take(96).collect();
        let directories = ["p", "q"].map(|text| Rig::new(&fs).directory(fs.root(), text));
        let mut model: [BTreeMap<[u8; 8], u64>; 2] = Default::default();
        let mut random = Random(11 + mode as u64);
        for step in 0..steps {
            let (from, to) = (random.below(2), random.below(2));
            let (one, other) = (names[random.below(names.len())], names[random.below(names.len())]);
            let (at, into) = (directories[from], directories[to]);
            let (known, taken) = (model[from].get(&one).copied(), model[to].get(&other).copied());
            let expect = |outcome: std::result::Result<(), Errno>, wanted| assert_eq!(outcome, wanted, "step {step}");
            let errno = |error: Error| error.errno();
            match random.below(8) {
                0..=2 => match fs.create(at, checked(&one), &new_file()).map_err(errno) {
                    Ok(node) => {
                        expect(Ok(()), if known.is_some() { Err(Errno::EXIST) } else { Ok(()) });
                        model[from].insert(one, node.number);
                    }
                    Err(error) => expect(Err(error), if known.is_some() { Err(Errno::EXIST) } else { Ok(()) }),
                },
                3 | 4 => {
                    let done = fs.remove(at, checked(&one), RemoveKind::NonDirectory).map(|_| ()).map_err(errno);
                    expect(done, known.map(|_| ()).ok_or(Errno::NOENT));
                    model[from].remove(&one);
                }
                5 => {
                    let Some(node) = known.and_then(|_| fs.lookup(at, checked(&one)).ok()) else { continue };
                    let done = fs.link(node.node, into, checked(&other)).map_err(errno);
                    expect(done, if taken.is_some() { Err(Errno::EXIST) } else { Ok(()) });
                    model[to].entry(other).or_insert(node.node.number);
                }
                6 => {
                    let done = fs.rename(at, checked(&one), into, checked(&other), RenameFlags::EXCHANGE);
                    expect(done.map_err(errno), known.and(taken).map(|_| ()).ok_or(Errno::NOENT));
                    if let (Some(known), Some(taken)) = (known, taken) {
                        model[from].insert(one, taken);
                        model[to].insert(other, known);
                    }
                }
                _ => {
                    let done = fs.rename(at, checked(&one), into, checked(&other), RenameFlags::empty());
                    expect(done.map_err(errno), known.map(|_| ()).ok_or(Errno::NOENT));
                    // Of two names of one inode both stay.
                    if let Some(known) = known.filter(|_| known != taken) {
                        model[from].remove(&one);
                        model[to].insert(other, known);
                    }
                }
            }
            if step % 500 == 499 {
                fs = again(fs, &medium, random.below(2) == 0);
                for (directory, names) in directories.into_iter().zip(&model) {
                    assert_names(&fs, directory, names, HASH);
                    for name in &absent {
                        assert!(fs.lookup(directory, checked(name)).is_err(), "a name that nobody made");
                    }
                }
            }
        }
        assert!(model.iter().all(|names| names.len() > 10));
        again(fs, &medium, true);
    }
}

/// Whoever reads a directory on while its names are changed is told once of each that stays, and of none that never was.
#[test]
fn cookies_among_names_of_one_hash_hold_while_others_come_and_go() {
    let (fs, medium) = volume(KEY, Mode::InPlace);
    let rig = Rig::new(&fs);
    let directory = rig.directory(rig.root, "d");
    let names: Vec<[u8; 8]> = colliding(KEY, HASH).take(600).collect();
    let (stay, change) = names.split_at(300);
    // In an order that is not the hash's, nor of what they mean: those that stay have ranks all over.
    for (one, other) in stay.iter().zip(change) {
        for name in [one, other] {
            fs.create(directory, checked(name), &new_file()).expect("create");
        }
    }
    let mut random = Random(5);
    for batch in [1, 7, 48, 100] {
        let (mut cookie, mut told) = (0, BTreeMap::<Vec<u8>, u32>::new());
        loop {
            let mut left = batch;
            fs.read_directory(directory, cookie, &mut |entry| {
                assert!(entry.cookie > cookie, "cookies rise");
                cookie = entry.cookie;
                *told.entry(entry.name.bytes().to_vec()).or_default() += 1;
                left -= 1;
                left > 0
            })
            .expect("read on");
            if left > 0 {
                break;
            }
            for _ in 0..batch {
                let (one, other) = (&change[random.below(change.len())], &change[random.below(change.len())]);
                // Any of them may fail.
                let _ = match random.below(3) {
                    0 => fs.create(directory, checked(one), &new_file()).map(|_| ()),
                    1 => fs.remove(directory, checked(one), RemoveKind::NonDirectory).map(|_| ()),
                    _ => fs.rename(directory, checked(one), directory, checked(other), RenameFlags::empty()),
                };
            }
        }
        let known: BTreeSet<&[u8]> = names.iter().map(|name| &name[..]).collect();
        assert!(told.keys().all(|name| known.contains(&name[..])));
        for name in stay {
            assert_eq!(told.get(&name[..]), Some(&1), "told once, by {batch}");
        }
        // And those that were read by their cookie are read again by it.
        for (name, at) in cookies(&fs, directory) {
            let mut first = None;
            fs.read_directory(directory, at - 1, &mut |entry| {
                first = Some(entry.name.bytes().to_vec());
                false
            })
            .expect("read from a cookie");
            assert_eq!(first.as_ref(), Some(&name));
        }
    }
    again(fs, &medium, true);
}

/// The least and the greatest hash: keys beside those of other kinds, cookies up to the greatest that there is.
#[test]
fn names_of_the_first_and_of_the_last_hash() {
    const LAST: u64 = (1 << (64 - DROPPED_BITS)) - 1;
    let (mut fs, medium) = volume(KEY, Mode::InPlace);
    let directory = Rig::new(&fs).directory(fs.root(), "d");
    // Nobody has the first one: its names are beside those of the second.
    let names: Vec<[u8; 8]> = [0, 1, 2, LAST].into_iter().flat_map(|hash| colliding(KEY, hash).take(40)).collect();
    let mut model = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        model.insert(*name, fs.create(directory, checked(name), &new_file()).expect("create").number);
        fs.set_xattr(directory, name, &[index as u8; 20], XattrMode::Create).expect("set an attribute");
    }
    for cleanly in [true, false] {
        fs = again(fs, &medium, cleanly);
        let (mut of_hash, mut xattrs) = ([0; 3], 0);
        for cookie in cookies(&fs, directory).into_values() {
            let hash = cookie >> RANK_BITS;
            of_hash[[1, 2, LAST].into_iter().position(|one| one == hash).expect("one of these hashes")] += 1;
        }
        assert_eq!(of_hash, [80, 40, 40]);
        let listed = Rig::new(&fs).list(directory);
        assert_eq!(listed.len(), names.len());
        for (index, name) in names.iter().enumerate() {
            assert_eq!(fs.lookup(directory, checked(name)).expect("a name").node.number, model[name]);
            let mut value = [0; 30];
            assert_eq!(fs.xattr(directory, name, &mut value).expect("an attribute"), 20);
            assert_eq!(value[..20], [index as u8; 20]);
        }
        fs.list_xattrs(directory, &mut |_| xattrs += 1).expect("list");
        assert_eq!(xattrs, names.len());
    }
    for name in &names {
        fs.remove(directory, checked(name), RemoveKind::NonDirectory).expect("remove");
        fs.remove_xattr(directory, name).expect("remove an attribute");
        assert!(fs.lookup(directory, checked(name)).is_err() && fs.xattr(directory, name, &mut [0; 30]).is_err());
    }
    again(fs, &medium, false);
}

/// A volume may have the key for which an ordinary name has any hash: those of the usual ones are tried.
#[test]
fn ordinary_names_of_special_hashes() {
    for hash in [0, 1, (1 << (64 - DROPPED_BITS)) - 1] {
        let text = *b"user.one";
        let (fs, medium) = volume(key_for(text, hash), Mode::CopyOnWrite);
        let file = fs.create(fs.root(), checked(&text), &new_file()).expect("create");
        assert_eq!(cookies(&fs, fs.root())[&text[..]] >> RANK_BITS, hash.max(1));
        for length in [5, 500] {
            fs.set_xattr(file, &text, &vec![3; length], XattrMode::Any).expect("set an attribute");
        }
        let fs = again(fs, &medium, false);
        assert_eq!(fs.lookup(fs.root(), checked(&text)).expect("the name").node, file);
        assert_eq!(fs.xattr(file, &text, &mut [0; 600]).expect("the attribute"), 500);
        fs.remove_xattr(file, &text).expect("remove the attribute");
        fs.remove(fs.root(), checked(&text), RemoveKind::NonDirectory).expect("remove");
        again(fs, &medium, true);
    }
}

/// What is rebuilt after a crash gives names the ranks they had, whatever was freed between them meanwhile.
#[test]
fn ranks_survive_recovery() {
    let (mut fs, medium) = volume(KEY, Mode::InPlace);
    let directory = Rig::new(&fs).directory(fs.root(), "d");
    let names: Vec<[u8; 8]> = colliding(KEY, HASH).take(100).collect();
    for name in &names {
        fs.create(directory, checked(name), &new_file()).expect("create");
    }
    for name in names.iter().step_by(3) {
        fs.remove(directory, checked(name), RemoveKind::NonDirectory).expect("remove");
    }
    let (before, state) = (cookies(&fs, directory), Rig::new(&fs).list(directory));
    for cleanly in [false, true] {
        fs = again(fs, &medium, cleanly);
        assert_eq!(cookies(&fs, directory), before);
        assert_eq!(Rig::new(&fs).list(directory), state);
    }
}
