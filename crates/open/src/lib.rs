//! The composition root: looks at what it is given and returns a file system.
