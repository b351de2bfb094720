//! What a client subscribes to, as a node reads it.

use serde::Deserialize;
use serde_json::Value;
use slotfront_rpc::methods::{AccountEncoding, AccountForm, Commitment, DataSlice, Pubkey};

use crate::answer::{Refusal, argument, signature};
use crate::chain::accounts::Account;
use crate::chain::transaction::Transaction;

/// The maximum number of filters of a programSubscribe call.
const MAX_FILTERS: usize = 4;

/// A subscription with its parsed params. Equal ones of one connection are one subscription.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Subscription {
    Account { key: Pubkey, commitment: Commitment, form: AccountForm },
    Program { key: Pubkey, commitment: Commitment, form: AccountForm, filters: Vec<Filter> },
    Logs { filter: LogsFilter, commitment: Commitment },
    Signature { signature: [u8; 64], commitment: Commitment, tells_receipt: bool },
    Slot,
    Root,
    SlotsUpdates,
}

/// The transactions whose logs a client wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LogsFilter {
    /// All but votes.
    All,
    AllWithVotes,
    Mentions(Pubkey),
}

/// A condition on the accounts of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filter {
    Size(u64),
    Bytes { offset: usize, bytes: Vec<u8> },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    commitment: Option<Commitment>,
    encoding: Option<AccountEncoding>,
    data_slice: Option<Slice>,
    filters: Option<Vec<Value>>,
    enable_received_notification: Option<bool>,
}

#[derive(Deserialize)]
struct Slice {
    offset: u64,
    length: u64,
}

impl Config {
    fn commitment(&self) -> Commitment {
        self.commitment.unwrap_or(Commitment::Finalized)
    }

    fn form(&self) -> AccountForm {
        let slice = self.data_slice.as_ref();
        AccountForm {
            encoding: self.encoding.unwrap_or(AccountEncoding::Binary),
            slice: slice.map(|slice| DataSlice { offset: slice.offset, length: slice.length }),
        }
    }
}

impl Subscription {
    /// Reads the params of a subscribing method. Returns `None` for another method.
    pub(super) fn parse(method: &str, params: &[Value]) -> Option<Result<Self, Refusal>> {
        Some(match method {
            "accountSubscribe" => account(params),
            "programSubscribe" => program(params),
            "logsSubscribe" => logs(params),
            "signatureSubscribe" => one_signature(params),
            "slotSubscribe" => Ok(Self::Slot),
            "rootSubscribe" => Ok(Self::Root),
            "slotsUpdatesSubscribe" => Ok(Self::SlotsUpdates),
            _ => return None,
        })
    }

    pub(super) fn notification(&self) -> &'static str {
        match self {
            Self::Account { .. } => "accountNotification",
            Self::Program { .. } => "programNotification",
            Self::Logs { .. } => "logsNotification",
            Self::Signature { .. } => "signatureNotification",
            Self::Slot => "slotNotification",
            Self::Root => "rootNotification",
            Self::SlotsUpdates => "slotsUpdatesNotification",
        }
    }
}

impl LogsFilter {
    pub(super) fn selects(self, transaction: &Transaction) -> bool {
        match self {
            Self::All => !transaction.is_vote(),
            Self::AllWithVotes => true,
            Self::Mentions(key) => transaction.accounts().any(|account| *account == key),
        }
    }
}

impl Filter {
    pub(super) fn selects(&self, account: &Account) -> bool {
        match self {
            Self::Size(size) => account.data.len() as u64 == *size,
            Self::Bytes { offset, bytes } => {
                account.data.get(*offset..).is_some_and(|data| data.starts_with(bytes))
            }
        }
    }

    fn parse(filter: &Value) -> Result<Self, Refusal> {
        if let Some(size) = filter.get("dataSize").and_then(Value::as_u64) {
            return Ok(Self::Size(size));
        }
        let member = |name| filter.get("memcmp").and_then(|memcmp| memcmp.get(name));
        let offset = member("offset").and_then(Value::as_u64).and_then(|offset| usize::try_from(offset).ok());
        let (Some(offset), Some(bytes)) = (offset, member("bytes").and_then(Value::as_str)) else {
            return Err(Refusal::param("Invalid params: expected dataSize or memcmp."));
        };
        let bytes = bs58::decode(bytes).into_vec().map_err(|error| {
            Refusal::param(format!("Invalid params: Invalid param: Base58DecodeError({error:?})"))
        })?;
        Ok(Self::Bytes { offset, bytes })
    }
}

fn config(params: &[Value]) -> Result<Config, Refusal> {
    let config = params.get(1).filter(|config| !config.is_null()).cloned();
    let config = config.map(serde_json::from_value).transpose();
    config.map(Option::unwrap_or_default).map_err(|e| Refusal::param(format!("Invalid params: {e}.")))
}

fn key(text: &Value, what: &str) -> Result<Pubkey, Refusal> {
    let key = text.as_str().and_then(|text| Pubkey::parse(text).ok());
    key.ok_or_else(|| Refusal::param(format!("Invalid Request: Invalid {what} provided")))
}

fn account(params: &[Value]) -> Result<Subscription, Refusal> {
    let (key, config) = (key(argument(params, 0)?, "pubkey")?, config(params)?);
    Ok(Subscription::Account { key, commitment: config.commitment(), form: config.form() })
}

fn program(params: &[Value]) -> Result<Subscription, Refusal> {
    let (key, config) = (key(argument(params, 0)?, "pubkey")?, config(params)?);
    let (commitment, form) = (config.commitment(), config.form());
    let filters = config.filters.unwrap_or_default();
    if filters.len() > MAX_FILTERS {
        return Err(Refusal::param(format!("Too many filters provided; max {MAX_FILTERS}")));
    }
    let filters = filters.iter().map(Filter::parse).collect::<Result<_, _>>()?;
    Ok(Subscription::Program { key, commitment, form, filters })
}

fn logs(params: &[Value]) -> Result<Subscription, Refusal> {
    let given = argument(params, 0)?;
    let filter = match (given.as_str(), given.get("mentions").and_then(Value::as_array)) {
        (Some("all"), _) => LogsFilter::All,
        (Some("allWithVotes"), _) => LogsFilter::AllWithVotes,
        (_, Some(keys)) => match &keys[..] {
            [one] => LogsFilter::Mentions(key(one, "mentions")?),
            _ => return Err(Refusal::param("Invalid Request: Only 1 address supported")),
        },
        _ => {
            let words = "expected one of `all`, `allWithVotes`, `mentions`";
            return Err(Refusal::param(format!("Invalid params: unknown variant, {words}.")));
        }
    };
    Ok(Subscription::Logs { filter, commitment: config(params)?.commitment() })
}

fn one_signature(params: &[Value]) -> Result<Subscription, Refusal> {
    let signature = signature(argument(params, 0)?)
        .map_err(|_| Refusal::param("Invalid Request: Invalid signature provided"))?;
    let config = config(params)?;
    let tells_receipt = config.enable_received_notification.unwrap_or(false);
    Ok(Subscription::Signature { signature, commitment: config.commitment(), tells_receipt })
}
