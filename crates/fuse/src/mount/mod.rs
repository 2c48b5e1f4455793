//! The life of a mount: from an empty directory to a mounted one, and back.
//!
//! As root by mount(2) ([`kernel`]), otherwise by the set-user-id helper `fusermount3` ([`helper`]). Touches the mount
//! table and nothing of the file system; relies on `transport` for everything behind the descriptor of `/dev/fuse`.

mod helper;
mod kernel;
mod options;
mod place;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gannet_vfs::FileSystem;
use gannet_vfs::shared::CachingTerms;
use rustix::io::Errno;

use crate::dispatch::{CachePolicy, Dispatcher, Policy};
use crate::transport::{Session, StartError, Transport, check_places, enable_ring};
pub use options::MountOptions;
use place::Place;

/// How long whoever opens a volume waits for a mount to stop caching, unless an option says otherwise. No shorter than what the
/// kernel remembers may last.
const CACHE_DEADLINE: Duration = Duration::from_secs(2);

/// Why a mount failed: one line, with what to do about it where we know.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MountError {
    #[error("{}: there is no such directory to mount on", .0.display())]
    NoTarget(PathBuf),
    #[error("{}: cannot mount on something that is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{target}: {1}", target = .0.display())]
    Target(PathBuf, Errno),
    #[error("there is no /dev/fuse here: load the kernel module (modprobe fuse), or give the device to the container")]
    NoDevice,
    #[error("no permission to open /dev/fuse")]
    DevicePermission,
    #[error("/dev/fuse: {0}")]
    Device(Errno),
    #[error("{}: no permission to mount here", .0.display())]
    Permission(PathBuf),
    #[error("only root may mount without fusermount3, which is not installed (package fuse3)")]
    NoHelper,
    #[error("fusermount3: {0}")]
    Helper(String),
    #[error("{target}: mounting failed: {1}", target = .0.display())]
    Mount(PathBuf, Errno),
    #[error("others have the volume open: cache=exclusive and cache=writeback need it alone")]
    NotAlone,
    #[error("{0}")]
    Session(String),
    #[error("{target}: {1}", target = .0.display())]
    Unmount(PathBuf, Errno),
    #[error("{}: something else is mounted over it", .0.display())]
    Hidden(PathBuf),
    #[error("{0}; {target} stays mounted and dead: fusermount3 -u {target}", target = .1.display())]
    LeftBehind(String, PathBuf),
}

impl From<StartError> for MountError {
    fn from(error: StartError) -> Self {
        Self::Session(error.to_string())
    }
}

/// A mounted file system. Dropping it unmounts, lazily if programs still use it.
pub struct Mounted {
    place: Place,
    session: Mutex<Option<Session>>,
    /// The session ended, but not all of its requests.
    worked_on: AtomicBool,
    transport: Transport,
    dispatcher: Arc<Dispatcher>,
    notices: Vec<String>,
}

/// Mounts `file_system` on the directory `target` and serves it from threads of this process. When this returns, the mount
/// answers. The process must not fork afterwards without exec.
///
/// # Errors
/// See [`MountError`]; nothing stays mounted, but for [`MountError::LeftBehind`].
pub fn serve(file_system: Arc<dyn FileSystem>, target: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let mut notices = Vec::new();
    let target = prepare_target(target, &mut notices)?;
    let kind = file_system.kind();
    // Reads that the page cache answers move no time.
    let strict = options.strict_access_time && options.cache == CachePolicy::Automatic;
    let cache = if strict { CachePolicy::Coherent } else { options.cache };
    let claim = Claim::make(&file_system, cache)?;
    if options.enable_ring && options.transport != Transport::Classic {
        match (enable_ring(), options.transport) {
            (Ok(()), _) => {}
            (Err(why), Transport::Ring) => return Err(StartError::NoRing(why).into()),
            (Err(why), _) => notices.push(StartError::NoRing(why).to_string()),
        }
    }
    let threads = options.threads.unwrap_or_else(default_threads);
    let (device, by_helper) = match kernel::mount(&target, kind, options) {
        Err(MountError::Permission(_) | MountError::DevicePermission) if !rustix::process::geteuid().is_root() => {
            // What cannot be served could perhaps not be unmounted.
            check_places(options.transport, threads)?;
            (helper::mount(&target, kind, options)?, true)
        }
        outcome => (outcome?, false),
    };
    let place = Place::new(target, by_helper);
    let policy = Policy {
        cache,
        user: options.user,
        group: options.group,
        local_locks: options.local_locks,
        umask: options.umask,
        no_directory_access_time: options.no_directory_access_time,
        strict_access_time: options.strict_access_time,
        cache_deadline: options.cache_deadline.unwrap_or(CACHE_DEADLINE),
    };
    let dispatcher = Arc::new(Dispatcher::new(Arc::clone(&file_system), policy));
    let session = match start(device, &dispatcher, options.transport, threads) {
        Ok(session) => session,
        Err(error) => {
            return Err(undo(&place, error));
        }
    };
    let transport = session.transport();
    claim.keep();
    let (session, worked_on) = (Mutex::new(Some(session)), AtomicBool::new(false));
    Ok(Mounted { place, session, worked_on, transport, dispatcher, notices })
}

