//! What the machine says of a persistent-memory device: whether its processors' caches are flushed when power fails (eADR),
//! so that stores need not be written back one by one.
//!
//! Touches sysfs only, for reading. What it does not say counts as no.

use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Ancestors looked at: a partition stands three levels below its region, which stands below the memory's own device.
const LEVELS_MAX: usize = 8;

/// Whether the region that a device (of a file system, `block`, or a DAX device) belongs to has its caches flushed.
pub(crate) fn flushes_caches(device: u64, block: bool) -> bool {
    let class = if block { "block" } else { "char" };
    let link = PathBuf::from(format!("/sys/dev/{class}/{}:{}", major(device), minor(device)));
    std::fs::read_link(&link).is_ok_and(|target| {
        // Relative to where the link stands.
        domain_above(&Path::new("/sys/dev").join(class).join(target)).is_some_and(|domain| domain == "cpu_cache")
    })
}

/// The persistence domain of the nearest ancestor that has one.
fn domain_above(device: &Path) -> Option<String> {
    attribute_above(device, "persistence_domain", |text| Some(text.to_owned()))
}

/// An attribute in sysfs of a device or the nearest above it that has one which `parse` takes.
pub(crate) fn attribute_above<T>(device: &Path, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let above = device.ancestors().take(LEVELS_MAX);
    above.filter_map(|directory| std::fs::read_to_string(directory.join(name)).ok()).find_map(|text| parse(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_region_decides() {
        let directory = std::env::temp_dir().join(format!("gannet-media-platform-{}", std::process::id()));
        let device = directory.join("region0/pfn0.0/block/pmem0/pmem0p1");
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(domain_above(&device), None);
        std::fs::write(directory.join("region0/persistence_domain"), "cpu_cache\n").unwrap();
        assert_eq!(domain_above(&device).as_deref(), Some("cpu_cache"));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(!flushes_caches(0, true) && !flushes_caches(u64::MAX, false));
    }
}
