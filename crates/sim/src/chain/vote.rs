//! Vote accounts (version 4 of the state, 3,762 bytes) and the vote instruction (compact tower sync).

use std::collections::VecDeque;

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::layout::FieldReader;

/// The number of votes in a full tower: the 31 blocks that can still be dropped.
pub(crate) const TOWER: usize = 31;
/// The credits for a vote: the maximum, which a vote on the previous block earns.
const CREDITS: u64 = 16;
/// The maximum number of epochs for which a vote account keeps credits.
const CREDIT_HISTORY: usize = 64;

/// The votes of a validator, oldest first, and the newest block that the validator considers final.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tower {
    pub(crate) votes: VecDeque<Slot>,
    pub(crate) root: Option<Slot>,
}

impl Tower {
    /// Adds a vote. With more than 31 votes, the oldest becomes the root. Returns true if there is a new root.
    pub(crate) fn vote(&mut self, slot: Slot) -> bool {
        self.votes.push_back(slot);
        let full = self.votes.len() > TOWER;
        if full {
            self.root = self.votes.pop_front();
        }
        full
    }

    /// Returns the votes with their confirmation counts. The newest vote has the count 1.
    pub(crate) fn lockouts(&self) -> impl Iterator<Item = (Slot, u32)> {
        self.votes.iter().copied().zip((1..=u32::try_from(self.votes.len()).unwrap_or(0)).rev())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VoteState {
    pub(crate) node: Pubkey,
    pub(crate) withdrawer: Pubkey,
    /// The receiver of the validator's share of staking rewards: the vote account itself.
    pub(crate) collector: Pubkey,
    pub(crate) commission_bps: u16,
    pub(crate) tower: Tower,
    pub(crate) authorized: (u64, Pubkey),
    /// The credits by epoch, oldest first: `(epoch, credits, credits before the epoch)`. Credits add up over epochs.
    pub(crate) credits: Vec<(u64, u64, u64)>,
    pub(crate) last_timestamp: (Slot, i64),
}

impl VoteState {
    /// The length of a vote account in bytes.
    pub(crate) const LEN: usize = 3_762;

    /// Votes for `slot` at the Unix time `now`. If an older vote becomes the root, adds the credits for it to `epoch`.
    pub(crate) fn vote(&mut self, slot: Slot, epoch: u64, now: i64) {
        if self.tower.vote(slot) {
            let before = self.credits.last().map_or(0, |(_, credits, _)| *credits);
            match self.credits.last_mut() {
                Some(last) if last.0 == epoch => last.1 += CREDITS,
                _ => self.credits.push((epoch, before + CREDITS, before)),
            }
            if self.credits.len() > CREDIT_HISTORY {
                self.credits.remove(0);
            }
        }
        self.last_timestamp = (slot, now);
    }

    /// Returns the 3,762 bytes of account data.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend(3u32.to_le_bytes());
        for key in [self.node, self.withdrawer, self.collector, self.node] {
            out.extend(key.0);
        }
        out.extend(self.commission_bps.to_le_bytes());
        out.extend(10_000u16.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out.push(0);
        out.extend((self.tower.votes.len() as u64).to_le_bytes());
        for (slot, confirmations) in self.tower.lockouts() {
            out.push(1);
            out.extend(slot.to_le_bytes());
            out.extend(confirmations.to_le_bytes());
        }
        out.push(u8::from(self.tower.root.is_some()));
        out.extend(self.tower.root.iter().flat_map(|root| root.to_le_bytes()));
        out.extend(1u64.to_le_bytes());
        out.extend(self.authorized.0.to_le_bytes());
        out.extend(self.authorized.1.0);
        out.extend((self.credits.len() as u64).to_le_bytes());
        for (epoch, credits, before) in &self.credits {
            out.extend([*epoch, *credits, *before].iter().flat_map(|n| n.to_le_bytes()));
        }
        out.extend(self.last_timestamp.0.to_le_bytes());
        out.extend(self.last_timestamp.1.to_le_bytes());
        out.resize(Self::LEN, 0);
        out.into()
    }

    /// Reads the result of [`VoteState::encode`].
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        if fields.u32()? != 3 {
            return None;
        }
        let (node, withdrawer, collector) = (fields.key()?, fields.key()?, fields.key()?);
        fields.take(32)?;
        let commission_bps = fields.u16()?;
        fields.take(2 + 8 + 1)?;
        let mut tower = Tower::default();
        for _ in 0..fields.len()? {
            fields.u8()?;
            tower.votes.push_back(fields.u64()?);
            fields.u32()?;
        }
        tower.root = if fields.u8()? == 1 { Some(fields.u64()?) } else { None };
        fields.u64()?;
        let authorized = (fields.u64()?, fields.key()?);
        let credits = (0..fields.len()?)
            .map(|_| Some((fields.u64()?, fields.u64()?, fields.u64()?)))
            .collect::<Option<_>>()?;
        let last_timestamp = (fields.u64()?, fields.i64()?);
        Some(Self { node, withdrawer, collector, commission_bps, tower, authorized, credits, last_timestamp })
    }
}

/// The content of a vote instruction: the whole tower, the bank hash of the newest block in it, and the Unix time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TowerSync {
    pub(crate) tower: Tower,
    pub(crate) bank_hash: [u8; 32],
    pub(crate) now: i64,
}

