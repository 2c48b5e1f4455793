//! The campaign of repairs: volumes that the engine wrote, on one medium and several, closed and left open, are damaged at random or forged,
//! with valid checksums, and repaired. What then must hold:
//!
//! * what is called repaired, or sound, is found sound by the next check, can be opened, used and closed, and is found sound again;
//! * what was not damaged beyond knowing, and is not named by a finding, is there with the same bytes, under the same names;
//! * what could not be repaired says why.
//!
//! Seeded: `GANNET_SEED` is the first image's number, `GANNET_IMAGES` their count. `GANNET_LONG` runs some thousands.

mod seen;
mod volumes;

use super::fuzz::{findings, mutate, pick};
use super::run;
use crate::check::{CheckReport, Outcome, Severity, UNFINISHED};
use crate::format::{BLOCK_BYTES, put_u64};
use crate::fuzzing::Choices;
use gannet_fstest::Rig;
use gannet_media::Medium;
use seen::Seen;
use std::collections::BTreeSet;
use std::ops::Range;
use volumes::Volume;

const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Damages one place; returns what was changed.
fn damage(image: &mut [u8], volume: &Volume, random: &mut Choices<'_>) -> Range<u64> {
    let blocks = if random.below(4) > 0 { &volume.metadata } else { &volume.used };
    let block = pick(random, blocks) * BLOCK_BYTES;
    let line = block + random.below(64) * 64;
    let word = block + random.below(512) * 8;
    let from = pick(random, blocks) * BLOCK_BYTES;
    let (at, length) = match random.below(8) {
        0 => {
            let at = block + random.below(BLOCK_BYTES);
            image[at as usize] ^= 1 << random.below(8);
            (at, 1)
        }
        1 | 2 => {
            put_u64(image, word as usize, random.number());
            (word, 8)
        }
        3 => {
            let from = (from + random.below(64) * 64) as usize;
            image.copy_within(from..from + 64, line as usize);
            (line, 64)
        }
        // A page of a log in place of another of it is just what collection leaves.
        4 if image[block as usize..block as usize + 12] != image[from as usize..from as usize + 12] => {
            image.copy_within(from as usize..(from + BLOCK_BYTES) as usize, block as usize);
            (block, BLOCK_BYTES)
        }
        5 => {
            let length = (1 + random.below(64)) * 64;
            let length = length.min(block + BLOCK_BYTES - line);
            image[line as usize..(line + length) as usize].fill(if random.below(2) == 0 { 0 } else { 0xFF });
            (line, length)
        }
        6 => {
            image[line as usize..line as usize + 64].fill(0);
            (line, 64)
        }
        _ => {
            image[block as usize..(block + BLOCK_BYTES) as usize].fill(0);
            (block, BLOCK_BYTES)
        }
    };
    at..at + length
}

/// Repairs one image and looks at what came of it.
fn exercise(volume: &Volume, image: &[u8], damages: Option<&[Range<u64>]>) -> Result<Outcome, String> {
    let (medium, _simulation) = volume.medium(image);
    let Ok(report) = super::check(&medium, super::CheckOptions { repair: true, threads: 1 }, &mut |_| {}) else {
        return Ok(Outcome::Damaged);
    };
    let told = findings(&report);
    if report.outcome == Outcome::Damaged {
        let says_why = report.findings.iter().any(|finding| finding.what.starts_with(UNFINISHED));
        return if says_why { Ok(Outcome::Damaged) } else { Err(format!("not repaired:\n{told}")) };
    }
    must_be_sound(&medium, "after it").map_err(|why| format!("{why} after\n{told}"))?;
    let seen = use_it(&medium).map_err(|why| format!("{why}, after\n{told}"))?;
    must_be_sound(&medium, "used and closed").map_err(|why| format!("{why} after\n{told}"))?;
    if let Some(damages) = damages
        && report.findings_left_out == 0
    {
        compare(volume, image, damages, &report, &seen).map_err(|why| format!("{why}\n{told}"))?;
    }
    Ok(report.outcome)
}

fn must_be_sound(medium: &Medium, when: &str) -> Result<(), String> {
    let report = run(medium, false);
    let is_sound = report.outcome == Outcome::Sound && report.closed_cleanly;
    if is_sound { Ok(()) } else { Err(format!("{when} it is {report:?}:\n{}", findings(&report))) }
}

/// What is on a volume; something is made and removed, and the volume is closed.
fn use_it(medium: &Medium) -> Result<Seen, String> {
    let fs = volumes::attach(medium).map_err(|error| format!("it cannot be opened: {error}"))?;
    if let Some(recovery) = fs.recovery() {
        return Err(format!("it had to be recovered: {recovery:?}"));
    }
    let seen = Seen::of(&fs)?;
    let rig = Rig::new(&fs);
    let one = rig.file(rig.root, "made after the repair");
    rig.write(one, 0, &[7; 10_000]);
    if rig.content(one) != [7; 10_000] {
        return Err("what is written cannot be read".into());
    }
    rig.rename((rig.root, "made after the repair"), (rig.root, "renamed after it"))
        .map_err(|error| error.to_string())?;
    rig.unlink(rig.root, "renamed after it").map_err(|error| error.to_string())?;
    if !fs.detach().map_err(|error| error.to_string())? {
        return Err("it was not closed".into());
    }
    Ok(seen)
}

