use std::slice::from_ref;

use super::*;

/// Refusals that the sources of the rows show: what they mean, the HTTP status, the code, and the message.
const REFUSALS: &[(NodeRefusal, u16, Option<i32>, &str)] = &[
    // Helius
    (OutOfCredits, 429, Some(-32429), "max usage reached"),
    (TooMany, 429, Some(-32429), "rate limited"),
    (TooMany, 429, Some(-32429), ""),
    (TooMany, 429, Some(-32005), "Too many requests"),
    (
        NotOnPlan,
        403,
        Some(-32403),
        "This feature is only available for paid plans. Please upgrade if you would like to gain access.",
    ),
    (NotThisMethod, 403, Some(-32005), "Method getStakeActivation is not allowed."),
    // QuickNode
    (OutOfCredits, 429, Some(-32003), "daily request limit reached - upgrade your account"),
    (
        TooMany,
        200,
        Some(-32007),
        "50/second request limit reached - reduce calls per second or upgrade your account at quicknode.com",
    ),
    (
        TooMany,
        200,
        Some(-32000),
        "300/second request limit reached - reduce calls per second or upgrade your account at quicknode.com",
    ),
    (TooMany, 200, Some(-32012), "credits limited to 6000/sec"),
    (
        TooMany,
        429,
        Some(429),
        "The requests per second (RPS) of your requests are higher than your plan allows",
    ),
    (
        NotThisCall,
        413,
        Some(-32615),
        "getMultipleAccounts is limited to a 5 range, upgrade from discover plan at quicknode.com to increase the limit",
    ),
    (
        NotThisCall,
        413,
        Some(-32602),
        "getMultipleAccounts, eth_getLogs, and eth_newFilter are limited to a 75 range",
    ),
    // Alchemy
    (OutOfCredits, 403, Some(-32600), "Monthly capacity limit exceeded."),
    (
        OutOfCredits,
        429,
        Some(429),
        "Monthly capacity limit exceeded. Visit https://dashboard.alchemy.com/settings/billing to upgrade your scaling \
         policy for continued service.",
    ),
    (TooMany, 429, Some(429), "Your app has exceeded its compute units per second capacity."),
    (TooMany, 429, Some(429), "Your app has exceeded its concurrent requests capacity."),
    (TooMany, 200, Some(-32016), "Your IP has exceeded its requests per second capacity."),
    (NotThisMethod, 400, Some(-32600), "Unsupported method: getStakeActivation on SOLANA_MAINNET"),
    // Chainstack
    (OutOfCredits, 403, Some(-32005), "You've reached your monthly quota of Request Units (RUs)."),
    (TooMany, 429, Some(-32005), "You've exceeded the RPS limit available on the current plan."),
    (
        NotOnPlan,
        403,
        Some(-32602),
        "Method requires plan upgrade. See https://docs.chainstack.com/docs/limits",
    ),
    (
        NotThisCall,
        403,
        Some(-32002),
        "Archive, Debug and Trace requests are not available on your current plan.",
    ),
    (
        NotThisCall,
        200,
        Some(-32602),
        "getProgramAccounts without filters is not supported for this program. Add dataSize or memcmp filters to \
         narrow results.",
    ),
    // Triton, which serves api.mainnet-beta.solana.com, too
    (
        TooMany,
        429,
        Some(429),
        "Too many requests for a specific RPC call, contact your app developer or support@rpcpool.com.",
    ),
    (
        TooMany,
        429,
        Some(429),
        "Too many requests from your IP, contact your app developer or support@rpcpool.com.",
    ),
    (
        TooMany,
        429,
        Some(429),
        "Connection rate limits exceeded, contact your app developer or support@rpcpool.com.",
    ),
    (NotThisCall, 410, Some(410), "The RPC call or parameters have been disabled."),
    // Infura
    (OutOfCredits, 402, Some(402), "Payment Required"),
    (OutOfCredits, 200, Some(402), "Payment Required"),
    (OutOfCredits, 200, Some(-32005), "daily request count exceeded, request rate limited"),
    (TooMany, 200, Some(-32005), "exceeded project rate limit"),
    // Ankr, whose -32090 is a code of slotfront, too. So it is known by its words only:
    // github.com/tradingstrategy-ai/web3-ethereum-defi/blob/HEAD/eth_defi/provider/fallback.py
    (TooMany, 429, Some(-32090), "Too many requests, reason: call rate limit exhausted, retry in 10s"),
    (NotOnPlan, 403, Some(-32052), "API key is not allowed to access blockchain"),
    (
        NotOnPlan,
        403,
        None,
        "message: API key is not allowed to access blockchain, json-rpc code: -32052, rest code: 403",
    ),
    // dRPC
    (NotOnPlan, 400, Some(35), "chain is not available on free plan, please upgrade to paid plan"),
    (
        NotThisCall,
        408,
        Some(30),
        "Request timeout on the free tier, please upgrade your tier to the paid one",
    ),
    // Tatum
    (
        NotOnPlan,
        200,
        Some(-16401),
        "Method 'getBalance' is available for paid plans only. To access this feature, please upgrade your \
         subscription at https://co.tatum.io/upgrade.",
    ),
    (
        NotOnPlan,
        200,
        Some(-32601),
        "Method 'getSignaturesForAddress' is not available for anonymous access. Please register at \
         https://co.tatum.io/signup.",
    ),
    // PublicNode
    (NotThisCall, 403, Some(-32602), "Request blocked. Details: blocked parameter: params.1.programId"),
    (
        NotThisCall,
        403,
        Some(-32602),
        "Indexed requests require a personal token. Get one at: https://www.allnodes.com/publicnode",
    ),
    // OnFinality
    (
        TooMany,
        429,
        Some(-32029),
        "Too Many Requests, Please apply an OnFinality API key or contact us to receive a higher rate limit",
    ),
    // TheRPC
    (TooMany, 200, Some(-32029), "Rate limit exceeded"),
    (TooMany, 200, Some(-32029), ""),
    (TooMany, 200, Some(-32005), "rate limited, try again in 4ms"),
    (TooMany, 429, Some(-32000), "rate-limited"),
    // Syndica
    (TooMany, 200, Some(7429), "Rate Limited"),
    (TooMany, 200, Some(7429), ""),
    // Nodius
    (OutOfCredits, 402, Some(-32010), "insufficient credits"),
    (TooMany, 429, Some(-32005), "rate limit exceeded"),
    (TooMany, 429, Some(-32005), "concurrency limit exceeded"),
    (NotThisMethod, 403, Some(-32001), "method not allowed: requestAirdrop"),
    // Triport
    (NotOnPlan, 403, Some(-32001), "Method 'getAssetsByOwner' requires basic tier or higher"),
    // Subglow
    (NotOnPlan, 403, Some(-32000), "method not supported on this plan"),
    // 1RPC
    (
        OutOfCredits,
        200,
        Some(-32001),
        "You've reached the usage limit for your current plan. To continue with higher limits and uninterrupted access, \
         please upgrade here: https://www.1rpc.io/#pricing",
    ),
    // GetBlock
    (OutOfCredits, 402, None, "Out of CU"),
    // slotfront itself, as another's node
    (TooMany, 429, Some(-32092), "Too many requests: 2 calls a second"),
    // Proxies in front of nodes, and nodes that lack a method
    (NotThisMethod, 403, Some(-32001), "rpc method is not whitelisted"),
    (NotThisMethod, 403, Some(-32001), "method is not whitelisted"),
    (NotThisMethod, 200, Some(-32601), "Method not found"),
    (NotThisMethod, 200, Some(-32601), "the method getProgramAccounts does not exist/is not available"),
    (NotThisMethod, 501, None, ""),
    (TooMany, 429, None, ""),
    (TooMany, 429, None, "<html><head><title>429 Too Many Requests</title></head></html>"),
    (TooMany, 200, Some(429), ""),
];

