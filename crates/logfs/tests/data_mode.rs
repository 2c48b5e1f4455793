//! Where a write's bytes go: in place or to new blocks, by the volume, by who opened it, and by the file's own flag.

mod common;

use common::volume;
use gannet_fstest::Rig;
use gannet_logfs::{AccessTimes, AttachOptions, LogFs, NoUsers};
use gannet_media::Medium;
use gannet_vfs::{AttributeChange, FileSystem, InodeFlags, NodeId};

fn attach(medium: &Medium, copy_on_write: Option<bool>) -> LogFs {
    let options = AttachOptions {
        index_bytes_max: 8 << 20,
        copy_on_write,
        access_times: AccessTimes::Relative,
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium.clone(), options).expect("attach")
}

/// Whether overwriting a block of a file moves it.
fn moves(fs: &LogFs, node: NodeId) -> bool {
    let rig = Rig::new(fs);
    let place = || {
        let mut found = Vec::new();
        fs.extents(node, 0, 8192, &mut |extent| {
            found.push(extent.medium_offset_bytes);
            true
        })
        .expect("extents");
        found
    };
    let before = place();
    rig.write(node, 4096, &[7; 4096]);
    assert_eq!(rig.content(node), [&[1; 4096][..], &[7; 4096]].concat());
    rig.write(node, 4096, &[1; 4096]);
    rig.write(node, 4096, &[7; 4096]);
    let after = place();
    rig.write(node, 0, &[1; 8192]);
    before != after
}

#[test]
fn the_flag_of_a_file_counts_more_than_the_way_it_was_opened() {
    let medium = volume(16 << 20);
    for opened in [None, Some(false), Some(true)] {
        let fs = attach(&medium, opened);
        let rig = Rig::new(&fs);
        let node = rig.file(fs.root(), &format!("{opened:?}"));
        rig.write(node, 0, &[1; 8192]);
        let default = opened.unwrap_or(false);
        assert_eq!(moves(&fs, node), default, "{opened:?} without a flag");
        for (flags, expected) in [
            (InodeFlags::COPY_ON_WRITE, true),
            (InodeFlags::IN_PLACE, false),
            (InodeFlags::IN_PLACE | InodeFlags::NO_DUMP, false),
            (InodeFlags::empty(), default),
        ] {
            fs.set_attributes(node, &AttributeChange { flags: Some(flags), ..Default::default() }).expect("flags");
            assert_eq!(moves(&fs, node), expected, "{opened:?} with {flags:?}");
        }
        assert!(fs.detach().expect("detach"));
    }
}
