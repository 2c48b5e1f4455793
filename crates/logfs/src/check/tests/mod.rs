//! Tests of fsck.
