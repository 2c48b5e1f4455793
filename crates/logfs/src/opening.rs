//! The media of a volume, opened, and why one cannot be: before anybody takes part in it.

use crate::disk::Disk;
use crate::ops::shared_error;
use crate::span::{self, Demand};
use gannet_media::Medium;
use gannet_vfs::{Errno, Error};
use std::path::Path;

/// Why a volume could not be opened: an error of the file system, or of its medium.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The medium.
    #[error(transparent)]
    Medium(#[from] gannet_media::OpenError),
    /// One of the media behind the first, of a volume that spans several.
    #[error("{volume}: its medium {number} of {media}, {path}, {problem}")]
    Member {
        /// The volume: the first medium.
        volume: String,
        /// Which medium of the volume it is; the first is 1.
        number: usize,
        /// How many the volume has.
        media: usize,
        /// Where it should be.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What is on it, or the state shared with others.
    #[error("{path}: {error}")]
    Volume {
        /// The volume.
        path: String,
        /// What is wrong.
        error: Error,
    },
    /// The state shared with others, with its own words.
    #[error("{path}: {error}")]
    Shared {
        /// The volume.
        path: String,
        /// What is wrong.
        error: gannet_shm::Error,
    },
}

impl OpenError {
    /// The errno that fits best.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Medium(gannet_media::OpenError::System { source, .. }) => {
                source.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
            }
            Self::Medium(gannet_media::OpenError::Forbidden { .. }) => Errno::ACCESS,
            Self::Medium(gannet_media::OpenError::NotThere { .. } | gannet_media::OpenError::LeadsNowhere { .. }) => {
                Errno::NOENT
            }
            Self::Medium(gannet_media::OpenError::NoHugePages { .. }) => Errno::NOMEM,
            Self::Medium(gannet_media::OpenError::NoSpace { .. }) => Errno::NOSPC,
            Self::Medium(gannet_media::OpenError::Exists { .. }) => Errno::EXIST,
            Self::Medium(_) => Errno::INVAL,
            Self::Member { .. } => Errno::NXIO,
            Self::Volume { error, .. } => error.errno(),
            Self::Shared { error, .. } => shared_error(error.clone()).errno(),
        }
    }
}

/// Opens the medium at `path`, or all that the volume there spans as one, in the mode that the volume asks for.
pub fn open_medium(path: &Path, read_only: bool) -> std::result::Result<Medium, OpenError> {
    open_whole(path, read_only, Demand::Sound)
}

/// As [`open_medium`], but of several media it is only asked that they are the volume's: for `check`, which says what else is
/// wrong with them.
pub fn open_medium_to_check(path: &Path, read_only: bool) -> std::result::Result<Medium, OpenError> {
    open_whole(path, read_only, Demand::Ours)
}

fn open_whole(path: &Path, read_only: bool, demand: Demand) -> std::result::Result<Medium, OpenError> {
    let (medium, superblock) = span::open(path, read_only, demand)?;
    let disk = superblock.and_then(|superblock| Disk::with_superblock(medium.clone(), superblock));
    Ok(disk.map_or(medium, |disk| disk.in_its_mode().medium().clone()))
}
