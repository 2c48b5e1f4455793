//! Who goes on while others are killed: small operations one after another, in a directory that all use. How long the longest
//! took, and how much of that is not the machine's doing, which has no processor to give: to this thread, to one that is to
//! die and holds a lock until it has run once more, or to one that lives and holds a lock.

use crate::operations::bytes;
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_shm::SLEEP_MAX;
use gannet_vfs::{NodeId, RenameFlags, WritePosition};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What nobody who is killed may make others wait.
pub(crate) const PROMISED: Duration = Duration::from_millis(10);

/// How long the longest operation took, in four ways.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// Of the processor: what it does itself, taking over from the dead included, and spinning.
    pub(crate) processor: Duration,
    /// That, and the time in which it may have slept on though it could have gone on: what Gannet takes, whatever the machine does. Late
    /// wakes of all threads of the volume are counted as its own.
    pub(crate) ours: Duration,
    /// Without the time in which the thread could have run and had no processor.
    pub(crate) net: Duration,
    /// By the clock.
    pub(crate) wall: Duration,
}

impl Stall {
    /// The longer of each.
    pub(crate) fn max(self, other: Stall) -> Stall {
        Stall {
            processor: self.processor.max(other.processor),
            ours: self.ours.max(other.ours),
            net: self.net.max(other.net),
            wall: self.wall.max(other.wall),
        }
    }
}

/// What the bystander has seen since it was asked last.
#[derive(Default)]
pub(crate) struct Bystander {
    stop: AtomicBool,
    processor_ns: AtomicU64,
    ours_ns: AtomicU64,
    net_ns: AtomicU64,
    wall_ns: AtomicU64,
    operations: AtomicU64,
}

impl Bystander {
    /// The longest operation that ended since this was asked last.
    pub(crate) fn take(&self) -> Stall {
        let words = [&self.processor_ns, &self.ours_ns, &self.net_ns, &self.wall_ns];
        let [processor, ours, net, wall] = words.map(|word| Duration::from_nanos(word.swap(0, Ordering::Relaxed)));
        Stall { processor, ours, net, wall }
    }

    /// How many operations it has done.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    fn work(&self, fs: &LogFs, directory: NodeId) {
        let rig = Rig::new(fs);
        let waited = Waited::of_this_thread();
        let late_wakes = || fs.session().lock_counters().late_wakes;
        let measured = |operation: &dyn Fn()| {
            let late = late_wakes();
            let (before, used, began) = (waited.get(), processor_time(), Instant::now());
            operation();
            let (wall, processor) = (began.elapsed(), processor_time() - used);
            let net = wall.saturating_sub(waited.get() - before);
            let ours = processor + SLEEP_MAX * (late_wakes() - late) as u32;
            self.ours_ns.fetch_max(ours.as_nanos() as u64, Ordering::Relaxed);
            self.wall_ns.fetch_max(wall.as_nanos() as u64, Ordering::Relaxed);
            self.net_ns.fetch_max(net.as_nanos() as u64, Ordering::Relaxed);
            self.processor_ns.fetch_max(processor.as_nanos() as u64, Ordering::Relaxed);
            self.operations.fetch_add(1, Ordering::Relaxed);
        };
        while !self.stop.load(Ordering::Relaxed) {
            measured(&|| {
                rig.file(directory, "bystander");
            });
            let node = rig.find(directory, "bystander").expect("what was just made");
            measured(&|| {
                rig.try_write(node, WritePosition::Append, &bytes(1, 700)).expect("a write");
            });
            measured(&|| {
                let names = ((directory, "bystander"), (directory, "bystander's"));
                rig.rename_with(names.0, names.1, RenameFlags::empty()).expect("a rename");
            });
            measured(&|| {
                rig.unlink(directory, "bystander's").expect("a removal");
            });
            // Processors are for those who are killed, too.
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Does `work` with somebody beside it who uses `directory` all the time.
pub(crate) fn beside<R>(fs: &LogFs, directory: NodeId, work: impl FnOnce(&Bystander) -> R) -> R {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let bystander = Bystander::default();
    thread::scope(|scope| {
        scope.spawn(|| bystander.work(fs, directory));
        let _stop = Stop(&bystander.stop);
        work(&bystander)
    })
}

/// How long this thread has run.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long a thread has waited for a processor, as the kernel counts it.
struct Waited(Option<File>);

impl Waited {
    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    fn get(&self) -> Duration {
        let mut text = [0; 96];
        let length = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = core::str::from_utf8(&text[..length]).unwrap_or_default();
        Duration::from_nanos(text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0))
    }
}
