//! A program's system calls become calls on a file system, inside the program.
