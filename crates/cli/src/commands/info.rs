//! `gannet info`: what a volume is, what it survives, how full it is, who has it open.

use crate::arguments::Info;
use crate::commands::kernel;
use crate::commands::mkfs::{PAGE_PLACES, kind_text, page_text};
use crate::failure::{Failure, in_one_line};
use crate::locked::{self, Locked};
use crate::output::{print, size_text};
use crate::volume;
use crate::waiting::{self, Waiting};
use gannet_logfs::{Description, SharedMemory, describe, is_left_open};
use gannet_media::{Medium, Member};
use gannet_vfs::{FileSystem, Statistics};
use serde_json::{Value, json};
use std::path::Path;

/// How many locks on files the text names: those held for longest.
const LOCKS_TOLD: usize = 20;

/// A process that has the volume open.
struct Participant {
    pid: u32,
    name: String,
    /// Whether its number means the same here; `None` where that cannot be seen.
    same_namespace: Option<bool>,
}

/// What only those know who have the volume open.
struct Live {
    statistics: Statistics,
    participants: Vec<Participant>,
    waiting: Vec<Waiting>,
    locked: Vec<Locked>,
    takeovers: u64,
    memory: SharedMemory,
}

/// Describes a volume.
pub(crate) fn run(arguments: &Info) -> Result<u8, Failure> {
    let path = &arguments.volume;
    let medium = volume::open(path, true)?;
    let about = describe(&medium).map_err(|error| volume::failure(path, error))?;
    let live = volume::is_in_use(&medium)?.then(|| live(path));
    if arguments.json {
        let text = serde_json::to_string_pretty(&as_json(path, &medium, &about, live.as_ref()));
        print(&(text.map_err(Failure::new)? + "\n"))?;
    } else {
        print(&as_text(path, &medium, &about, live.as_ref()))?;
    }
    Ok(0)
}

/// Joins those who have the volume open, and asks.
fn live(path: &Path) -> Result<Live, String> {
    let volume = volume::join(path).map_err(|error| error.to_string())?;
    let session = volume.session();
    let list = session.participant_list();
    let locked = locked::look(&volume, &list).map_err(|error| error.to_string())?;
    let participants = list
        .into_iter()
        .filter(|info| info.id != session.participant())
        .map(|info| Participant { pid: info.pid, same_namespace: info.is_of_our_namespace(), name: info.name })
        .collect();
    Ok(Live {
        statistics: volume.statistics().map_err(|error| error.to_string())?,
        participants,
        locked,
        waiting: waiting::look(&volume),
        takeovers: volume.takeovers().map_err(|error| error.to_string())?,
        memory: volume.memory().map_err(|error| error.to_string())?,
    })
}

/// Free blocks and inodes in use.
fn usage(about: &Description, live: Option<&Result<Live, String>>) -> Option<(u64, u64)> {
    match live {
        Some(Ok(live)) => {
            Some((live.statistics.blocks_free, live.statistics.inodes.saturating_sub(live.statistics.inodes_free)))
        }
        Some(Err(_)) => None,
        None => about.usage,
    }
}

fn state(medium: &Medium, about: &Description, live: Option<&Result<Live, String>>) -> &'static str {
    match live {
        Some(_) => "open",
        None if about.closed_cleanly => "closed cleanly",
        None if about.repair_cut_short => "a repair was cut short: `gannet fsck --repair` goes on with it",
        None if is_left_open(medium) => {
            "left open by processes that were killed: the next use goes on with their state"
        }
        None => "not closed cleanly: the next use recovers it",
    }
}

fn as_text(path: &Path, medium: &Medium, about: &Description, live: Option<&Result<Live, String>>) -> String {
    let mut text = format!("{}: Gannet volume", in_one_line(&path.to_string_lossy()));
    if !about.label.is_empty() {
        text += &format!(" \"{}\"", about.label.escape_debug());
    }
    text.push('\n');
    // There are paths in it, and names of processes.
    let mut line = |name: &str, value: &str| text += &format!("  {name:<10}{}\n", in_one_line(value));
    line("size", &size_text(about.size_bytes));
    match usage(about, live) {
        Some((free, inodes)) => {
            let free_bytes = free.saturating_mul(4096);
            let percent = 100 * about.blocks.saturating_sub(free) / about.blocks.max(1);
            line(
                "used",
                &format!("{percent} %, {} free; {inodes} of {} inodes", size_text(free_bytes), about.inodes_max),
            );
        }
        None if live.is_some() => line("used", "not known: who has it open cannot be asked"),
        None => line("used", "not known before it is opened again"),
    }
    line("medium", &kind_text(medium));
    for (number, about) in (1..).zip(volume::media(medium)) {
        line(&format!("medium {number}"), &about);
    }
    line("survives", medium.survives());
    if let Some(pages) = page_text(medium) {
        line("pages", &pages);
    }
    line("data", if about.copy_on_write { "copy-on-write" } else { "in place" });
    line("state", state(medium, about, live));
    line("uuid", &uuid_text(&about.uuid));
    line("features", &features_text(about));
    let (release, features) = kernel::features();
    for (about, what, features) in [("kernel", release.as_str(), features), ("processor", "", kernel::processor())] {
        let there: Vec<&str> = features.iter().filter(|one| one.missing.is_none()).map(|one| one.name).collect();
        let colon = if what.is_empty() { "" } else { ": " };
        let there = if there.is_empty() { "nothing of what is looked for".to_owned() } else { there.join(", ") };
        line(about, &format!("{what}{colon}{there}"));
        for one in &features {
            if let Some(why) = &one.missing {
                let space = if why.starts_with(':') { "" } else { " " };
                line("", &format!("no {}{space}{why}", one.name));
            }
        }
    }
    match live {
        Some(Ok(live)) => {
            for participant in &live.participants {
                let where_from = match participant.same_namespace {
                    Some(true) => "",
                    Some(false) => " (another PID namespace)",
                    None => " (whether of this PID namespace cannot be seen)",
                };
                line("in use by", &format!("{} {}{where_from}", participant.pid, participant.name));
            }
            let memory = &live.memory;
            let (taken, indexes) = (size_text(memory.bytes), size_text(memory.index_bytes));
            line(
                "memory",
                &format!("{taken} shared, {indexes} of it for indexes (at most {})", size_text(memory.index_bytes_max)),
            );
            live.locked.iter().take(LOCKS_TOLD).for_each(|locked| line("locked", &locked.text()));
            if let Some(more) = live.locked.len().checked_sub(LOCKS_TOLD).filter(|&more| more > 0) {
                line("", &format!("{more} more locks (--json names them)"));
            }
            live.waiting.iter().for_each(|waiting| line("waiting", &waiting.text()));
        }
        Some(Err(why)) => line("in use", &format!("by whom cannot be found out: {why}")),
        None => {}
    }
    text
}

