//! The smallest file system behind the interface, in process memory: the template for others.
