//! The cases, in groups.

mod allocate;
mod attributes;
mod data;
mod directories;
mod names;
mod rename;
mod sharing;
mod users;
mod xattrs;

use crate::Case;

/// All groups by name.
pub const GROUPS: &[(&str, &[Case])] = &[
    ("attributes", attributes::CASES),
    ("names", names::CASES),
    ("rename", rename::CASES),
    ("directories", directories::CASES),
    ("data", data::CASES),
    ("sharing", sharing::CASES),
    ("allocate", allocate::CASES),
    ("xattrs", xattrs::CASES),
    ("users", users::CASES),
];

/// Lists functions as cases, optionally with what they need.
macro_rules! cases {
    ($($name:ident $(needs $($feature:ident)|+)?),+ $(,)?) => {
        pub(crate) const CASES: &[$crate::Case] = &[$($crate::Case {
            name: concat!(module_path!(), "::", stringify!($name)),
            needs: $crate::Features::empty()$($(.union($crate::Features::$feature))+)?,
            run: $name,
        }),+];
    };
}
pub(crate) use cases;
