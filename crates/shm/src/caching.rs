//! Caching: a participant that is alone may let others (a kernel, say) remember what it told them, until somebody joins.
//!
//! One word of the header, changed by single swaps: `kind:8 | participant:16 | generation:40`.
//!
//! ```text
//! NONE ──claim (alone, behind the gate)──► MAY ──somebody joins──► RECALLED ──answer──► NONE
//!  │                                                                 └──no answer in time──► CUT ──answer──► NONE
//!  └──claim firmly──► FIRM: whoever wants to join is refused, unless it ends in a moment
//! ```
//!
//! Everything that is remembered is believed for a limited time only, the *lease*. So who joins waits for the answer, but
//! never longer than the claimant's deadline and the lease, whichever is later: after that nobody believes anything any more,
//! whether the claimant is stopped, stuck or slow. Who claims must look at [`Session::caching_holds`] whenever it grants a
//! lease, and that is one load. Claims and joins exclude each other by the gate; answers need no gate, for who joins holds
//! it while it waits.

use crate::error::{Error, Result};
use crate::facade::{Ordering, Word};
use crate::lock::low_half;
use crate::participant::{ParticipantId, View};
use crate::session::{CACHING_AT, PATIENCE_AT, Session};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::time::{Duration, Instant};

const NONE: u64 = 0;
const MAY: u64 = 1;
const RECALLED: u64 = 2;
const FIRM: u64 = 3;
const CUT: u64 = 4;

const KIND_MASK: u64 = 0xff;
const OWNER_SHIFT: u32 = 8;
const GENERATION_SHIFT: u32 = 24;
const GENERATION_MASK: u64 = (1 << 40) - 1;

/// A patience that the arena's word cannot mean: it is damaged.
const PATIENCE_MAX: Duration = Duration::from_secs(600);
/// How often who waits looks whether whom it waits for lives.
const LOOK: Duration = Duration::from_millis(20);

/// How long who would join waits for the end of a firm claim: the server of a mount gives it up when `umount` has returned.
const FIRM_PATIENCE: Duration = Duration::from_secs(1);

/// What a claim to caching promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachingTerms {
    /// Given up when somebody joins.
    Revocable {
        /// How long an answer may take.
        deadline: Duration,
        /// For how long anything that was remembered is believed.
        lease: Duration,
    },
    /// Nobody can join until it is given up.
    Firm,
}

/// How it stands with this participant's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachingState {
    /// It has none.
    None,
    /// It holds.
    Holds,
    /// Somebody waits for the answer ([`Session::give_up_caching`]), or waited in vain.
    Recalled,
}

fn word_of(kind: u64, id: ParticipantId) -> u64 {
    kind | u64::from(id.index) << OWNER_SHIFT | (id.generation & GENERATION_MASK) << GENERATION_SHIFT
}

impl Session {
    fn caching(&self) -> &Word {
        self.arena.fixed(CACHING_AT)
    }

    /// Claims caching if no other participant lives. `false` if one does.
    pub fn claim_caching(&self, terms: CachingTerms) -> Result<bool> {
        self.joined()?;
        let gate = match self.file() {
            None => None,
            Some(path) => Some(path.gate()?.ok_or(Error::Detached)?),
        };
        let me = self.participant();
        if !self.is_alone()? {
            return Ok(false);
        }
        let kind = match terms {
            CachingTerms::Firm => FIRM,
            CachingTerms::Revocable { deadline, lease } => {
                let milliseconds = |time: Duration| time.min(PATIENCE_MAX).as_millis() as u64;
                let patience = milliseconds(deadline.max(lease)) | milliseconds(lease) << 32;
                self.arena.fixed(PATIENCE_AT).store(patience, Ordering::Release);
                MAY
            }
        };
        // Whatever stands here is our own, or of one who is gone.
        self.caching().store(word_of(kind, me), Ordering::SeqCst);
        if let (Some(path), Some(gate)) = (self.file(), &gate)
            && !path.leads_to(gate.fd()).unwrap_or(false)
        {
            // Somebody came in since, and did not see it.
            self.give_up_caching();
            return Ok(false);
        }
        drop(gate);
        Ok(true)
    }

