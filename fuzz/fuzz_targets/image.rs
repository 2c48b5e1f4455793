//! Damaged volumes: checked, repaired, checked again, used.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gannet_logfs::fuzzing::image(data));
