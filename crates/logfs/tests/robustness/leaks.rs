//! Space that killed users had given up, or taken: where all of them are always killed nobody closes the volume, and what is free must
//! count as free all the same.

use crate::handover::Volume;
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{CheckOptions, LogFs, Outcome, check, make};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::FileSystem;
use gannet_vfs::shared::AccessMode;
use std::time::Duration;

/// Has a description in transit, which waits for who comes.
pub(crate) fn send(fs: &LogFs) {
    let file = Rig::new(fs).file(fs.root(), "in a message");
    let description = fs.shared().open(fs, file, AccessMode::READ, 0).expect("open");
    fs.shared().hold_in_transit(description).expect("send");
}

/// A volume so small that what leaks is noticed.
fn small(name: &str) -> Volume {
    let volume = Volume::new(name);
    std::fs::remove_file(&volume.0).expect("remove");
    let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create(&volume.0, 8 << 20, created, &mut |_| {}).expect("a file");
    make(&medium, &Volume::made(name)).expect("mkfs");
    volume
}

#[test]
fn where_all_are_killed_nothing_is_lost() {
    let volume = small("leaks");
    let mut random = Random(31);
    let (mut recovered, rounds) = (0, if long() { 2000 } else { 60 });
    for round in 1..=rounds {
        volume.kill_one("work", Duration::from_micros(random.below(15_000) as u64));
        if round % 20 != 0 {
            continue;
        }
        let fs = volume.open();
        recovered += u32::from(fs.recovery().is_some());
        let counted = fs.statistics().expect("statistics");
        let medium = Medium::open(&volume.0, Default::default()).expect("open the file");
        let report = check(&medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
        assert_eq!(report.outcome, Outcome::Sound, "{:?}", report.findings);
        let free = (report.blocks - report.blocks_used, counted.inodes - report.inodes);
        assert_eq!((counted.blocks_free, counted.inodes_free), free, "round {round}: {report:?}");
    }
    println!("{recovered} recovered");
}

/// What waits in the arena for who comes is worth more than what does not count as free meanwhile.
#[test]
fn what_is_in_transit_is_kept_though_something_is_uncertain() {
    let mut random = Random(37);
    for round in 0..16 {
        let volume = Volume::new("transit");
        volume.kill_one("work with a message", Duration::from_micros(random.below(15_000) as u64));
        let fs = volume.open();
        assert!(fs.recovery().is_none(), "round {round}: thrown away");
        assert!(fs.shared().is_used().expect("descriptions"));
        assert!(fs.detach().expect("detach"));
    }
}
