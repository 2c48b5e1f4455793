//! Byte vectors for every opcode, truncations of each, and seeded random requests.

use super::constants::{IN_HEADER_BYTES, InitFlags, Opcode, SetAttrValid, WriteRequestFlags};
use super::fuzz_one;
use super::request::{BulkOperation, Header, Operation, Request};
use super::wire::Malformed;

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A request as `/dev/fuse` delivers it.
fn request(opcode: Opcode, structure: &[u8], payload: &[u8]) -> Vec<u8> {
    let length_bytes = (IN_HEADER_BYTES + structure.len() + payload.len()) as u32;
    let mut bytes = words(&[length_bytes, opcode as u32]);
    bytes.extend(longs(&[77, 5]));
    bytes.extend(words(&[1000, 1001, 4242, 0]));
    bytes.extend_from_slice(structure);
    bytes.extend_from_slice(payload);
    bytes
}

/// Parses the request both ways, which must agree, and returns the operation.
fn operation<'a>(bytes: &'a [u8], structure_bytes: usize) -> Operation<'a> {
    let contiguous = Request::parse_contiguous(bytes, true).unwrap();
    let header = Header::parse(bytes).unwrap();
    let (structure, payload) = bytes[IN_HEADER_BYTES..].split_at(structure_bytes);
    let mut padded = structure.to_vec();
    padded.resize(128, 0xee);
    let padded: &'static [u8] = padded.leak();
    let split = Request::parse_split(header, padded, payload).unwrap();
    assert_eq!(contiguous, split);
    assert_eq!((header.unique, header.node, header.user, header.group, header.process), (77, 5, 1000, 1001, 4242));
    contiguous.operation.unwrap()
}

/// A valid request of every kind: (bytes, size of its structure).
fn specimens() -> Vec<(Opcode, Vec<u8>, usize)> {
    let mut all = Vec::new();
    let mut add = |opcode, structure: Vec<u8>, payload: &[u8]| {
        all.push((opcode, request(opcode, &structure, payload), structure.len()));
    };
    let mut init = words(&[7, 45, 65_536, InitFlags::INIT_EXT.bits() as u32, 1 << (41 - 32)]);
    init.resize(64, 0);
    add(Opcode::Init, init, b"");
    add(Opcode::Destroy, vec![], b"");
    add(Opcode::Lookup, vec![], b"name\0");
    add(Opcode::Forget, longs(&[3]), b"");
    add(Opcode::BatchForget, words(&[2, 0]), &longs(&[5, 1, 6, 2]));
    add(Opcode::GetAttr, longs(&[0, 9]), b"");
    add(Opcode::StatX, [longs(&[0, 9]), words(&[0x100, 0xfff])].concat(), b"");
    let times = longs(&[9, 4096, 0, 11, 12, 13]);
    add(Opcode::SetAttr, [words(&[0x7f, 0]), times, words(&[1, 2, 3, 0o644, 0, 21, 22, 0])].concat(), b"");
    add(Opcode::ReadLink, vec![], b"");
    add(Opcode::Symlink, vec![], b"link\0target\0");
    add(Opcode::MkNod, words(&[0o10_644, 0x103, 0o22, 0]), b"n\0");
    add(Opcode::MkDir, words(&[0o755, 0o22]), b"d\0");
    add(Opcode::Unlink, vec![], b"u\0");
    add(Opcode::RmDir, vec![], b"r\0");
    add(Opcode::Rename, longs(&[8]), b"from\0to\0");
    add(Opcode::Rename2, [longs(&[8]), words(&[2, 0])].concat(), b"from\0to\0");
    add(Opcode::Link, longs(&[31]), b"l\0");
    add(Opcode::Open, words(&[2, 1]), b"");
    add(Opcode::Read, [longs(&[9, 8192]), words(&[4096, 0]), longs(&[0]), words(&[0o2000, 0])].concat(), b"");
    add(Opcode::Write, [longs(&[9, 100]), words(&[3, 4]), longs(&[0]), words(&[0o2000, 0])].concat(), b"abc");
    add(Opcode::StatFs, vec![], b"");
    add(Opcode::Release, [longs(&[9]), words(&[2, 2]), longs(&[55])].concat(), b"");
    add(Opcode::FSync, [longs(&[9]), words(&[1, 0])].concat(), b"");
    add(Opcode::SetXattr, words(&[5, 1, 1, 0]), b"user.a\0value");
    add(Opcode::GetXattr, words(&[64, 0]), b"user.a\0");
    add(Opcode::ListXattr, words(&[64, 0]), b"");
    add(Opcode::RemoveXattr, vec![], b"user.a\0");
    add(Opcode::Flush, [longs(&[9]), words(&[0, 0]), longs(&[55])].concat(), b"");
    add(Opcode::OpenDir, words(&[0, 0]), b"");
    add(Opcode::ReadDir, [longs(&[9, 3]), words(&[4096, 0]), longs(&[0]), words(&[0, 0])].concat(), b"");
    add(Opcode::ReadDirPlus, [longs(&[9, 3]), words(&[4096, 0]), longs(&[0]), words(&[0, 0])].concat(), b"");
    add(Opcode::ReleaseDir, [longs(&[9]), words(&[2, 2]), longs(&[55])].concat(), b"");
    add(Opcode::FSyncDir, [longs(&[9]), words(&[1, 0])].concat(), b"");
    for opcode in [Opcode::GetLk, Opcode::SetLk, Opcode::SetLkW] {
        add(opcode, [longs(&[9, 55, 10, 20]), words(&[1, 4242, 1, 0])].concat(), b"");
    }
    add(Opcode::Access, words(&[4, 0]), b"");
    add(Opcode::Create, words(&[0o101, 0o644, 0o22, 1]), b"c\0");
    add(Opcode::TmpFile, words(&[0o101, 0o644, 0o22, 0]), b"/\0");
    add(Opcode::Interrupt, longs(&[76]), b"");
    add(Opcode::BMap, longs(&[1, 4096]), b"");
    let ioctl = [longs(&[9]), words(&[0, 0x4008_6602]), longs(&[0x7000]), words(&[8, 8])].concat();
    add(Opcode::Ioctl, ioctl, b"12345678");
    add(Opcode::Poll, [longs(&[9, 1]), words(&[0, 1])].concat(), b"");
    add(Opcode::NotifyReply, vec![], b"");
    add(Opcode::FAllocate, [longs(&[9, 100, 200]), words(&[3, 0])].concat(), b"");
    add(Opcode::LSeek, [longs(&[9, 100]), words(&[4, 0])].concat(), b"");
    add(Opcode::CopyFileRange, longs(&[9, 1, 6, 10, 2, 3, 0]), b"");
    add(Opcode::CopyFileRange64, longs(&[9, 1, 6, 10, 2, 3, 0]), b"");
    add(Opcode::SyncFs, longs(&[0]), b"");
    all
}