/// Errors of Solana's nodes.
const NODE_ERRORS: &[(i32, &str)] = &[
    (-32700, "Parse error"),
    (-32603, "Internal error"),
    (-32603, "Internal Error: Subscription refused. Node subscription limit reached"),
    (-32600, "Invalid request"),
    (-32600, "Unsupported JSON-RPC protocol version"),
    (-32600, "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding."),
    (-32000, "Server error"),
    (-32000, "Server is closing."),
    (-32001, "Block 3 cleaned up, does not exist on node. First available block: 95"),
    (-32002, "Transaction simulation failed: Blockhash not found"),
    (-32002, "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"),
    (-32002, "Transaction simulation failed: Transaction exceeded max loaded accounts data size cap"),
    (-32002, "Transaction simulation failed: Transaction would exceed max Block Cost Limit"),
    (
        -32002,
        "Transaction simulation failed: Attempt to debit an account but found no record of a prior credit.",
    ),
    (-32003, "Transaction signature verification failure"),
    (-32004, "Block not available for slot 5"),
    (-32005, "Node is behind by 42 slots"),
    (-32005, "Node is unhealthy"),
    (-32006, "Transaction precompile verification failure InvalidAccountIndex"),
    (-32007, "Slot 5 was skipped, or missing due to ledger jump to recent snapshot"),
    (-32008, "No snapshot"),
    (-32009, "Slot 5 was skipped, or missing in long-term storage"),
    (
        -32010,
        "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA excluded from account secondary indexes; this RPC method \
         unavailable for key",
    ),
    (-32011, "Transaction history is not available from this node"),
    (-32012, "accumulated scan results exceeded the limit"),
    (-32012, "scan aborted: The accumulated scan results exceeded the limit"),
    (-32013, "Transaction signature length mismatch"),
    (-32014, "Block status not yet available for slot 5"),
    (
        -32015,
        "Transaction version (0) is not supported by the requesting client. Please try the request again with the \
         following configuration parameter: \"maxSupportedTransactionVersion\": 0",
    ),
    (-32016, "Minimum context slot has not been reached"),
    (-32017, "Epoch rewards period still active at slot 5"),
    (
        -32018,
        "Rewards cannot be found because slot 5 is not the epoch boundary. This may be due to gap in the queried \
         node's local ledger or long-term storage",
    ),
    (-32019, "Failed to query long-term storage; please try again"),
    (
        -32020,
        "Transaction 5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW not found",
    ),
    (-32021, "No slot history"),
    (
        -32022,
        "Node 7Np41oeYqPefeNQEHSv1UDhYrehxin3NStELsSKCT4K2 was not in the leader schedule for specified epoch",
    ),
    (-32602, "Too many inputs provided; max 100"),
    (-32602, "Too many inputs provided; max 256"),
    (-32602, "Too many filters provided; max 4"),
    (-32602, "Too many accounts provided; max 100"),
    (-32602, "Too many addresses provided; max 2"),
    (-32602, "Limit too large; max 500000"),
    (-32602, "Slot range too large; max 500000"),
    (-32602, "Invalid limit; max 1000"),
    (-32602, "Invalid limit; max 720"),
    (-32602, "Invalid param: WrongSize"),
    (-32602, "Invalid param: Invalid"),
    (-32602, "Invalid param: could not find account"),
    (-32602, "Invalid param: could not find mint"),
    (-32602, "Invalid param: not a Token account"),
    (-32602, "Invalid param: not a Token mint"),
    (-32602, "Invalid Request: Invalid pubkey provided"),
    (-32602, "Invalid Request: Invalid signature provided"),
    (-32602, "Invalid parameters: No parameters were expected"),
    (-32602, "Invalid parameters: Expected from 1 to 2 parameters."),
    (-32602, "Invalid params: invalid type: integer `5`, expected a string."),
    (-32602, "Invalid params: missing field `commitment`."),
    (-32602, "`params` should have at least 1 argument(s)"),
    (-32602, "`params` should be an array"),
    (-32602, "Method does not support commitment below `confirmed`"),
    (-32602, "BigTable query failed (maybe timeout due to too large range?)"),
    (-32602, "Invalid slot range: leader schedule for epoch 5 is unavailable"),
    (-32602, "unsupported encoding: jsonParsed. Supported encodings: base58, base64"),
    (-32602, "invalid base64 encoding: InvalidByte(2, 45)"),
    (-32602, "invalid base58 encoding: InvalidCharacter { character: '=', index: 2 }"),
    (
        -32602,
        "base64 encoded solana_transaction::versioned::VersionedTransaction too large: 1645 bytes (max: encoded/raw \
         1644/1232)",
    ),
    (
        -32602,
        "failed to deserialize solana_transaction::versioned::VersionedTransaction: io error: failed to fill whole \
         buffer",
    ),
    (-32602, "invalid transaction message: index out of bounds"),
    (-32602, "Invalid subscription id."),
];

