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
//! | `trace`, `examine` | one log; one inode |
//! | `model` | the steps, in order |
//! | `slots`, `tree`, `claims` | renames and slots; names; space, data hashes and saved maps |
//! | `saved` | the maps of a clean detach |
//! | `repair`, `writer` | writing the model down; one log |

mod claims;
mod examine;
mod fixed;
mod model;
mod repair;
mod report;
pub(crate) mod saved;
mod slots;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports))]
pub(crate) mod tests;
mod trace;
mod tree;
mod writer;

pub use report::{CheckOptions, CheckProgress, CheckReport, Finding, Outcome, Severity};

use crate::bits::Bits;
use crate::disk::Disk;
use crate::format::state::{CLEAN_AT, EPOCH_AT, is_closed};
use fixed::Superblocks;
use gannet_media::Medium;
use gannet_vfs::{Errno, Error, Result};
use model::Model;
use report::Findings;

/// How the note begins that says why a repair was given up.
const UNFINISHED: &str = "it could not be finished";

/// Checks a volume, and repairs it if asked to.
///
/// # Errors
/// Where there is no volume, or one of a newer format; where the medium cannot be read; `EROFS` for a repair without
/// permission to write. Damage is no error: it is reported.
pub fn check(medium: &Medium, options: CheckOptions, progress: &mut dyn FnMut(CheckProgress)) -> Result<CheckReport> {
    let mut findings = Findings::default();
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
        let mut model = Model::of(&disk, options.threads, progress)?;
        if model.epoch_seen as u64 <= epoch {
            findings.append(std::mem::take(&mut model.findings));
            model.findings = findings;
            model.name_findings()?;
            return conclude(&superblocks, options, model, progress);
        }
        let what = format!("it is {epoch}, and there are log pages and entries of epoch {}", model.epoch_seen);
        findings.damage("epoch", EPOCH_AT, 0, what, "it is set from the log pages; nothing is lost");
        epoch = model.epoch_seen as u64;
    }
}

fn conclude(
    superblocks: &Superblocks,
    options: CheckOptions,
    mut model: Model<'_>,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport> {
    let medium = model.ground.disk.medium().clone();
    let damaged = model.findings.damaged();
    let closed_cleanly = is_closed(model.ground.disk.load(CLEAN_AT)?);
    let mut report = report_of(&model, closed_cleanly);
    report.outcome = if damaged { Outcome::Damaged } else { Outcome::Sound };
    if !options.repair || (!damaged && closed_cleanly) {
        report.findings = model.findings.list;
        report.findings_left_out = model.findings.left_out;
        return Ok(report);
    }
    if damaged {
        let written = repair::repair(&mut model, superblocks);
        report.findings = model.findings.list;
        report.findings_left_out = model.findings.left_out;
        if let Err(error) = written {
            let mut failed = Findings::default();
            failed.note("repair", error.place(), 0, format!("{UNFINISHED}: {error}"));
            report.findings.append(&mut failed.list);
            return Ok(report);
        }
    } else {
        report.findings = model.findings.list;
        let disk = Disk::open(medium.clone())?;
        crate::span::begin_opening(&disk, gannet_vfs::Time::now().0 as u64)?;
        report.recovery = Some(crate::recover::recover(&disk, options.threads)?.report);
    }
    let disk = Disk::open(medium)?;
    let mut again = Model::of(&disk, options.threads, progress)?;
    let findings = std::mem::take(&mut again.findings);
    let after = report_of(&again, closed_cleanly);
    (report.inodes, report.directories, report.blocks_used) = (after.inodes, after.directories, after.blocks_used);
    if findings.damaged() || again.epoch_seen > disk.epoch() {
        report.outcome = Outcome::Damaged;
        let mut still = Findings::default();
        still.note("repair", 0, 0, "this is wrong after it still:");
        report.findings.append(&mut still.list);
        report.findings.extend(findings.list);
        return Ok(report);
    }
    if damaged {
        report.outcome = Outcome::Repaired;
        report.findings.iter_mut().for_each(|finding| finding.repaired = true);
    }
    mark_clean(&disk, &again)?;
    Ok(report)
}

/// Writes the maps of a volume on which everything is settled.
fn mark_clean(disk: &Disk, model: &Model<'_>) -> Result<()> {
    let inodes = Bits::new(disk.geometry().inodes());
    model.inodes.keys().chain(&[0]).for_each(|&inode| {
        let _ = inodes.set(inode as u64);
    });
    saved::save(disk, &model.used, &inodes, &model.shared)
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
    }
}
