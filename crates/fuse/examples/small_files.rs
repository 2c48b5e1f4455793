//! A client for the benchmarks: small files made, looked at, read, renamed where that can be done, and removed; prints microseconds
//! per operation.
//!
//! `small_files DIRECTORY [COUNT]`

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".into());
    let count: u32 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(2000);
    let path = |index| Path::new(&directory).join(format!("small-{index}"));
    let mut buffer = [0; 4096];
    let time = |what: &str, operation: &mut dyn FnMut(u32) -> std::io::Result<()>| -> std::io::Result<()> {
        let begin = Instant::now();
        for index in 0..count {
            operation(index)?;
        }
        println!("{what} {:.2}", begin.elapsed().as_secs_f64() * 1e6 / f64::from(count));
        Ok(())
    };
    time("create+close", &mut |index| File::create_new(path(index)).map(drop))?;
    time("open+write+close", &mut |index| File::options().write(true).open(path(index))?.write_all(&[7; 4096]))?;
    time("stat", &mut |index| fs::metadata(path(index)).map(drop))?;
    time("open+read+close", &mut |index| File::open(path(index))?.read(&mut buffer).map(drop))?;
    let other = |index| Path::new(&directory).join(format!("other-{index}"));
    if fs::rename(path(0), other(0)).is_ok() {
        fs::rename(other(0), path(0))?;
        time("rename", &mut |index| fs::rename(path(index), other(index)))?;
        (0..count).try_for_each(|index| fs::rename(other(index), path(index)))?;
    }
    time("unlink", &mut |index| fs::remove_file(path(index)))?;
    Ok(())
}
