//! Values of extended attributes in blocks of their own: what is read is what was set, or an error.

mod common;

use common::{attach, volume};
use gannet_fstest::Rig;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{Errno, FileSystem, Name, XattrMode};
use std::sync::atomic::{AtomicBool, Ordering};

const NAME: &[u8] = b"user.large";
const VOLUME_BYTES: usize = 8 << 20;
const BLOCK_BYTES: usize = 4096;

/// Where a block begins that is full of `byte`.
fn block_of(medium: &Medium, byte: u8) -> usize {
    let mut image = vec![0; VOLUME_BYTES];
    medium.read(MediumOffset(0), &mut image).expect("the medium");
    let is_full = |block: &[u8]| block.iter().all(|&found| found == byte);
    image.chunks(BLOCK_BYTES).position(is_full).expect("a block of the value") * BLOCK_BYTES
}

/// A byte of a value that was changed on the medium is never told as the value.
#[test]
fn a_value_that_is_not_what_was_set_is_an_error() {
    let medium = volume(VOLUME_BYTES as u64);
    let fs = attach(&medium);
    let node = Rig::new(&fs).file(fs.root(), "file");
    fs.set_xattr(node, NAME, &[0x5A; 9000], XattrMode::Any).expect("set");
    fs.set_xattr(node, b"user.small", b"sound", XattrMode::Any).expect("set");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let at = block_of(&medium, 0x5A);
    for byte in [0, 1700, 4095, 4096, 8999] {
        let fs = attach(&medium);
        let node = fs.lookup(fs.root(), Name::new(b"file").expect("a name")).expect("the file").node;
        let mut value = [0; 9000];
        assert_eq!((fs.xattr(node, NAME, &mut value), value), (Ok(9000), [0x5A; 9000]));
        medium.write(MediumOffset((at + byte) as u64), &[0x5B]).expect("the medium");
        let error = fs.xattr(node, NAME, &mut value).expect_err("a value that was not set");
        assert_eq!(error.errno(), Errno::UCLEAN);
        assert_eq!((error.what(), error.place()), ("value of an extended attribute", at as u64));
        // Its length stands in the log, and so does what can be put in its place.
        assert_eq!(fs.xattr(node, NAME, &mut []), Ok(9000));
        assert_eq!(fs.xattr(node, b"user.small", &mut value), Ok(5));
        medium.write(MediumOffset((at + byte) as u64), &[0x5A]).expect("the medium");
        assert_eq!(fs.xattr(node, NAME, &mut value), Ok(9000));
        assert!(fs.detach().expect("detach"));
    }
}

/// A value that is replaced, or removed, while it is read, is the old one, the new one or none, and nothing is damaged.
#[test]
fn a_value_that_is_replaced_meanwhile_is_no_damage() {
    let fs = attach(&volume(VOLUME_BYTES as u64));
    let node = Rig::new(&fs).file(fs.root(), "file");
    fs.set_xattr(node, NAME, &[0; 20_000], XattrMode::Any).expect("set");
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 200_000 } else { 4000 };
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, end) = (&fs, &end);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let (mut value, mut seen) = (vec![0; 64 << 10], 0);
                    while !end.load(Ordering::Relaxed) {
                        match fs.xattr(node, NAME, &mut value) {
                            Ok(length) => {
                                assert!(value[..length].iter().all(|&byte| byte == value[0]), "a mixture");
                                assert_eq!(length, 20_000 - 100 * value[0] as usize, "of another value");
                                seen += 1;
                            }
                            Err(error) => assert_eq!(error.errno(), Errno::NODATA, "{error}"),
                        }
                    }
                    seen
                })
            })
            .collect();
        for round in 0..rounds {
            let byte = (round % 100) as u8;
            let value = vec![byte; 20_000 - 100 * byte as usize];
            fs.set_xattr(node, NAME, &value, XattrMode::Any).expect("set");
            if round % 7 == 0 {
                fs.remove_xattr(node, NAME).expect("remove");
            }
        }
        end.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().map(|reader| reader.join().expect("a reader")).sum::<u64>() > 0);
    });
}
