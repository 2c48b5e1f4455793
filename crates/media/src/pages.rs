//! Huge pages: asking for them, and finding out what was got.
//!
//! A map of 2 MiB pages is faster to touch, to copy through and to tear down. On tmpfs they come from `MADV_COLLAPSE` after
//! the space is allocated, which works even where the mount says `huge=never`; device DAX and hugetlbfs have them anyway.

use std::fs;
use std::io;

use rustix::io::Errno;

use crate::medium::Medium;
use crate::open::MAP_ALIGNMENT_BYTES;

/// Bytes of a huge page.
pub(crate) const HUGE_BYTES: u64 = MAP_ALIGNMENT_BYTES as u64;

/// How a medium is mapped, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PageReport {
    /// Page size of the map: 4096 for tmpfs and disk files even where huge pages back them, more on hugetlbfs and DAX
    /// devices.
    pub map_page_bytes: u64,
    /// Places that were touched to find out.
    pub sampled_places: u64,
    /// Bytes mapped so far.
    pub resident_bytes: u64,
    /// Of these, bytes in huge pages.
    pub huge_bytes: u64,
}

impl PageReport {
    /// The page size that nearly all of what is mapped has.
    #[must_use]
    pub fn usual_page_bytes(&self) -> u64 {
        if self.huge_bytes > 0 && self.huge_bytes >= self.resident_bytes / 10 * 9 {
            HUGE_BYTES.max(self.map_page_bytes)
        } else {
            self.map_page_bytes
        }
    }
}

impl Medium {
    /// Touches up to `places` places, evenly spread, and reports which pages they got. A few milliseconds.
    ///
    /// # Errors
    /// If `/proc/self/smaps` cannot be read or does not list the map.
    pub fn page_report(&self, places: u64) -> io::Result<PageReport> {
        let pages = self.length().div_ceil(HUGE_BYTES);
        let sampled_places = places.min(pages);
        for place in 0..sampled_places {
            let at = place * pages / sampled_places * HUGE_BYTES;
            // An error means that the place is gone, which is for those who need it to report.
            let _ = self.read(crate::MediumOffset(at), &mut [0]);
        }
        let smaps = fs::read_to_string("/proc/self/smaps")?;
        let report = parse_smaps(&smaps, self.base().addr() as u64, self.length());
        report.map(|report| PageReport { sampled_places, ..report }).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the medium's map is not listed in /proc/self/smaps")
        })
    }

    /// Asks the kernel to make huge pages of `length` allocated bytes at `at`. Best effort: says whether it did.
    pub(crate) fn collapse(&self, at: u64, length: u64) -> Result<(), Errno> {
        debug_assert!(at.is_multiple_of(HUGE_BYTES) && at + length <= self.length());
        // SAFETY: inside the map; the advice changes no contents.
        let result =
            unsafe { libc::madvise(self.base().add(at as usize).cast(), length as usize, libc::MADV_COLLAPSE) };
        if result == 0 {
            Ok(())
        } else {
            Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))
        }
    }
}

/// Sums up the maps that lie inside `[base, base + length)`.
fn parse_smaps(smaps: &str, base: u64, length: u64) -> Option<PageReport> {
    let mut report = None;
    let mut inside = false;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            inside = start >= base && end <= base + length.next_multiple_of(HUGE_BYTES);
            continue;
        }
        if !inside {
            continue;
        }
        let report: &mut PageReport = report.get_or_insert_default();
        let bytes = words.next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0) * 1024;
        match first {
            "KernelPageSize:" => report.map_page_bytes = report.map_page_bytes.max(bytes),
            "Rss:" => report.resident_bytes += bytes,
            "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" => report.huge_bytes += bytes,
            "Shared_Hugetlb:" | "Private_Hugetlb:" => {
                report.resident_bytes += bytes;
                report.huge_bytes += bytes;
            }
            _ => {}
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_understood() {
        let text = "7f0000000000-7f0000400000 rw-s 00000000 00:01 1 /dev/shm/x\nSize: 4096 kB\nKernelPageSize: 4 kB\nRss: 4096 kB\n\
                    ShmemPmdMapped: 4096 kB\nVmFlags: rd wr\n7f0000400000-7f0000401000 rw-p 00000000 00:00 0\nRss: 4 kB\n";
        let report = parse_smaps(text, 0x7f00_0000_0000, 0x40_0000).unwrap();
        assert_eq!((report.map_page_bytes, report.resident_bytes, report.huge_bytes), (4096, 4 << 20, 4 << 20));
        assert_eq!(report.usual_page_bytes(), 2 << 20);
        assert_eq!(parse_smaps(text, 0x1000, 0x1000), None);
    }
}
