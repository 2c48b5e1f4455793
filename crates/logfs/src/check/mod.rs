//! fsck: whether a volume is what `docs/FORMAT.md` says, what is not, and putting it right.
//!
//! Reads the whole volume into a model (`model`), in which every step notes what is wrong and corrects it; repair writes
//! the model down. May touch: the medium, and nothing else; nobody may have the volume open for writing meanwhile. Needs
//! no permission to write unless it repairs. Trusts nothing that it reads: whatever the bytes, it ends, and takes memory
//! and time in proportion to the volume.
//!
//! | file | concern |
//! | --- | --- |
//! | `report` | what is found, in words |
//! | `fixed` | superblock, epoch, inode map |
//! | `trace`, `ending`, `strays`, `examine` | one log: its entries, where it ends, pages that no link leads to; one inode |
//! | `model` | the steps, in order |
//! | `slots`, `tree`, `claims` | renames and slots; names; space, data hashes and saved maps |
//! | `unexplained` | links that no crash leaves |
//! | `sense` | what is well-formed and cannot be meant: flags, attributes, births |
//! | `saved` | the maps of a clean detach |
//! | `repair`, `writer` | writing the model down; one log |

mod claims;
mod ending;
mod examine;
mod fixed;
mod model;
mod repair;
mod report;
pub(crate) mod saved;
mod sense;
mod slots;
mod strays;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports))]
pub(crate) mod tests;
mod trace;
mod tree;
mod unexplained;
mod writer;

pub use report::{CheckOptions, CheckProgress, CheckReport, Finding, Outcome, Severity};

use crate::bits::Bits;
use crate::disk::Disk;
use crate::format::page::SEQUENCE_MAX;
use crate::format::state::{CLEAN_AT, EPOCH_AT, Summary, is_closed};
use fixed::Superblocks;
use gannet_media::Medium;
use gannet_vfs::{Errno, Error, Result};
use model::{Given, Model};
use report::Findings;

/// How the note begins that says why a repair was given up.
const UNFINISHED: &str = "it could not be finished";

/// No log comes this far in any life. What refers to later entries is damage, and no new log begins behind it.
const SEQUENCE_CREDIBLE_MAX: u64 = SEQUENCE_MAX / 2;

/// How often a volume is repaired anew where a look behind a repair still finds damage.
const REPAIRS_MAX: u32 = 5;

