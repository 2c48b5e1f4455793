//! `bench latency`: each operation, of peers and beside the machine's limits; what a write consists of; attaching.

use crate::bench::Bench;
use crate::floor;
use crate::matrix::Cell;
use crate::model::{Table, Unit, WHOLE};
use crate::peers::{self, Gannet};
use crate::statistics::spread;
use crate::work::protocol::{Job, Limit};
use crate::work::shapes::Random;
use gannet_vfs::usermem::Source;
use gannet_vfs::{FileSystem, Name, NewNode, Owner, WriteFlags, WritePosition};
use std::time::Instant;

const FAULT: &str = "mmap fault";

/// Name of the row, shape, bytes of a call.
const OPERATIONS: &[(&str, &str, u64)] = &[
    ("open and close, five deep", "open and close", 1),
    ("stat, five deep", "stat", 1),
    ("create and close", "create and close", 1),
    ("unlink", "unlink", 1),
    ("create, close and unlink", "create, close and unlink", 1),
    ("rename", "rename", 1),
    ("mkdir", "mkdir", 1),
    ("readdir, an entry", "readdir", 1),
    ("append 64 B and fsync", "append and fsync", 64),
    ("append 4 KiB and fsync", "append and fsync", 4096),
    ("overwrite 4 KiB", "write random", 4096),
    ("overwrite 1 MiB", "write random", 1 << 20),
    ("read 4 KiB", "read random", 4096),
    ("read 1 MiB", "read random", 1 << 20),
    ("fsync, nothing to write", "fsync", 1),
    ("mmap, first store into a page", FAULT, 4096),
];

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let names = bench.ready(&peers::ALL);
    let limit = if bench.settings.quick {
        Limit::Calls { calls: 300, milliseconds_max: 5 }
    } else {
        Limit::Calls { calls: 4000, milliseconds_max: 50 }
    };
    let cells: Vec<Cell> = OPERATIONS
        .iter()
        .map(|&(operation, shape, size_bytes)| Cell {
            operation: operation.into(),
            x: None,
            job: Job { size_bytes, ..bench.job(shape, limit) },
            by_mean: shape == FAULT,
        })
        .collect();
    let mut table = Table {
        command: "latency",
        title: "Time of one operation".into(),
        notes: vec![
            "one thread; the middle of single times, the clock's own included (net is less that: the empty driver); floor is the copy with its fence (emulated persistent memory), \
             or the copy out, without any file system"
                .into(),
            "mmap: the mean, since one fault maps as many pages as the file system sees fit (huge pages, large folios)"
                .into(),
        ],
        unit: Unit::Nanoseconds,
        x_name: None,
        rows: Vec::new(),
    };
    let mut floors = floor::floors(bench.span_bytes);
    bench.matrix(&mut table, &names, &cells, &mut floors);
    attach(bench, &mut table, &names);
    let breakdown = breakdown(bench, &names, &table);
    std::iter::once(table).chain(breakdown).collect()
}

/// Opening a volume that others have open, and closing it.
fn attach(bench: &mut Bench<'_>, table: &mut Table, names: &[String]) {
    for name in names {
        let workload = bench.settings.workload.clone();
        let Some(peer) = bench.peer(name).filter(|peer| peer.is_run()) else { continue };
        // The workload program keeps it open.
        let Some(volume) = peer.volume_path() else { continue };
        if peer.worker(&workload).is_err() {
            continue;
        }
        let mut rounds = Vec::new();
        for _ in 0..25 {
            let begun = Instant::now();
            match gannet_open::open_volume(&volume, gannet_open::Options::default()) {
                Ok(open) => {
                    rounds.push(begun.elapsed().as_nanos() as f64);
                    drop(open);
                }
                Err(why) => bench.skip(format!("latency: attach, {name}"), why.to_string()),
            }
        }
        if !rounds.is_empty() {
            let row = bench.row("attach, others attached", name, spread(&rounds));
            table.rows.push(row);
        }
    }
}

