//! Descriptors that the serving process has from whoever started the command: a lock, a pipe, a terminal. It lives on, and they would with
//! it.

use std::path::Path;

/// Closes all but the standard ones, and the one that the volume is named by (`/dev/fd/9`). To be called before the process has opened any.
pub(super) fn close_all(volume: &Path) {
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = list.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The list's own descriptor is among them, and closed already.
    for number in numbers.into_iter().filter(|&number| number > 2 && Some(number) != named(volume)) {
        let _ = nix::unistd::close(number);
    }
}

/// The descriptor of this process that a path names.
fn named(path: &Path) -> Option<i32> {
    let number =
        ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"].iter().find_map(|way| path.strip_prefix(way).ok())?;
    number.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_names_the_volume_is_known() {
        assert_eq!(named(Path::new("/dev/fd/9")), Some(9));
        assert_eq!(named(Path::new("/proc/self/fd/12")), Some(12));
        for other in ["/dev/fd", "/dev/fd/x", "/proc/1/fd/9", "9"] {
            assert_eq!(named(Path::new(other)), None, "{other}");
        }
    }
}
