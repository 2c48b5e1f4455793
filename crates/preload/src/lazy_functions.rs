//! Functions of the C library that hardly any process calls through us, looked up at their first call.
//!
//! The library is bound as a whole when it is loaded, and each name that it takes from others costs every program a search through
//! the tables of all that is loaded. Most names are the standard library's, for threads, files and backtraces. So they are defined
//! here, for this library only: a definition goes on to what it found in the C library, as [`crate::memory_functions`] do, and by the
//! same argument past whatever other libraries define. What every start calls, and what an older C library may lack, is bound
//! as ever; so is all of it where threads have a library of their own (glibc before 2.34).

use core::arch::{asm, global_asm};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

// What is called with a function's data in r11: finds the function and goes on to it, with the registers that arguments are in.
global_asm!(
    ".pushsection .text.gannet_lazy, \"ax\", @progbits",
    ".p2align 4",
    ".type gannet_find_function, @function",
    "gannet_find_function:",
    ".cfi_startproc",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    ".cfi_adjust_cfa_offset 72",
    "mov rdi, r11",
    "call {find}",
    "mov qword ptr [rsp], rax",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rax",
    ".cfi_adjust_cfa_offset -72",
    "jmp r11",
    ".cfi_endproc",
    ".size gannet_find_function, . - gannet_find_function",
    ".popsection",
    find = sym find,
);

macro_rules! looked_up_at_first_call {
    ($($name:literal)*) => {
        $(global_asm!(
            ".pushsection .bss.gannet_lazy, \"aw\", @nobits",
            ".p2align 3",
            concat!("gannet_place_of_", $name, ": .skip 8"),
            ".popsection",
            ".pushsection .text.gannet_lazy, \"ax\", @progbits",
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            concat!("mov r11, qword ptr [rip + gannet_place_of_", $name, "]"),
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2: lea r11, [rip + 3f]",
            "jmp gannet_find_function",
            ".cfi_endproc",
            // Its data: the distance to its place, and its name.
            concat!("3: .long gannet_place_of_", $name, " - 3b"),
            concat!(".asciz \"", $name, "\""),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );)*
    };
}
looked_up_at_first_call!(
    "abort" "clock_gettime" "clock_nanosleep" "close" "dlsym" "free" "fstat64" "getauxval" "getcwd" "getenv" "lseek64" "lstat64" "malloc"
    "mmap64" "mprotect" "munmap" "open64" "pause" "poll" "posix_memalign" "pthread_attr_destroy" "pthread_attr_getguardsize"
    "pthread_attr_getstack" "pthread_attr_init" "pthread_attr_setstacksize" "pthread_create" "pthread_detach" "pthread_getattr_np"
    "pthread_key_create" "pthread_key_delete" "pthread_self" "pthread_setname_np" "pthread_setspecific" "read" "readlink" "realloc"
    "realpath" "sched_getaffinity" "sched_yield" "sigaltstack" "stat64" "syscall" "sysconf" "write" "writev"
);

/// The function that `data` describes. Its place then has it; several threads may come here, and find the same.
unsafe extern "C" fn find(data: *const u8) -> *const () {
    // SAFETY: called with the data of one of the definitions above, whose place is a word that only this function stores to.
    let (place, name) = unsafe {
        let distance = data.cast::<i32>().read_unaligned();
        (&*data.offset(distance as isize).cast::<AtomicPtr<()>>(), CStr::from_ptr(data.add(4).cast::<c_char>()))
    };
    // SAFETY: the C library was relocated before this library, which refers to it, and is never unloaded.
    match unsafe { gannet_intercept::c_library_function(name.to_bytes()) } {
        Some(function) => {
            place.store(function.cast_mut(), Ordering::Relaxed);
            function
        }
        // SAFETY: ends the process, as a name that the loader does not find would have when it was loaded.
        None => unsafe { asm!("ud2", options(noreturn, nostack)) },
    }
}
