//! Blocks as a node writes them: a block in base64 is read into the node's own types, and these write every shape.

use serde_json::{Value, json};
use solana_message::compiled_instruction::CompiledInstruction;
use solana_transaction_status::{
    BlockEncodingOptions, ConfirmedBlock, EncodeError, EncodedTransaction, EncodedTransactionWithStatusMeta,
    InnerInstruction, InnerInstructions, TransactionDetails, TransactionStatusMeta, TransactionTokenBalance,
    TransactionWithStatusMeta, UiConfirmedBlock, UiInnerInstructions, UiInstruction, UiTransactionEncoding,
    UiTransactionStatusMeta, UiTransactionTokenBalance, VersionedTransactionWithStatusMeta,
};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The params of getBlock except the slot.
#[derive(Debug, Clone, Copy)]
pub struct BlockShape {
    pub details: TransactionDetails,
    pub encoding: UiTransactionEncoding,
    pub rewards: bool,
    pub max_version: Option<u8>,
}

impl BlockShape {
    /// The shape from which a block can be read back.
    pub const WHOLE: Self = Self {
        details: TransactionDetails::Full,
        encoding: UiTransactionEncoding::Base64,
        rewards: true,
        max_version: Some(0),
    };

    pub fn all() -> Vec<Self> {
        use TransactionDetails::{Accounts, Full, None as Nothing, Signatures};
        use UiTransactionEncoding::{Base58, Base64, Binary, Json, JsonParsed};

        let mut all = Vec::new();
        for details in [Full, Accounts, Signatures, Nothing] {
            for encoding in [Json, JsonParsed, Base64, Base58, Binary] {
                for rewards in [true, false] {
                    let versions = [None, Some(0), Some(1)];
                    all.extend(versions.map(|max_version| Self { details, encoding, rewards, max_version }));
                }
            }
        }
        all
    }

    pub fn of_config(config: &Value) -> Self {
        let read = |name: &str| config.get(name).filter(|value| !value.is_null()).cloned();
        let details = read("transactionDetails").map(|value| serde_json::from_value(value).expect("details"));
        let encoding = read("encoding").map(|value| serde_json::from_value(value).expect("an encoding"));
        let version = read("maxSupportedTransactionVersion")
            .map(|value| serde_json::from_value(value).expect("a version"));
        Self {
            details: details.unwrap_or_default(),
            encoding: encoding.unwrap_or(UiTransactionEncoding::Json),
            rewards: read("rewards").is_none_or(|value| value == true),
            max_version: version,
        }
    }

    pub fn config(self) -> Value {
        let mut config =
            json!({ "transactionDetails": self.details, "encoding": self.encoding, "rewards": self.rewards });
        if let Some(version) = self.max_version {
            config["maxSupportedTransactionVersion"] = version.into();
        }
        config
    }

    /// Returns a node's result for the block, or its error object.
    pub fn result(self, block: &ConfirmedBlock) -> Result<Value, Value> {
        let options = BlockEncodingOptions {
            transaction_details: self.details,
            show_rewards: self.rewards,
            max_supported_transaction_version: self.max_version,
        };
        match block.clone().encode_with_options(self.encoding, options) {
            Ok(block) => Ok(json!(block)),
            Err(EncodeError::UnsupportedTransactionVersion(version)) => {
                Err(Self::unsupported_version(version))
            }
        }
    }

    /// Returns a node's error for a transaction whose version the caller cannot read.
    pub fn unsupported_version(version: u8) -> Value {
        let message = format!(
            "Transaction version ({version}) is not supported by the requesting client. Please try the request \
             again with the following configuration parameter: \"maxSupportedTransactionVersion\": {version}"
        );
        json!({ "code": -32015, "message": message })
    }
}

