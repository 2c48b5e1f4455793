//! Huge pages: asking for them, and finding out what was got.
//!
//! A map of 2 MiB pages is faster to touch, to copy through and to tear down. On tmpfs they come from `MADV_COLLAPSE` after
//! the space is allocated, which works even where the mount says `huge=never`; device DAX and hugetlbfs have them anyway.

use std::fs;
use std::io;

use rustix::io::Errno;

use crate::medium::{Medium, MediumKind};
use crate::open::MAP_ALIGNMENT_BYTES;

/// Bytes of a huge page.
pub(crate) const HUGE_BYTES: u64 = MAP_ALIGNMENT_BYTES as u64;

/// How a medium is mapped, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PageReport {
    /// The smallest page size of its maps: 4096 for tmpfs and disk files even where huge pages back them, more on hugetlbfs and DAX
    /// devices.
    pub map_page_bytes: u64,
    /// Places that were touched to find out.
    pub sampled_places: u64,
    /// Of these, places that are in huge pages.
    pub huge_places: u64,
    /// Bytes mapped so far.
    pub resident_bytes: u64,
    /// Of these, bytes in huge pages.
    pub huge_bytes: u64,
}

impl PageReport {
    /// The page size that nearly all places have, nine of ten; else the smallest.
    #[must_use]
    pub fn usual_page_bytes(&self) -> u64 {
        if self.huge_places > 0 && self.huge_places * 10 >= self.sampled_places * 9 {
            HUGE_BYTES.max(self.map_page_bytes)
        } else {
            self.map_page_bytes
        }
    }

    /// Percent of the places that are in huge pages: 0 and 100 only if that holds for none or all.
    #[must_use]
    pub fn huge_percent(&self) -> u64 {
        let (huge, all) = (self.huge_places, self.sampled_places);
        if huge == 0 || huge >= all { 100 * u64::from(huge > 0) } else { (huge * 100 / all).clamp(1, 99) }
    }
}

impl Medium {
    /// Touches up to `places` places, evenly spread, and reports which pages they got. A few milliseconds. What the map had before is
    /// mapped anew when it is used next.
    ///
    /// # Errors
    /// If `/proc/self/smaps` cannot be read or does not list the map.
    pub fn page_report(&self, places: u64) -> io::Result<PageReport> {
        // Behind the last whole one no huge page fits.
        let pages = (self.length() / HUGE_BYTES).max(1);
        let sampled_places = places.min(pages);
        // Each place shall count as one, however much of the medium was mapped before.
        self.unmap_pages();
        let at = |place: u64| place * pages / sampled_places * HUGE_BYTES;
        for place in 0..sampled_places {
            // An error means that the place is gone, which is for those who need it to report.
            let _ = self.read(crate::MediumOffset(at(place)), &mut [0]);
        }
        let smaps = fs::read_to_string("/proc/self/smaps")?;
        let places: Vec<u64> = (0..sampled_places).map(at).collect();
        parse_smaps(&smaps, self.base().addr() as u64, self.length(), &places).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the medium's map is not listed in /proc/self/smaps")
        })
    }

    /// Has the kernel forget which pages are mapped where, as well as that goes. Their contents are the file's, and stay. Not where all pages are
    /// large by themselves: of hugetlbfs some kernels (5.18 to 6.0) take the map for a private one from then on.
    fn unmap_pages(&self) {
        let is_large = |kind| matches!(kind, MediumKind::HugeMemory | MediumKind::DeviceDax);
        if self.backing.file.is_some() && !self.files().any(|(_, kind, _)| is_large(kind)) {
            // SAFETY: inside the map, which is shared with a file: whoever touches it next finds the same bytes.
            unsafe { libc::madvise(self.base().cast(), self.length() as usize, libc::MADV_DONTNEED) };
        }
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

/// Sums up the maps that lie inside `[base, base + length)`, in which `places` (from `base`) were touched.
fn parse_smaps(smaps: &str, base: u64, length: u64, places: &[u64]) -> Option<PageReport> {
    let mut report: Option<PageReport> = None;
    let mut map: Option<Map> = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            map.take().into_iter().for_each(|map| map.add_to(&mut report));
            let is_inside = start >= base && end <= base + length.next_multiple_of(HUGE_BYTES);
            let touched = places.iter().filter(|&&place| (start..end).contains(&(base + place))).count() as u64;
            map = is_inside.then(|| Map { touched, ..Map::default() });
            continue;
        }
        let Some(map) = &mut map else { continue };
        let bytes = words.next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0) * 1024;
        match first {
            "KernelPageSize:" => map.page_bytes = bytes,
            "Rss:" => map.resident_bytes += bytes,
            "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" => map.huge_bytes += bytes,
            "Shared_Hugetlb:" | "Private_Hugetlb:" => {
                map.resident_bytes += bytes;
                map.huge_bytes += bytes;
            }
            _ => {}
        }
    }
    map.into_iter().for_each(|map| map.add_to(&mut report));
    report
}

