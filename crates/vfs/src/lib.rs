//! What a file system is: trait, types, errors, path walk, open file descriptions, record locks.
