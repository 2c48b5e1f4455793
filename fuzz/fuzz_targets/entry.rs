//! Log entries whose checksum is right, whatever they say.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gannet_logfs::fuzzing::entry(data));