/// Reads a block in [`BlockShape::WHOLE`]. `None` if it has a transaction that the node's types cannot read.
pub fn read(block: &Value) -> Option<ConfirmedBlock> {
    let block: UiConfirmedBlock = serde_json::from_value(block.clone()).ok()?;
    Some(ConfirmedBlock {
        previous_blockhash: block.previous_blockhash,
        blockhash: block.blockhash,
        parent_slot: block.parent_slot,
        transactions: block.transactions?.into_iter().map(transaction).collect::<Option<_>>()?,
        rewards: block.rewards?,
        num_partitions: block.num_reward_partitions,
        block_time: block.block_time,
        block_height: block.block_height,
    })
}

fn transaction(encoded: EncodedTransactionWithStatusMeta) -> Option<TransactionWithStatusMeta> {
    let EncodedTransaction::Binary(text, _) = &encoded.transaction else { return None };
    let transaction = bincode::deserialize(&BASE64_STANDARD.decode(text).ok()?).ok()?;
    let meta = meta(encoded.meta?)?;
    Some(TransactionWithStatusMeta::Complete(VersionedTransactionWithStatusMeta { transaction, meta }))
}

fn meta(ui: UiTransactionStatusMeta) -> Option<TransactionStatusMeta> {
    let inner: Option<Vec<UiInnerInstructions>> = ui.inner_instructions.into();
    let inner = inner.map(|inner| inner.into_iter().map(inner_instructions).collect::<Option<_>>());
    let tokens = |balances: Option<Vec<UiTransactionTokenBalance>>| {
        balances.map(|balances| balances.into_iter().map(token_balance).collect())
    };
    let mut meta = TransactionStatusMeta {
        status: ui.err.map_or(Ok(()), |error| Err(error.into())),
        fee: ui.fee,
        pre_balances: ui.pre_balances,
        post_balances: ui.post_balances,
        inner_instructions: match inner {
            Some(inner) => Some(inner?),
            None => None,
        },
        log_messages: ui.log_messages.into(),
        pre_token_balances: tokens(ui.pre_token_balances.into()),
        post_token_balances: tokens(ui.post_token_balances.into()),
        rewards: ui.rewards.into(),
        compute_units_consumed: ui.compute_units_consumed.into(),
        cost_units: ui.cost_units.into(),
        ..TransactionStatusMeta::default()
    };
    if let Some(loaded) = Option::from(ui.loaded_addresses) {
        let loaded: solana_transaction_status::UiLoadedAddresses = loaded;
        let keys = |keys: Vec<String>| keys.iter().map(|key| key.parse().ok()).collect::<Option<_>>();
        meta.loaded_addresses.writable = keys(loaded.writable)?;
        meta.loaded_addresses.readonly = keys(loaded.readonly)?;
    }
    if let Some(returned) = Option::from(ui.return_data) {
        let returned: solana_transaction_status::UiTransactionReturnData = returned;
        let data = meta.return_data.insert(Default::default());
        data.program_id = returned.program_id.parse().ok()?;
        data.data = BASE64_STANDARD.decode(returned.data.0).ok()?;
    }
    Some(meta)
}

fn inner_instructions(ui: UiInnerInstructions) -> Option<InnerInstructions> {
    let instructions = ui.instructions.into_iter().map(|instruction| {
        let UiInstruction::Compiled(compiled) = instruction else { return None };
        let instruction = CompiledInstruction {
            program_id_index: compiled.program_id_index,
            accounts: compiled.accounts,
            data: bs58::decode(compiled.data).into_vec().ok()?,
        };
        Some(InnerInstruction { instruction, stack_height: compiled.stack_height })
    });
    Some(InnerInstructions { index: ui.index, instructions: instructions.collect::<Option<_>>()? })
}

fn token_balance(ui: UiTransactionTokenBalance) -> TransactionTokenBalance {
    let text = |text: Option<String>| text.unwrap_or_default();
    TransactionTokenBalance {
        account_index: ui.account_index,
        mint: ui.mint,
        ui_token_amount: ui.ui_token_amount,
        owner: text(ui.owner.into()),
        program_id: text(ui.program_id.into()),
    }
}