fn as_json(path: &Path, medium: &Medium, about: &Description, live: Option<&Result<Live, String>>) -> Value {
    let usage = usage(about, live);
    let pages = medium.page_report(PAGE_PLACES).ok();
    let is_open = live.is_some();
    let live = live.and_then(|live| live.as_ref().ok());
    json!({
        "volume": path.display().to_string(),
        "label": about.label,
        "uuid": uuid_text(&about.uuid),
        "created_ns": about.created.0,
        "size_bytes": about.size_bytes,
        "free_bytes": usage.map(|(free, _)| free.saturating_mul(4096)),
        "inodes_used": usage.map(|(_, inodes)| inodes),
        "inodes_max": about.inodes_max,
        "medium": kind_text(medium),
        "survives": medium.survives(),
        "media": media_json(path, medium),
        "page_bytes": pages.map(|pages| pages.usual_page_bytes()),
        "huge_percent": pages.map(|pages| pages.huge_percent()),
        "data": if about.copy_on_write { "cow" } else { "inplace" },
        "emulate_pmem": about.emulate_persistence,
        "features": {
            "compatible": about.features[0],
            "read_only_compatible": about.features[1],
            "incompatible": about.features[2],
        },
        "feature_names": {
            "compatible": about.feature_names[0],
            "read_only_compatible": about.feature_names[1],
            "incompatible": about.feature_names[2],
        },
        "epoch": about.epoch,
        "open": is_open,
        "closed_cleanly": about.closed_cleanly,
        "repair_cut_short": about.repair_cut_short,
        "participants": live.map(|live| {
            let one = |one: &Participant| {
                json!({ "pid": one.pid, "name": one.name, "same_pid_namespace": one.same_namespace })
            };
            live.participants.iter().map(one).collect::<Vec<_>>()
        }),
        "waiting": live.map(|live| live.waiting.iter().map(Waiting::as_json).collect::<Vec<_>>()),
        "locked": live.map(|live| live.locked.iter().map(Locked::as_json).collect::<Vec<_>>()),
        "kernel": kernel::features().0,
        "kernel_features": features_json(&kernel::features().1),
        "processor_features": features_json(&kernel::processor()),
        "takeovers": live.map(|live| live.takeovers),
        "shared_bytes": live.map(|live| live.memory.bytes),
        "index_bytes": live.map(|live| live.memory.index_bytes),
        "index_bytes_max": live.map(|live| live.memory.index_bytes_max),
    })
}

/// The format's features that the volume has, by name.
fn features_text(about: &Description) -> String {
    let classes = ["compatible", "read-only compatible", "incompatible"];
    let of_class =
        |(class, names): (&str, &Vec<String>)| (!names.is_empty()).then(|| format!("{class}: {}", names.join(", ")));
    let all: Vec<String> = classes.into_iter().zip(&about.feature_names).filter_map(of_class).collect();
    if all.is_empty() { "none beyond the first format".to_owned() } else { all.join("; ") }
}

/// What is there of a kernel or processor, and what follows where it is not.
fn features_json(features: &[kernel::Feature]) -> Vec<Value> {
    let one = |one: &kernel::Feature| {
        let why = one.missing.as_ref().map(|why| why.trim_start_matches(": "));
        json!({ "name": one.name, "usable": why.is_none(), "without": why })
    };
    features.iter().map(one).collect()
}

/// The files of the volume: one, or those that it spans.
fn media_json(path: &Path, medium: &Medium) -> Vec<Value> {
    let members = medium.members();
    let one = |(member, node): (&Member, Option<u32>)| {
        let file = if members.len() > 1 { member.path.as_path() } else { path };
        json!({
            "file": file.display().to_string(),
            "kind": member.name,
            "survives": member.survives,
            "start_bytes": member.start,
            "size_bytes": member.length,
            "numa_node": node,
        })
    };
    members.iter().zip(medium.nodes()).map(one).collect()
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
