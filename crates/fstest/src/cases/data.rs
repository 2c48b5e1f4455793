//! Data: read, write, append, truncate, seek.

use std::sync::atomic::{AtomicUsize, Ordering};

use gannet_usermem::{Destination, Source};
use gannet_vfs::{SeekTarget, SyncScope, WriteFlags, WritePosition};

use super::cases;
use crate::{Rig, fails};

cases![
    what_is_written_is_read,
    every_length_and_alignment,
    a_read_ends_at_the_end,
    holes_read_as_zeros,
    stale_bytes_never_show,
    append_finds_the_end,
    appends_of_many_threads_do_not_overlap,
    writes_move_times,
    far_offsets,
    directories_hold_no_data,
    several_ranges_of_memory,
    data_is_found_by_seek,
    holes_are_found_by_seek needs SPARSE,
    sparse_files_take_little_space needs SPARSE,
    a_full_file_system_says_so,
    sync_succeeds,
    every_byte_read_was_written,
];

/// Bytes that differ from block to block and from seed to seed.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8 | 1
        })
        .collect()
}

fn what_is_written_is_read(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let bytes = pattern(1, 100_000);
    rig.write(node, 0, &bytes);
    assert_eq!(rig.content(node), bytes);
    rig.write(node, 50_000, b"in the middle");
    let mut expected = bytes;
    expected[50_000..50_013].copy_from_slice(b"in the middle");
    assert_eq!(rig.content(node), expected);
}

fn every_length_and_alignment(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let mut expected = pattern(2, 3 * 4096);
    rig.write(node, 0, &expected);
    let edges = [0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 8191, 8192];
    for (seed, (&start, &length)) in edges.iter().flat_map(|a| edges.iter().map(move |b| (a, b))).enumerate() {
        if start + length > expected.len() {
            continue;
        }
        let bytes = pattern(seed as u64 + 3, length);
        rig.write(node, start as u64, &bytes);
        expected[start..start + length].copy_from_slice(&bytes);
        assert_eq!(rig.try_read(node, start as u64, length).unwrap(), bytes, "{length} at {start}");
    }
    assert_eq!(rig.content(node), expected);
    // The same as the whole of a new file: the last bytes are those that get lost.
    for length in (0..200).chain([4095, 4097]) {
        let node = rig.file(rig.root, &format!("l{length}"));
        let bytes = pattern(length as u64, length);
        rig.write(node, 0, &bytes);
        assert_eq!(rig.content(node), bytes);
    }
}

fn a_read_ends_at_the_end(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    assert_eq!(rig.try_read(node, 0, 10).unwrap(), b"");
    rig.write(node, 0, b"0123456789");
    assert_eq!(rig.try_read(node, 4, 100).unwrap(), b"456789");
    for offset in [10, 11, 4096, 1 << 40, i64::MAX as u64] {
        assert_eq!(rig.try_read(node, offset, 100).unwrap(), b"");
    }
    assert_eq!(rig.try_read(node, 0, 0).unwrap(), b"");
}

fn holes_read_as_zeros(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 10_000, b"end");
    let mut expected = vec![0; 10_000];
    expected.extend(b"end");
    assert_eq!(rig.content(node), expected);
    rig.resize(node, 20_000).unwrap();
    expected.resize(20_000, 0);
    assert_eq!(rig.content(node), expected);
}

fn stale_bytes_never_show(rig: &Rig<'_>) {
    for (index, &(full, cut, grown)) in
        [(5000, 100, 5000), (5000, 4096, 9000), (8192, 4097, 8192), (4096, 0, 4096), (300, 10, 300), (9000, 1, 40_000)]
            .iter()
            .enumerate()
    {
        for way in 0..4 {
            let node = rig.file(rig.root, &format!("f{index}-{way}"));
            rig.write(node, 0, &pattern(9, full));
            rig.resize(node, cut as u64).unwrap();
            let mut expected = pattern(9, full);
            expected.truncate(cut);
            expected.resize(grown, 0);
            match way {
                0 => _ = rig.resize(node, grown as u64).unwrap(),
                1 => {
                    rig.write(node, grown as u64 - 1, b"x");
                    expected[grown - 1] = b'x';
                }
                2 => {
                    rig.resize(node, grown as u64 + 1).unwrap();
                    rig.resize(node, grown as u64).unwrap();
                }
                _ => {
                    rig.try_write(node, WritePosition::Append, b"y").unwrap();
                    rig.resize(node, grown as u64).unwrap();
                    expected[cut] = b'y';
                }
            }
            assert_eq!(rig.content(node), expected, "{full} bytes cut to {cut}, grown to {grown}, way {way}");
        }
    }
}

