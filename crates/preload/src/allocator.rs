//! The injected library's allocator: the program's must not be used inside its own system calls.
//!
//! Sizes up to 32 KiB come from slabs by class, each class with a lock and a list of free blocks; larger ones are maps of
//! their own. System calls are made with instructions that nobody rewrites. The locks are taken around `fork`, so that
//! a child never finds one held by a thread that it does not have. A `vfork` child, whose memory is its parent's, may be killed with one: so the state
//! changes by stores in an order in which each leaves it whole, with less to hand out at worst.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use gannet_intercept::Lock;

/// Sizes are powers of two and the middles between them, from 16 bytes.
const CLASS_COUNT: usize = 23;
const SMALL_BYTES_MAX: usize = 32 * 1024;
/// What is taken from the kernel at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// What a class takes from a chunk first, and twice as much each time up to the most: a start needs few blocks of many classes,
/// and each page costs a fault, now and for each fork.
const RUN_BYTES_MIN: usize = 256;
const RUN_BYTES_MAX: usize = 4096;
const PAGE_BYTES: usize = 4096;

/// Used under its lock only: that its words are atomic keeps the stores in order.
struct Class {
    lock: Lock,
    /// How many runs there were.
    runs: AtomicU32,
    /// First free block; each holds the next one's address.
    free: AtomicPtr<u8>,
    /// The rest of the last chunk, not yet handed out.
    fresh: AtomicPtr<u8>,
    fresh_bytes: AtomicUsize,
}

static CLASSES: [Class; CLASS_COUNT] = [const { Class::new() }; CLASS_COUNT];

/// The allocator; its state is static.
pub(crate) struct Allocator;

/// The class for `size` bytes and its block size.
fn class_of(size: usize) -> (usize, usize) {
    let size = size.max(16);
    let power = (size - 1).ilog2() as usize; // 2^power < size <= 2^(power+1), for 16: power 3
    let middle = (1 << power) + (1 << (power - 1));
    if power > 3 && size <= middle { ((power - 4) * 2 + 1, middle) } else { ((power - 3) * 2, 1 << (power + 1)) }
}

/// Called with `true` before a fork and `false` after it, in both processes.
pub(crate) fn around_fork(before: bool) {
    for class in CLASSES.iter().chain([&CHUNK]) {
        class.lock.around_fork(before);
    }
}

// SAFETY: blocks are disjoint, as long and aligned as asked for, and stay valid until freed.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        enough(take(layout), layout).0
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (block, is_zero) = enough(take(layout), layout);
        if !is_zero {
            // SAFETY: a block of at least that size, nobody else's.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let size = layout.size().max(layout.align());
        if size > SMALL_BYTES_MAX {
            unmap(pointer, layout);
            return;
        }
        let size = if layout.align() > 8 { size.next_power_of_two() } else { size };
        let class = &CLASSES[class_of(size).0];
        class.lock.take();
        // SAFETY: the block is the caller's to give back and at least a pointer long.
        unsafe { pointer.cast::<*mut u8>().write(class.free.load(Ordering::Relaxed)) };
        class.free.store(pointer, Ordering::Release);
        class.lock.release();
    }
}

/// What was taken. Where there is no memory nobody here has another way; said and done in this place, since the standard library's way takes
/// locks and memory.
#[inline]
fn enough(taken: (*mut u8, bool), layout: Layout) -> (*mut u8, bool) {
    if taken.0.is_null() {
        crate::failures::end_without_memory(layout.size());
    }
    taken
}

/// A block, null if there is no memory, and whether it holds zeros: what is new from the kernel does.
#[unsafe(link_section = ".text.way.gannet")]
fn take(layout: Layout) -> (*mut u8, bool) {
    let size = layout.size().max(layout.align());
    if size > SMALL_BYTES_MAX {
        return (map(layout), true);
    }
    // Only blocks of a power of two are aligned to more than eight bytes.
    let size = if layout.align() > 8 { size.next_power_of_two() } else { size };
    let (index, block_bytes) = class_of(size);
    let class = &CLASSES[index];
    class.lock.take();
    let free = class.free.load(Ordering::Relaxed);
    let block = if free.is_null() {
        (class.fresh_block(block_bytes), true)
    } else {
        // SAFETY: free blocks hold the next one's address.
        class.free.store(unsafe { free.cast::<*mut u8>().read() }, Ordering::Release);
        (free, false)
    };
    class.lock.release();
    block
}

impl Class {
    const fn new() -> Self {
        Self {
            lock: Lock::new(),
            runs: AtomicU32::new(0),
            free: AtomicPtr::new(null_mut()),
            fresh: AtomicPtr::new(null_mut()),
            fresh_bytes: AtomicUsize::new(0),
        }
    }

    /// What is left: where, and how many bytes.
    fn rest(&self) -> (*mut u8, usize) {
        (self.fresh.load(Ordering::Relaxed), self.fresh_bytes.load(Ordering::Relaxed))
    }

