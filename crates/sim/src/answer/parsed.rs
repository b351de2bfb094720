//! Account data in the jsonParsed form, for the owners that a node can parse: token programs, vote, stake, lookup
//! tables, nonces, sysvars and upgradeable programs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use slotfront_rpc::methods::{Pubkey, Slot};

use crate::chain::Chain;
use crate::chain::accounts::Account;
use crate::chain::address;
use crate::chain::layout::{Clock, FieldReader, LookupTable, Nonce, Stake};
use crate::chain::token::{FROZEN, Mint, TokenAccount};
use crate::chain::vote::VoteState;

/// Returns true if accounts of this owner are token accounts or mints.
pub(super) fn is_token_program(owner: &Pubkey) -> bool {
    [address::TOKEN, address::TOKEN_2022].contains(owner)
}

pub(super) fn token_program_name(program: &Pubkey) -> &'static str {
    if *program == address::TOKEN { "spl-token" } else { "spl-token-2022" }
}

/// Returns the account's `data` in parsed form, or `None` if a node falls back to base64.
pub(super) fn parse(chain: &Chain, slot: Slot, key: &Pubkey, account: &Account) -> Option<Value> {
    let (program, parsed) = match account.owner {
        address::TOKEN | address::TOKEN_2022 => {
            (token_program_name(&account.owner), token(chain, slot, &account.data)?)
        }
        address::VOTE => ("vote", vote(&account.data)?),
        address::STAKE => ("stake", stake(&account.data)?),
        address::LOOKUP_TABLE => ("address-lookup-table", lookup_table(&account.data)?),
        address::SYSTEM => ("nonce", nonce(&account.data)?),
        address::SYSVAR_OWNER => ("sysvar", sysvar(key, &account.data)?),
        address::LOADER_UPGRADEABLE => ("bpf-upgradeable-loader", program_account(&account.data)?),
        _ => return None,
    };
    Some(json!({ "parsed": parsed, "program": program, "space": account.data.len() }))
}

fn named(kind: &str, info: &Value) -> Value {
    json!({ "info": info, "type": kind })
}

fn text(key: Pubkey) -> String {
    key.to_string()
}

/// Returns the JSON object of a token amount. It has the integer amount, the number of decimals, and the decimal
/// amount as a number and as a string.
pub(super) fn token_amount(amount: u64, decimals: u8) -> Value {
    json!({
        "amount": amount.to_string(),
        "decimals": decimals,
        "uiAmount": ui_amount(amount, decimals),
        "uiAmountString": ui_amount_string(amount, decimals),
    })
}

/// Returns the amount as a float, or `None` if 10^decimals exceeds 64 bits.
#[expect(clippy::cast_precision_loss, reason = "a node divides the same two floats")]
fn ui_amount(amount: u64, decimals: u8) -> Option<f64> {
    10u64.checked_pow(u32::from(decimals)).map(|unit| amount as f64 / unit as f64)
}

/// Returns the amount as a decimal number without trailing zeros.
fn ui_amount_string(amount: u64, decimals: u8) -> String {
    let width = usize::from(decimals) + 1;
    let digits = format!("{amount:0>width$}");
    let (whole, fraction) = digits.split_at(digits.len() - usize::from(decimals));
    match fraction.trim_end_matches('0') {
        "" => whole.to_owned(),
        fraction => format!("{whole}.{fraction}"),
    }
}

fn token(chain: &Chain, slot: Slot, data: &[u8]) -> Option<Value> {
    if let Some(mint) = Mint::decode(data) {
        let info = json!({
            "decimals": mint.decimals,
            "freezeAuthority": mint.freeze_authority.map(text),
            "isInitialized": true,
            "mintAuthority": mint.authority.map(text),
            "supply": mint.supply.to_string(),
        });
        return Some(named("mint", &info));
    }
    let account = TokenAccount::decode(data)?;
    let decimals = Mint::decode(&chain.account(&account.mint, slot)?.data)?.decimals;
    let mut info = json!({
        "isNative": account.native_reserve.is_some(),
        "mint": text(account.mint),
        "owner": text(account.owner),
        "state": if account.state == FROZEN { "frozen" } else { "initialized" },
        "tokenAmount": token_amount(account.amount, decimals),
    });
    if let Some((delegate, amount)) = account.delegate {
        info["delegate"] = text(delegate).into();
        info["delegatedAmount"] = token_amount(amount, decimals);
    }
    if let Some(reserve) = account.native_reserve {
        info["rentExemptReserve"] = token_amount(reserve, decimals);
    }
    if account.immutable_owner {
        info["extensions"] = json!([{ "extension": "immutableOwner" }]);
    }
    Some(named("account", &info))
}

