//! Maps a volume; the only code that stores to it and executes flush and fence; simulated media for crash tests.
