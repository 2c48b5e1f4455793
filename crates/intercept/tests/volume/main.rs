//! Programs with their files in a volume.

#[path = "../common/mod.rs"]
mod common;
mod executing;
mod full;
mod lazy;
mod listings;
mod paths;
mod processes;
mod programs;
mod races;
mod spanning;
mod starts;