/// One of the maps in `smaps`.
#[derive(Default)]
struct Map {
    /// Places in it that were touched.
    touched: u64,
    page_bytes: u64,
    resident_bytes: u64,
    huge_bytes: u64,
}

impl Map {
    fn add_to(self, report: &mut Option<PageReport>) {
        let report = report.get_or_insert_default();
        let is_huge = self.page_bytes >= HUGE_BYTES;
        report.map_page_bytes = match report.map_page_bytes {
            0 => self.page_bytes,
            smallest => smallest.min(self.page_bytes),
        };
        report.sampled_places += self.touched;
        report.huge_places += if is_huge { self.touched } else { self.touched.min(self.huge_bytes / HUGE_BYTES) };
        report.resident_bytes += self.resident_bytes;
        report.huge_bytes += self.huge_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_understood() {
        let text = "7f0000000000-7f0000400000 rw-s 00000000 00:01 1 /dev/shm/x\nSize: 4096 kB\nKernelPageSize: 4 kB\nRss: 4096 kB\n\
                    ShmemPmdMapped: 4096 kB\nVmFlags: rd wr\n7f0000400000-7f0000401000 rw-p 00000000 00:00 0\nRss: 4 kB\n";
        let report = parse_smaps(text, 0x7f00_0000_0000, 0x40_0000, &[0, 0x20_0000]).unwrap();
        assert_eq!((report.map_page_bytes, report.resident_bytes, report.huge_bytes), (4096, 4 << 20, 4 << 20));
        assert_eq!((report.sampled_places, report.huge_places, report.usual_page_bytes()), (2, 2, 2 << 20));
        assert_eq!(parse_smaps(text, 0x1000, 0x1000, &[0]), None);
    }

    /// A huge page counts for no more than a small one, though far more of it is mapped at once.
    #[test]
    fn places_count_not_bytes() {
        let text = "7f0000000000-7f0001000000 rw-s 00000000 00:01 1 /dev/shm/x\nKernelPageSize: 4 kB\nRss: 4480 kB\n\
                    ShmemPmdMapped: 4096 kB\n";
        let places: Vec<u64> = (0..8).map(|place| place * HUGE_BYTES).collect();
        let report = parse_smaps(text, 0x7f00_0000_0000, 0x100_0000, &places).unwrap();
        assert_eq!((report.huge_places, report.usual_page_bytes(), report.huge_percent()), (2, 4096, 25));
        // Of several files each with its own pages, those of hugetlbfs are huge by themselves.
        let text = format!(
            "{text}7f0001000000-7f0001400000 rw-s 0 00:02 1 /huge/y\nKernelPageSize: 2048 kB\nShared_Hugetlb: 4096 kB\n"
        );
        let places: Vec<u64> = (0..10).map(|place| place * HUGE_BYTES).collect();
        let report = parse_smaps(&text, 0x7f00_0000_0000, 0x140_0000, &places).unwrap();
        assert_eq!((report.huge_places, report.map_page_bytes, report.huge_percent()), (4, 4096, 40));
        let nearly = PageReport { sampled_places: 1000, huge_places: 999, ..report };
        assert_eq!((nearly.usual_page_bytes(), nearly.huge_percent()), (2 << 20, 99));
    }
}
