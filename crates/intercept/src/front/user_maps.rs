//! Maps of the process's user namespace as `/proc` has them, and what the kernel says of ids, read by them: for [`super::users`].

use super::users::{GROUPS_MAX, NOBODY, UNKNOWN};
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::ffi::CStr;
use gannet_vfs::Errno;
use gannet_vfs::namespace::IdMap;

/// A map of this process as `/proc` tells it. An error if it is not to be read, which is not to be taken for an empty one.
pub(super) fn map_at(path: &CStr) -> Result<IdMap, Errno> {
    /// Most have one line or two.
    const BYTES_USUAL: usize = 512;
    /// 340 lines of three numbers, as the kernel pads them.
    const BYTES_MAX: usize = 340 * 33 + 1;
    let failed = |result: isize| Errno::from_raw_os_error(-result as i32);
    // SAFETY: a path that ends in zero.
    let opened = unsafe { syscall(OPENAT, [usize::MAX, path.as_ptr() as usize, 0o2000000, 0]) };
    if is_error(opened) {
        return Err(failed(opened));
    }
    let mut text = vec![0u8; BYTES_USUAL];
    let mut used = 0;
    let result = loop {
        if used == text.len() {
            text.resize(BYTES_MAX, 0);
        }
        // SAFETY: our own descriptor, and a buffer of that length.
        let length = unsafe { syscall(READ, [opened as usize, text[used..].as_mut_ptr() as usize, text.len() - used]) };
        match usize::try_from(length) {
            Ok(0) => break Ok(()),
            Ok(length) => used += length,
            Err(_) => break Err(failed(length)),
        }
    };
    // SAFETY: our own descriptor.
    unsafe { syscall(CLOSE, [opened as usize]) };
    result?;
    core::str::from_utf8(&text[..used]).ok().and_then(IdMap::parse).ok_or(Errno::IO)
}

/// The origin's id of one that looks like `seen`, where the process came in as `came`; `was_set`: by the process, since.
pub(super) fn outside(map: &IdMap, seen: u32, came: u32, was_set: bool) -> u32 {
    match map.outside(seen) {
        Some(outside) if seen != NOBODY || was_set || map.inside(came).is_some() => outside,
        // Not known inside: it is what it was.
        _ if seen == NOBODY && !was_set && map.inside(came).is_none() => came,
        // The maps are not those that the kernel has.
        _ => UNKNOWN,
    }
}

/// Likewise, the groups: those that it came with, if they look so; `were_set`: with 65534 among them.
pub(super) fn groups_outside(map: &IdMap, seen: &[u32], came: &[u32], were_set: bool) -> Vec<u32> {
    let looks = came.iter().map(|came| map.inside(*came).unwrap_or(NOBODY));
    // Not all may have been told of.
    let is_whole = seen.len() == came.len() || came.len() == GROUPS_MAX && seen.len() > came.len();
    let is_ambiguous = were_set && map.outside(NOBODY).is_some();
    if is_whole && !is_ambiguous && looks.eq(seen[..came.len()].iter().copied()) {
        return came.to_vec();
    }
    seen.iter().filter_map(|seen| map.outside(*seen)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_look_like_nobody_are_what_they_were() {
        let narrow = IdMap::parse("0 100000 10").unwrap();
        let wide = IdMap::parse("0 100000 65536").unwrap();
        assert_eq!(outside(&narrow, 3, 5, false), 100_003);
        assert_eq!(outside(&narrow, NOBODY, 5, false), 5);
        assert_eq!(outside(&wide, NOBODY, 5, false), 5);
        assert_eq!(outside(&wide, NOBODY, 5, true), 165_534);
        assert_eq!(outside(&wide, NOBODY, 165_534, false), 165_534);
        assert_eq!(outside(&IdMap::NOTHING, NOBODY, 5, false), 5);
        // What the kernel cannot have said by these maps.
        assert_eq!([outside(&IdMap::NOTHING, 0, 5, false), outside(&IdMap::NOTHING, NOBODY, 5, true)], [UNKNOWN; 2]);
        assert_eq!(outside(&narrow, NOBODY, 100_003, false), UNKNOWN);
    }

    #[test]
    fn groups_are_those_from_before_as_long_as_they_look_so() {
        let narrow = IdMap::parse("0 100000 10").unwrap();
        let wide = IdMap::parse("0 100000 65536").unwrap();
        let came = [7, 8, 100_003];
        assert_eq!(groups_outside(&narrow, &[NOBODY, NOBODY, 3], &came, false), came);
        // Another program has set them, or this one.
        for were_set in [false, true] {
            assert_eq!(groups_outside(&narrow, &[], &came, were_set), []);
            assert_eq!(groups_outside(&narrow, &[3, 4], &came, were_set), [100_003, 100_004]);
        }
        assert_eq!(groups_outside(&wide, &[NOBODY], &[7], false), [7]);
        assert_eq!(groups_outside(&wide, &[NOBODY], &[7], true), [165_534]);
    }

    #[test]
    fn a_map_that_cannot_be_read_is_not_an_empty_one() {
        assert_eq!(map_at(c"/proc/self/no such file"), Err(Errno::NOENT));
        assert!(!map_at(c"/proc/self/uid_map").unwrap().is_empty());
    }
}
