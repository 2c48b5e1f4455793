//! `gannet fsck`: checks, repairs, and says what was found and lost.

use crate::arguments::Fsck;
use crate::failure::{Failure, OPERATIONAL};
use crate::output::{Progress, print};
use crate::volume;
use gannet_logfs::{CheckOptions, CheckReport, Finding, Outcome, Severity, check, remove_left_open};
use serde_json::{Value, json};
use std::path::Path;

const SOUND: u8 = 0;
const REPAIRED: u8 = 1;
const DAMAGED: u8 = 4;

/// Checks a volume.
pub(crate) fn run(arguments: &Fsck) -> Result<u8, Failure> {
    check_volume(arguments).map_err(|failure| failure.with_code(OPERATIONAL))
}

fn check_volume(arguments: &Fsck) -> Result<u8, Failure> {
    let path = &arguments.volume;
    let medium = volume::open_to_check(path, !arguments.repair)?;
    // A claim is held until the end: nobody opens the volume while it is repaired.
    let in_use = if arguments.repair { !volume::claim(&medium)? } else { volume::is_in_use_for_long(&medium)? };
    if in_use && arguments.repair {
        let message = format!("{}: somebody has the volume open; end those programs first", path.display());
        return Err(Failure::new(message));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = CheckOptions { repair: arguments.repair, threads };
    let mut progress = Progress::new("{msg} {wide_bar} {percent} %");
    let report = check(&medium, options, &mut |step| progress.show(step.stage, step.done, step.total));
    drop(progress);
    let report = report.map_err(|error| volume::failure(path, error))?;
    medium.sync().map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    if arguments.repair && report.outcome != Outcome::Damaged {
        // What killed users have left is not of the volume as it is now.
        remove_left_open(&medium);
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&as_json(path, &report, in_use)).map_err(Failure::new)?;
        print(&(text + "\n"))?;
    } else {
        for (number, about) in (1..).zip(volume::media(&medium)) {
            print(&format!("medium {number} is a {about}\n"))?;
        }
        print(&as_text(path, &report, in_use))?;
    }
    Ok(match report.outcome {
        Outcome::Sound => SOUND,
        Outcome::Repaired => REPAIRED,
        Outcome::Damaged => DAMAGED,
    })
}

fn as_text(path: &Path, report: &CheckReport, in_use: bool) -> String {
    let mut text = String::new();
    if in_use {
        text += "somebody has the volume open: what is just being changed can look like damage\n";
    } else if !report.closed_cleanly {
        text += match &report.recovery {
            Some(_) => "the volume was not closed cleanly, and was recovered\n",
            None if report.outcome != Outcome::Sound => "the volume was not closed cleanly\n",
            None => "the volume was not closed cleanly: the next use recovers it, or --repair\n",
        };
    }
    if let Some(recovery) = &report.recovery {
        let done = [
            (recovery.entries_killed, "operations that were not whole undone"),
            (recovery.births_completed, "births completed"),
            (recovery.orphans_freed, "unnamed files freed"),
            (recovery.words_corrected, "link counts and parents set"),
        ];
        for (count, what) in done.iter().filter(|(count, _)| *count > 0) {
            text += &format!("  {count} {what}\n");
        }
    }
    for finding in &report.findings {
        text += &format!("{finding}\n");
    }
    if report.findings_left_out > 0 {
        text += &format!("and {} more of that kind\n", report.findings_left_out);
    }
    let damage = damage_count(report);
    let outcome = match report.outcome {
        Outcome::Sound => "sound".to_owned(),
        Outcome::Repaired => format!("repaired, {damage} findings"),
        Outcome::Damaged => format!("DAMAGED, {damage} findings"),
    };
    let files = report.inodes.saturating_sub(report.directories);
    text += &format!(
        "{}: {outcome}; {files} files, {} directories, {} of {} blocks in use\n",
        path.display(),
        report.directories,
        report.blocks_used,
        report.blocks
    );
    text
}

fn damage_count(report: &CheckReport) -> u64 {
    let shown = report.findings.iter().filter(|finding| finding.severity == Severity::Damage).count();
    shown as u64 + report.findings_left_out
}

fn as_json(path: &Path, report: &CheckReport, in_use: bool) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "severity": match finding.severity { Severity::Note => "note", Severity::Damage => "damage" },
            "structure": finding.structure,
            "offset_bytes": finding.offset_bytes,
            "inode": (finding.inode != 0).then_some(finding.inode),
            "path": finding.path,
            "what": finding.what,
            "remedy": finding.remedy,
            "repaired": finding.repaired,
        })
    };
    json!({
        "volume": path.display().to_string(),
        "outcome": match report.outcome {
            Outcome::Sound => "sound",
            Outcome::Repaired => "repaired",
            Outcome::Damaged => "damaged",
        },
        "in_use": in_use,
        "closed_cleanly": report.closed_cleanly,
        "recovered": report.recovery.is_some(),
        "inodes": report.inodes,
        "directories": report.directories,
        "blocks_used": report.blocks_used,
        "blocks": report.blocks,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_left_out": report.findings_left_out,
    })
}
