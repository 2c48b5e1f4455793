//! `gannet stat`: what is being done on a volume, by whoever has it open.

use crate::arguments::Stat;
use crate::failure::Failure;
use crate::output::{print, size_text};
use crate::volume;
use gannet_logfs::{LogFs, VolumeCounters};
use gannet_vfs::FileSystem;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

/// Prints the counters once, or what they grow by every second.
pub(crate) fn run(arguments: &Stat) -> Result<u8, Failure> {
    let medium = volume::open(&arguments.volume, true)?;
    if !volume::is_in_use(&medium)? {
        let message = format!("{}: nobody has it open, so nothing is being done on it", arguments.volume.display());
        return Err(Failure::new(message));
    }
    drop(medium);
    let options = gannet_open::Options { read_only: true, ..gannet_open::Options::default() };
    let volume = gannet_open::open_volume(&arguments.volume, options).map_err(Failure::new)?;
    let failed = |error: gannet_vfs::Error| Failure::new(format_args!("{}: {error}", arguments.volume.display()));
    let now = volume.counters().map_err(failed)?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&as_json(&volume, &now).map_err(failed)?);
        print(&(text.map_err(Failure::new)? + "\n"))?;
        return Ok(0);
    }
    if !arguments.watch {
        print(&totals(&volume, &now).map_err(failed)?)?;
        return Ok(0);
    }
    let mut before = now;
    for line in 0_u64.. {
        if line.is_multiple_of(20) {
            print(
                "  reads/s  writes/s changes/s     read/s  written/s   stored/s   fences/s    lines/s collected  \
                 takeovers       free\n",
            )?;
        }
        std::thread::sleep(INTERVAL);
        let now = volume.counters().map_err(failed)?;
        let free = free_text(&volume).map_err(failed)?;
        let grown = |of: fn(&VolumeCounters) -> u64| of(&now).wrapping_sub(of(&before));
        print(&format!(
            "{:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>10} {free:>10}\n",
            grown(|counters| counters.reads),
            grown(|counters| counters.writes),
            grown(|counters| counters.changes),
            size_text(grown(|counters| counters.bytes_read)),
            size_text(grown(|counters| counters.bytes_written)),
            size_text(grown(|counters| counters.bytes_stored)),
            grown(|counters| counters.fences),
            grown(|counters| counters.lines),
            grown(|counters| counters.pages_collected),
            grown(|counters| counters.takeovers),
        ))?;
        before = now;
    }
    Ok(0)
}

fn free_text(volume: &LogFs) -> Result<String, gannet_vfs::Error> {
    let statistics = volume.statistics()?;
    Ok(size_text(statistics.blocks_free * u64::from(statistics.block_bytes)))
}

fn totals(volume: &LogFs, counters: &VolumeCounters) -> Result<String, gannet_vfs::Error> {
    Ok(format!(
        "since the volume was opened\n  \
         reads      {}, {}\n  \
         writes     {}, {}\n  \
         changes    {} of names, attributes and space\n  \
         medium     {} stored, {} fences, {} lines\n  \
         collected  {} log pages\n  \
         takeovers  {} dead threads settled\n  \
         waits      {} for locks, {} of them asleep, {} ms\n  \
         indexes    {} dropped for want of memory\n  \
         free       {}\n",
        counters.reads,
        size_text(counters.bytes_read),
        counters.writes,
        size_text(counters.bytes_written),
        counters.changes,
        size_text(counters.bytes_stored),
        counters.fences,
        counters.lines,
        counters.pages_collected,
        counters.takeovers,
        counters.lock_waits,
        counters.lock_sleeps,
        counters.lock_slept_ns / 1_000_000,
        counters.indexes_dropped,
        free_text(volume)?,
    ))
}

fn as_json(volume: &LogFs, counters: &VolumeCounters) -> Result<serde_json::Value, gannet_vfs::Error> {
    let statistics = volume.statistics()?;
    Ok(serde_json::json!({
        "reads": counters.reads,
        "bytes_read": counters.bytes_read,
        "writes": counters.writes,
        "bytes_written": counters.bytes_written,
        "changes": counters.changes,
        "fences": counters.fences,
        "lines": counters.lines,
        "bytes_stored": counters.bytes_stored,
        "pages_collected": counters.pages_collected,
        "takeovers": counters.takeovers,
        "lock_waits": counters.lock_waits,
        "lock_sleeps": counters.lock_sleeps,
        "lock_slept_ns": counters.lock_slept_ns,
        "indexes_dropped": counters.indexes_dropped,
        "blocks_free": statistics.blocks_free,
        "block_bytes": statistics.block_bytes,
    }))
}
