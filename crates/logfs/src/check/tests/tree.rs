//! The tree of a volume as the engine sees it, to be compared before and after a repair.

use super::build::VOLUME_BYTES;
use super::medium_of;
use crate::attach::AttachOptions;
use crate::ops::NoUsers;
use crate::volume::LogFs;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::usermem::Destination;
use gannet_vfs::{FileSystem, FileType, Name};
use std::collections::BTreeMap;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) file_type: FileType,
    pub(super) mode: u32,
    pub(super) links: u64,
    pub(super) size_bytes: u64,
    pub(super) content: Vec<u8>,
    pub(super) attributes: Vec<Vec<u8>>,
}

pub(super) fn options() -> AttachOptions {
    AttachOptions {
        index_bytes_max: 4 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    }
}

/// The tree as the engine sees it, on a copy of the medium.
pub(super) fn tree(medium: &Medium) -> BTreeMap<String, Seen> {
    let mut image = vec![0; VOLUME_BYTES as usize];
    medium.read(MediumOffset(0), &mut image).unwrap();
    let fs = LogFs::open_private(medium_of(&image), options()).unwrap();
    let mut tree = BTreeMap::new();
    let mut open = vec![("".to_owned(), fs.root())];
    while let Some((path, node)) = open.pop() {
        let about = fs.attributes(node).unwrap();
        let mut content = vec![0; 64 << 10];
        let count = match about.file_type {
            FileType::Regular => fs.read(node, 0, &mut Destination::from_slice(&mut content)).unwrap(),
            FileType::Symlink => fs.read_link(node, &mut content).unwrap(),
            _ => 0,
        };
        content.truncate(count);
        let mut attributes = Vec::new();
        fs.list_xattrs(node, &mut |name| attributes.push(name.to_vec())).unwrap();
        if about.file_type == FileType::Directory {
            let mut names = Vec::new();
            fs.read_directory(node, 0, &mut |entry| {
                names.push(entry.name.bytes().to_vec());
                true
            })
            .unwrap();
            for name in names {
                let found = fs.lookup(node, Name::new(&name).unwrap()).unwrap();
                open.push((format!("{path}/{}", name.escape_ascii()), found.node));
            }
        }
        let (file_type, mode, links, size_bytes) = (about.file_type, about.mode, about.links, about.size_bytes);
        let size_bytes = if file_type == FileType::Directory { 0 } else { size_bytes };
        tree.insert(path, Seen { file_type, mode, links, size_bytes, content, attributes });
    }
    tree
}
