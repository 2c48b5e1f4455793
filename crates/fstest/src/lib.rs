//! What every file system behind the interface must do, as tests to be run against any of them.
//!
//! For: the test folders of file systems. It may touch only the file system it is given, and relies on nothing but the
//! trait's words. Three kinds of test live here:
//!
//! * [`cases`]: a suite of small cases that state exact results: errno values, link counts, which times change.
//!   [`conformance!`](crate::conformance) makes tests of them.
//! * [`kernel`]: a table of operations, done on the kernel's tmpfs as well: times, modes, owners, link counts must agree.
//! * [`random`]: seeded random operations on the file system and on a simple [`model`], every result compared and the
//!   whole tree now and then, with a hook to take the file system away and bring it back (remount, crash, fsck).

#![forbid(unsafe_code)]

pub mod cases;
pub mod kernel;
pub mod model;
pub mod random;
mod rig;

pub use rig::{Features, Rig, name};

use std::panic::{AssertUnwindSafe, catch_unwind};

use gannet_vfs::FileSystem;

/// One thing that must hold.
#[derive(Clone, Copy)]
pub struct Case {
    /// `group::what_holds`.
    pub name: &'static str,
    /// What the file system must offer for the case to make sense.
    pub needs: Features,
    /// Panics where it does not hold. Expects an empty file system.
    pub run: fn(&Rig<'_>),
}

/// All cases.
pub fn suite() -> Vec<Case> {
    cases::GROUPS.iter().flat_map(|group| group.1.iter().copied()).collect()
}

/// Runs the cases of one group, each on a new file system made by `make`; those that need more than `features` are left
/// out.
///
/// # Panics
/// After the last case, if any failed, with their names.
pub fn run_group(group: &str, features: Features, make: &dyn Fn() -> Box<dyn FileSystem>) {
    let (_, cases) = cases::GROUPS.iter().find(|candidate| candidate.0 == group).expect("the group exists");
    let mut failed = Vec::new();
    for case in cases.iter().filter(|case| features.contains(case.needs)) {
        let fs = make();
        let rig = Rig::new(&*fs);
        if catch_unwind(AssertUnwindSafe(|| (case.run)(&rig))).is_err() {
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), cases.len());
}

/// Makes a module of tests, one for each group of cases: `conformance!(conformance, Features::all(), || Box::new(…))`.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $features:expr, $make:expr) => {
        $crate::conformance!(@groups $module, $features, $make,
            attributes, names, rename, directories, data, allocate, xattrs, users);
    };
    (@groups $module:ident, $features:expr, $make:expr, $($group:ident),+) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $group() {
                    $crate::run_group(stringify!($group), $features, &$make);
                }
            )+
        }
    };
}