#[test]
fn every_opcode_has_a_specimen_and_parses_the_same_both_ways() {
    let specimens = specimens();
    for opcode in Opcode::ALL {
        assert!(specimens.iter().any(|specimen| specimen.0 == *opcode), "{opcode:?}");
        assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
    }
    for (_, bytes, structure_bytes) in &specimens {
        operation(bytes, *structure_bytes);
    }
}

#[test]
fn every_truncation_is_malformed_or_still_a_request() {
    for (opcode, bytes, _) in specimens() {
        for length_bytes in 0..bytes.len() {
            let mut cut = bytes[..length_bytes].to_vec();
            assert_eq!(Request::parse_contiguous(&cut, true), Err(Malformed), "{opcode:?}: length field unchanged");
            if length_bytes >= IN_HEADER_BYTES {
                cut[..4].copy_from_slice(&(length_bytes as u32).to_le_bytes());
                let parsed = Request::parse_contiguous(&cut, true);
                // INIT may be short (16 bytes, before 7.36); the others need all their bytes.
                let short_init = opcode == Opcode::Init && length_bytes >= IN_HEADER_BYTES + 16;
                let no_matter = matches!(opcode, Opcode::TmpFile) && length_bytes >= IN_HEADER_BYTES + 16;
                assert_eq!(parsed.is_ok(), short_init || no_matter, "{opcode:?} cut to {length_bytes}");
            }
        }
    }
}

