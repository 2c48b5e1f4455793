//! What several suites begin with: an empty volume in memory.

use gannet_logfs::{MakeOptions, make};
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