fn append_finds_the_end(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let mut expected = Vec::new();
    for round in 0..50_usize {
        let bytes = pattern(round as u64, round * 13);
        let written = rig.try_write(node, WritePosition::Append, &bytes).unwrap();
        assert_eq!((written.offset_bytes, written.count_bytes), (expected.len() as u64, bytes.len()));
        expected.extend(bytes);
    }
    assert_eq!(rig.content(node), expected);
    rig.resize(node, 3).unwrap();
    assert_eq!(rig.try_write(node, WritePosition::Append, b"z").unwrap().offset_bytes, 3);
}

fn appends_of_many_threads_do_not_overlap(rig: &Rig<'_>) {
    const RECORD_BYTES: usize = 37;
    let node = rig.file(rig.root, "f");
    let fs = rig.fs;
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            scope.spawn(move || {
                for _ in 0..200 {
                    let record = [b'a' + thread; RECORD_BYTES];
                    let mut source = Source::from_slice(&record);
                    fs.write(node, WritePosition::Append, &mut source, WriteFlags::empty()).unwrap();
                }
            });
        }
    });
    let content = rig.content(node);
    assert_eq!(content.len(), 4 * 200 * RECORD_BYTES);
    let mut counts = [0; 4];
    for record in content.chunks(RECORD_BYTES) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a record is whole");
        counts[usize::from(record[0] - b'a')] += 1;
    }
    assert_eq!(counts, [200; 4]);
}

fn writes_move_times(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    assert_eq!(rig.touched(&[node, rig.root], || rig.write(node, 0, b"x")), ["mc", ""]);
    assert_eq!(rig.touched(&[node], || rig.write(node, 0, b"y")), ["mc"], "also where the size stays");
    assert_eq!(rig.touched(&[node], || rig.write(node, 0, b"")), [""]);
    assert_eq!(rig.touched(&[node], || _ = rig.content(node)), [""]);
    let append = || _ = rig.try_write(node, WritePosition::Append, b"z").unwrap();
    assert_eq!(rig.touched(&[node], append), ["mc"]);
}

fn far_offsets(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let limit = i64::MAX as u64;
    fails!(rig.try_write(node, WritePosition::At(limit), b"x"), FBIG);
    fails!(rig.try_write(node, WritePosition::At(u64::MAX), b"x"), FBIG);
    assert_eq!(rig.attributes(node).size_bytes, 0);
    rig.write(node, limit, b"");
    rig.write(node, 1 << 33, b"far");
    assert_eq!(rig.attributes(node).size_bytes, (1 << 33) + 3);
    assert_eq!(rig.try_read(node, (1 << 33) - 2, 9).unwrap(), b"\0\0far");
    assert_eq!(rig.try_read(node, u64::MAX, 9).unwrap(), b"");
}

fn directories_hold_no_data(rig: &Rig<'_>) {
    fails!(rig.try_read(rig.root, 0, 1), ISDIR);
    fails!(rig.try_write(rig.root, WritePosition::At(0), b"x"), ISDIR);
    let link = rig.symlink(rig.root, "s", b"t").unwrap();
    fails!(rig.try_read(link, 0, 1), INVAL);
}

fn several_ranges_of_memory(rig: &Rig<'_>) {
    use std::io::{IoSlice, IoSliceMut};
    let node = rig.file(rig.root, "f");
    let bytes = pattern(4, 10_000);
    let pieces =
        [IoSlice::new(&bytes[..1]), IoSlice::new(&[]), IoSlice::new(&bytes[1..6000]), IoSlice::new(&bytes[6000..])];
    let mut source = Source::from_io_slices(&pieces).unwrap();
    let written = rig.fs.write(node, WritePosition::At(100), &mut source, WriteFlags::empty()).unwrap();
    assert_eq!((written.count_bytes, source.remaining()), (10_000, 0));
    let (mut a, mut b) = (vec![0; 4999], vec![0; 9000]);
    let mut pieces = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    let mut destination = Destination::from_io_slices(&mut pieces).unwrap();
    assert_eq!(rig.fs.read(node, 100, &mut destination).unwrap(), 10_000);
    assert_eq!(destination.remaining(), 3999);
    a.extend(b);
    assert_eq!(a[..10_000], bytes);
}

