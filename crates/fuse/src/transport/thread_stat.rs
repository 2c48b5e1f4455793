//! What `/proc` says of a thread (`proc_pid_stat(5)`).
//!
//! May touch: nothing; reads `/proc`.

use rustix::fs::{Mode, OFlags};

/// The state of a thread.
const STATE: usize = 3;
/// The core that it ran on last.
const PROCESSOR: usize = 39;

/// The core that a thread ran on last.
pub(super) fn core_of(thread: u32) -> Option<usize> {
    if thread == 0 {
        return None;
    }
    with_field(&format!("/proc/{thread}/task/{thread}/stat"), PROCESSOR, |field| field.parse().ok())
}

/// Whether a thread of this process runs, or waits for nothing but a core.
pub(super) fn is_runnable(thread: u32) -> bool {
    with_field(&format!("/proc/self/task/{thread}/stat"), STATE, |field| Some(field == "R")) == Some(true)
}

fn with_field<T>(path: &str, number: usize, of: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 1024];
    let count = rustix::io::read(&file, &mut bytes).ok()?;
    field_in(&bytes[..count], number).and_then(of)
}

/// A field by its number in the manual; the second is the thread's name, in parentheses, which may hold anything.
fn field_in(stat: &[u8], number: usize) -> Option<&str> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(number - STATE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;

    #[test]
    fn fields_are_found_behind_any_name() {
        let mut fields = vec!["0"; 50];
        fields[0] = "S";
        fields[36] = "7";
        let stat = format!("12 (a) b 1 2) {}", fields.join(" "));
        assert_eq!(field_in(stat.as_bytes(), PROCESSOR), Some("7"));
        assert_eq!(field_in(stat.as_bytes(), STATE), Some("S"));
        assert_eq!(field_in(b"12 (a) S 1", PROCESSOR), None);
        assert_eq!(field_in(b"", STATE), None);
    }

    #[test]
    fn a_thread_is_seen() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(core_of(own).is_some_and(|core| core < CpuSet::MAX_CPU));
        assert_eq!(core_of(0), None);
        assert!(is_runnable(own));
        let (tell, told) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = released.recv();
        });
        let thread = told.recv().unwrap();
        while is_runnable(thread) {
            std::thread::yield_now();
        }
        drop(release);
        sleeper.join().unwrap();
        assert!(!is_runnable(thread));
    }
}