#[test]
fn fields_are_taken_from_the_right_places() {
    let find = |wanted| {
        let (_, bytes, structure_bytes) = specimens().into_iter().find(|specimen| specimen.0 == wanted).unwrap();
        let bytes: &'static [u8] = bytes.leak();
        operation(bytes, structure_bytes)
    };
    let Operation::SetAttr(change) = find(Opcode::SetAttr) else { panic!() };
    assert_eq!(change.valid, SetAttrValid::from_bits_retain(0x7f));
    assert_eq!((change.size_bytes, change.mode, change.user, change.group), (4096, 0o644, 21, 22));
    assert_eq!((change.accessed, change.modified), ((11, 1), (12, 2)));
    assert_eq!(
        find(Opcode::Write),
        Operation::Write {
            handle: 9,
            offset_bytes: 100,
            write_flags: WriteRequestFlags::KILL_SUIDGID,
            open_flags: 0o2000,
            data: b"abc"
        }
    );
    let read = BulkOperation::Read { handle: 9, offset_bytes: 8192, size_bytes: 4096, open_flags: 0o2000 };
    assert_eq!(find(Opcode::Read), Operation::Bulk(read));
    assert_eq!(
        find(Opcode::SetXattr),
        Operation::SetXattr { name: b"user.a", value: b"value", flags: 1, set_flags: 1 }
    );
    assert_eq!(find(Opcode::Rename2), Operation::Rename { from: b"from", to_directory: 8, to: b"to", flags: 2 });
    let Operation::SetLock { lock, wait } = find(Opcode::SetLkW) else { panic!() };
    assert!(wait);
    assert_eq!((lock.handle, lock.owner, lock.start, lock.end), (9, 55, 10, 20));
    assert_eq!((lock.kind, lock.process, lock.flags), (1, 4242, 1));
    let Operation::BatchForget { entries } = find(Opcode::BatchForget) else { panic!() };
    assert_eq!(entries.collect::<Vec<_>>(), [(5, 1), (6, 2)]);
    let Operation::Bulk(BulkOperation::Ioctl { command, input, out_bytes, .. }) = find(Opcode::Ioctl) else { panic!() };
    assert_eq!((command, input.length_bytes, &input.bytes[..8], out_bytes), (0x4008_6602, 8, &b"12345678"[..], 8));
    assert_eq!(
        find(Opcode::CopyFileRange64),
        Operation::CopyRange { offset_bytes: 1, to_node: 6, to_offset_bytes: 2, length_bytes: 3, wide: true }
    );
    assert_eq!(find(Opcode::FAllocate), Operation::Allocate { offset_bytes: 100, length_bytes: 200, mode: 3 });
    let Operation::Init(offer) = find(Opcode::Init) else { panic!() };
    assert!(offer.flags.contains(InitFlags::OVER_IO_URING));
}

#[test]
fn a_short_setxattr_is_understood_where_the_long_one_was_not_agreed() {
    let bytes = request(Opcode::SetXattr, &words(&[2, 0]), b"user.a\0vv");
    let parsed = Request::parse_contiguous(&bytes, false).unwrap();
    assert_eq!(parsed.operation, Some(Operation::SetXattr { name: b"user.a", value: b"vv", flags: 0, set_flags: 0 }));
}

#[test]
fn extensions_are_not_part_of_the_payload() {
    let mut bytes =
        request(Opcode::Write, &[longs(&[9, 0]), words(&[8, 0]), longs(&[0, 0])].concat(), b"datadataextension");
    bytes.extend_from_slice(b"1234567");
    let length_bytes = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length_bytes.to_le_bytes());
    bytes[36..38].copy_from_slice(&2u16.to_le_bytes());
    let parsed = Request::parse_contiguous(&bytes, true).unwrap();
    assert!(matches!(parsed.operation, Some(Operation::Write { data: b"datadata", .. })));
    bytes[36..38].copy_from_slice(&u16::MAX.to_le_bytes());
    assert_eq!(Request::parse_contiguous(&bytes, true), Err(Malformed));
}

#[test]
fn an_unknown_opcode_is_told_apart_from_nonsense() {
    let mut bytes = request(Opcode::Lookup, b"", b"a\0");
    bytes[4..8].copy_from_slice(&4096u32.to_le_bytes());
    assert_eq!(Request::parse_contiguous(&bytes, true).unwrap().operation, None);
}

/// Mutations of the specimens and plain noise: nothing may panic. `GANNET_LONG=1` runs a hundred times more.
#[test]
fn random_bytes_do_no_harm() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 2_000_000 } else { 20_000 };
    let specimens = specimens();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..rounds {
        let mut bytes = specimens[next() as usize % specimens.len()].1.clone();
        for _ in 0..next() % 6 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(bytes.len() - (next() as usize % bytes.len()).min(next() as usize % 64));
        fuzz_one(&bytes);
    }
}
