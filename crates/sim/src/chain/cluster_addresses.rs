//! All addresses of the simulated cluster. Each depends only on the seed.

use slotfront_rpc::methods::Pubkey;

use super::address;
use super::keyring::Keyring;
use super::paced::{PacedAccounts, PacedAddresses};
use crate::draw::Draw;

const WALLETS: u64 = 60;
/// The number of address lookup tables.
const TABLES: u64 = 2;
/// The number of addresses in each lookup table: two sysvars, a mint, some token accounts, then wallets.
const TABLE_LEN: usize = 24;
/// The number of accounts that are opened and closed repeatedly.
const POCKETS: u64 = 12;
/// The number of wallets that hold each token.
const HOLDERS: u64 = 12;
/// The name of the developer's key pair.
pub(crate) const DEVELOPER: &str = "developer";

/// A mint of the simulation, and the token accounts that hold its token.
#[derive(Debug, Clone)]
pub(crate) struct Coin {
    pub(crate) mint: Pubkey,
    pub(crate) program: Pubkey,
    pub(crate) decimals: u8,
    /// The token accounts, each with its owner. Never empty.
    pub(crate) holders: Vec<(Pubkey, Pubkey)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValidatorRole {
    /// The validator is staked, leads and votes.
    Voting,
    /// The validator is staked, but stopped voting before the simulation began.
    Delinquent,
    /// The validator has a vote account without stake, and never voted.
    Unstaked,
}

#[derive(Debug, Clone)]
pub(crate) struct Validator {
    pub(crate) identity: Pubkey,
    pub(crate) vote: Pubkey,
    pub(crate) stake: Pubkey,
    pub(crate) role: ValidatorRole,
    pub(crate) commission_bps: u16,
    /// The lamports staked when the simulation began.
    pub(crate) delegated: u64,
}

/// Every address of the cluster, and the keys of those that sign.
#[derive(Debug)]
pub(crate) struct ClusterAddresses {
    pub(crate) wallets: Vec<Pubkey>,
    pub(crate) coins: Vec<Coin>,
    pub(crate) validators: Vec<Validator>,
    /// The lookup tables: the address of each table, and the addresses that the table lists.
    pub(crate) tables: Vec<(Pubkey, Vec<Pubkey>)>,
    pub(crate) pockets: Vec<Pubkey>,
    pub(crate) nonce: Pubkey,
    pub(crate) nonce_blockhash: [u8; 32],
    pub(crate) frozen_token: (Pubkey, Pubkey),
    pub(crate) uninitialized_token: Pubkey,
    /// The account of a feature that becomes active when an epoch begins.
    pub(crate) feature: Pubkey,
    /// The accounts that hold the code of the token program and of Token-2022.
    pub(crate) program_data: [Pubkey; 2],
    /// The authority over mints and lookup tables, which is also a delegate of token accounts. This account pays no
    /// fees.
    pub(crate) authority: Pubkey,
    pub(crate) paced: PacedAddresses,
    /// The account that pays airdrops.
    pub(crate) faucet: Pubkey,
    /// The account of the developer who runs the cluster. Only the developer sends transactions from it.
    pub(crate) developer: Pubkey,
    pub(crate) keyring: Keyring,
}

impl ClusterAddresses {
    /// Returns the addresses for `seed`. There is a validator for each of the `nodes` nodes, and there are four further
    /// validators.
    pub(crate) fn new(seed: u64, nodes: usize, paced: &[PacedAccounts]) -> Self {
        let key = |label: &str, n: u64| Pubkey(Draw::new(seed, label, n).bytes());
        let mut keyring = Keyring::default();
        let wallets: Vec<Pubkey> = (0..WALLETS).map(|n| keyring.add(seed, "wallet", n)).collect();
        let coin = |mint, program, decimals| {
            let mut draw = Draw::new(seed, "holders", u64::from(decimals));
            let first = draw.below(WALLETS);
            let holder = |n| (key(&format!("token {decimals}"), n), wallets[at((first + 5 * n) % WALLETS)]);
            Coin { mint, program, decimals, holders: (0..HOLDERS).map(holder).collect() }
        };
        let coins = vec![
            coin(key("mint", 0), address::TOKEN, 6),
            coin(key("mint", 1), address::TOKEN, 8),
            coin(key("mint", 2), address::TOKEN, 0),
            coin(key("mint", 3), address::TOKEN, 20),
            coin(key("mint", 4), address::TOKEN_2022, 2),
            coin(address::NATIVE_MINT, address::TOKEN, 9),
        ];
        let roles = std::iter::repeat_n(ValidatorRole::Voting, nodes + 2)
            .chain([ValidatorRole::Delinquent, ValidatorRole::Unstaked]);
        let validators = (0..).zip(roles).map(|(n, role)| validator(seed, n, role, &mut keyring)).collect();
        let tables = (0..TABLES)
            .map(|n| {
                let mut draw = Draw::new(seed, "table", n);
                let mut listed = vec![address::CLOCK, address::RENT, coins[0].mint];
                listed.extend(coins[0].holders.iter().take(4).map(|(token, _)| *token));
                while listed.len() < TABLE_LEN {
                    let wallet = *draw.pick(&wallets);
                    if !listed.contains(&wallet) {
                        listed.push(wallet);
                    }
                }
                (key("lookup table", n), listed)
            })
            .collect();
        Self {
            frozen_token: (key("frozen", 0), wallets[0]),
            coins,
            validators,
            tables,
            pockets: (0..POCKETS).map(|n| keyring.add(seed, "pocket", n)).collect(),
            nonce: key("nonce", 0),
            nonce_blockhash: Draw::new(seed, "nonce blockhash", 0).bytes(),
            uninitialized_token: key("uninitialized", 0),
            feature: key("feature", 0),
            program_data: [1, 2].map(|n| key("program data", n)),
            authority: key("authority", 0),
            paced: PacedAddresses::new(seed, paced, &mut keyring),
            faucet: keyring.add(seed, "faucet", 0),
            developer: keyring.add(seed, DEVELOPER, 0),
            wallets,
            keyring,
        }
    }

    pub(crate) fn voting(&self) -> impl Iterator<Item = &Validator> {
        self.validators.iter().filter(|validator| validator.role == ValidatorRole::Voting)
    }
}

fn validator(seed: u64, n: u64, role: ValidatorRole, keyring: &mut Keyring) -> Validator {
    let key = |label: &str| Pubkey(Draw::new(seed, label, n).bytes());
    let mut draw = Draw::new(seed, "validator", n);
    let delegated =
        if role == ValidatorRole::Unstaked { 0 } else { draw.range(40_000, 900_000) * 1_000_000_000 };
    let commission_bps = *draw.pick(&[0, 0, 400, 500, 500, 700, 1_000]);
    Validator {
        identity: keyring.add(seed, "identity", n),
        vote: key("vote"),
        stake: key("stake"),
        role,
        commission_bps,
        delegated,
    }
}

fn at(index: u64) -> usize {
    usize::try_from(index).unwrap_or(0)
}
