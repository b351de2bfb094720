//! The layouts of SPL Token, which Token-2022 shares: the mint of 82 bytes and the token account of 165 bytes.

use bytes::Bytes;
use slotfront_rpc::methods::Pubkey;

use super::layout::{self, FieldReader};

/// The `state` of an initialized token account.
pub(crate) const INITIALIZED: u8 = 1;
/// The `state` of a frozen token account.
pub(crate) const FROZEN: u8 = 2;
/// The length of a mint without extensions, in bytes.
pub(crate) const MINT_LEN: usize = 82;
/// The length of a token account without extensions, in bytes.
pub(crate) const ACCOUNT_LEN: usize = 165;
/// The bytes that Token-2022 appends to an associated account: the account type 2 (token account), then the
/// extension 7 (immutable owner) with the length 0.
const IMMUTABLE_OWNER: [u8; 5] = [2, 7, 0, 0, 0];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mint {
    pub(crate) authority: Option<Pubkey>,
    pub(crate) supply: u64,
    pub(crate) decimals: u8,
    pub(crate) freeze_authority: Option<Pubkey>,
}

impl Mint {
    /// Returns the 82 bytes of account data.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(MINT_LEN);
        layout::put_tagged_key(&mut out, self.authority);
        out.extend(self.supply.to_le_bytes());
        out.extend([self.decimals, 1]);
        layout::put_tagged_key(&mut out, self.freeze_authority);
        out.into()
    }

    /// Reads the data of an initialized mint. Returns `None` for any other data.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        let (has_authority, authority) = fields.tagged_key()?;
        let (supply, decimals, initialized) = (fields.u64()?, fields.u8()?, fields.u8()?);
        let (can_freeze, freeze_authority) = fields.tagged_key()?;
        (data.len() == MINT_LEN && initialized == 1).then_some(Self {
            authority: has_authority.then_some(authority),
            supply,
            decimals,
            freeze_authority: can_freeze.then_some(freeze_authority),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenAccount {
    pub(crate) mint: Pubkey,
    pub(crate) owner: Pubkey,
    pub(crate) amount: u64,
    /// The delegate, which may also spend tokens of this account, and the amount that the delegate may spend.
    pub(crate) delegate: Option<(Pubkey, u64)>,
    pub(crate) state: u8,
    /// The lamports that are reserved for rent. `None` unless the account holds wrapped SOL.
    pub(crate) native_reserve: Option<u64>,
    /// True if the account data ends with Token-2022's immutable-owner extension.
    pub(crate) immutable_owner: bool,
}

impl TokenAccount {
    /// Creates an initialized account with `amount` tokens.
    pub(crate) fn new(mint: Pubkey, owner: Pubkey, amount: u64) -> Self {
        Self {
            mint,
            owner,
            amount,
            delegate: None,
            state: INITIALIZED,
            native_reserve: None,
            immutable_owner: false,
        }
    }

    /// Returns the account data: 165 bytes, or 170 with the immutable-owner extension.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(ACCOUNT_LEN + IMMUTABLE_OWNER.len());
        out.extend(self.mint.0);
        out.extend(self.owner.0);
        out.extend(self.amount.to_le_bytes());
        layout::put_tagged_key(&mut out, self.delegate.map(|(delegate, _)| delegate));
        out.push(self.state);
        out.extend(u32::from(self.native_reserve.is_some()).to_le_bytes());
        out.extend(self.native_reserve.unwrap_or(0).to_le_bytes());
        out.extend(self.delegate.map_or(0, |(_, amount)| amount).to_le_bytes());
        layout::put_tagged_key(&mut out, None);
        if self.immutable_owner {
            out.extend(IMMUTABLE_OWNER);
        }
        out.into()
    }

    /// Reads the data of an initialized or frozen account. Returns `None` for any other data.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(data);
        let (mint, owner, amount) = (fields.key()?, fields.key()?, fields.u64()?);
        let (has_delegate, delegate) = fields.tagged_key()?;
        let state = fields.u8()?;
        let (native, reserve) = (fields.u32()?, fields.u64()?);
        let delegated = fields.u64()?;
        fields.tagged_key()?;
        let immutable_owner = fields.0 == IMMUTABLE_OWNER;
        let known = matches!(state, INITIALIZED | FROZEN) && (fields.0.is_empty() || immutable_owner);
        known.then_some(Self {
            mint,
            owner,
            amount,
            delegate: has_delegate.then_some((delegate, delegated)),
            state,
            native_reserve: (native == 1).then_some(reserve),
            immutable_owner,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_their_real_length_and_read_back() {
        let (a, b) = (Pubkey([1; 32]), Pubkey([2; 32]));
        let mint = Mint { authority: Some(a), supply: 7, decimals: 6, freeze_authority: None };
        assert_eq!(mint.encode().len(), MINT_LEN);
        assert_eq!(Mint::decode(&mint.encode()), Some(mint.clone()));
        let plain = TokenAccount::new(a, b, 9);
        assert_eq!(plain.encode().len(), ACCOUNT_LEN);
        let rich = TokenAccount {
            delegate: Some((a, 3)),
            native_reserve: Some(2_039_280),
            immutable_owner: true,
            state: FROZEN,
            ..plain.clone()
        };
        assert_eq!(rich.encode().len(), 170);
        for account in [plain, rich] {
            assert_eq!(TokenAccount::decode(&account.encode()), Some(account));
        }
        assert_eq!(TokenAccount::decode(&mint.encode()), None, "a mint is no token account");
        assert_eq!(TokenAccount::decode(&[0; ACCOUNT_LEN]), None, "neither is an uninitialized one");
    }
}