/// How nodes repeat a caller's text, which replaces `{}`.
const ECHOES: &[&str] = &[
    "Invalid params: unknown variant `{}`, expected one of `base58`, `base64`.",
    "Invalid params: unknown field `{}`, expected `commitment`.",
    "Invalid params: invalid type: string \"{}\", expected u64.",
    "Invalid params: {}.",
    "Invalid param: {}",
    "Invalid parameters: {}",
    "Invalid parameters: \"{}\"",
    "Transaction simulation failed: {}",
    "Transaction simulation failed: Error processing Instruction 0: {}",
    "Transaction precompile verification failure {}",
    "unsupported encoding: {}. Supported encodings: base58, base64",
    "failed to deserialize {}",
    "Slot {} was skipped, or missing in long-term storage",
    "Transaction {} not found",
    "`{}`",
    "\"{}\"",
    "'{}'",
    ": {}",
];

/// Returns each alternative of a sign as a sign.
fn alternatives(sign: Sign) -> Vec<Sign> {
    match sign {
        Words(words) => words.iter().map(|words| Words(from_ref(words))).collect(),
        Codes(codes) => codes.iter().map(|code| Codes(from_ref(code))).collect(),
        Statuses(statuses) => statuses.iter().map(|status| Statuses(from_ref(status))).collect(),
        BareStatuses(statuses) => statuses.iter().map(|status| BareStatuses(from_ref(status))).collect(),
    }
}

