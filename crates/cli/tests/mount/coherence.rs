//! Coherence.
