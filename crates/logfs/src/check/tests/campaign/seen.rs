//! What is on a volume as the engine shows it, by inode number, and what of it may be missing after a repair.

use crate::volume::LogFs;
use gannet_fstest::Rig;
use gannet_vfs::{FileSystem, FileType, Name, NodeId};
use std::collections::BTreeMap;

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    file_type: FileType,
    mode: u32,
    owner: (u32, u32),
    size_bytes: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The bytes of a file, or where a symbolic link leads.
    bytes: Vec<u8>,
    /// Where the bytes of a file stand: in the file, on the volume, how many.
    runs: Vec<(u64, u64, u64)>,
}

/// All that names lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) objects: BTreeMap<u32, Object>,
    /// By directory and name.
    pub(super) names: BTreeMap<(u32, Vec<u8>), u32>,
}

impl Seen {
    /// Reads everything; says what could not be read.
    pub(super) fn of(fs: &LogFs) -> Result<Self, String> {
        let mut seen = Self::default();
        let rig = Rig::new(fs);
        let mut open = vec![(fs.root(), FileType::Directory)];
        while let Some((node, file_type)) = open.pop() {
            let inode = node.number as u32;
            if seen.objects.contains_key(&inode) {
                continue;
            }
            let object = object(&rig, node, file_type).map_err(|error| format!("inode {inode}: {error}"))?;
            seen.objects.insert(inode, object);
            if file_type != FileType::Directory {
                continue;
            }
            for (found, (number, _)) in rig.list(node) {
                let text = found.escape_ascii().to_string();
                let name = Name::new(&found).map_err(|error| format!("{inode}/{text}: {error}"))?;
                let what = rig.fs.lookup(node, name).map_err(|error| format!("{inode}/{text}: {error}"))?;
                if what.node.number != number {
                    return Err(format!("{inode}/{text} is {number} and {}", what.node.number));
                }
                seen.names.insert((inode, found), number as u32);
                open.push((what.node, what.file_type));
            }
        }
        Ok(seen)
    }

    /// The objects with the bytes that their blocks hold on this image.
    pub(super) fn on(&self, image: &[u8]) -> BTreeMap<u32, Object> {
        let mut objects = self.objects.clone();
        for object in objects.values_mut().filter(|object| object.file_type == FileType::Regular) {
            for &(file_at, at, length_bytes) in &object.runs {
                let length_bytes = length_bytes.min(object.size_bytes.saturating_sub(file_at)) as usize;
                let bytes = &image[at as usize..at as usize + length_bytes];
                object.bytes[file_at as usize..file_at as usize + length_bytes].copy_from_slice(bytes);
            }
        }
        objects
    }
}

impl Object {
    /// Whether it is the same for who reads it.
    pub(super) fn reads_like(&self, other: &Self) -> bool {
        let without_runs = |object: &Self| Self { runs: Vec::new(), ..object.clone() };
        without_runs(self) == without_runs(other)
    }
}

fn object(rig: &Rig<'_>, node: NodeId, file_type: FileType) -> gannet_vfs::Result<Object> {
    let about = rig.fs.attributes(node)?;
    let mut names = Vec::new();
    rig.fs.list_xattrs(node, &mut |name| names.push(name.to_vec()))?;
    let mut xattrs = BTreeMap::new();
    for name in names {
        let mut value = vec![0; 1 << 16];
        let length = rig.fs.xattr(node, &name, &mut value)?;
        value.truncate(length);
        xattrs.insert(name, value);
    }
    let mut runs = Vec::new();
    let mut bytes = Vec::new();
    match file_type {
        FileType::Regular => {
            bytes = rig.try_read(node, 0, about.size_bytes.min(8 << 20) as usize)?;
            rig.fs.extents(node, 0, u64::MAX, &mut |extent| {
                runs.push((extent.file_offset_bytes, extent.medium_offset_bytes, extent.length_bytes));
                true
            })?;
        }
        FileType::Symlink => {
            bytes = vec![0; 4096];
            let length = rig.fs.read_link(node, &mut bytes)?;
            bytes.truncate(length);
        }
        _ => {}
    }
    let size_bytes = if file_type == FileType::Directory { 0 } else { about.size_bytes };
    let owner = (about.owner.user, about.owner.group);
    Ok(Object { file_type, mode: about.mode, owner, size_bytes, xattrs, bytes, runs })
}
