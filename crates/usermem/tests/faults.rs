//! Copies from and to memory that is not there, in part or in whole: the count is exact and nothing else is touched.

use std::ptr;

use gannet_usermem::{CStringError, Destination, Fault, Source, UserSlice, copy, install_fault_handler};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

const PAGE_BYTES: usize = 4096;

/// Two pages, of which the second cannot be accessed.
struct Cliff {
    base: *mut u8,
}

impl Cliff {
    fn new() -> Cliff {
        install_fault_handler().unwrap();
        // SAFETY: a new private map, of which the second page is then closed.
        unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let base = mmap_anonymous(ptr::null_mut(), 2 * PAGE_BYTES, flags, MapFlags::PRIVATE).unwrap();
            mprotect(base.byte_add(PAGE_BYTES), PAGE_BYTES, MprotectFlags::empty()).unwrap();
            Cliff { base: base.cast() }
        }
    }

    /// The range of `length` bytes of which the first `good` are accessible.
    fn range(&self, good: usize, length: usize) -> UserSlice {
        UserSlice::new(self.base.addr() + PAGE_BYTES - good, length)
    }

    fn page(&mut self) -> &mut [u8] {
        // SAFETY: the first page is mapped and ours.
        unsafe { std::slice::from_raw_parts_mut(self.base, PAGE_BYTES) }
    }
}

impl Drop for Cliff {
    fn drop(&mut self) {
        // SAFETY: our own map, no longer used.
        unsafe { munmap(self.base.cast(), 2 * PAGE_BYTES).unwrap() };
    }
}

fn pattern(index: usize) -> u8 {
    (index * 7 + index / 256 + 1) as u8
}

#[test]
fn every_length_and_every_cut_when_reading() {
    let mut cliff = Cliff::new();
    for (index, byte) in cliff.page().iter_mut().enumerate() {
        *byte = pattern(index);
    }
    for length in 0..=300 {
        for good in 0..=length {
            // SAFETY: the page is not otherwise used meanwhile.
            let mut source = unsafe { Source::from_user(cliff.range(good, length)) };
            let mut buffer = vec![0xEE; length + 1];
            let result = source.read_into(&mut buffer[..length]);
            assert_eq!(result, if good == length { Ok(()) } else { Err(Fault { copied: good }) });
            assert_eq!(source.remaining(), length - good);
            for (index, &byte) in buffer.iter().enumerate() {
                let expected = if index < good { pattern(PAGE_BYTES - good + index) } else { 0xEE };
                // Bytes after a fault are not promised; those after the buffer are.
                assert!(
                    byte == expected || (index >= good && index < length),
                    "length {length} good {good} at {index}"
                );
            }
        }
    }
}

