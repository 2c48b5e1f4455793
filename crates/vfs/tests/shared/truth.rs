//! What record locks are: the plain truth about every byte.

use crate::{process, request};
use std::collections::BTreeMap;

use gannet_vfs::NodeId;
use gannet_vfs::shared::Shared;

/// Who has which bytes locked how: the plain truth about record locks.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Truth(pub(crate) BTreeMap<(u64, u32), bool>);

pub(crate) const BYTES: u64 = 24;

impl Truth {
    pub(crate) fn try_lock(&mut self, owner: u32, exclusive: Option<bool>, start: u64, end: u64) -> bool {
        let blocked = exclusive.is_some_and(|exclusive| {
            self.0.iter().any(|(&(byte, other), &theirs)| {
                other != owner && (start..end).contains(&byte) && (exclusive || theirs)
            })
        });
        if !blocked {
            for byte in start..end {
                match exclusive {
                    None => self.0.remove(&(byte, owner)),
                    Some(exclusive) => self.0.insert((byte, owner), exclusive),
                };
            }
        }
        !blocked
    }

    /// How few records can say it.
    pub(crate) fn runs(&self, owner: u32) -> usize {
        (0..BYTES)
            .filter(|&byte| {
                let here = self.0.get(&(byte, owner));
                here.is_some() && (byte == 0 || self.0.get(&(byte - 1, owner)) != here)
            })
            .count()
    }

    /// Compares with what a stranger is told about every byte.
    pub(crate) fn agrees(&self, shared: &Shared, node: NodeId) -> bool {
        (0..BYTES).all(|byte| {
            [false, true].into_iter().all(|exclusive| {
                let told = shared.test_lock(&request(node, process(99), Some(exclusive), byte, byte + 1)).unwrap();
                let mut here = self.0.range((byte, 0)..(byte + 1, 0));
                let blocked = here.any(|(_, &theirs)| exclusive || theirs);
                told.is_some() == blocked
            })
        })
    }
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
