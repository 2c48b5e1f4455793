//! Who has a volume open for reading only, beside a writer that is killed and after whom no other comes: what the dead had locked is settled
//! by the reader if it may write to the volume's file. If it may not, that is refused, and nothing else.

use crate::handover::Volume;
use crate::volume::{assert_sound, options};
use crate::{Random, long};
use gannet_fstest::name;
use gannet_logfs::{LogFs, make};
use gannet_media::Medium;
use gannet_vfs::shared::AccessMode;
use gannet_vfs::usermem::Destination;
use gannet_vfs::{Errno, Error, FileSystem, FileType, NodeId};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

/// Opens, examines and reads all that there is; returns what was refused.
fn look(fs: &LogFs) -> Vec<Error> {
    let (mut left, mut refused) = (vec![fs.root()], Vec::new());
    while let Some(node) = left.pop() {
        if let Err(error) = look_at(fs, node, &mut left) {
            refused.push(error);
        }
    }
    refused
}

fn look_at(fs: &LogFs, node: NodeId, left: &mut Vec<NodeId>) -> gannet_vfs::Result<()> {
    let shared = fs.shared();
    let description = shared.open(fs, node, AccessMode::READ, 0)?;
    let looked = (|| {
        let attributes = fs.attributes(node)?;
        match attributes.file_type {
            FileType::Directory => {
                let mut names = Vec::new();
                fs.read_directory(node, 0, &mut |entry| {
                    names.push(String::from_utf8_lossy(entry.name.bytes()).into_owned());
                    true
                })?;
                for text in names {
                    left.push(fs.lookup(node, name(&text))?.node);
                }
                Ok(())
            }
            FileType::Regular => {
                let mut bytes = vec![0; attributes.size_bytes as usize];
                fs.read(node, 0, &mut Destination::from_slice(&mut bytes)).map(drop)
            }
            _ => Ok(()),
        }
    })();
    shared.close(fs, description).and(looked)
}

#[test]
fn a_reader_goes_on_beside_a_killed_writer() {
    let volume = Volume::new("reader");
    drop(volume.open());
    let mut random = Random(23);
    let mut takeovers = 0;
    for round in 0..if long() { 200 } else { 25 } {
        let mut writer = volume.spawn("work");
        let fs = LogFs::open(&volume.0, true, options()).expect("open the volume");
        std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        writer.kill().expect("kill");
        writer.wait().expect("wait");
        for look_again in 0..20 {
            assert_eq!(look(&fs), [], "round {round}");
            // A process looks for the dead once a second.
            if round == 0 && look_again % 19 == 0 {
                std::thread::sleep(Duration::from_millis(1100));
            }
        }
        takeovers += fs.takeovers().expect("a number");
        // As beside a living writer: it is not for the reader to close the volume.
        assert!(fs.detach().expect("detach"));
        drop(fs);
        let fs = volume.open();
        assert!(fs.recovery().is_some() && fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&Medium::open(&volume.0, Default::default()).expect("open the file"), true, "after the reader");
    }
    assert!(takeovers > 0, "killed at work: {takeovers}");
}

/// A file to which nobody can write any more who has not mapped it yet.
#[test]
fn a_reader_who_may_not_settle_a_killed_writer_is_refused_nothing_else() {
    let mut random = Random(29);
    let mut refusals = 0;
    for round in 0..if long() { 200 } else { 25 } {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"gannet-reader", flags).expect("a file");
        rustix::fs::ftruncate(&file, 16 << 20).expect("a length");
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        make(&Medium::open(&path, Default::default()).expect("open the file"), &Volume::made("sealed")).expect("mkfs");
        let volume = Volume(path);
        let mut writer = volume.spawn("work");
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).expect("seal");
        let fs = LogFs::open(&volume.0, true, options()).expect("open the volume");
        std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        writer.kill().expect("kill");
        writer.wait().expect("wait");
        for look_again in 0..3 {
            let refused = look(&fs);
            let why = Errno::BUSY;
            assert!(refused.iter().all(|error| error.errno() == why && error.what().contains("killed")), "{refused:?}");
            // What one thread had locked.
            assert!(refused.len() <= 4, "round {round}: {refused:?}");
            refusals += refused.len();
            if round == 0 && look_again < 2 {
                std::thread::sleep(Duration::from_millis(1100));
            }
        }
        // Another one comes all the same.
        let again = LogFs::open(&volume.0, true, options()).expect("open the volume beside the dead");
        assert!(look(&again).iter().all(|error| error.errno() == Errno::BUSY));
        let _ = again.detach();
        let _ = fs.detach();
    }
    assert!(refusals > 0, "none was killed at work");
}
