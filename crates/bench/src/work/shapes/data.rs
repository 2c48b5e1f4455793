//! Reads and writes. Each worker has a file of its own, its share of the span.

use super::random::Random;
use super::{Job, Member, Setting, Shape, fill, remove};
use gannet_vfs::usermem::MappedFile;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

/// Appended to a file before it begins anew.
const APPENDED_BYTES_MAX: u64 = 32 << 20;
const APPENDS_MAX: u64 = 16384;
/// Pages touched before they are mapped anew.
const MAPPED_PAGES: u64 = 1024;

#[derive(Clone, Copy)]
enum Data {
    WriteRandom,
    WriteSequential,
    ReadRandom,
    ReadSequential,
    /// An append and an fdatasync.
    AppendSync,
    /// An fsync of a file that nobody has written to.
    Fsync,
    /// The first store to a page of a shared map.
    MmapFault,
}

pub(super) fn find(name: &str) -> Option<Box<dyn Shape>> {
    Some(Box::new(match name {
        "write random" => Data::WriteRandom,
        "write sequential" => Data::WriteSequential,
        "read random" => Data::ReadRandom,
        "read sequential" => Data::ReadSequential,
        "append and fsync" => Data::AppendSync,
        "fsync" => Data::Fsync,
        "mmap fault" => Data::MmapFault,
        _ => return None,
    }))
}

impl Data {
    fn path(setting: &Setting, index: u32) -> PathBuf {
        setting.directory.join(format!("file{index}"))
    }

    fn share(setting: &Setting) -> u64 {
        (setting.span_bytes / u64::from(setting.workers)).max(setting.size_bytes)
    }

    fn open(setting: &Setting, index: u32) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(Self::path(setting, index))
    }
}

impl Shape for Data {
    fn place(&self, job: &Job) -> String {
        match self {
            Self::AppendSync => "append".into(),
            _ => format!("data-{}-{}", job.span_bytes, job.workers),
        }
    }

    fn prepare(&self, setting: &Setting) -> io::Result<()> {
        if matches!(self, Self::AppendSync) {
            return Ok(());
        }
        (0..setting.workers).try_for_each(|index| {
            // Durable, so that nobody writes it back while others are measured.
            fill(&Self::path(setting, index), Self::share(setting))?.sync_all()
        })
    }

    fn member<'a>(&'a self, setting: &'a Setting, index: u32) -> io::Result<Member<'a>> {
        let size = setting.size_bytes;
        let pieces = (Self::share(setting) / size).max(1);
        let mut bytes = vec![3_u8; size as usize];
        let mut random = Random::new(u64::from(index) + 1);
        Ok(match self {
            Self::WriteRandom => {
                let file = Self::open(setting, index)?;
                Member::new(move |_| file.write_all_at(&bytes, random.below(pieces) * size))
            }
            Self::WriteSequential => {
                let file = Self::open(setting, index)?;
                Member::new(move |call| file.write_all_at(&bytes, call % pieces * size)).series(pieces, |_| Ok(()))
            }
            Self::ReadRandom => {
                let file = Self::open(setting, index)?;
                Member::new(move |_| file.read_exact_at(&mut bytes, random.below(pieces) * size))
            }
            Self::ReadSequential => {
                let file = Self::open(setting, index)?;
                Member::new(move |call| file.read_exact_at(&mut bytes, call % pieces * size)).series(pieces, |_| Ok(()))
            }
            Self::AppendSync => {
                let path = setting.directory.join(format!("log-{size}-{index}"));
                remove(&path)?;
                let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
                let again = file.try_clone()?;
                let series = (APPENDED_BYTES_MAX.min(setting.span_bytes) / size).clamp(1, APPENDS_MAX);
                let append = move |_| {
                    file.write_all(&bytes)?;
                    file.sync_data()
                };
                Member::new(append).series(series, move |_| again.set_len(0))
            }
            Self::Fsync => {
                let file = Self::open(setting, index)?;
                Member::new(move |_| file.sync_all())
            }
            Self::MmapFault => {
                let file = Self::open(setting, index)?;
                let length = (pieces.min(MAPPED_PAGES) * size) as usize;
                // The map belongs to the calls and to what renews it.
                let map = Rc::new(RefCell::new(None));
                let again = Rc::clone(&map);
                let touch = move |at| {
                    let map: std::cell::Ref<'_, Option<MappedFile>> = map.borrow();
                    map.as_ref().map(|map| map.store((at * size) as usize, 1)).ok_or(io::ErrorKind::Other.into())
                };
                Member::new(touch).series(pieces.min(MAPPED_PAGES), move |_| {
                    // Unmapped before it is mapped anew.
                    *again.borrow_mut() = None;
                    *again.borrow_mut() = Some(MappedFile::new(&file, length)?);
                    Ok(())
                })
            }
        })
    }
}
