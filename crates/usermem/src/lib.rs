//! Memory that belongs to a caller: addresses that may be bad, and copies that report a fault instead of crashing.
