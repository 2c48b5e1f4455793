//! Whether cores of the machine are idle (`proc_stat(5)`).
//!
//! May touch: nothing; reads `/proc/stat`.

use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// The shortest time that is judged. The kernel tells hundredths of a second.
const WINDOW: Duration = Duration::from_millis(100);

/// The times of all cores since the machine booted, in hundredths of a second.
#[derive(Clone, Copy)]
struct Times {
    all: u64,
    /// Of these, with nothing to run: also while somebody waited for a device, as which `/dev/fuse` counts.
    idle: u64,
}

/// The time that the machine's cores were idle since it was looked at last.
pub(super) struct IdleCores {
    cores: u64,
    looked: Instant,
    before: Option<Times>,
    some: bool,
}

impl IdleCores {
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Self { cores, looked: Instant::now(), before: read(), some: false }
    }

    /// As if the machine had them at all times, or had none.
    #[cfg(test)]
    pub(super) fn always() -> Self {
        Self { cores: 1, looked: Instant::now() + 1000 * WINDOW, before: None, some: true }
    }

    #[cfg(test)]
    pub(super) fn never() -> Self {
        Self { some: false, ..Self::always() }
    }

    /// Looks, if there is a window to judge. This may take a large machine some tenths of a millisecond.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < WINDOW {
            return;
        }
        self.looked = now;
        let before = std::mem::replace(&mut self.before, read());
        if let (Some(before), Some(now)) = (before, self.before) {
            self.some = self.idle(before, now);
        }
    }

    /// Whether, in the last window, at least half a core, and one of eight, was idle.
    pub(super) fn some(&self) -> bool {
        self.some
    }

    fn idle(&self, before: Times, now: Times) -> bool {
        let (all, idle) = (now.all.saturating_sub(before.all), now.idle.saturating_sub(before.idle));
        idle > 0 && idle * 2 * self.cores >= all && idle * 8 >= all
    }
}

fn read() -> Option<Times> {
    let file = rustix::fs::open("/proc/stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 256];
    let count = rustix::io::read(&file, &mut bytes).ok()?;
    parse(&bytes[..count])
}

/// The first line: `cpu`, then user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user and nice already.
fn parse(stat: &[u8]) -> Option<Times> {
    let line = std::str::from_utf8(stat.split(|&byte| byte == b'\n').next()?).ok()?;
    let times = line.strip_prefix("cpu ")?.split_ascii_whitespace().take(8).map(str::parse);
    let times: Vec<u64> = times.collect::<Result<_, _>>().ok()?;
    (times.len() == 8).then(|| Times { all: times.iter().sum(), idle: times[3] + times[4] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let times = parse(b"cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2").unwrap();
        assert_eq!((times.all, times.idle), (360, 90));
        for wrong in [&b""[..], b"cpu  1 2 3\n", b"cpu0 1 2 3 4 5 6 7 8\n", b"cpu  a 2 3 4 5 6 7 8\n"] {
            assert!(parse(wrong).is_none());
        }
        assert!(read().is_some_and(|times| times.idle < times.all));
    }

    #[test]
    fn cores_are_idle_by_the_time_that_passed() {
        let times = |all, idle| Times { all, idle };
        let cores = |cores| IdleCores { cores, looked: Instant::now(), before: None, some: false };
        // One of eight.
        assert!(cores(8).idle(times(1000, 500), times(1080, 510)));
        assert!(!cores(8).idle(times(1000, 500), times(1080, 509)));
        // Half of one, where there are two.
        assert!(cores(2).idle(times(1000, 500), times(1200, 550)));
        assert!(!cores(2).idle(times(1000, 500), times(1200, 549)));
        assert!(!cores(2).idle(times(1000, 500), times(1000, 500)));
    }

    #[test]
    fn it_is_looked_once_a_window() {
        let mut cores = IdleCores::new();
        let looked = cores.looked;
        cores.look();
        assert_eq!(cores.looked, looked);
        std::thread::sleep(WINDOW);
        cores.look();
        assert!(cores.looked > looked && cores.before.is_some());
    }
}