/// What one 4 KiB overwrite under `gannet run` consists of.
fn breakdown(bench: &mut Bench<'_>, names: &[String], latency: &Table) -> Option<Table> {
    const PEER: &str = "gannet-pmem";
    const OPERATION: &str = "overwrite 4 KiB";
    names.iter().find(|name| *name == PEER)?;
    let whole = latency.rows.iter().find(|row| row.peer == PEER && row.operation == OPERATION)?;
    let whole_ns = whole.cpu_ns?.median;
    let library = match library_write(bench) {
        Ok(library) => library,
        Err(why) => {
            bench.skip("latency: breakdown of a write", why);
            return None;
        }
    };
    let mut table = Table {
        command: "latency",
        title: "What a 4 KiB overwrite consists of".into(),
        notes: vec![
            "processor time; interception: what `gannet run` adds to the library's call; lookup: what the library adds to a lock, \
             the copy and a fence, which are measured without any file system"
                .into(),
        ],
        unit: Unit::Nanoseconds,
        x_name: None,
        rows: Vec::new(),
    };
    let [locked, fenced, copied] = library.floors;
    let parts = [
        ("interception", whole_ns - library.write_ns),
        ("lookup and bookkeeping", library.write_ns - locked),
        ("lock", locked - fenced),
        ("copy", copied),
        ("fence", fenced - copied),
    ];
    for (part, nanoseconds) in parts {
        // Below nothing is noise.
        table.rows.push(bench.row(part, PEER, spread(&[nanoseconds.max(0.0)])));
    }
    table.rows.push(bench.row(WHOLE, PEER, spread(&[whole_ns])));
    Some(table)
}

struct LibraryWrite {
    write_ns: f64,
    floors: [f64; 3],
}

/// The library's write of 4 KiB at random places of a file, and the parts that it cannot do without, in turn.
fn library_write(bench: &Bench<'_>) -> Result<LibraryWrite, String> {
    let directory = bench.medium_directory().join("breakdown");
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let path = directory.join("volume");
    let kind = Gannet { emulated: true, ..Gannet::default() };
    peers::make_volume(bench, &path, bench.span_bytes * 2 + (32 << 20), kind)?;
    let volume = gannet_open::open_volume(&path, gannet_open::Options::default()).map_err(|error| error.to_string())?;
    let text = |error: gannet_vfs::Error| error.to_string();
    let name = Name::new(b"file").map_err(text)?;
    let file = volume.create(volume.root(), name, &NewNode::regular(0o644, Owner::default())).map_err(text)?;
    let piece = vec![7; 1 << 20];
    for at in (0..bench.span_bytes).step_by(piece.len()) {
        let position = WritePosition::At(at);
        volume.write(file, position, &mut Source::from_slice(&piece), WriteFlags::empty()).map_err(text)?;
    }
    let mut parts = floor::parts(bench.span_bytes).ok_or("no memory for the floors")?;
    let block = vec![3_u8; 4096];
    let blocks = bench.span_bytes / 4096;
    let mut random = Random::new(5);
    let calls = 2000;
    let mut rounds = Vec::new();
    for round in 0..=2 * bench.settings.rounds.min(50) {
        let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        for _ in 0..calls {
            let position = WritePosition::At(random.below(blocks) * 4096);
            volume.write(file, position, &mut Source::from_slice(&block), WriteFlags::empty()).map_err(text)?;
        }
        let ended = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let took = (ended.tv_sec - begun.tv_sec) as f64 * 1e9 + (ended.tv_nsec - begun.tv_nsec) as f64;
        parts.iter_mut().for_each(|part| part.round(round > 0));
        if round > 0 {
            rounds.push(took / f64::from(calls));
        }
    }
    drop(volume);
    let _ = std::fs::remove_dir_all(directory);
    Ok(LibraryWrite { write_ns: spread(&rounds).median, floors: parts.map(|part| spread(&part.cpu_ns).median) })
}
