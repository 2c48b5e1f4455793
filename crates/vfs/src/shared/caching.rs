//! Whether a front end's clients may remember what they were told: while its process alone has the volume open.
//!
//! Words and waits are `shm`'s; this says the same in terms of this crate.

use std::time::Duration;

use super::{Shared, error_of};
use crate::Result;

pub use gannet_shm::{CachingState, CachingTerms};

impl Shared {
    /// Claims caching if no other process has the volume open: `false` if one has. From here on, whoever opens it waits until
    /// [`Shared::give_up_caching`] (or is refused, as the terms say).
    pub fn claim_caching(&self, terms: CachingTerms) -> Result<bool> {
        self.session.claim_caching(terms).map_err(error_of)
    }

    /// Whether no other process has the volume open, at this moment.
    pub fn is_alone(&self) -> Result<bool> {
        self.session.is_alone().map_err(error_of)
    }

    /// Whether the claim holds: what is told now may be believed for the length of the lease. Costs one load.
    #[inline(always)]
    pub fn caching_holds(&self) -> bool {
        self.session.caching_holds()
    }

    /// How it stands with the claim.
    pub fn caching_state(&self) -> CachingState {
        self.session.caching_state()
    }

    /// Sleeps while the claim holds, `timeout` at most.
    pub fn wait_while_caching(&self, timeout: Duration) {
        self.session.wait_while_caching(timeout);
    }

    /// Nothing that was told is believed any more: the claim ends, and who waits for that goes on.
    pub fn give_up_caching(&self) {
        self.session.give_up_caching();
    }
}
