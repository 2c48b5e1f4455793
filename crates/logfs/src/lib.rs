//! The log-structured persistent-memory file system.
