//! What several suites begin with: an empty volume in memory, attached to.

#![allow(dead_code, reason = "each suite uses a part")]

use gannet_logfs::{AccessTimes, AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Owner, Time};

/// An empty volume of `bytes` in private memory, data in place, with a fixed key for its names.
pub(crate) fn volume(bytes: u64) -> Medium {
    let medium = Medium::create_in_memory("volume", bytes, CreateOptions::default()).expect("memory");
    let made = MakeOptions {
        label: String::new(),
        copy_on_write: false,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [7; 24],
        now: Time::now(),
    };
    make(&medium, &made).expect("mkfs");
    medium
}

/// Attaches to a volume in private memory, with one thread, as its own options say.
pub(crate) fn attach(medium: &Medium) -> LogFs {
    let options = AttachOptions {
        index_bytes_max: 64 << 20,
        copy_on_write: None,
        access_times: AccessTimes::Relative,
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium.clone(), options).expect("attach")
}