#[test]
fn every_length_and_every_cut_when_writing() {
    let mut cliff = Cliff::new();
    let data: Vec<u8> = (0..300).map(pattern).collect();
    for length in 0..=300 {
        for good in 0..=length {
            cliff.page().fill(0xEE);
            // SAFETY: the page is not otherwise used meanwhile.
            let mut destination = unsafe { Destination::from_user(cliff.range(good, length)) };
            let result = destination.write_from(&data[..length]);
            assert_eq!(result, if good == length { Ok(()) } else { Err(Fault { copied: good }) });
            let page = cliff.page();
            assert_eq!(page[PAGE_BYTES - good..], data[..good]);
            assert!(page[..PAGE_BYTES - good].iter().all(|&byte| byte == 0xEE));
            // SAFETY: as above.
            let mut destination = unsafe { Destination::from_user(cliff.range(good, length)) };
            assert_eq!(destination.write_zeros(length).is_ok(), good == length);
            assert!(cliff.page()[PAGE_BYTES - good..].iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn every_alignment() {
    install_fault_handler().unwrap();
    let data: Vec<u8> = (0..1000).map(pattern).collect();
    for length in 0..=300 {
        for from in 0..64 {
            for to in (0..64).step_by(if length % 16 == 0 { 1 } else { 13 }) {
                let mut buffer = vec![0; 400];
                // SAFETY: both are private vectors with room enough.
                unsafe { copy::copy(buffer.as_mut_ptr().add(to), data.as_ptr().add(from), length) }.unwrap();
                assert!(buffer[..to].iter().chain(&buffer[to + length..]).all(|&byte| byte == 0));
                assert_eq!(buffer[to..to + length], data[from..from + length]);
            }
        }
    }
}

/// By 512-bit registers where there are any: every rest behind whole steps of them, cut at every place on either side.
#[test]
fn wide_copies_at_every_cut() {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has them, and the system has enabled them.
        unsafe { copy::allow_wide_registers() };
    }
    let mut cliff = Cliff::new();
    let data: Vec<u8> = (0..PAGE_BYTES).map(pattern).collect();
    for length in (500..=1040).step_by(13).chain([512, 768, 1024, 4095, 4096]) {
        for good in (0..=length).step_by(if length > 1040 { 7 } else { 1 }).chain([length]) {
            cliff.page().fill(0xEE);
            // SAFETY: the page is not otherwise used meanwhile.
            let mut destination = unsafe { Destination::from_user(cliff.range(good, length)) };
            let expected = if good == length { Ok(()) } else { Err(Fault { copied: good }) };
            assert_eq!(destination.write_from(&data[..length]), expected, "length {length} good {good}");
            let page = cliff.page();
            assert_eq!(page[PAGE_BYTES - good..], data[..good]);
            assert!(page[..PAGE_BYTES - good].iter().all(|&byte| byte == 0xEE));
            // SAFETY: as above.
            let mut source = unsafe { Source::from_user(cliff.range(good, length)) };
            let mut buffer = vec![0xEE; length + 1];
            assert_eq!(source.read_into(&mut buffer[..length]), expected);
            assert_eq!((&buffer[..good], buffer[length]), (&data[..good], 0xEE));
        }
    }
}

#[test]
fn long_copies_cut_at_every_place_near_the_end() {
    let mut cliff = Cliff::new();
    for (index, byte) in cliff.page().iter_mut().enumerate() {
        *byte = pattern(index);
    }
    for good in PAGE_BYTES - 600..=PAGE_BYTES {
        for beyond in [1, 63, 64, 300, 4000] {
            let length = good + beyond;
            let mut buffer = vec![0; length];
            // SAFETY: the page is not otherwise used meanwhile.
            let mut source = unsafe { Source::from_user(cliff.range(good, length)) };
            assert_eq!(source.read_into(&mut buffer), Err(Fault { copied: good }));
            for (index, &byte) in buffer[..good].iter().enumerate() {
                assert_eq!(byte, pattern(PAGE_BYTES - good + index));
            }
        }
    }
}

/// Copies that go page by page, or at once: of every number of pages and any rest, whole, and cut by a bad source or a bad target.
#[test]
fn copies_of_many_pages_whole_and_cut() {
    install_fault_handler().unwrap();
    const PAGES: usize = 9;
    let cliff = || {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private map, of which the last page is then closed. Both stay until the process ends.
        unsafe {
            let base = mmap_anonymous(ptr::null_mut(), (PAGES + 1) * PAGE_BYTES, flags, MapFlags::PRIVATE).unwrap();
            mprotect(base.byte_add(PAGES * PAGE_BYTES), PAGE_BYTES, MprotectFlags::empty()).unwrap();
            base.cast::<u8>()
        }
    };
    let (from, to) = (cliff(), cliff());
    // SAFETY: the first pages are mapped and ours.
    let (source, target) = unsafe {
        (
            std::slice::from_raw_parts_mut(from, PAGES * PAGE_BYTES),
            std::slice::from_raw_parts_mut(to, PAGES * PAGE_BYTES),
        )
    };
    source.iter_mut().enumerate().for_each(|(index, byte)| *byte = pattern(index));
    let lengths = (3..=PAGES).flat_map(|pages| [0, 1, 63, 2048, 4095].map(|less| pages * PAGE_BYTES - less));
    let cases = lengths.flat_map(|length| [0, 1, 40].map(|skew| (length, skew)));
    // As the processor wants it, page by page, at once, and where there are wide registers four pages side by side.
    let mut ways = vec![(None, false), (Some(false), false), (Some(true), false)];
    if is_x86_feature_detected!("avx512f") {
        ways.extend([(Some(false), true), (Some(true), true)]);
    }
    for ((length, skew), (at_once, wide)) in ways.into_iter().flat_map(|way| cases.clone().map(move |case| (case, way)))
    {
        if let Some(at_once) = at_once {
            copy::long_copies_at_once(at_once);
        }
        if wide {
            // SAFETY: the processor has them, and the system has enabled them.
            unsafe { copy::allow_wide_registers() };
        } else {
            copy::forbid_wide_registers();
        }
        let length = length - skew;
        target.fill(0);
        // SAFETY: both are inside.
        unsafe { copy::copy(to.add(skew), from, length) }.unwrap();
        assert!(target[skew..skew + length] == source[..length], "length {length} skew {skew}");
        assert!(target[..skew].iter().chain(&target[skew + length..]).all(|&byte| byte == 0));
        for beyond in [1, 64, 4096, 20_000] {
            let start = PAGES * PAGE_BYTES - length;
            let fault = Err(Fault { copied: length });
            target.fill(0);
            // SAFETY: the source runs into its closed page before the target does, or nothing behind either is touched.
            assert_eq!(unsafe { copy::copy(to, from.add(start), length + beyond) }, fault, "from, {length} + {beyond}");
            assert!(target[..length] == source[start..]);
            target.fill(0);
            // SAFETY: the same the other way round.
            assert_eq!(unsafe { copy::copy(to.add(start), from, length + beyond) }, fault, "to, {length} + {beyond}");
            assert!(target[start..] == source[..length] && target[..start].iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn impossible_addresses() {
    install_fault_handler().unwrap();
    // Null, the last page, the hole between the halves of the address space, the kernel's half.
    for address in [0, 1, usize::MAX - 100, 0x0000_8000_0000_0000, 0xFFFF_8000_0000_0000] {
        for length in [1, 8, 64, 100] {
            let slice = UserSlice::new(address, length);
            let mut buffer = [0; 100];
            // SAFETY: nothing of ours is mapped there.
            unsafe {
                assert_eq!(Source::from_user(slice).read_into(&mut buffer[..length]), Err(Fault { copied: 0 }));
                assert_eq!(Destination::from_user(slice).write_from(&buffer[..length]), Err(Fault { copied: 0 }));
            }
        }
    }
    // SAFETY: as above.
    unsafe {
        assert!(copy::load_u8(0).is_err());
        assert!(copy::load_u32(4).is_err());
        assert!(copy::load_u64(8).is_err());
        assert!(copy::store_u32(4, 1).is_err());
        assert!(copy::store_u64(8, 1).is_err());
    }
}

#[test]
fn read_only_pages_refuse_stores() {
    let cliff = Cliff::new();
    // SAFETY: our own page; stores to it then fault, which the copies report.
    unsafe {
        mprotect(cliff.base.cast(), PAGE_BYTES, MprotectFlags::READ).unwrap();
        assert!(copy::store_u64(cliff.base.addr(), 1).is_err());
        assert_eq!(copy::load_u64(cliff.base.addr()), Ok(0));
        assert_eq!(copy::copy(cliff.base, [1u8; 100].as_ptr(), 100), Err(Fault { copied: 0 }));
    }
}

#[test]
fn values() {
    let mut words = [0x1122_3344_5566_7788u64, 0];
    let address = words.as_mut_ptr().addr();
    // SAFETY: `words` is private.
    unsafe {
        assert_eq!(copy::load_u64(address), Ok(0x1122_3344_5566_7788));
        assert_eq!(copy::load_u32(address), Ok(0x5566_7788));
        assert_eq!(copy::load_u8(address), Ok(0x88));
        copy::store_u64(address + 8, 5).unwrap();
        copy::store_u32(address + 12, 7).unwrap();
        assert_eq!(copy::load_u64(address + 8), Ok(5 | 7 << 32));
    }
}

#[test]
fn strings() {
    let mut cliff = Cliff::new();
    for length in 0..200 {
        let page = cliff.page();
        page.fill(b'x');
        page[PAGE_BYTES - 1] = 0;
        let mut buffer = [0; 300];
        // SAFETY: the page is not otherwise used meanwhile.
        unsafe {
            let at = cliff.range(length + 1, 0).address();
            assert_eq!(copy::read_c_string(at, &mut buffer), Ok(&vec![b'x'; length][..]));
            assert_eq!(copy::read_c_string(at, &mut buffer[..length]), Err(CStringError::TooLong));
            cliff.page()[PAGE_BYTES - 1] = b'x';
            assert_eq!(copy::read_c_string(at, &mut buffer), Err(CStringError::Fault));
        }
    }
}

#[test]
fn other_faults_reach_the_previous_handler() {
    // In a child, because the previous handler ends the process.
    install_fault_handler().unwrap();
    // SAFETY: the child only touches a bad address, which ends it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            ptr::without_provenance_mut::<u8>(16).write_volatile(1);
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
    }
}

/// Pages of a memory file that nobody has touched come when a source over them is faulted in, exactly those; what cannot be read ends it.
#[test]
fn each_page_of_a_source_is_faulted_in() {
    install_fault_handler().unwrap();
    const PAGES: usize = 9;
    let file = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, (PAGES * PAGE_BYTES) as u64).unwrap();
    let there = || rustix::fs::fstat(&file).unwrap().st_blocks as usize * 512 / PAGE_BYTES;
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new map of a file of this test's own.
    let base = unsafe { mmap(ptr::null_mut(), PAGES * PAGE_BYTES, flags, MapFlags::SHARED, &file, 0).unwrap() };
    let at = |page: usize, byte: usize| base.addr() + page * PAGE_BYTES + byte;
    let segments = [
        UserSlice::new(at(1, PAGE_BYTES - 1), 2 * PAGE_BYTES),
        UserSlice::new(at(0, 0), 0),
        UserSlice::new(at(5, 0), PAGE_BYTES),
    ];
    // SAFETY: nobody uses the map exclusively.
    let source = unsafe { Source::from_user_segments(&segments) }.unwrap();
    assert_eq!(there(), 0);
    source.fault_in();
    assert_eq!((there(), source.remaining()), (4, 3 * PAGE_BYTES));
    // SAFETY: our own map; its second half goes.
    unsafe { munmap(base.byte_add(7 * PAGE_BYTES), 2 * PAGE_BYTES).unwrap() };
    // SAFETY: as above.
    let source = unsafe { Source::from_user(UserSlice::new(at(6, 5), 3 * PAGE_BYTES)) };
    source.fault_in();
    assert_eq!(there(), 5);
    // SAFETY: as above.
    unsafe { Source::from_user(UserSlice::new(usize::MAX - 1, 1)).fault_in() };
    Source::empty().fault_in();
    // SAFETY: our own map, no longer used.
    unsafe { munmap(base, 7 * PAGE_BYTES).unwrap() };
}