/// Checks a volume, and repairs it if asked to. What is called repaired was looked at once more behind everything that was written, with the
/// rules for a volume that was closed cleanly.
///
/// # Errors
/// Where there is no volume, or one of a newer format; where the medium cannot be read; `EROFS` for a repair without
/// permission to write. Damage is no error: it is reported; of a volume whose medium was cut, that alone.
pub fn check(medium: &Medium, options: CheckOptions, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport> {
    check_giving_up(medium, options, &[], progress)
}

/// As [`check`], and what these files hold is given up, so that a repair finds room on a volume that is full and that nobody can open to make
/// some. Each is an inode's number or an absolute path. Only with `repair`.
///
/// # Errors
/// As [`check`]; `ENOENT` and `EINVAL` where one is not there, or no regular file: then nothing has been changed.
pub fn check_giving_up(
    medium: &Medium,
    options: CheckOptions,
    give_up: &[&[u8]],
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport> {
    if let Some(report) = fixed::of_one_cut(medium)? {
        return Ok(report);
    }
    let mut report = None;
    let first = Given { closed: None, give_up };
    let mut next = look(medium, options, first, progress, &mut |mut model, superblocks| {
        let closed_cleanly = is_closed(model.ground.disk.load(CLEAN_AT)?);
        let mut first = report_of(&model, closed_cleanly);
        let damaged = model.findings.damaged();
        first.take(&mut model.findings);
        first.outcome = if damaged { Outcome::Damaged } else { Outcome::Sound };
        let next = if !options.repair || (!damaged && closed_cleanly) {
            Next::Nothing
        } else if damaged {
            repair_once(&mut model, superblocks, &mut first)
        } else {
            let disk = Disk::open(medium.clone())?;
            crate::span::begin_opening(&disk, gannet_vfs::Time::now().0 as u64)?;
            first.recovery = Some(crate::recover::recover(&disk, options.threads)?.report);
            Next::Look(None)
        };
        report = Some(first);
        Ok(next)
    })?;
    let Some(mut report) = report else { return Err(Error::new(Errno::IO)) };
    let mut repairs = 1;
    while let Next::Look(closed) = next {
        next = look(medium, options, Given { closed, give_up: &[] }, progress, &mut |mut model, superblocks| {
            let after = report_of(&model, report.closed_cleanly);
            (report.inodes, report.directories, report.blocks_used) =
                (after.inodes, after.directories, after.blocks_used);
            if !model.findings.damaged() {
                return close(&model, closed);
            }
            if repairs == REPAIRS_MAX {
                let mut still = Findings::default();
                let what = format!("{UNFINISHED}: after {repairs} repairs this is wrong still:");
                still.note("repair", 0, 0, what);
                report.outcome = Outcome::Damaged;
                report.take(&mut still);
                report.take(&mut model.findings);
                return Ok(Next::Nothing);
            }
            repairs += 1;
            report.take(&mut model.findings);
            Ok(repair_once(&mut model, superblocks, &mut report))
        })?;
    }
    Ok(report)
}

/// What a check does next.
#[derive(Clone, Copy)]
enum Next {
    Nothing,
    /// Look at the volume: as one that was not closed cleanly, or one that was, with this summary, though the state does not say so yet.
    Look(Option<Summary>),
}

/// Reads the volume, and gives what was understood of it to `then`.
fn look(
    medium: &Medium,
    options: CheckOptions,
    given: Given<'_>,
    progress: &mut dyn FnMut(CheckProgress),
    then: &mut dyn FnMut(Model<'_>, &Superblocks) -> Result<Next>,
) -> Result<Next> {
    let mut findings = Findings::default();
    // What cannot be read is damage like any other: a check goes on with what there is.
    let medium = &medium.clone().with_zeros_where_unreadable();
    let superblocks = fixed::superblocks(medium, &mut findings)?;
    if options.repair && medium.is_read_only() {
        return Err(Error::because(Errno::ROFS, "repair needs permission to write"));
    }
    if options.repair && superblocks.read_only {
        return Err(Error::because(Errno::ROFS, "a newer Gannet made the volume: only that can repair it"));
    }
    let mut epoch = fixed::epoch(medium, &superblocks.superblock, &mut findings)?;
    loop {
        let disk = Disk::assume(medium.clone(), superblocks.superblock.clone(), epoch)?;
        let mut model = Model::of(&disk, given, options.threads, progress)?;
        if model.epoch_seen as u64 <= epoch {
            for at in medium.unreadable() {
                let what = "it cannot be read: a memory error, or its file was cut";
                findings.damage("medium", at.0, 0, what, "it is taken for zeros; what is lost by that is told besides");
            }
            findings.append(std::mem::take(&mut model.findings));
            model.findings = findings;
            model.name_findings()?;
            return then(model, &superblocks);
        }
        let what = format!("it is {epoch}, and there are log pages and entries of epoch {}", model.epoch_seen);
        findings.damage("epoch", EPOCH_AT, 0, what, "it is set from the log pages; nothing is lost");
        epoch = model.epoch_seen as u64;
    }
}

/// Repairs what was found, and says so in the report.
fn repair_once(model: &mut Model<'_>, superblocks: &Superblocks, report: &mut CheckReport) -> Next {
    match repair::repair(model, superblocks) {
        Ok(()) => {
            report.outcome = Outcome::Repaired;
            report.findings.iter_mut().for_each(|finding| finding.repaired = true);
            Next::Look(None)
        }
        Err(error) => {
            let mut failed = Findings::default();
            failed.note("repair", error.place(), 0, format!("{UNFINISHED}: {error}"));
            report.outcome = Outcome::Damaged;
            report.take(&mut failed);
            Next::Nothing
        }
    }
}

/// Writes the maps of a volume on which everything is settled; where that has been done, and looked at, marks it as closed. Without room for the
/// list of shared blocks it stays as it is: the next attach counts.
fn close(model: &Model<'_>, closed: Option<Summary>) -> Result<Next> {
    let disk = model.ground.disk;
    if let Some(summary) = closed {
        return saved::mark_closed(disk, &summary).map(|()| Next::Nothing);
    }
    let inodes = Bits::new(disk.geometry().inodes());
    model.inodes.keys().chain(&[0]).for_each(|&inode| {
        let _ = inodes.set(inode as u64);
    });
    let written = saved::write(disk, &model.used, &inodes, &model.shared)?;
    Ok(written.map_or(Next::Nothing, |summary| Next::Look(Some(summary))))
}

fn report_of(model: &Model<'_>, closed_cleanly: bool) -> CheckReport {
    CheckReport {
        outcome: Outcome::Sound,
        findings: Vec::new(),
        findings_left_out: 0,
        closed_cleanly,
        recovery: None,
        inodes: model.inodes.len() as u64,
        directories: model.inodes.values().filter(|examined| examined.is_directory()).count() as u64,
        blocks_used: model.used.count(),
        blocks: model.ground.disk.geometry().blocks,
        is_cut: false,
    }
}