fn vote(data: &[u8]) -> Option<Value> {
    let state = VoteState::decode(data)?;
    let lockouts = state.tower.lockouts();
    let lockouts: Value = lockouts
        .map(|(slot, count)| json!({ "confirmationCount": count, "latency": 1, "slot": slot }))
        .collect();
    let credits = state.credits.iter();
    let credits: Value = credits
        .map(|(epoch, credits, before)| {
            json!({ "credits": credits.to_string(), "epoch": epoch, "previousCredits": before.to_string() })
        })
        .collect();
    let (epoch, voter) = state.authorized;
    let (slot, timestamp) = state.last_timestamp;
    let info = json!({
        "authorizedVoters": [{ "authorizedVoter": text(voter), "epoch": epoch }],
        "authorizedWithdrawer": text(state.withdrawer),
        "blockRevenueCollector": text(state.node),
        "blockRevenueCommissionBps": 10_000,
        "blsPubkeyCompressed": null,
        "commission": state.commission_bps / 100,
        "epochCredits": credits,
        "inflationRewardsCollector": text(state.collector),
        "inflationRewardsCommissionBps": state.commission_bps,
        "lastTimestamp": { "slot": slot, "timestamp": timestamp },
        "nodePubkey": text(state.node),
        "pendingDelegatorRewards": "0",
        "priorVoters": [],
        "rootSlot": state.tower.root,
        "votes": lockouts,
    });
    Some(named("vote", &info))
}

fn stake(data: &[u8]) -> Option<Value> {
    let stake = Stake::decode(data)?;
    let info = json!({
        "meta": {
            "authorized": { "staker": text(stake.authority), "withdrawer": text(stake.authority) },
            "lockup": { "custodian": text(address::SYSTEM), "epoch": 0, "unixTimestamp": 0 },
            "rentExemptReserve": stake.rent_exempt_reserve.to_string(),
        },
        "stake": {
            "creditsObserved": stake.credits_observed,
            "delegation": {
                "activationEpoch": stake.activation_epoch.to_string(),
                "deactivationEpoch": u64::MAX.to_string(),
                "stake": stake.delegated.to_string(),
                "voter": text(stake.voter),
                "warmupCooldownRate": 0.25,
            },
        },
    });
    Some(named("delegated", &info))
}

fn lookup_table(data: &[u8]) -> Option<Value> {
    let table = LookupTable::decode(data)?;
    let info = json!({
        "addresses": table.addresses.into_iter().map(text).collect::<Value>(),
        "authority": text(table.authority),
        "deactivationSlot": u64::MAX.to_string(),
        "lastExtendedSlot": table.last_extended_slot.to_string(),
        "lastExtendedSlotStartIndex": 0,
    });
    Some(named("lookupTable", &info))
}

fn nonce(data: &[u8]) -> Option<Value> {
    let nonce = Nonce::decode(data)?;
    let info = json!({
        "authority": text(nonce.authority),
        "blockhash": text(Pubkey(nonce.blockhash)),
        "feeCalculator": { "lamportsPerSignature": nonce.lamports_per_signature.to_string() },
    });
    Some(named("initialized", &info))
}

