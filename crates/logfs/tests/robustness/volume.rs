//! Making, opening and checking small volumes.

use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, CheckOptions, CheckReport, LogFs, MakeOptions, Outcome, Users, check, make};
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_vfs::{NodeId, Owner, Result, Time, WritePosition};
use std::cell::Cell;

/// Bytes of the volumes of the enumerations: two chunks of inodes, room for collections.
pub(crate) const VOLUME_BYTES: u64 = 2 << 20;

/// What free blocks hold.
const PAST: u8 = 0xE6;

/// How data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    InPlace,
    CopyOnWrite,
}

pub(crate) const MODES: [Mode; 2] = [Mode::InPlace, Mode::CopyOnWrite];

thread_local! {
    /// What this thread has open.
    static HELD: Cell<Option<NodeId>> = const { Cell::new(None) };
}

/// Who has something open is who looks, for as long as it lives: what another left open nobody has.
struct Holders;

impl Users for Holders {
    fn in_use(&self, node: NodeId) -> bool {
        HELD.get() == Some(node)
    }
}

/// An inode that this thread has open until this is dropped; then it is to be retired.
pub(crate) struct Held;

impl Held {
    pub(crate) fn open(node: NodeId) -> Self {
        assert_eq!(HELD.replace(Some(node)), None, "one at a time");
        Self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(None);
    }
}

/// How the enumerations open volumes.
pub(crate) fn options() -> AttachOptions {
    AttachOptions {
        index_bytes_max: 4 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(Holders),
    }
}

/// How the enumerations make volumes.
pub(crate) fn make_options(mode: Mode) -> MakeOptions {
    MakeOptions {
        label: "test".into(),
        copy_on_write: mode == Mode::CopyOnWrite,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [7; 24],
        now: Time::now(),
    }
}

/// Makes an empty volume.
pub(crate) fn format(medium: &Medium, mode: Mode) {
    make(medium, &make_options(mode)).expect("mkfs");
}

/// Opens a volume alone.
pub(crate) fn attach(medium: &Medium) -> Result<LogFs> {
    LogFs::open_private(medium.clone(), options())
}

/// The bytes of a volume, closed cleanly, after `fill` has put something on it.
pub(crate) fn image(mode: Mode, fill: impl FnOnce(&LogFs)) -> Vec<u8> {
    let (medium, _simulation) = Medium::simulated(VOLUME_BYTES);
    format(&medium, mode);
    let fs = attach(&medium).expect("attach");
    leave_a_past(&fs);
    fill(&fs);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let mut bytes = vec![0; VOLUME_BYTES as usize];
    medium.read(MediumOffset(0), &mut bytes).expect("read the medium");
    bytes
}

/// Fills all space and gives it back, so that every block has held bytes that nobody may see.
fn leave_a_past(fs: &LogFs) {
    let rig = Rig::new(fs);
    let file = rig.file(rig.root, "past");
    while rig.try_write(file, WritePosition::Append, &[PAST; 1 << 16]).is_ok() {}
    rig.unlink(rig.root, "past").expect("unlink");
}

/// A simulated medium with this image, open. Files can be mapped, if it is one medium.
pub(crate) fn open(image: &[u8]) -> (LogFs, Simulation) {
    let (medium, simulation) = match first_bytes(image) {
        Some(_) => simulated(image),
        None => Medium::simulated_with_file(image),
    };
    (attach(&medium).expect("attach"), simulation)
}

/// A simulated medium with this image.
pub(crate) fn simulated(image: &[u8]) -> (Medium, Simulation) {
    let (medium, simulation) = Medium::simulated_from_image(image);
    if let Some(bytes) = first_bytes(image) {
        simulation.set_first_length(bytes);
    }
    (medium, simulation)
}

/// Bytes of the first medium, if the volume of an image spans several.
fn first_bytes(image: &[u8]) -> Option<u64> {
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
    (word(24) & 16 != 0).then(|| word(144) * 4096)
}

/// Runs fsck without repair; panics with its findings if there are any.
pub(crate) fn assert_sound(medium: &Medium, closed_cleanly: bool, when: &str) -> CheckReport {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {});
    let report = report.unwrap_or_else(|error| panic!("fsck {when}: {error}"));
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.outcome == Outcome::Sound, "fsck {when}: {found:#?}");
    if closed_cleanly {
        assert!(found.is_empty() && report.closed_cleanly, "fsck {when}: {found:#?}");
    }
    report
}
