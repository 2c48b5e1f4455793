//! `kcmp` of descriptors: to the kernel all of ours are one open file.

use super::call::{Answer, Call, done};
use crate::dispatch::Outcome;
use crate::raw::syscall6;

/// `kcmp`. What another process has under a number is taken to be what this one has there: it is a relative, if the kernel finds them alike.
pub(crate) fn compare(call: &Call<'_>) -> Answer {
    const KCMP_FILE: usize = 0;
    let [_, _, what, first, second, _] = call.arguments;
    if what as u32 as usize != KCMP_FILE {
        return Ok(Outcome::Pass);
    }
    let (Some(first), Some(second)) = (call.open_file(first), call.open_file(second)) else { return Ok(Outcome::Pass) };
    // SAFETY: the program's call.
    let result = unsafe { syscall6(call.number, call.arguments) };
    if result != 0 {
        return Ok(Outcome::Done(result));
    }
    // In the kernel's way: alike, less, greater.
    let order = first.description.word().cmp(&second.description.word());
    done(match order {
        core::cmp::Ordering::Equal => 0,
        core::cmp::Ordering::Less => 1,
        core::cmp::Ordering::Greater => 2,
    })
}
