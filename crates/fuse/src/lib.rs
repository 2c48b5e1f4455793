//! The kernel's FUSE requests become calls on a file system.
