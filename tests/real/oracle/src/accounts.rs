//! Accounts as a node writes them: `encode_ui_account`, with the checks and the mint that a node's RPC server adds.

use serde_json::{Value, json};
use solana_account::Account;
use solana_account_decoder::parse_account_data::{AccountAdditionalDataV3, SplTokenAdditionalDataV2};
use solana_account_decoder::parse_token::{
    TokenAccountType, get_token_account_mint, parse_token_v3, token_amount_to_ui_amount_v3,
};
use solana_account_decoder::{MAX_BASE58_BYTES, UiAccountEncoding, UiDataSliceConfig, encode_ui_account};
use solana_pubkey::Pubkey;

pub const TOKEN_PROGRAMS: [&str; 2] =
    ["TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA", "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"];

/// The encoding and the slice that a call asks for.
#[derive(Debug, Clone, Copy)]
pub struct AccountShape {
    pub encoding: UiAccountEncoding,
    pub slice: Option<UiDataSliceConfig>,
}

impl AccountShape {
    /// Returns every encoding, with no slice and with slices around the end of `length` bytes.
    pub fn all(length: usize) -> Vec<Self> {
        use UiAccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};

        let mut slices = vec![None];
        for (offset, length) in [
            (0, 0),
            (0, 32),
            (3, 1),
            (length / 2, length),
            (length, 1),
            (0, length),
            (1, 128),
            (usize::MAX, usize::MAX),
        ] {
            slices.push(Some(UiDataSliceConfig { offset, length }));
        }
        let encodings = [Binary, Base58, Base64, Base64Zstd, JsonParsed];
        encodings
            .into_iter()
            .flat_map(|encoding| slices.iter().map(move |slice| Self { encoding, slice: *slice }))
            .collect()
    }

    /// Reads the shape from the config param of a call.
    pub fn of_config(config: &Value) -> Self {
        let read = |name: &str| config.get(name).filter(|value| !value.is_null()).cloned();
        let encoding = read("encoding").map(|value| serde_json::from_value(value).expect("an encoding"));
        let slice = read("dataSlice").map(|value| serde_json::from_value(value).expect("a slice"));
        Self { encoding: encoding.unwrap_or(UiAccountEncoding::Binary), slice }
    }

    pub fn config(self) -> Value {
        let mut config = json!({ "commitment": "confirmed", "encoding": self.encoding });
        if let Some(slice) = self.slice {
            config["dataSlice"] = json!(slice);
        }
        config
    }

    /// Returns a node's `value` of the account, or its error object. `mint` finds the account of a mint.
    pub fn value(
        self,
        key: &Pubkey,
        account: &Account,
        mint: impl Fn(&Pubkey) -> Option<Account>,
    ) -> Result<Value, Value> {
        let Self { encoding, mut slice } = self;
        let mut additional = None;
        if is_token(account) && encoding == UiAccountEncoding::JsonParsed {
            slice = None;
            let data = token_mint(account).and_then(|key| additional_data(&mint(&key)?));
            additional = data.map(|data| AccountAdditionalDataV3 { spl_token_additional_data: Some(data) });
        }
        let length = account.data.len();
        let shown = slice.map_or(length, |slice| slice.length.min(length.saturating_sub(slice.offset)));
        if matches!(encoding, UiAccountEncoding::Binary | UiAccountEncoding::Base58)
            && shown > MAX_BASE58_BYTES
        {
            let message = format!(
                "Encoded binary (base 58) data should be less than {MAX_BASE58_BYTES} bytes, please use Base64 encoding."
            );
            return Err(json!({ "code": -32600, "message": message }));
        }
        Ok(json!(encode_ui_account(key, account, encoding, additional, slice)))
    }
}

/// Returns the `value` of getTokenAccountBalance. `None` for what is not a token account with a known mint.
pub fn balance(account: &Account, mint: impl Fn(&Pubkey) -> Option<Account>) -> Option<Value> {
    let data = additional_data(&mint(&token_mint(account).filter(|_| is_token(account))?)?)?;
    parse_token_v3(&account.data, Some(&data)).ok()?;
    let amount = u64::from_le_bytes(*account.data[64..].first_chunk()?);
    Some(json!(token_amount_to_ui_amount_v3(amount, &data)))
}

fn is_token(account: &Account) -> bool {
    TOKEN_PROGRAMS.contains(&account.owner.to_string().as_str())
}

pub fn token_mint(account: &Account) -> Option<Pubkey> {
    get_token_account_mint(&account.data)
}

/// Returns what a node reads from a mint. The extensions that make amounts depend on the time of the answer are left
/// out: there is no clock here.
fn additional_data(mint: &Account) -> Option<SplTokenAdditionalDataV2> {
    match parse_token_v3(&mint.data, None).ok()? {
        TokenAccountType::Mint(mint) => Some(SplTokenAdditionalDataV2::with_decimals(mint.decimals)),
        _ => None,
    }
}

/// Compares two `value`s of an account byte for byte, except for zstd, where compressed bytes differ by encoder: there
/// the data is compared.
pub fn same(ours: &Value, node: &Value) -> bool {
    let unpacked = |value: &Value| {
        let mut value = value.clone();
        if value["data"][1] == "base64+zstd" {
            let account: solana_account_decoder::UiAccount = serde_json::from_value(value.clone()).ok()?;
            value["data"] = json!(account.data.decode()?);
        }
        Some(value.to_string())
    };
    matches!((unpacked(ours), unpacked(node)), (Some(ours), Some(node)) if ours == node)
}
