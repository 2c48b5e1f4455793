//! Locks of the process's memory. Who holds one may be a `vfork` child, which can be killed alone: what it held is then whoever's wants it.
//!
//! A child says that it lives in a word of [`LIVES`] which the kernel clears when the child ends or executes another program
//! (`set_tid_address`), so that other threads see it at once, whatever its parent does. A lock names the word of the child that has it.
//!
//! What a lock protects must be whole after every store of a child's. [`Guarded`] sees to that by giving a child a copy, which takes the
//! place of what was there in one store; what is under a [`Lock`] alone sees to it itself:
//!
//! | what | why a child may be killed in it |
//! | --- | --- |
//! | actions of signals | a child only reads them, without the lock |
//! | the allocator | its lists change in one store each, and are too short in between, never too long |
//! | opening a volume | it is published in one store |
//! | places of maps | see [`regions`](crate::front::maps) |
//!
//! Locks that children do not take are words of their own ([`crate::front::changes`], the turn of `execve`).

use crate::entry;
use crate::number::{GETTID, SCHED_YIELD, SET_TID_ADDRESS};
use crate::raw::syscall;
use crate::thread::Record;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Children that share the memory at a time and are known to live; more hold locks as the process does.
const LIVES_MAX: usize = 64;
/// Thread ids of children that live; 0: none, or no more.
static LIVES: [AtomicI32; LIVES_MAX] = [const { AtomicI32::new(0) }; LIVES_MAX];
/// Where the next one is looked for, so that a word is not used again soon.
static NEXT: AtomicUsize = AtomicUsize::new(0);

const FREE: u32 = 0;
/// Held by a thread of the process. One more, and the index of its life word: by a child.
const HELD: u32 = 1;

/// Whether who holds a lock with this word is a child that is gone.
fn is_gone(word: u32) -> bool {
    let index = (word as usize).wrapping_sub(HELD as usize + 1);
    LIVES.get(index).is_some_and(|life| life.load(Ordering::Acquire) == 0)
}

/// A lock of the process's memory, never held for long.
#[derive(Debug)]
pub struct Lock(AtomicU32);

impl Lock {
    /// A free one.
    #[allow(clippy::new_without_default, reason = "locks are static")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Takes it. True if it was held by a child that was killed. Not inside of itself.
    #[inline]
    pub fn take(&self) -> bool {
        // SAFETY: the thread's own block.
        let own = HELD + u32::from(unsafe { (*entry::thread_state()).child });
        self.0.compare_exchange(FREE, own, Ordering::Acquire, Ordering::Relaxed).is_err() && self.wait(own)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self, own: u32) -> bool {
        const TURNS_AT_ONCE: u32 = 64;
        for turn in 1u32.. {
            match self.0.compare_exchange(FREE, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return false,
                // By a child that had our life word before, or on this thread: nobody takes a lock twice.
                Err(found) if is_gone(found) || found == own && own != HELD => {
                    if self.0.compare_exchange(found, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        return true;
                    }
                }
                Err(_) => core::hint::spin_loop(),
            }
            if turn.is_multiple_of(TURNS_AT_ONCE) {
                // SAFETY: gives the processor away.
                unsafe { syscall(SCHED_YIELD, []) };
            }
        }
        false
    }

    /// Lets it go.
    #[inline]
    pub fn release(&self) {
        self.0.store(FREE, Ordering::Release);
    }

    /// Takes it, works, lets it go.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        self.take();
        let result = work();
        self.release();
        result
    }

    /// Takes it so that a forked child finds it free and what it protects whole, or releases it.
    #[inline]
    pub fn around_fork(&self, before: bool) {
        if before {
            self.take();
        } else {
            self.release();
        }
    }
}

/// What is used under a lock, and stays whole if a child is killed that uses it.
pub(crate) struct Guarded<T> {
    lock: Lock,
    /// Null: as a new one.
    value: AtomicPtr<T>,
}

impl<T: Clone + Default> Guarded<T> {
    pub(crate) const fn new() -> Self {
        Self { lock: Lock::new(), value: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Uses it under the lock; not inside of itself.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.lock.take();
        // SAFETY: the thread's own block.
        let is_child = unsafe { (*entry::thread_state()).child } != 0;
        let value = self.value.load(Ordering::Acquire);
        let result = if value.is_null() || is_child {
            // SAFETY: under the lock.
            let mut copy = Box::new(unsafe { value.as_ref() }.map_or_else(T::default, T::clone));
            let result = work(&mut copy);
            self.value.store(Box::into_raw(copy), Ordering::Release);
            if !value.is_null() {
                // SAFETY: made above once, and nobody knows it any more.
                drop(unsafe { Box::from_raw(value) });
            }
            result
        } else {
            // SAFETY: under the lock; the reference ends with `work`.
            work(unsafe { &mut *value })
        };
        self.lock.release();
        result
    }

    /// Looks at it, without the lock.
    ///
    /// # Safety
    /// The caller has the lock ([`Self::around_fork`]), or is the only thread.
    pub(crate) unsafe fn look(&self) -> Option<&T> {
        // SAFETY: nobody changes it meanwhile, as the caller says.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Takes the lock so that a forked child finds it free, or releases it.
    pub(crate) fn around_fork(&self, before: bool) {
        self.lock.around_fork(before);
    }
}

/// The first call of a `vfork` child: from now on others see whether it lives. `clears`: the kernel is to clear another word when it ends.
pub(crate) fn begin_child(record: &mut Record, clears: bool) {
    record.vfork_life = 0;
    if clears {
        return;
    }
    // SAFETY: no arguments.
    let thread = unsafe { syscall(GETTID, []) } as i32;
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    for index in (first..first + LIVES_MAX).map(|index| index % LIVES_MAX) {
        let life = &LIVES[index];
        if life.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            record.vfork_life = index as u8 + 1;
            record.vfork_child = thread;
            // SAFETY: a word that stays; the kernel stores a zero there.
            unsafe { syscall(SET_TID_ADDRESS, [life.as_ptr() as usize]) };
            return;
        }
    }
}

/// A `vfork` child is gone.
pub(crate) fn end_child(record: &mut Record) {
    let index = usize::from(core::mem::take(&mut record.vfork_life)).wrapping_sub(1);
    if let Some(life) = LIVES.get(index) {
        // As a rule the kernel did that, and the word may be that of another thread's child by now, which lives.
        let _ = life.compare_exchange(record.vfork_child, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The child of a fork shares its memory with nobody.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn after_fork_in_child(record: &mut Record) {
    if NEXT.load(Ordering::Relaxed) != 0 {
        NEXT.store(0, Ordering::Relaxed);
        record.vfork_life = 0;
        // SAFETY: the thread's own block.
        unsafe { (*entry::thread_state()).child = 0 };
        LIVES.iter().for_each(|life| life.store(0, Ordering::Relaxed));
    }
}
