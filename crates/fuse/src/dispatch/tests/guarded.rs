//! Writes to immutable and append-only files, as they come from the kernel.

use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{AttributeChange, Errno, FileSystem, InodeFlags, Name, NewNode, Owner, WriteFlags, WritePosition};

use super::{by_root, dispatcher};
use crate::dispatch::CachePolicy;
use crate::protocol::constants::WriteRequestFlags;

const O_APPEND: u32 = 0o2000;

/// Writes to a file that holds "0123" and four zeros; what it holds then.
fn after(cache: CachePolicy, flags: InodeFlags, at: u64, from_page_cache: bool, append: bool, data: &[u8]) -> String {
    let (file_system, dispatcher) = dispatcher(cache);
    let new = NewNode::regular(0o600, Owner::default());
    let node = file_system.create(file_system.root(), Name::new(b"file").unwrap(), &new).unwrap();
    let mut source = Source::from_slice(b"0123\0\0\0\0");
    file_system.write(node, WritePosition::At(0), &mut source, WriteFlags::default()).unwrap();
    let change = AttributeChange { flags: Some(flags), ..AttributeChange::default() };
    file_system.set_attributes(node, &change).unwrap();
    dispatcher.lookup(&by_root(1), b"file").unwrap();
    let header = by_root(dispatcher.nodes.id(node));
    let write_flags = if from_page_cache { WriteRequestFlags::CACHE } else { WriteRequestFlags::empty() };
    let open_flags = if append { 1 | O_APPEND } else { 1 };
    let written = dispatcher.write(&header, 0, at, write_flags, open_flags, data);
    let mut bytes = [0; 100];
    let count = file_system.read(node, 0, &mut Destination::from_slice(&mut bytes)).unwrap();
    match written {
        Ok(_) => String::from_utf8(bytes[..count].iter().map(|&byte| byte.max(b'.')).collect()).unwrap(),
        Err(error) => {
            assert_eq!((error.errno(), &bytes[..count]), (Errno::PERM, &b"0123\0\0\0\0"[..]));
            "refused".into()
        }
    }
}

#[test]
fn what_an_append_only_file_holds_stays() {
    let append_only = InodeFlags::APPEND_ONLY;
    for cache in [CachePolicy::Automatic, CachePolicy::Coherent] {
        let after = |at, cached, append, data: &[u8]| after(cache, append_only, at, cached, append, data);
        assert_eq!(after(0, false, false, b"abc"), "refused");
        assert_eq!(after(8, false, false, b"abc"), "refused");
        assert_eq!(after(0, false, true, b"abc"), "0123....abc", "wherever the kernel thinks that the end is");
        assert_eq!(after(0, true, false, b"0123abcd"), "refused", "a map's");
    }
    for writeback in [false, true] {
        let cache = CachePolicy::Exclusive { writeback };
        let after = |at, cached, append, data: &[u8]| after(cache, append_only, at, cached, append, data);
        assert_eq!(after(0, false, false, b"abc"), "refused");
        assert_eq!(after(0, false, true, b"abc"), "refused", "the kernel knows the end: it is told to write elsewhere");
        assert_eq!(after(8, false, true, b"abc"), "0123....abc");
        assert_eq!(after(6, false, true, b"abc"), "0123..abc", "a piece that was overtaken");
        let cached = if writeback { ["0123....abcd", "0123..ab"] } else { ["refused"; 2] };
        assert_eq!(after(0, true, false, b"0123\0\0\0\0abcd"), cached[0], "a page of what was appended");
        assert_eq!(after(2, true, false, b"23\0\0ab"), cached[1]);
        assert_eq!(after(2, true, false, b"2x\0\0ab"), "refused");
    }
}

#[test]
fn an_immutable_file_stays() {
    for cache in [CachePolicy::Automatic, CachePolicy::Coherent, CachePolicy::Exclusive { writeback: true }] {
        for cached in [false, true] {
            for append in [false, true] {
                assert_eq!(after(cache, InodeFlags::IMMUTABLE, 8, cached, append, b"abc"), "refused");
                assert_ne!(after(cache, InodeFlags::empty(), 8, cached, append, b"abc"), "refused");
            }
        }
    }
}