    /// Whether no other participant lives, at this moment.
    pub fn is_alone(&self) -> Result<bool> {
        let me = self.participant();
        for index in 0..self.participants().used() {
            let Some(id) = self.participants().live(index) else { continue };
            if id != me && self.participants().is_alive(id, || self.namespace(), &mut View::None)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether this participant's claim holds: what it tells now may be remembered for the length of the lease. One load.
    #[inline(always)]
    pub fn caching_holds(&self) -> bool {
        let kind = self.caching().load(Ordering::SeqCst) & KIND_MASK;
        // Nobody else has a claim while this participant lives, but a recall may be under way.
        kind == MAY || kind == FIRM
    }

    /// How it stands with this participant's claim.
    pub fn caching_state(&self) -> CachingState {
        let word = self.caching().load(Ordering::SeqCst);
        if word & !KIND_MASK != word_of(NONE, self.participant()) {
            return CachingState::None;
        }
        match word & KIND_MASK {
            MAY | FIRM => CachingState::Holds,
            RECALLED | CUT => CachingState::Recalled,
            _ => CachingState::None,
        }
    }

    /// Sleeps while the claim holds, `timeout` at most.
    pub fn wait_while_caching(&self, timeout: Duration) {
        if self.caching_state() == CachingState::Holds {
            self.sleep_on_caching(self.caching().load(Ordering::SeqCst), timeout);
        }
    }

    /// Gives the claim up: nothing that was told by this participant is remembered any more. Answers a recall.
    pub fn give_up_caching(&self) {
        let word = self.caching().load(Ordering::SeqCst);
        if word & !KIND_MASK == word_of(NONE, self.participant()) {
            let _ = self.caching().compare_exchange(word, NONE, Ordering::SeqCst, Ordering::Relaxed).or_else(|found| {
                // A recall came in between, or its end.
                let ours = found & !KIND_MASK == word & !KIND_MASK;
                if ours {
                    self.caching().compare_exchange(found, NONE, Ordering::SeqCst, Ordering::Relaxed)
                } else {
                    Ok(0)
                }
            });
            self.wake_for_caching();
        }
    }

    /// Gets another participant's claim out of the way. The caller is behind the gate and about to join.
    pub(crate) fn recall_caching(&self) -> Result<()> {
        let (mut asked, mut began): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            let word = self.caching().load(Ordering::SeqCst);
            let kind = word & KIND_MASK;
            if kind == NONE || kind == CUT {
                return Ok(());
            }
            let index = (word >> OWNER_SHIFT) as u16;
            let owner = self.participants().live(u32::from(index));
            let owner = owner.filter(|id| word_of(kind, *id) == word);
            let alive = match owner {
                Some(id) => self.participants().is_alive(id, || self.namespace(), &mut View::None)?,
                None => false,
            };
            match kind {
                FIRM if alive => {
                    let waited = asked.get_or_insert_with(Instant::now).elapsed();
                    if waited < FIRM_PATIENCE {
                        self.sleep_on_caching(word, LOOK.min(FIRM_PATIENCE - waited));
                        continue;
                    }
                    let pid = owner.map_or(0, |id| self.participants().info(id, || self.namespace()).pid);
                    return Err(Error::Exclusive { pid });
                }
                // What a dead one's clients remember they believe for the lease, so the wait goes on.
                MAY => {
                    let recalled = word & !KIND_MASK | RECALLED;
                    let _ = self.caching().compare_exchange(word, recalled, Ordering::SeqCst, Ordering::Relaxed);
                    self.wake_for_caching();
                    continue;
                }
                RECALLED => {
                    let patience = self.arena.fixed(PATIENCE_AT).load(Ordering::Acquire);
                    let milliseconds = if alive { patience & u64::from(u32::MAX) } else { patience >> 32 };
                    let patience = Duration::from_millis(milliseconds).min(PATIENCE_MAX);
                    let waited = began.get_or_insert_with(Instant::now).elapsed();
                    if waited < patience {
                        self.sleep_on_caching(word, LOOK.min(patience - waited));
                        continue;
                    }
                    let end = if alive { word & !KIND_MASK | CUT } else { NONE };
                    let _ = self.caching().compare_exchange(word, end, Ordering::SeqCst, Ordering::Relaxed);
                }
                _ => {
                    // A dead one's firm claim, or a word that nobody can have stored.
                    let _ = self.caching().compare_exchange(word, NONE, Ordering::SeqCst, Ordering::Relaxed);
                }
            }
        }
    }

    fn sleep_on_caching(&self, word: u64, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // The low half holds the kind. Whatever wakes us, the caller looks again.
        let _ = futex::wait(low_half(self.caching()), futex::Flags::empty(), word as u32, Some(&timeout));
    }

    fn wake_for_caching(&self) {
        let _ = futex::wake(low_half(self.caching()), futex::Flags::empty(), i32::MAX as u32);
    }
}
