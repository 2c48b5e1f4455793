//! From addresses of a process to lines of the files that it maps shared: `/proc/PID/maps` (proc_pid_maps(5)).

use std::io;
use std::sync::Arc;

use nix::unistd::Pid;

use crate::{LINE_BYTES, Line};

struct Map {
    addresses: std::ops::Range<u64>,
    offset: u64,
    is_shared: bool,
    file: Arc<str>,
}

/// A process's maps as they were.
#[derive(Default)]
pub(crate) struct Maps(Vec<Map>);

impl Maps {
    pub(crate) fn of(process: Pid) -> io::Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
        Ok(Self(text.lines().filter_map(parse).collect()))
    }

    fn find(&self, address: u64) -> Option<&Map> {
        let next = self.0.partition_point(|map| map.addresses.end <= address);
        self.0.get(next).filter(|map| map.addresses.contains(&address))
    }

    /// The lines that hold `length_bytes` from `address`; none where memory is the process's own.
    pub(crate) fn lines(&self, address: u64, length_bytes: u64) -> impl Iterator<Item = Line> {
        let map = self.find(address).filter(|map| map.is_shared);
        let first = map.map_or(0, |map| (address - map.addresses.start + map.offset) / LINE_BYTES);
        let last =
            map.map_or(0, |map| (address + length_bytes.max(1) - 1 - map.addresses.start + map.offset) / LINE_BYTES);
        map.into_iter().flat_map(move |map| (first..=last).map(|number| Line { file: Arc::clone(&map.file), number }))
    }

    /// The place of an instruction in the program or library that holds it: what `addr2line` wants of a relocatable one.
    pub(crate) fn place(&self, address: u64) -> u64 {
        let Some(file) = self.find(address).map(|map| &map.file) else { return address };
        let first = self.0.iter().find(|map| map.file == *file);
        first.map_or(address, |first| address - first.addresses.start + first.offset)
    }
}

/// `START-END PERMISSIONS OFFSET DEVICE INODE PATH`
fn parse(line: &str) -> Option<Map> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hexadecimal = |word| u64::from_str_radix(word, 16).ok();
    let permissions = words.next()?;
    let offset = hexadecimal(words.next()?)?;
    let file = words.nth(2).unwrap_or_default();
    let addresses = hexadecimal(start)?..hexadecimal(end)?;
    Some(Map { addresses, offset, is_shared: permissions.ends_with('s'), file: file.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_lines_of_shared_files() {
        let text = "1000-3000 rw-s 00004000 00:17 99   /dev/shm/volume\n3000-4000 rw-p 00000000 00:00 0\n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]\n";
        let maps = Maps(text.lines().filter_map(parse).collect());
        let lines = |address, length| maps.lines(address, length).map(|line| line.number).collect::<Vec<_>>();
        assert_eq!(lines(0x1000, 1), [0x100]);
        assert_eq!(lines(0x103f, 2), [0x100, 0x101]);
        assert_eq!(lines(0x2fff, 1), [0x17f]);
        assert!(lines(0x3000, 8).is_empty() && lines(0xfff, 1).is_empty() && lines(0x9000, 1).is_empty());
        assert_eq!(maps.place(0x1010), 0x4010);
        assert_eq!(maps.place(0x9000), 0x9000);
    }
}