fn data_is_found_by_seek(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    fails!(rig.fs.seek(node, SeekTarget::Data, 0), NXIO);
    fails!(rig.fs.seek(node, SeekTarget::Hole, 0), NXIO);
    rig.write(node, 0, &pattern(5, 10_000));
    for offset in [0, 1, 4096, 9_999] {
        assert_eq!(rig.fs.seek(node, SeekTarget::Data, offset).unwrap(), offset);
        assert_eq!(rig.fs.seek(node, SeekTarget::Hole, offset).unwrap(), 10_000);
    }
    for offset in [10_000, 10_001, u64::MAX] {
        fails!(rig.fs.seek(node, SeekTarget::Data, offset), NXIO);
        fails!(rig.fs.seek(node, SeekTarget::Hole, offset), NXIO);
    }
}

fn holes_are_found_by_seek(rig: &Rig<'_>) {
    let block = u64::from(rig.attributes(rig.root).block_bytes);
    let node = rig.file(rig.root, "f");
    rig.write(node, 64 * block, &pattern(6, block as usize));
    rig.resize(node, 128 * block).unwrap();
    for (offset, data, hole) in
        [(0, Some(64), 0), (63, Some(64), 63), (64, Some(64), 65), (65, None, 65), (127, None, 127)]
    {
        let found = rig.fs.seek(node, SeekTarget::Data, offset * block);
        match data {
            Some(data) => assert_eq!(found.unwrap(), data * block),
            None => fails!(found, NXIO),
        }
        assert_eq!(rig.fs.seek(node, SeekTarget::Hole, offset * block).unwrap(), hole * block);
    }
    assert_eq!(rig.fs.seek(node, SeekTarget::Data, 64 * block + 5).unwrap(), 64 * block + 5);
    assert_eq!(rig.fs.seek(node, SeekTarget::Hole, 3).unwrap(), 3);
}

fn sparse_files_take_little_space(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let before = rig.fs.statistics().unwrap().blocks_free;
    rig.write(node, 1 << 40, b"x");
    let got = rig.attributes(node);
    assert!(got.sectors < 1000, "{} sectors for one byte", got.sectors);
    assert!(before - rig.fs.statistics().unwrap().blocks_free < 100);
    rig.resize(node, 0).unwrap();
    assert_eq!(rig.attributes(node).sectors, 0);
}

fn a_full_file_system_says_so(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let bytes = pattern(7, 1 << 20);
    let mut size = 0;
    let error = loop {
        match rig.try_write(node, WritePosition::At(size), &bytes) {
            Ok(written) => {
                assert!(written.count_bytes > 0, "a write gets forward or fails");
                size += written.count_bytes as u64;
                assert!(size < 1 << 34, "the tests expect a small file system");
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), gannet_vfs::Errno::NOSPC);
    assert_eq!(rig.attributes(node).size_bytes, size);
    let tail = rig.try_read(node, size - 9, 9).unwrap();
    assert_eq!(tail, bytes[((size - 10) % (1 << 20)) as usize + 1..][..9], "what was counted is there");
    // What is freed can be used again, to the same extent (give or take what is kept for removing things).
    rig.resize(node, size / 2).unwrap();
    let mut again = size / 2;
    while let Ok(written) = rig.try_write(node, WritePosition::At(again), &bytes) {
        again += written.count_bytes as u64;
    }
    assert!(again + (4 << 20) > size, "{again} of {size} bytes fit again");
    rig.unlink(rig.root, "f").unwrap();
    rig.fs.retire(node).unwrap();
}

fn sync_succeeds(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"x");
    rig.fs.sync(node, SyncScope::Data).unwrap();
    rig.fs.sync(node, SyncScope::DataAndAttributes).unwrap();
    rig.fs.sync(rig.root, SyncScope::DataAndAttributes).unwrap();
    rig.fs.sync_all().unwrap();
}

fn every_byte_read_was_written(rig: &Rig<'_>) {
    // Documented: data is at least not of the past or of nobody; each byte read is one that some write put there.
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, &[1; 4096]);
    let done = AtomicUsize::new(0);
    let fs = rig.fs;
    std::thread::scope(|scope| {
        for value in [1_u8, 2] {
            let done = &done;
            scope.spawn(move || {
                for _ in 0..500 {
                    let block = [value; 4096];
                    fs.write(node, WritePosition::At(0), &mut Source::from_slice(&block), WriteFlags::empty()).unwrap();
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while done.load(Ordering::Relaxed) < 2 {
            let mut seen = [0; 4096];
            assert_eq!(fs.read(node, 0, &mut Destination::from_slice(&mut seen)).unwrap(), 4096);
            assert!(seen.iter().all(|byte| [1, 2].contains(byte)), "a byte nobody wrote");
        }
    });
}