/// Returns the words of all rows, with a name of a method for `*`.
fn all_words() -> impl Iterator<Item = String> {
    let words = ROWS.iter().flat_map(|row| if let Words(words) = row.sign { words } else { &[] });
    words.map(|words| words.replace('*', "getSlot"))
}

#[test]
fn refusals_of_providers_are_recognized() {
    for &(expected, status, code, message) in REFUSALS {
        assert_eq!(refusal(status, code, message), Some(expected), "{status} {code:?} {message}");
    }
}

#[test]
fn every_sign_of_every_row_decides_a_refusal() {
    for (index, row) in ROWS.iter().enumerate() {
        for sign in alternatives(row.sign) {
            let decided = REFUSALS.iter().any(|&(expected, status, code, message)| {
                let first = ROWS.iter().position(|row| row.sign.fits(status, code, message));
                expected == row.refusal && sign.fits(status, code, message) && first == Some(index)
            });
            assert!(decided, "no refusal shows {sign:?} of {}", row.source);
        }
    }
}

#[test]
fn words_stand_before_codes_and_codes_before_statuses() {
    let rank = |row: &Row| match row.sign {
        Words(_) => 0,
        Codes(_) => 1,
        Statuses(_) | BareStatuses(_) => 2,
    };
    assert!(ROWS.is_sorted_by_key(rank));
}

#[test]
fn every_row_names_a_provider_and_a_page() {
    for Row { source, .. } in ROWS {
        let (name, page) = source.split_once(": ").expect(source);
        assert!(!name.is_empty() && page.contains('.') && !page.contains([' ', ',']), "{source}");
    }
}

#[test]
fn codes_of_solana_and_slotfront_decide_nothing_without_words() {
    let ours = -32096..=-32090;
    let others = [-32700, -32600, -32602, -32603];
    for code in (-32022..=-32000).chain(ours).chain(others) {
        for status in [200, 400, 401, 403, 404, 405, 410, 413, 500, 501, 502, 503] {
            assert_eq!(
                refusal(status, Some(code), "Words that no provider has said"),
                None,
                "{status} {code}"
            );
        }
    }
}

