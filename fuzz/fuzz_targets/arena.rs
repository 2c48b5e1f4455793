//! Shared memory damaged while a volume is in use.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gannet_logfs::fuzzing::arena(data));