/// Whether all is there that is not named.
fn compare(
    volume: &Volume,
    image: &[u8],
    damages: &[Range<u64>],
    report: &CheckReport,
    after: &Seen,
) -> Result<(), String> {
    let mut named: BTreeSet<u32> = BTreeSet::new();
    for finding in report.findings.iter().filter(|finding| finding.severity == Severity::Damage) {
        if finding.remedy.contains("inodes that were in") {
            return Ok(());
        }
        named.insert(finding.inode);
    }
    // Where the state is damaged, the volume counts as not closed.
    let is_closed = volume.is_closed && damages.iter().all(|damage| damage.start / BLOCK_BYTES != 1);
    let touches = |part: &Range<u64>| damages.iter().any(|damage| damage.start < part.end && part.start < damage.end);
    let covers = |part: &Range<u64>| damages.iter().any(|damage| damage.start <= part.start && part.end <= damage.end);
    let doubtful =
        volume.in_flight.iter().filter(|(_, parts)| !is_closed && parts.iter().any(touches)).map(|(&inode, _)| inode);
    let gone = volume.last.iter().filter(|(_, last)| covers(last)).map(|(&inode, _)| inode);
    for inode in doubtful.chain(gone) {
        named.insert(inode);
        named.extend(volume.seen.names.iter().filter(|((holder, _), _)| *holder == inode).map(|(_, &child)| child));
    }
    let is_named = |inode: u32| named.contains(&inode);
    for (&inode, object) in &volume.seen.on(image) {
        match after.objects.get(&inode) {
            _ if is_named(inode) => {}
            Some(found) if found.reads_like(object) => {}
            found => return Err(format!("inode {inode} was {object:?}\nand is {found:?}")),
        }
    }
    for ((directory, name), &inode) in &volume.seen.names {
        let found = after.names.get(&(*directory, name.clone()));
        if found != Some(&inode) && !is_named(inode) && !is_named(*directory) {
            return Err(format!("{directory}/{} was {inode} and is {found:?}", name.escape_ascii()));
        }
    }
    let lost_and_found = after.names.iter().find(|((directory, name), _)| *directory == 1 && name == LOST_AND_FOUND);
    for ((directory, name), inode) in &after.names {
        let is_new = !volume.seen.names.contains_key(&(*directory, name.clone()));
        let found = lost_and_found.is_some_and(|(_, lost)| lost == directory || lost == inode);
        // A rename whose other half may have been in flight is undone.
        if is_closed && is_new && !found && !is_named(*directory) {
            return Err(format!("{directory}/{} is new: {inode}", name.escape_ascii()));
        }
    }
    Ok(())
}

/// Repairs `images` of them from number `start` on.
fn campaign(start: u64, images: u64) {
    let volumes = volumes::all();
    let (mut tally, mut failed) = ([0_u64; 3], Vec::new());
    for number in start..start + images {
        let volume = &volumes[(number % volumes.len() as u64) as usize];
        let mut random = Choices::Seed((number + 1000).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut image = volume.image.clone();
        let is_forged = random.below(3) == 0;
        let mut damages = Vec::new();
        for _ in 0..1 + random.below(4) {
            if is_forged {
                mutate(&mut image, &volume.targets, &mut random);
            } else {
                damages.push(damage(&mut image, volume, &mut random));
            }
        }
        let damages = (!is_forged).then_some(&damages[..]);
        let exercised = std::panic::catch_unwind(|| exercise(volume, &image, damages));
        match exercised.unwrap_or_else(|_| Err("a panic".into())) {
            Ok(Outcome::Sound) => tally[0] += 1,
            Ok(Outcome::Repaired) => tally[1] += 1,
            Ok(Outcome::Damaged) => tally[2] += 1,
            Err(why) => {
                let why: Vec<&str> = why.lines().take(LINES_MAX).collect();
                failed.push(format!("image {number}, {}, {damages:?}:\n{}", volume.text, why.join("\n")));
            }
        }
        if failed.len() >= FAILURES_MAX {
            break;
        }
    }
    let [sound, repaired, not_repaired] = tally;
    println!("{images} images: {sound} sound, {repaired} repaired, {not_repaired} refused or not repaired");
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(repaired > images / 3 && not_repaired < images / 4, "{tally:?}");
}

/// So much is told of each.
const LINES_MAX: usize = 24;
/// After so many nothing new is learnt.
const FAILURES_MAX: usize = 40;

#[test]
fn what_is_repaired_stays_repaired_and_loses_what_it_names() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|number| number.parse().ok());
    let usual = if std::env::var_os("GANNET_LONG").is_some() { 6000 } else { 120 };
    campaign(number("GANNET_SEED").unwrap_or(0), number("GANNET_IMAGES").unwrap_or(usual));
}