fn sysvar(key: &Pubkey, data: &[u8]) -> Option<Value> {
    let mut fields = FieldReader(data);
    let (kind, info) = match *key {
        address::CLOCK => {
            let clock = Clock::decode(data)?;
            let info = json!({
                "epoch": clock.epoch,
                "epochStartTimestamp": clock.epoch_start,
                "leaderScheduleEpoch": clock.epoch + 1,
                "slot": clock.slot,
                "unixTimestamp": clock.now,
            });
            ("clock", info)
        }
        address::RENT => {
            let lamports = fields.u64()?;
            let info = json!({
                "burnPercent": 50,
                "exemptionThreshold": 1.0,
                "lamportsPerByteYear": lamports.to_string(),
            });
            ("rent", info)
        }
        address::EPOCH_SCHEDULE => {
            let (slots, offset, warmup) = (fields.u64()?, fields.u64()?, fields.u8()? == 1);
            let info = json!({
                "firstNormalEpoch": fields.u64()?,
                "firstNormalSlot": fields.u64()?,
                "leaderScheduleSlotOffset": offset,
                "slotsPerEpoch": slots,
                "warmup": warmup,
            });
            ("epochSchedule", info)
        }
        address::SLOT_HASHES => {
            let hashes = (0..fields.len()?).map(|_| {
                let (slot, hash) = (fields.u64()?, fields.key()?);
                Some(json!({ "hash": text(hash), "slot": slot }))
            });
            ("slotHashes", hashes.collect::<Option<Value>>()?)
        }
        address::RECENT_BLOCKHASHES => {
            let hashes = (0..fields.len()?).map(|_| {
                let (hash, fee) = (fields.key()?, fields.u64()?.to_string());
                Some(json!({ "blockhash": text(hash), "feeCalculator": { "lamportsPerSignature": fee } }))
            });
            ("recentBlockhashes", hashes.collect::<Option<Value>>()?)
        }
        address::STAKE_HISTORY => ("stakeHistory", json!([])),
        _ => return None,
    };
    Some(named(kind, &info))
}

/// Returns the parsed form of an upgradeable program, or of the account that holds the program's code.
fn program_account(data: &[u8]) -> Option<Value> {
    let mut fields = FieldReader(data);
    match fields.u32()? {
        2 => Some(named("program", &json!({ "programData": text(fields.key()?) }))),
        3 => {
            let slot = fields.u64()?;
            // Without an authority, a node shows the empty place of the key as the beginning of the code.
            let authority = if fields.u8()? == 1 { Some(fields.key()?) } else { None };
            let code = json!([BASE64.encode(fields.0), "base64"]);
            let info = json!({ "authority": authority.map(text), "data": code, "slot": slot });
            Some(named("programData", &info))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_a_node_writes_them() {
        #[track_caller]
        fn check(amount: u64, decimals: u8, expected: &str) {
            assert_eq!(token_amount(amount, decimals).to_string(), expected);
        }
        check(1, 0, r#"{"amount":"1","decimals":0,"uiAmount":1.0,"uiAmountString":"1"}"#);
        check(6, 6, r#"{"amount":"6","decimals":6,"uiAmount":6e-6,"uiAmountString":"0.000006"}"#);
        check(0, 6, r#"{"amount":"0","decimals":6,"uiAmount":0.0,"uiAmountString":"0"}"#);
        check(
            250_000_000,
            9,
            r#"{"amount":"250000000","decimals":9,"uiAmount":0.25,"uiAmountString":"0.25"}"#,
        );
        check(
            18_446_744_073_709_551_609,
            9,
            concat!(
                r#"{"amount":"18446744073709551609","decimals":9,"#,
                r#""uiAmount":18446744073.709553,"uiAmountString":"18446744073.709551609"}"#
            ),
        );
        check(
            12_339,
            20,
            r#"{"amount":"12339","decimals":20,"uiAmount":null,"uiAmountString":"0.00000000000000012339"}"#,
        );
    }

    #[test]
    fn code_follows_the_option_of_an_authority() {
        for (authority, from) in [(None, 13), (Some(Pubkey([1; 32])), 45)] {
            let key = authority.map_or([0; 32], |key| key.0);
            let data =
                [&3u32.to_le_bytes()[..], &[0; 8], &[authority.is_some().into()], &key, b"\x7fELF"].concat();
            let parsed = program_account(&data).unwrap();
            assert_eq!(
                parsed["info"]["data"],
                json!([BASE64.encode(&data[from..]), "base64"]),
                "{authority:?}"
            );
        }
    }
}
