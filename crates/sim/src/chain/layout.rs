//! The binary layouts of stake, nonce, lookup table and sysvar accounts (clock, rent, epoch schedule), and a
//! reader of little-endian fields.

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::epochs::Epochs;

/// A reader of fields from the front of a slice. Its methods return `None` if the slice is too short.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl<'a> FieldReader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn key(&mut self) -> Option<Pubkey> {
        self.array().map(Pubkey)
    }

    /// Reads an optional key in SPL's layout: a 4-byte tag and 32 bytes. Returns two values: true if the tag is
    /// set; the key, which has no meaning without the tag.
    pub(crate) fn tagged_key(&mut self) -> Option<(bool, Pubkey)> {
        Some((self.u32()? == 1, self.key()?))
    }

    /// Reads the number of elements of a bincode list. Returns `None` if the number exceeds the bytes that are left.
    pub(crate) fn len(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok().filter(|len| *len <= self.0.len())
    }
}

/// Writes an optional key in the layout that [`FieldReader::tagged_key`] reads.
pub(crate) fn put_tagged_key(out: &mut Vec<u8>, key: Option<Pubkey>) {
    out.extend(u32::from(key.is_some()).to_le_bytes());
    out.extend(key.unwrap_or(Pubkey([0; 32])).0);
}

/// A delegated stake account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stake {
    pub(crate) rent_exempt_reserve: u64,
    pub(crate) authority: Pubkey,
    pub(crate) voter: Pubkey,
    /// The lamports delegated to the voter.
    pub(crate) delegated: u64,
    pub(crate) activation_epoch: u64,
    pub(crate) credits_observed: u64,
}

impl Stake {
    /// The length of a stake account in bytes.
    pub(crate) const LEN: usize = 200;

    /// Returns the 200 bytes of account data, for a stake that is never locked up and never deactivated.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend(2u32.to_le_bytes());
        out.extend(self.rent_exempt_reserve.to_le_bytes());
        out.extend(self.authority.0);
        out.extend(self.authority.0);
        out.extend([0; 48]);
        out.extend(self.voter.0);
        out.extend(self.delegated.to_le_bytes());
        out.extend(self.activation_epoch.to_le_bytes());
        out.extend(u64::MAX.to_le_bytes());
        out.extend(0.25f64.to_le_bytes());
        out.extend(self.credits_observed.to_le_bytes());
        out.resize(Self::LEN, 0);
        out.into()
    }

    /// Reads the result of [`Stake::encode`].
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        if fields.u32()? != 2 {
            return None;
        }
        let rent_exempt_reserve = fields.u64()?;
        let authority = fields.key()?;
        fields.take(32 + 48)?;
        let (voter, delegated, activation_epoch) = (fields.key()?, fields.u64()?, fields.u64()?);
        fields.take(16)?;
        let credits_observed = fields.u64()?;
        Some(Self { rent_exempt_reserve, authority, voter, delegated, activation_epoch, credits_observed })
    }
}

/// An initialized nonce account: its authority and the stored blockhash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nonce {
    pub(crate) authority: Pubkey,
    pub(crate) blockhash: [u8; 32],
    pub(crate) lamports_per_signature: u64,
}

impl Nonce {
    /// The length of a nonce account in bytes.
    pub(crate) const LEN: usize = 80;

    /// Returns the 80 bytes of account data.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend([1, 0, 0, 0, 1, 0, 0, 0]);
        out.extend(self.authority.0);
        out.extend(self.blockhash);
        out.extend(self.lamports_per_signature.to_le_bytes());
        out.into()
    }

    /// Reads the result of [`Nonce::encode`].
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        if data.len() != Self::LEN || (fields.u32()?, fields.u32()?) != (1, 1) {
            return None;
        }
        let (authority, Pubkey(blockhash)) = (fields.key()?, fields.key()?);
        Some(Self { authority, blockhash, lamports_per_signature: fields.u64()? })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LookupTable {
    pub(crate) authority: Pubkey,
    pub(crate) last_extended_slot: Slot,
    pub(crate) addresses: Vec<Pubkey>,
}

