//! `gannet fsck`: checks, repairs, and says what was found and lost.

use crate::arguments::Fsck;
use crate::failure::{Failure, OPERATIONAL, in_one_line};
use crate::output::{Progress, print};
use crate::volume;
use gannet_logfs::{
    CheckOptions, CheckProgress, CheckReport, Finding, Outcome, Severity, check_giving_up, remove_left_open,
};
use gannet_media::Medium;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SOUND: u8 = 0;
const REPAIRED: u8 = 1;
const DAMAGED: u8 = 4;

/// How often a volume is looked at where damage was seen that may be what somebody is just changing.
const LOOKS_MAX: usize = 3;

/// What a check came to, and beside whom.
struct Checked {
    report: CheckReport,
    /// Somebody had the volume open.
    in_use: bool,
    /// Damage was seen beside somebody, which is no verdict.
    undecided: bool,
}

impl Checked {
    fn outcome(&self) -> (&'static str, u8) {
        match self.report.outcome {
            _ if self.undecided => ("undecided", OPERATIONAL),
            Outcome::Sound => ("sound", SOUND),
            Outcome::Repaired => ("repaired", REPAIRED),
            Outcome::Damaged => ("damaged", DAMAGED),
        }
    }
}

/// Checks a volume.
pub(crate) fn run(arguments: &Fsck) -> Result<u8, Failure> {
    check_volume(arguments).map_err(|failure| {
        if arguments.json {
            // Whoever reads it gets an object in any case; where even that cannot be printed, the failure is told all the same.
            let unchecked = json!({
                "volume": arguments.volume.display().to_string(),
                "outcome": "unchecked",
                "error": failure.message,
            });
            let _ = print(&format!("{unchecked:#}\n"));
        }
        failure.with_code(OPERATIONAL)
    })
}

fn check_volume(arguments: &Fsck) -> Result<u8, Failure> {
    let path = &arguments.volume;
    let medium = volume::open_to_check(path, !arguments.repair)?;
    // A claim is held until the end: nobody opens the volume while it is repaired.
    if arguments.repair && !volume::claim(&medium)? {
        let message = format!("{}: somebody has the volume open; end those programs first", path.display());
        return Err(Failure::new(message));
    }
    let checked = if arguments.repair { repair(arguments, &medium)? } else { look(arguments, &medium)? };
    if arguments.repair {
        volume::sync(path, &medium)?;
        if checked.report.outcome != Outcome::Damaged {
            // What killed users have left is not of the volume as it is now.
            remove_left_open(&medium);
        }
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&as_json(path, &checked)).map_err(Failure::new)?;
        print(&(text + "\n"))?;
    } else {
        for (number, about) in (1..).zip(volume::media(&medium)) {
            print(&format!("medium {number} is a {about}\n"))?;
        }
        print(&as_text(path, &checked))?;
    }
    Ok(checked.outcome().1)
}

fn check_once(arguments: &Fsck, medium: &Medium) -> Result<CheckReport, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = CheckOptions { repair: arguments.repair, threads };
    let give_up: Vec<&[u8]> = arguments.give_up.iter().map(|file| file.as_bytes()).collect();
    let mut progress = Progress::new("{msg} {wide_bar} {percent} %");
    let mut show = |step: CheckProgress| progress.show(step.stage, step.done, step.total);
    check_giving_up(medium, options, &give_up, &mut show)
        .map_err(|error| volume::check_failure(&arguments.volume, error))
}

fn repair(arguments: &Fsck, medium: &Medium) -> Result<Checked, Failure> {
    Ok(Checked { report: check_once(arguments, medium)?, in_use: false, undecided: false })
}

/// Looks at a volume that somebody may have open, or open and close meanwhile: what is just being changed can look like damage. Damage is one that
/// two looks in a row find, with nobody there before, between and behind them.
fn look(arguments: &Fsck, medium: &Medium) -> Result<Checked, Failure> {
    let mut in_use = volume::is_in_use_for_long(medium)?;
    let mut report = check_once(arguments, medium)?;
    let mut looks = 1;
    loop {
        in_use |= volume::is_in_use(medium)?;
        if report.outcome != Outcome::Damaged || looks == LOOKS_MAX {
            let undecided = report.outcome == Outcome::Damaged;
            return Ok(Checked { report, in_use, undecided });
        }
        let again = check_once(arguments, medium)?;
        let same = again == report;
        in_use |= volume::is_in_use(medium)?;
        if same && !in_use {
            return Ok(Checked { report, in_use, undecided: false });
        }
        // What stands in all looks is told: it was not changed, or again and again.
        let stood = |finding: &Finding| report.findings.contains(finding);
        let findings = again.findings.iter().filter(|finding| stood(finding)).cloned().collect();
        report = CheckReport { findings, ..again };
        looks += 1;
    }
}

fn as_text(path: &Path, checked: &Checked) -> String {
    let Checked { report, in_use, undecided } = checked;
    let mut text = String::new();
    if *undecided {
        text += &format!(
            "somebody has the volume open, or had meanwhile: there is no verdict. What {LOOKS_MAX} looks found may be damage, or what is being \
             changed; end those programs and check again\n"
        );
    } else if *in_use {
        text += "somebody has the volume open: what is being changed was not checked\n";
    } else if !report.closed_cleanly && !report.is_cut {
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
        _ if *undecided => format!("undecided, {damage} findings"),
        Outcome::Sound => "sound".to_owned(),
        Outcome::Repaired => format!("repaired, {damage} findings"),
        Outcome::Damaged => format!("DAMAGED, {damage} findings"),
    };
    if report.is_cut {
        return text + &format!("{}: {outcome}; nothing else was checked\n", in_one_line(&path.to_string_lossy()));
    }
    let files = report.inodes.saturating_sub(report.directories);
    text += &format!(
        "{}: {outcome}; {files} files, {} directories, {} of {} blocks in use\n",
        in_one_line(&path.to_string_lossy()),
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

fn as_json(path: &Path, checked: &Checked) -> Value {
    let report = &checked.report;
    let counted = Some(report).filter(|report| !report.is_cut);
    let finding = |finding: &Finding| {
        json!({
            "severity": match finding.severity { Severity::Note => "note", Severity::Damage => "damage" },
            "structure": finding.structure,
            "offset_bytes": finding.offset_bytes,
            "inode": (finding.inode != 0).then_some(finding.inode),
            "path": finding.path.as_ref().map(|path| String::from_utf8_lossy(path)),
            "what": finding.what,
            "remedy": finding.remedy,
            "repaired": finding.repaired,
        })
    };
    json!({
        "volume": path.display().to_string(),
        "outcome": checked.outcome().0,
        "in_use": checked.in_use,
        "closed_cleanly": counted.map(|report| report.closed_cleanly),
        "recovered": report.recovery.is_some(),
        "inodes": counted.map(|report| report.inodes),
        "directories": counted.map(|report| report.directories),
        "blocks_used": counted.map(|report| report.blocks_used),
        "blocks": report.blocks,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_left_out": report.findings_left_out,
    })
}
