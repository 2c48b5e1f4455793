//! On which NUMA node media lie, and which processors are near them.
//!
//! Touches sysfs for reading, and a few places of the medium. What cannot be found out is not known: nothing depends on it but speed.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::medium::{Medium, MediumKind};
use crate::offset::MediumOffset;
use crate::platform::attribute_above;

/// Places of a file in memory that are looked at.
const PLACES: u64 = 16;
const NODES: &str = "/sys/devices/system/node";

/// A NUMA node of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNode {
    /// Its number.
    pub number: u32,
    /// Its processors.
    pub processors: Vec<u32>,
}

/// The nodes of the machine; none where the system says nothing.
#[must_use]
pub fn machine_nodes() -> Vec<MachineNode> {
    nodes_in(Path::new(NODES))
}

fn nodes_in(directory: &Path) -> Vec<MachineNode> {
    let online = std::fs::read_to_string(directory.join("online")).unwrap_or_default();
    let node = |number: u32| {
        let text = std::fs::read_to_string(directory.join(format!("node{number}/cpulist"))).unwrap_or_default();
        MachineNode { number, processors: numbers(&text) }
    };
    numbers(&online).into_iter().map(node).collect()
}

/// The numbers of a list such as `0-3,8`.
fn numbers(text: &str) -> Vec<u32> {
    const LIMIT: u32 = 1 << 16;
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            all.extend(first..=last.min(LIMIT));
        }
    }
    all
}

impl Medium {
    /// On which NUMA node each of the medium's files lies, in order; `None` where that is not known, or where it lies on
    /// several. Looks at some places of those in memory.
    #[must_use]
    pub fn nodes(&self) -> Vec<Option<u32>> {
        let members = self.members();
        let mut files = self.files().map(|(file, ..)| file);
        members
            .iter()
            .map(|member| {
                let status = files.next()?.status().ok()?;
                match member.kind {
                    MediumKind::DeviceDax => node_of_device("char", status.st_rdev),
                    MediumKind::FileDax => node_of_device("block", status.st_dev),
                    MediumKind::Memory | MediumKind::HugeMemory => self.node_of_pages(member.start, member.length),
                    MediumKind::DiskFile | MediumKind::Simulated | MediumKind::SimulatedDiskFile => None,
                }
            })
            .collect()
    }

    /// The node on which all of some places of a range lie.
    fn node_of_pages(&self, start: u64, length: u64) -> Option<u32> {
        let count = PLACES.min(length / 4096);
        let mut pages: Vec<*mut c_void> = Vec::new();
        for place in 0..count {
            let at = MediumOffset(start + (place * (length / 4096) / count) * 4096);
            // Only what this process has mapped is told.
            self.read(at, &mut [0]).ok()?;
            pages.push(self.address_of(at, 1).ok()?.cast());
        }
        let mut status = vec![-1_i32; pages.len()];
        // SAFETY: with no target nodes nothing is moved; the arrays have as many elements as is said.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                std::ptr::null::<i32>(),
                status.as_mut_ptr(),
                0,
            )
        };
        let first = *status.first()?;
        (result == 0 && status.iter().all(|&node| node == first)).then(|| u32::try_from(first).ok()).flatten()
    }
}

/// The node that a device, or one that it is part of, says.
fn node_of_device(class: &str, device: u64) -> Option<u32> {
    let link = PathBuf::from(format!("/sys/dev/{class}/{}:{}", major(device), minor(device)));
    let target = std::fs::canonicalize(link).ok()?;
    node_above(&target)
}

fn node_above(device: &Path) -> Option<u32> {
    // -1 says that it is not known.
    attribute_above(device, "numa_node", |text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CreateOptions;

    #[test]
    fn nodes_are_found_where_the_system_says_them() {
        let directory = std::env::temp_dir().join(format!("gannet-media-nodes-{}", std::process::id()));
        let device = directory.join("region0/namespace0.0/block/pmem0/pmem0p1");
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(node_above(&device), None);
        std::fs::write(directory.join("region0/numa_node"), "1\n").unwrap();
        assert_eq!(node_above(&device), Some(1));
        std::fs::write(directory.join("region0/namespace0.0/numa_node"), "-1\n").unwrap();
        assert_eq!(node_above(&device), Some(1), "the next that knows");
        for (name, text) in [("online", "0-1\n"), ("node0/cpulist", "0-1,4\n"), ("node1/cpulist", "2-3\n")] {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let node = |number, processors: &[u32]| MachineNode { number, processors: processors.to_vec() };
        assert_eq!(nodes_in(&directory), [node(0, &[0, 1, 4]), node(1, &[2, 3])]);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(nodes_in(&directory), []);
    }

    #[test]
    fn memory_lies_where_the_machine_has_a_node() {
        let medium = Medium::create_in_memory("nodes", 4 << 20, CreateOptions::default()).unwrap();
        let nodes = machine_nodes();
        // A container may forbid to ask.
        if let Some(node) = medium.nodes()[0] {
            assert!(nodes.iter().any(|known| known.number == node), "{node} of {nodes:?}");
        }
        let (simulated, _simulation) = Medium::simulated(1 << 20);
        assert_eq!(simulated.nodes(), [None]);
    }
}
