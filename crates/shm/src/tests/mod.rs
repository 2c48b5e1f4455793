//! Tests of the crate as a whole. In the crate, so that every build of them counts stores.

mod locks;
mod slabs;

use crate::{ArenaLayout, Session};
use std::sync::Arc;

/// A private session with one region of `bytes`, called "test".
fn private(bytes: u64) -> Arc<Session> {
    Session::private(&ArenaLayout::new().limits(16, 64).region("test", bytes, 64)).unwrap()
}
