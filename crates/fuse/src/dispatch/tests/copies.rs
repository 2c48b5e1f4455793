//! Copies of ranges, as the kernel asks for them that does not know what others have cut.

use gannet_vfs::{FileSystem, Name, NewNode, Owner};

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
