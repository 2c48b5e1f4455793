//! Copies of ranges, as the kernel asks for them that does not know what others have cut.

use gannet_vfs::usermem::Source;
use gannet_vfs::{AttributeChange, Errno, FileSystem, InodeFlags, Name, NewNode, Owner, WriteFlags, WritePosition};

use super::{by_root, with_a_file};

#[test]
fn a_copy_of_nothing_takes_no_rights() {
    let (file_system, dispatcher, from) = with_a_file();
    let new = NewNode::regular(0o4755, Owner { user: 1000, group: 1000 });
    let to = file_system.create(file_system.root(), Name::new(b"to").unwrap(), &new).unwrap();
    dispatcher.lookup(&by_root(1), b"to").unwrap();
    let mut header = by_root(dispatcher.nodes.id(from));
    header.user = 1000;
    dispatcher.copy_range(&header, 100, dispatcher.nodes.id(to), 0, 10, true).unwrap();
    assert_eq!(file_system.attributes(to).unwrap().mode & 0o7777, 0o4755, "nothing was copied");
}

#[test]
fn nothing_is_copied_to_what_can_only_be_appended_to() {
    let (file_system, dispatcher, from) = with_a_file();
    let new = NewNode::regular(0o600, Owner::default());
    let to = file_system.create(file_system.root(), Name::new(b"to").unwrap(), &new).unwrap();
    dispatcher.lookup(&by_root(1), b"to").unwrap();
    let (header, to_id) = (by_root(dispatcher.nodes.id(from)), dispatcher.nodes.id(to));
    let bytes = vec![7; 10_000];
    file_system.write(from, WritePosition::At(0), &mut Source::from_slice(&bytes), WriteFlags::default()).unwrap();
    let copy = || dispatcher.copy_range(&header, 0, to_id, file_system.attributes(to).unwrap().size_bytes, 5000, true);
    let size_bytes = || file_system.attributes(to).unwrap().size_bytes;
    for flags in [InodeFlags::APPEND_ONLY, InodeFlags::IMMUTABLE] {
        copy().unwrap();
        let before = size_bytes();
        let set = |flags| {
            let change = AttributeChange { flags: Some(flags), ..AttributeChange::default() };
            file_system.set_attributes(to, &change).unwrap();
        };
        set(flags);
        // Where the end was a moment ago, others may append meanwhile.
        assert!(matches!(copy(), Err(error) if error.errno() == Errno::PERM), "{flags:?}");
        assert_eq!(size_bytes(), before);
        set(InodeFlags::empty());
    }
}
