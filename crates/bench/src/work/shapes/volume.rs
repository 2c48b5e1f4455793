//! What a whole volume is brought to: many files, and age.

use super::random::Random;
use super::{Job, Member, Setting, Shape};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

/// Files of one directory.
const WIDTH: u64 = 1000;
/// Mean size of the files of an aged volume.
const AGED_FILE_BYTES: f64 = 128.0 * 1024.0;
const BLOCK_BYTES: u64 = 4096;

#[derive(Clone, Copy)]
enum Volume {
    /// `files` files of `size_bytes` each.
    Files,
    /// Filled up to `span_bytes`, then as much again removed and written, in random order and other sizes.
    Aged,
}

pub(super) fn find(name: &str) -> Option<Box<dyn Shape>> {
    Some(Box::new(match name {
        "files" => Volume::Files,
        "aged" => Volume::Aged,
        _ => return None,
    }))
}

impl Shape for Volume {
    fn place(&self, _: &Job) -> String {
        match self {
            Self::Files => "files",
            Self::Aged => "aged",
        }
        .into()
    }

    fn prepare(&self, setting: &Setting) -> io::Result<()> {
        match self {
            Self::Files => files(setting),
            Self::Aged => age(setting),
        }
    }

    fn member<'a>(&'a self, _: &'a Setting, _: u32) -> io::Result<Member<'a>> {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "a volume is made so, nothing is measured"))
    }
}

fn files(setting: &Setting) -> io::Result<()> {
    let bytes = vec![1; setting.size_bytes as usize];
    let mut directory = PathBuf::new();
    for number in 0..setting.files {
        if number % WIDTH == 0 {
            directory = setting.directory.join((number / WIDTH).to_string());
            fs::create_dir_all(&directory)?;
        }
        File::create(directory.join(number.to_string()))?.write_all(&bytes)?;
    }
    Ok(())
}

/// The files of a volume that grows old, and what they hold.
struct Aging<'a> {
    setting: &'a Setting,
    random: Random,
    bytes: Vec<u8>,
    files: Vec<(PathBuf, u64)>,
    made: u64,
    held: u64,
}

impl Aging<'_> {
    /// One more file, in pieces, so that several grow at a time in what is free; `false` where there is no room.
    fn grow(&mut self) -> io::Result<bool> {
        let length = (self.random.gamma(AGED_FILE_BYTES) as u64).clamp(1, self.bytes.len() as u64);
        let directory = self.setting.directory.join((self.made % 64).to_string());
        let path = directory.join(self.made.to_string());
        fs::create_dir_all(&directory)?;
        self.made += 1;
        let written = File::create(&path).and_then(|mut file| file.write_all(&self.bytes[..length as usize]));
        match written {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                super::remove(&path)?;
                Ok(false)
            }
            other => {
                other?;
                // With a block of its own, for its log.
                let held = length.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
                self.held += held;
                self.files.push((path, held));
                Ok(true)
            }
        }
    }

    fn shrink(&mut self) -> io::Result<()> {
        let at = self.random.below(self.files.len() as u64) as usize;
        let (path, held) = self.files.swap_remove(at);
        self.held -= held;
        fs::remove_file(path)
    }
}

fn age(setting: &Setting) -> io::Result<()> {
    let bytes = vec![2; 1 << 20];
    let mut aging = Aging { setting, random: Random::new(3), bytes, files: Vec::new(), made: 0, held: 0 };
    while aging.held < setting.span_bytes && aging.grow()? {}
    let filled = aging.made;
    while aging.made < 2 * filled {
        // A few at a time, so that what is freed is not what is allocated next.
        for _ in 0..8.min(aging.files.len()) {
            aging.shrink()?;
        }
        while aging.held < setting.span_bytes && aging.grow()? {}
    }
    Ok(())
}