/// Unmounts what could not be served: what failed for want of a process may leave none for the helper that unmounts, either, until the
/// threads that did start have ended.
fn undo(place: &Place, error: StartError) -> MountError {
    let _ = place.abort();
    let began = Instant::now();
    while place.unmount(true).is_err() {
        if began.elapsed() > UNDO_PATIENCE {
            return MountError::LeftBehind(error.to_string(), place.target().into());
        }
        std::thread::sleep(UNDO_PAUSE);
    }
    error.into()
}

const UNDO_PATIENCE: Duration = Duration::from_secs(2);
const UNDO_PAUSE: Duration = Duration::from_millis(20);

/// How long others who have the volume open are waited for: the server of a mount closes it when `umount` has returned, and what it
/// had not written back yet is written.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
const CLAIM_PAUSE: Duration = Duration::from_millis(2);

/// The claim of an exclusive mount to be alone, until the session has it.
struct Claim(Option<Arc<dyn FileSystem>>);

impl Claim {
    fn make(file_system: &Arc<dyn FileSystem>, cache: CachePolicy) -> Result<Self, MountError> {
        if !matches!(cache, CachePolicy::Exclusive { .. }) {
            return Ok(Self(None));
        }
        let began = Instant::now();
        loop {
            match file_system.shared().claim_caching(CachingTerms::Firm) {
                Ok(true) => return Ok(Self(Some(Arc::clone(file_system)))),
                Ok(false) if began.elapsed() < CLAIM_PATIENCE => std::thread::sleep(CLAIM_PAUSE),
                Ok(false) => return Err(MountError::NotAlone),
                Err(error) => return Err(MountError::Session(error.to_string())),
            }
        }
    }

    /// The session gives it up at its end.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(file_system) = &self.0 {
            file_system.shared().give_up_caching();
        }
    }
}

fn start(
    device: OwnedFd,
    dispatcher: &Arc<Dispatcher>,
    transport: Transport,
    threads: usize,
) -> Result<Session, StartError> {
    Session::start(device, Arc::clone(dispatcher), transport, threads)
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 16))
}

/// Checks the directory, and clears away what is left of a mount whose server died.
fn prepare_target(target: &Path, notices: &mut Vec<String>) -> Result<PathBuf, MountError> {
    for _ in 0..100 {
        let metadata = match rustix::fs::stat(target) {
            Ok(metadata) => metadata,
            Err(Errno::NOTCONN | Errno::CONNABORTED) => {
                match rustix::process::geteuid().is_root() {
                    true => kernel::unmount(target, true)?,
                    false => helper::unmount(target, true)?,
                }
                notices.push(format!("{}: the server of an earlier mount is dead; it was unmounted", target.display()));
                continue;
            }
            // The server was killed a moment ago, and its ring is being taken down.
            Err(Errno::CANCELED | Errno::INTR) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Err(Errno::NOENT) => return Err(MountError::NoTarget(target.into())),
            Err(errno) => return Err(MountError::Target(target.into(), errno)),
        };
        if rustix::fs::FileType::from_raw_mode(metadata.st_mode) != rustix::fs::FileType::Directory {
            return Err(MountError::NotADirectory(target.into()));
        }
        return target
            .canonicalize()
            .map_err(|error| MountError::Target(target.into(), Errno::from_io_error(&error).unwrap_or(Errno::IO)));
    }
    Err(MountError::Target(target.into(), Errno::NOTCONN))
}

impl Mounted {
    /// Where it was mounted: an absolute path.
    pub fn target(&self) -> &Path {
        self.place.target()
    }

    /// Which way requests take.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// What happened on the way that the user may want to know, a line each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// How many inodes, besides the root, the kernel holds references to at the moment.
    pub fn nodes_held(&self) -> usize {
        self.dispatcher.nodes_held()
    }

    /// Waits until it is unmounted, by whomever, and nobody serves it any more.
    ///
    /// False if a request that the mount's end overtook still works on the file system, ten seconds later: that must not be left or closed
    /// then. A process that ends says nothing wrong.
    pub fn wait(&self) -> bool {
        // Held meanwhile: whoever else waits may close the volume then.
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = session.take()
            && !session.join()
        {
            self.worked_on.store(true, Ordering::Relaxed);
        }
        !self.worked_on.load(Ordering::Relaxed)
    }

    /// Unmounts, wherever it was moved, and waits for the end of the session, as `wait` does. `EBUSY` if programs use it, and nothing happens
    /// then.
    ///
    /// # Errors
    /// [`MountError::Unmount`], [`MountError::Helper`], [`MountError::Hidden`].
    pub fn unmount(&self) -> Result<(), MountError> {
        self.place.unmount(false)?;
        self.wait();
        Ok(())
    }

    /// Takes it out of the tree now; it ends when the last program lets go, which this does not wait for.
    ///
    /// # Errors
    /// [`MountError::Unmount`], [`MountError::Helper`], [`MountError::Hidden`].
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        self.place.unmount(true)
    }

    /// Ends it where it cannot be unmounted: every call through it fails from now on, as if the server had been killed.
    ///
    /// # Errors
    /// [`MountError::Unmount`] where the kernel's list of connections (`/sys/fs/fuse/connections`) is not mounted.
    pub fn abort(&self) -> Result<(), MountError> {
        self.place.abort()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let serving = self.session.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if serving && self.place.unmount(false).is_err() {
            let _ = self.place.unmount(true);
        }
    }
}