impl LookupTable {
    /// Returns the account data: a head of 56 bytes, followed by 32 bytes per address.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(56 + 32 * self.addresses.len());
        out.extend(1u32.to_le_bytes());
        out.extend(u64::MAX.to_le_bytes());
        out.extend(self.last_extended_slot.to_le_bytes());
        out.extend([0, 1]);
        out.extend(self.authority.0);
        out.extend([0, 0]);
        out.extend(self.addresses.iter().flat_map(|address| address.0));
        out.into()
    }

    /// Reads the data of a table that has an authority, in the layout of [`LookupTable::encode`].
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        if fields.u32()? != 1 {
            return None;
        }
        fields.take(8)?;
        let last_extended_slot = fields.u64()?;
        fields.take(2)?;
        let authority = fields.key()?;
        fields.take(2)?;
        let addresses = fields.0.chunks_exact(32).filter_map(|chunk| FieldReader(chunk).key()).collect();
        Some(Self { authority, last_extended_slot, addresses })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) slot: Slot,
    pub(crate) epoch_start: i64,
    pub(crate) epoch: u64,
    pub(crate) now: i64,
}

impl Clock {
    /// Returns the 40 bytes of account data.
    pub(crate) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(40);
        out.extend(self.slot.to_le_bytes());
        out.extend(self.epoch_start.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend((self.epoch + 1).to_le_bytes());
        out.extend(self.now.to_le_bytes());
        out.into()
    }

    /// Reads the result of [`Clock::encode`].
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        let (slot, epoch_start, epoch) = (fields.u64()?, fields.i64()?, fields.u64()?);
        fields.u64()?;
        Some(Self { slot, epoch_start, epoch, now: fields.i64()? })
    }
}

/// Returns the 17 bytes of the rent sysvar: 6,960 lamports per byte and year, an exemption threshold of one year,
/// 50 % burned.
pub(crate) fn rent() -> Bytes {
    let mut out = Vec::with_capacity(17);
    out.extend(6_960u64.to_le_bytes());
    out.extend(1.0f64.to_le_bytes());
    out.push(50);
    out.into()
}

/// Returns the 33 bytes of the epoch schedule sysvar.
pub(crate) fn epoch_schedule(epochs: Epochs) -> Bytes {
    let mut out = Vec::with_capacity(33);
    out.extend(epochs.slots.to_le_bytes());
    out.extend(epochs.slots.to_le_bytes());
    out.push(epochs.warmup.into());
    out.extend(epochs.first_normal.to_le_bytes());
    out.extend(epochs.first_normal_slot.to_le_bytes());
    out.into()
}

/// Adds `entry` to the front of a bincode list of at most `room` entries. A full list loses its oldest entry. The
/// result has the length of a full list, and unused entries are zeros.
pub(crate) fn prepend(list: &[u8], entry: &[u8], room: usize) -> Bytes {
    let count = FieldReader(list).len().unwrap_or(0).min(room - 1);
    let kept = list.get(8..8 + count * entry.len()).unwrap_or(&[]);
    let mut out = Vec::with_capacity(8 + room * entry.len());
    out.extend((count as u64 + 1).to_le_bytes());
    out.extend(entry);
    out.extend(kept);
    out.resize(8 + room * entry.len(), 0);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_their_real_length_and_read_back() {
        let (a, b) = (Pubkey([1; 32]), Pubkey([2; 32]));
        let stake = Stake {
            rent_exempt_reserve: 2_282_880,
            authority: a,
            voter: b,
            delegated: 5,
            activation_epoch: 3,
            credits_observed: 11,
        };
        assert_eq!(stake.encode().len(), Stake::LEN);
        assert_eq!(Stake::decode(&stake.encode()), Some(stake));
        let nonce = Nonce { authority: a, blockhash: [7; 32], lamports_per_signature: 5_000 };
        assert_eq!(nonce.encode().len(), Nonce::LEN);
        assert_eq!(Nonce::decode(&nonce.encode()), Some(nonce));
        let table = LookupTable { authority: a, last_extended_slot: 9, addresses: vec![a, b] };
        assert_eq!(table.encode().len(), 56 + 64);
        assert_eq!(LookupTable::decode(&table.encode()), Some(table));
        let clock = Clock { slot: 1, epoch_start: 2, epoch: 3, now: 4 };
        assert_eq!(clock.encode().len(), 40);
        assert_eq!(Clock::decode(&clock.encode()), Some(clock));
        assert_eq!((rent().len(), epoch_schedule(Epochs::new(432_000, true)).len()), (17, 33));
    }

    #[test]
    fn a_list_keeps_its_newest_entries() {
        let mut list = Bytes::new();
        list = prepend(&list, &[1, 1], 3);
        assert_eq!(list[..], [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]);
        for n in 2..=5u8 {
            list = prepend(&list, &[n, n], 3);
        }
        assert_eq!(list[..], [3, 0, 0, 0, 0, 0, 0, 0, 5, 5, 4, 4, 3, 3]);
    }
}
