//! The true state of the simulated cluster, and the questions that callers ask about it.

use super::super::*;

use AccountQuestion::{Balance, List, Single};

const TOKEN_PROGRAM: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
const TOKEN_2022: &str = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb";
const SYSVAR: &str = "Sysvar1111111111111111111111111111111111111";

/// The number of an account that does not exist before its first write. No token program owns it.
pub(super) const PLAIN: u8 = 0;
/// The number of an account of the classic token program.
pub(super) const TOKEN: u8 = 1;
/// The number of an account of Token-2022. Its jsonParsed form and its balance change with each slot.
pub(super) const CLOCKED: u8 = 2;
/// The number of an account that changes with each slot although no block lists it.
pub(super) const UNSEEN: u8 = 3;

pub(super) const ACCOUNTS: [u8; 4] = [PLAIN, TOKEN, CLOCKED, UNSEEN];
pub(super) const LISTS: [&[u8]; 5] =
    [&[PLAIN, TOKEN], &[TOKEN, PLAIN, CLOCKED], &[PLAIN, UNSEEN], &[CLOCKED], &[TOKEN, CLOCKED]];
/// The number of slots between the first and the newest block at the beginning of a test. The blocks of these
/// slots write no account.
pub(super) const HISTORY: Slot = 40;

/// A question about accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccountQuestion {
    Single { account: u8, parsed: bool },
    List { list: usize, parsed: bool },
    Balance { account: u8 },
}

/// A block of the cluster: its slot and the accounts that it writes.
pub(super) struct Block {
    pub(super) slot: Slot,
    pub(super) writes: Vec<u8>,
}

pub(super) fn pubkey(account: u8) -> Pubkey {
    Pubkey([account + 1; 32])
}

/// The blocks of the simulated cluster, from which the state at every slot follows.
pub(super) struct Cluster {
    pub(super) blocks: Vec<Block>,
    /// The position of the newest finalized block in `blocks`.
    pub(super) finalized: usize,
}

impl Cluster {
    pub(super) fn newest(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Returns the slot of the last block up to `slot` that wrote an account. 0 if none did.
    pub(super) fn written(&self, account: u8, slot: Slot) -> Slot {
        let blocks = self.blocks.iter().rev().skip_while(|block| block.slot > slot);
        let writer = blocks.into_iter().find(|block| block.writes.contains(&account));
        writer.map_or(0, |block| block.slot)
    }

    /// Returns the value of an account at a slot, as a node shows it.
    pub(super) fn account(&self, account: u8, parsed: bool, slot: Slot) -> String {
        let mut written = self.written(account, slot);
        if account == PLAIN && written == 0 {
            return "null".to_owned();
        }
        if account == UNSEEN {
            written = slot;
        }
        let owner = match account {
            TOKEN => TOKEN_PROGRAM.to_owned(),
            CLOCKED => TOKEN_2022.to_owned(),
            UNSEEN => SYSVAR.to_owned(),
            _ => Pubkey([9; 32]).to_string(),
        };
        let data = match account {
            TOKEN if parsed => {
                format!(r#"{{"parsed":{{"amount":{written}}},"program":"spl-token","space":8}}"#)
            }
            CLOCKED if parsed => {
                format!(
                    r#"{{"parsed":{{"amount":{written},"now":{slot}}},"program":"spl-token-2022","space":8}}"#
                )
            }
            _ => format!(r#"["{}","base64"]"#, BASE64.encode(written.to_le_bytes())),
        };
        format!(
            r#"{{"data":{data},"executable":false,"lamports":{written},"owner":"{owner}","rentEpoch":0,"space":8}}"#
        )
    }

    /// Returns the value that the answer to a question shows at `slot`.
    pub(super) fn value(&self, question: AccountQuestion, slot: Slot) -> String {
        match question {
            Single { account, parsed } => self.account(account, parsed, slot),
            List { list, parsed } => {
                let values = LISTS[list].iter().map(|account| self.account(*account, parsed, slot));
                format!("[{}]", values.collect::<Vec<_>>().join(","))
            }
            Balance { account } => {
                let written = self.written(account, slot);
                let now = if account == CLOCKED { slot } else { 0 };
                format!(r#"{{"amount":"{}"}}"#, written * 1_000_000 + now)
            }
        }
    }
}

impl AccountQuestion {
    pub(super) fn query(self, commitment: Commitment, min_slot: Option<Slot>) -> Query {
        let c = commitment.as_str();
        let min_slot = min_slot.map_or(String::new(), |slot| format!(r#","minContextSlot":{slot}"#));
        let encoding = |parsed| if parsed { "jsonParsed" } else { "base64" };
        let (method, params) = match self {
            Single { account, parsed } => (
                Method::GetAccountInfo,
                format!(
                    r#"["{}",{{"commitment":"{c}","encoding":"{}"{min_slot}}}]"#,
                    pubkey(account),
                    encoding(parsed)
                ),
            ),
            List { list, parsed } => {
                let keys: Vec<_> =
                    LISTS[list].iter().map(|account| format!("\"{}\"", pubkey(*account))).collect();
                let keys = keys.join(",");
                let encoding = encoding(parsed);
                (
                    Method::GetMultipleAccounts,
                    format!(r#"[[{keys}],{{"commitment":"{c}","encoding":"{encoding}"{min_slot}}}]"#),
                )
            }
            Balance { account } => {
                (Method::GetTokenAccountBalance, format!(r#"["{}",{{"commitment":"{c}"}}]"#, pubkey(account)))
            }
        };
        crate::cache::model::questions::parse_query(method, &params)
    }
}

/// Returns three values: the accounts that an upstream query asks for; true if it asks for jsonParsed; and the
/// account of a balance query. The cache may ask for only some accounts of a list.
pub(super) fn asked(query: &Query) -> (Vec<u8>, bool, Option<u8>) {
    let account = |pubkey: &Pubkey| pubkey.0[0] - 1;
    let is_parsed =
        |form: &crate::methods::AccountForm| form.encoding == crate::methods::AccountEncoding::JsonParsed;
    match query {
        Query::Account(query) => (vec![account(&query.pubkey)], is_parsed(&query.form), None),
        Query::Accounts(query) => (query.pubkeys.iter().map(account).collect(), is_parsed(&query.form), None),
        Query::Balance(query) => (Vec::new(), false, Some(account(&query.pubkey))),
        other => panic!("{other:?}"),
    }
}