    /// Less is left: first said to be less.
    fn shrink(&self, fresh: *mut u8, bytes: usize) {
        self.fresh_bytes.store(bytes, Ordering::Release);
        self.fresh.store(fresh, Ordering::Release);
    }

    /// More is there than was left, elsewhere.
    fn renew(&self, fresh: *mut u8, bytes: usize) {
        self.shrink(fresh, 0);
        self.fresh_bytes.store(bytes, Ordering::Release);
    }

    fn fresh_block(&self, block_bytes: usize) -> *mut u8 {
        if self.rest().1 < block_bytes {
            let runs = self.runs.load(Ordering::Relaxed);
            let wanted = (RUN_BYTES_MIN << runs.min(16)).min(RUN_BYTES_MAX);
            let run_bytes = block_bytes * (wanted / block_bytes).max(1);
            let align = if block_bytes.is_power_of_two() { block_bytes.min(PAGE_BYTES) } else { 16 };
            let Some(run) = take_run(run_bytes, align) else { return null_mut() };
            self.runs.store(runs + 1, Ordering::Relaxed);
            self.renew(run, run_bytes);
        }
        let (block, bytes) = self.rest();
        self.shrink(block.wrapping_add(block_bytes), bytes - block_bytes);
        block
    }
}

/// The chunk that runs are cut from; its lock comes after a class's.
static CHUNK: Class = Class::new();

/// Cuts a run from the chunk.
fn take_run(run_bytes: usize, align: usize) -> Option<*mut u8> {
    CHUNK.lock.take();
    let run = cut(run_bytes, align).or_else(|| {
        CHUNK.renew(map_pages(CHUNK_BYTES)?, CHUNK_BYTES);
        cut(run_bytes, align)
    });
    CHUNK.lock.release();
    run
}

/// Cuts a run from what is left of the chunk: whole pages from its end, so that the rest, of which a process has little, lies on few pages.
fn cut(run_bytes: usize, align: usize) -> Option<*mut u8> {
    let (fresh, bytes) = CHUNK.rest();
    let rest = bytes.checked_sub(run_bytes)?;
    if align < PAGE_BYTES {
        let skipped = fresh.align_offset(align);
        let run = fresh.wrapping_add(skipped);
        CHUNK.shrink(run.wrapping_add(run_bytes), rest.checked_sub(skipped)?);
        return Some(run);
    }
    let end = fresh.wrapping_add(rest);
    let bytes = rest.checked_sub(end.addr() % align)?;
    CHUNK.shrink(fresh, bytes);
    Some(fresh.wrapping_add(bytes))
}

fn map(layout: Layout) -> *mut u8 {
    if layout.align() <= PAGE_BYTES {
        return map_pages(layout.size()).unwrap_or(null_mut());
    }
    // More than needed; what lies outside the aligned part stays reserved and untouched until it is freed with it.
    let Some(total) = layout.size().checked_add(layout.align()) else { return null_mut() };
    let Some(start) = map_pages(total) else { return null_mut() };
    let aligned = start.addr().next_multiple_of(layout.align());
    let head = aligned - start.addr();
    let end = (aligned + layout.size()).next_multiple_of(PAGE_BYTES);
    let tail = (start.addr() + total).next_multiple_of(PAGE_BYTES) - end;
    if head > 0 {
        unmap_pages(start.addr(), head);
    }
    if tail > 0 {
        unmap_pages(end, tail);
    }
    start.wrapping_add(head)
}

fn unmap(pointer: *mut u8, layout: Layout) {
    unmap_pages(pointer.addr(), layout.size().next_multiple_of(PAGE_BYTES));
}

fn map_pages(length: usize) -> Option<*mut u8> {
    const MMAP: usize = 9;
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
    /// `MAP_NORESERVE | MAP_STACK`, as engine stacks have it: to the kernel the first chunk and the first stack, which lie side by side,
    /// are one map then. Each map is work at every fork.
    const AS_STACKS: usize = 0x24000;
    let length = length.checked_next_multiple_of(PAGE_BYTES)?;
    let flags = if length == CHUNK_BYTES { MAP_PRIVATE_ANONYMOUS | AS_STACKS } else { MAP_PRIVATE_ANONYMOUS };
    let result = syscall(MMAP, [0, length, PROT_READ_WRITE, flags, usize::MAX, 0]);
    if (-4095..0).contains(&result) { None } else { Some(core::ptr::with_exposed_provenance_mut(result as usize)) }
}

fn unmap_pages(start: usize, length: usize) {
    const MUNMAP: usize = 11;
    syscall(MUNMAP, [start, length, 0, 0, 0, 0]);
}

/// A system call with an instruction of our own. Used for maps that belong to the allocator, and where the library fails.
pub(crate) fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: maps and unmaps memory of the allocator's own, writes what is ours, ends the process.
    unsafe {
        core::arch::asm!("syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
