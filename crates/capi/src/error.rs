//! The last error of each thread, and the sentence that explains it.
//!
//! An error is noted in a few words when it happens, as failed lookups are common; the sentence is made when asked for.

use gannet_vfs::{Errno, Error};
use std::cell::RefCell;
use std::ffi::{CString, c_char};

/// Bytes of a path that are kept for the sentence.
const PATH_BYTES_KEPT: usize = 256;

/// What a call was about.
#[derive(Clone, Copy, PartialEq)]
enum Subject {
    Nothing,
    Descriptor(i32),
    /// The bytes kept, and whether that is all.
    Path(usize, bool),
}

struct Last {
    call: &'static str,
    error: Option<Error>,
    subject: Subject,
    /// Of the error about to be noted.
    next: Subject,
    path: [u8; PATH_BYTES_KEPT],
    /// The whole sentence, where the error came with one.
    told: Option<String>,
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const {
        RefCell::new(Last {
            call: "",
            error: None,
            subject: Subject::Nothing,
            next: Subject::Nothing,
            path: [0; PATH_BYTES_KEPT],
            told: None,
            text: None,
        })
    };
}

fn with_last(work: impl FnOnce(&mut Last)) {
    // While a thread ends there is nobody left to ask.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            work(&mut last);
        }
    });
}

/// Says which descriptor the error about to be returned is about.
#[cold]
pub(crate) fn about_descriptor(descriptor: i32) {
    with_last(|last| last.next = Subject::Descriptor(descriptor));
}

/// Says which path the error about to be returned is about.
#[cold]
pub(crate) fn about_path(path: &[u8]) {
    with_last(|last| {
        let count = path.len().min(PATH_BYTES_KEPT);
        last.path[..count].copy_from_slice(&path[..count]);
        last.next = Subject::Path(count, count == path.len());
    });
}

/// Notes that `call` fails; returns what it returns.
#[cold]
pub(crate) fn note(call: &'static str, error: Error) -> i64 {
    with_last(|last| {
        last.call = call;
        last.error = Some(error);
        last.subject = std::mem::replace(&mut last.next, Subject::Nothing);
        last.told = None;
    });
    -i64::from(error.errno().raw_os_error())
}

/// Notes that `call` fails, with the whole sentence.
#[cold]
pub(crate) fn note_told(call: &'static str, errno: Errno, told: String) -> i64 {
    let result = note(call, Error::new(errno));
    with_last(|last| last.told = Some(told));
    result
}

/// The sentence of the calling thread's last error, kept until its next call of this.
pub(crate) fn text() -> *const c_char {
    let mut pointer = c"".as_ptr();
    with_last(|last| {
        let Some(error) = last.error else { return };
        let mut text = format!("{}: ", last.call);
        match (&last.told, last.subject) {
            (Some(told), _) => text += told,
            (None, subject) => {
                match subject {
                    Subject::Nothing => {}
                    Subject::Descriptor(descriptor) => text += &format!("descriptor {descriptor}: "),
                    Subject::Path(count, whole) => {
                        let more = if whole { "" } else { "…" };
                        text += &format!("'{}{more}': ", last.path[..count].escape_ascii());
                    }
                }
                text += &error.to_string();
                if let Some(hint) = hint(last.call, &error) {
                    text = format!("{text}; {hint}");
                }
            }
        }
        text.retain(|character| character != '\0');
        pointer = last.text.insert(CString::new(text).unwrap_or_default()).as_ptr();
    });
    pointer
}

/// What can be done about it.
fn hint(call: &str, error: &Error) -> Option<&'static str> {
    Some(match error.errno() {
        Errno::NOSPC => "remove files or make a larger volume",
        Errno::ROFS => "the volume is attached read-only: attach it without GANNET_ATTACH_READ_ONLY",
        Errno::UCLEAN if call == "gannet_detach" => "run `gannet fsck`",
        Errno::UCLEAN => "the volume is damaged here: detach it and run `gannet fsck`",
        Errno::STALE => "the file was removed: open it again",
        // Memory is short for other reasons, too, which that would not help.
        Errno::NOMEM if error.what().ends_with("index node") => {
            "attach with a larger index_bytes_max, or with fewer processes"
        }
        Errno::NOMEM if error.what().starts_with("thread") => {
            "end some: 4096 of all processes can use a volume at once"
        }
        Errno::NFILE => "close descriptors in the processes that have the volume open",
        Errno::MFILE => "close descriptors of this handle",
        Errno::NOLCK => "release record locks in the processes that have the volume open",
        Errno::ACCESS if error.what().is_empty() => {
            "the permission bits do not allow it to the user set for this handle"
        }
        _ => return None,
    })
}