#[test]
fn trouble_with_a_key_or_an_address_decides_nothing() {
    for status in [200, 301, 400, 401, 403, 404, 405, 410, 413, 500, 502, 503, 504] {
        for message in ["", "Method Not Allowed", "<html>Payment Required: too many requests</html>"] {
            assert_eq!(refusal(status, None, message), None, "{status} {message}");
        }
    }
    let messages = [
        (401, -32001, "Unauthorized"),
        (403, 403, "Access forbidden, contact your app developer or support@rpcpool.com."),
        (403, 403, "Your IP or provider is blocked from this endpoint"),
        (413, 413, "Request too large"),
        (401, -32090, "Unauthorized: unknown, expired or revoked API key"),
        (403, -32091, "Forbidden: getBlock is not allowed for this API key"),
        (503, -32094, "Overloaded"),
        (502, -32095, "No upstream could answer"),
        (503, -32002, "Service unavailable"),
        (504, -32003, "Gateway timeout"),
    ];
    for (status, code, message) in messages {
        assert_eq!(refusal(status, Some(code), message), None, "{status} {code} {message}");
    }
}

#[test]
fn errors_of_nodes_are_no_refusals() {
    for &(code, message) in NODE_ERRORS {
        for status in [200, 400, 405, 500, 501] {
            assert_eq!(refusal(status, Some(code), message), None, "{status} {code} {message}");
        }
    }
}

#[test]
fn what_a_caller_writes_is_no_refusal() {
    for words in all_words() {
        for echo in ECHOES {
            let message = echo.replace("{}", &words);
            for code in [-32602, -32002, -32600, -32603, -32000, -32005] {
                assert_eq!(refusal(200, Some(code), &message), None, "{code} {message}");
            }
        }
    }
}

#[test]
fn case_and_leading_space_do_not_matter() {
    assert_eq!(refusal(200, Some(-32005), "\n RATE LIMIT EXCEEDED"), Some(TooMany));
    assert_eq!(refusal(200, Some(-32005), "a rate limit exceeded"), None);
}

#[test]
fn a_star_is_one_name() {
    let refused = |name: &str| refusal(200, Some(-32000), &format!("Method {name} is not allowed"));
    assert_eq!(refused("getSlot"), Some(NotThisMethod));
    assert_eq!(refused("simulate_bundle2"), Some(NotThisMethod));
    assert_eq!(refused("getSlot of yours"), None);
    assert_eq!(refused("`getSlot`"), None);
    assert_eq!(refused("größe"), None);
    assert_eq!(refused(""), None);
}

#[test]
fn quoted_words_are_short_and_hold_no_secret() {
    let secrets = ["https://rpc.provider.example:8899/v2/s3cr3t?token=abcd", "Bearer tiny"];
    let html = format!("<html>\n<title>502 Bad Gateway</title> {}", "x ".repeat(9999));
    for (text, expected) in [
        ("Plan exhausted, see billing", "Plan exhausted, see billing"),
        ("", ""),
        ("no JSON", "no JSON"),
        ("\u{0}\u{1b}[31mred\r\nnext \u{202e}line", "\\0\\u{1b}[31mred next \\u{202e}line"),
        ("key s3cr3t at RPC: rpc.provider.example", "key *** at RPC: ***"),
        ("bad token=1, tiny, of 10.0.0.7:8899!", "bad *** ***, of ***"),
        ("no route to (https://other.example/v1) nor node.other.example.", "no route to *** nor ***"),
        ("key 4f1c2a9d8b7e6053 for 9WzDXwBbmkg8ZTbNMqUxvQRAyrZzDsGYdLVL9zYtAWWM", "key *** for ***"),
        (
            "getMinimumBalanceForRentExemption is limited to 50/second",
            "getMinimumBalanceForRentExemption is limited to 50/second",
        ),
    ] {
        assert_eq!(quoted(text, secrets), expected, "{text}");
    }
    let long = quoted(&html, secrets);
    assert!(
        long.starts_with("<html> <title>502 Bad Gateway</title> x x") && long.chars().count() == 100,
        "{long}"
    );
    assert_eq!(quoted(&"\0".repeat(9999), []).chars().count(), 100);
}