impl TowerSync {
    pub(crate) fn slot(&self) -> Slot {
        self.tower.votes.back().copied().unwrap_or(0)
    }

    /// Returns the bytes of the instruction, which begin with the variant 14 and the root. Each vote is written as
    /// its distance in slots from the previous vote, followed by its confirmation count.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.extend(14u32.to_le_bytes());
        out.extend(self.tower.root.unwrap_or(u64::MAX).to_le_bytes());
        out.push(u8::try_from(self.tower.votes.len()).unwrap_or(0));
        let mut before = self.tower.root.unwrap_or(0);
        for (slot, confirmations) in self.tower.lockouts() {
            put_varint(&mut out, slot - before);
            out.push(u8::try_from(confirmations).unwrap_or(0));
            before = slot;
        }
        out.extend(self.bank_hash);
        out.push(1);
        out.extend(self.now.to_le_bytes());
        out.extend([0; 32]);
        out
    }
}

/// Writes an integer with seven bits per byte, low bits first. The high bit is set on all but the last byte.
fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n.to_le_bytes()[0] | 0x80);
        n >>= 7;
    }
    out.push(n.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_has_its_real_length_and_round_trips() {
        let key = |n| Pubkey([n; 32]);
        let mut state = VoteState {
            node: key(1),
            withdrawer: key(2),
            collector: key(3),
            commission_bps: 500,
            tower: Tower::default(),
            authorized: (7, key(1)),
            credits: vec![],
            last_timestamp: (0, 0),
        };
        for slot in 100..140 {
            state.vote(slot, 7 + u64::from(slot >= 135), 1_000);
            assert_eq!(state.encode().len(), VoteState::LEN);
            assert_eq!(VoteState::decode(&state.encode()).as_ref(), Some(&state));
        }
        assert_eq!(state.tower.root, Some(108));
        assert_eq!(state.credits, [(7, 4 * CREDITS, 0), (8, 9 * CREDITS, 4 * CREDITS)]);
    }

    /// Compares an encoded vote with the bytes of a real one: root 2610 and 31 consecutive blocks after it.
    #[test]
    fn tower_sync_is_written_like_a_validators() {
        let tower = Tower { votes: (2_611..=2_641).collect(), root: Some(2_610) };
        let bytes = TowerSync { tower, bank_hash: [9; 32], now: 1_795_239_857 }.encode();
        let head = [14, 0, 0, 0, 0x32, 0x0a, 0, 0, 0, 0, 0, 0, 0x1f, 1, 0x1f, 1, 0x1e];
        assert_eq!(bytes[..head.len()], head);
        assert_eq!(bytes[13 + 62..][..32], [9; 32]);
        assert_eq!(bytes[13 + 62 + 32..][..9], [1, 0xb1, 0x2f, 1, 0x6b, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), 148);
    }
}
