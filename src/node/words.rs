//! The words in which hosted nodes refuse a call, with their codes, HTTP statuses and sources.
//!
//! This module only says what a refusal means. What follows from it is the pool's business.
//!
//! Providers refuse under any code, also under those by which Solana's nodes say something else: -32005 is an unhealthy
//! node, and the rate limit of four providers. So words decide before codes do, and a code alone decides only if no
//! node uses it for anything else. Words count at the beginning of a message only, because a node repeats what its
//! caller wrote further on, as in "unknown variant `rate limit exceeded`".
//!
//! Some statuses mean nothing here unless words or a code say more. 401 and 403 are trouble with the key of the whole
//! node, 404, 405 and 410 a wrong address or a page for maintenance, and 413 a call that is too long.

use std::net::Ipv4Addr;

use self::NodeRefusal::{NotOnPlan, NotThisCall, NotThisMethod, OutOfCredits, TooMany};
use self::Sign::{BareStatuses, Codes, Statuses, Words};
use super::code;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeRefusal {
    /// Calls came too fast. The node serves the same call some seconds later.
    TooMany,
    /// The credits of a day or a month are used up. The node refuses calls of all methods until it gets new credits.
    OutOfCredits,
    /// The account's plan lacks the method, or the whole chain. Waiting changes nothing.
    NotOnPlan,
    /// The node does not serve the method to anyone.
    NotThisMethod,
    /// The node refuses these params: a filter, the number of keys, the age of a slot. It may serve other calls of the
    /// method.
    NotThisCall,
}

/// What a refusal is recognized by.
#[derive(Debug, Clone, Copy)]
pub enum Sign {
    /// The message begins with one of these words, in upper or lower case. `*` stands for a name or a number.
    Words(&'static [&'static str]),
    /// The code of the JSON-RPC error, whatever its message.
    Codes(&'static [i32]),
    /// The HTTP status, whatever the body.
    Statuses(&'static [u16]),
    /// The HTTP status of a body without a JSON-RPC error.
    BareStatuses(&'static [u16]),
}

/// One way in which providers refuse calls.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The meaning.
    pub refusal: NodeRefusal,
    /// What it is recognized by.
    pub sign: Sign,
    /// Who says so, and the page that tells it, without its `https://`.
    pub source: &'static str,
}

const fn row(refusal: NodeRefusal, sign: Sign, source: &'static str) -> Row {
    Row { refusal, sign, source }
}

/// All known refusals. The first row that fits decides: words stand before codes, and codes before statuses.
pub const ROWS: &[Row] = &[
    row(OutOfCredits, Words(&["max usage reached"]), "Helius: github.com/nirholas/three.ws"),
    row(OutOfCredits, Words(&["daily request limit reached"]), "QuickNode: github.com/nirholas/three.ws"),
    row(
        OutOfCredits,
        Words(&["monthly capacity limit exceeded"]),
        "Alchemy: alchemy.com/docs/reference/error-reference",
    ),
    row(
        OutOfCredits,
        Words(&["you've reached your monthly quota of request units"]),
        "Chainstack: docs.chainstack.com/reference/node-api-errors-reference",
    ),
    row(
        OutOfCredits,
        Words(&["you've reached the usage limit for your current plan"]),
        "1RPC: docs.1rpc.io/using-the-web3-api/errors",
    ),
    row(OutOfCredits, Words(&["insufficient credits"]), "Nodius: nodius.xyz/docs/errors.html"),
    row(
        OutOfCredits,
        Words(&["daily request count exceeded"]),
        "Infura: github.com/taikoxyz/taiko-mono/issues/13952",
    ),
    row(
        NotOnPlan,
        Words(&["method requires plan upgrade"]),
        "Chainstack: github.com/hummingbot/gateway/pull/623",
    ),
    row(
        NotOnPlan,
        Words(&[
            "method '*' is available for paid plans only",
            "method '*' is not available for anonymous access",
        ]),
        "Tatum: github.com/nirholas/three.ws",
    ),
    row(NotOnPlan, Words(&["method '*' requires * tier or higher"]), "Triport: triport.io/docs/errors"),
    row(
        NotOnPlan,
        Words(&["method not supported on this plan"]),
        "Subglow: subglow.io/grpc-errors/free-trial-expired",
    ),
    row(
        NotOnPlan,
        Words(&["chain is not available on free plan"]),
        "dRPC: github.com/jaxernst/lasso-rpc/blob/HEAD/lib/lasso/core/support/error_classification.ex",
    ),
    row(
        NotOnPlan,
        Words(&[
            "api key is not allowed to access blockchain",
            "message: api key is not allowed to access blockchain",
        ]),
        "Ankr: github.com/wevm/viem/issues/3476",
    ),
    row(
        NotThisCall,
        Words(&["archive, debug and trace requests are not available on your current plan"]),
        "Chainstack: docs.chainstack.com/docs/request-units",
    ),
    row(
        NotThisCall,
        Words(&["* without filters is not supported for this program"]),
        "Chainstack: docs.chainstack.com/reference/solana-getprogramaccounts",
    ),
    row(
        NotThisCall,
        Words(&["* is limited to a * range, upgrade from"]),
        "QuickNode: support.quicknode.com/hc/en-us/articles/20626358903185",
    ),
    row(
        NotThisCall,
        Words(&["*, eth_getlogs, and eth_newfilter are limited to a * range"]),
        "QuickNode: github.com/metaplex-foundation/js/issues/539",
    ),
    row(
        NotThisCall,
        Words(&["the rpc call or parameters have been disabled"]),
        "Triton: docs.triton.one/chains/solana/unsupported-account-queries",
    ),
    row(
        NotThisCall,
        Words(&["request blocked. details: blocked parameter"]),
        "PublicNode: github.com/nirholas/three.ws",
    ),
    row(
        NotThisCall,
        Words(&["* requests require a personal token"]),
        "PublicNode: github.com/jaxernst/lasso-rpc/blob/HEAD/lib/lasso/core/support/error_classification.ex",
    ),
    row(
        NotThisCall,
        Words(&["request timeout on the free tier"]),
        "dRPC: github.com/jaxernst/lasso-rpc/blob/HEAD/lib/lasso/core/providers/adapters/drpc.ex",
    ),
    row(NotThisMethod, Words(&["method * is not allowed"]), "Helius: demo.helius.dev/rate-limits"),
    row(NotThisMethod, Words(&["method not allowed: "]), "Nodius: nodius.xyz/docs/errors.html"),
    row(NotThisMethod, Words(&["unsupported method"]), "Alchemy: alchemy.com/docs/reference/error-reference"),
    row(
        NotThisMethod,
        Words(&["rpc method is not whitelisted", "method is not whitelisted"]),
        "eRPC: github.com/erpc/erpc/blob/HEAD/architecture/evm/error_normalizer.go",
    ),
    row(
        TooMany,
        Words(&["too many requests"]),
        "Triton: github.com/solana-labs/solana-program-library/issues/2784",
    ),
    row(TooMany, Words(&["connection rate limits exceeded"]), "Triton: stackoverflow.com/questions/74472618"),
    row(
        TooMany,
        Words(&["*/second request limit reached"]),
        "QuickNode: github.com/foundry-rs/foundry/issues/4894",
    ),
    row(
        TooMany,
        Words(&["the requests per second (rps) of your requests are higher"]),
        "QuickNode: quicknode.com/docs/solana/error-references",
    ),
    row(
        TooMany,
        Words(&["credits limited to"]),
        "QuickNode: support.quicknode.com/hc/en-us/articles/20633265909521",
    ),
    row(
        TooMany,
        Words(&["you've exceeded the rps limit"]),
        "Chainstack: docs.chainstack.com/reference/node-api-errors-reference",
    ),
    row(
        TooMany,
        Words(&[
            "your app has exceeded its compute units per second",
            "your app has exceeded its concurrent requests",
        ]),
        "Alchemy: alchemy.com/docs/reference/throughput",
    ),
    row(
        TooMany,
        Words(&["your ip has exceeded its requests per second"]),
        "Alchemy: github.com/gakonst/ethers-rs/blob/HEAD/ethers-providers/src/rpc/transports/retry.rs",
    ),
    row(
        TooMany,
        Words(&["rate limit exceeded", "rate limited", "rate-limited"]),
        "TheRPC: therpc.io/docs/solana/rate-limits",
    ),
    row(TooMany, Words(&["concurrency limit exceeded"]), "Nodius: nodius.xyz/docs/API_ERRORS.html"),
    row(
        TooMany,
        Words(&["exceeded project rate limit"]),
        "Infura: github.com/alloy-rs/alloy/blob/HEAD/crates/json-rpc/src/response/error.rs",
    ),
    row(OutOfCredits, Codes(&[402]), "Infura: docs.metamask.io/services/how-to/avoid-rate-limiting"),
    row(
        NotOnPlan,
        Codes(&[-32403]),
        "Helius: github.com/helius-labs/core-ai/blob/HEAD/helius-mcp/src/utils/errors.ts",
    ),
    row(NotThisMethod, Codes(&[code::METHOD_NOT_FOUND]), "JSON-RPC: jsonrpc.org/specification#error_object"),
    row(TooMany, Codes(&[429]), "Alchemy: alchemy.com/docs/reference/throughput"),
    row(TooMany, Codes(&[-32429]), "Helius: github.com/nirholas/three.ws"),
    row(TooMany, Codes(&[7429]), "Syndica: docs.syndica.io/platform/solana-rpc/error-handling"),
    row(TooMany, Codes(&[-32029]), "OnFinality, TheRPC: therpc.io/docs/solana/rate-limits"),
    row(OutOfCredits, Statuses(&[402]), "Infura: docs.metamask.io/services/how-to/avoid-rate-limiting"),
    row(TooMany, Statuses(&[429]), "RFC 6585: rfc-editor.org/rfc/rfc6585#section-4"),
    row(NotThisMethod, BareStatuses(&[501]), "RFC 9110: rfc-editor.org/rfc/rfc9110#status.501"),
];

impl Sign {
    fn fits(self, status: u16, code: Option<i32>, message: &str) -> bool {
        match self {
            Words(words) => words.iter().any(|words| begins_with(message.as_bytes(), words.as_bytes())),
            Codes(codes) => code.is_some_and(|code| codes.contains(&code)),
            Statuses(statuses) => statuses.contains(&status),
            BareStatuses(statuses) => code.is_none() && statuses.contains(&status),
        }
    }
}

/// Returns true if a message begins with `words`.
fn begins_with(message: &[u8], words: &[u8]) -> bool {
    match (words, message) {
        ([], _) => true,
        ([b'*', words @ ..], _) => {
            let is_of_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
            let word = message.iter().take_while(is_of_word).count();
            word > 0 && begins_with(&message[word..], words)
        }
        ([one, words @ ..], [first, message @ ..]) => {
            first.eq_ignore_ascii_case(one) && begins_with(message, words)
        }
        (_, []) => false,
    }
}

/// Returns what a node's refusal means. `None` if it is no refusal, or one that is not known.
///
/// `code` and `message` are those of the JSON-RPC error. For a body without one, pass its text as the message.
pub fn refusal(status: u16, code: Option<i32>, message: &str) -> Option<NodeRefusal> {
    let message = message.trim_start();
    ROWS.iter().find(|row| row.sign.fits(status, code, message)).map(|row| row.refusal)
}

/// The number of characters that are read of a node's words, and of those that the log shows.
const MAX_READ: usize = 512;
const MAX_QUOTED: usize = 100;

/// Returns `text`, in which a node has refused a call, as the log shows it: its beginning, with what does not print escaped.
/// Of `secrets`, such as URLs, every part is left out, and so is what looks like an address or a key.
pub fn quoted<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let mut text: String = text.chars().take(MAX_READ).collect();
    for part in secrets.into_iter().flat_map(|secret| secret.split(|c: char| !is_of_name(c))) {
        if part.len() >= 4 && !["http", "https"].contains(&part) {
            text = text.replace(part, "***");
        }
    }
    let words = text.split_whitespace().map(|word| if is_private(word) { "***" } else { word });
    let words = words.collect::<Vec<_>>().join(" ");
    let shown = |c: char| if "\"'\\".contains(c) { c.to_string() } else { c.escape_debug().to_string() };
    words.chars().map(shown).collect::<String>().chars().take(MAX_QUOTED).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || "-_.".contains(c)
}

/// Returns true if `word` looks like an address, a host or a key.
fn is_private(word: &str) -> bool {
    let name = word.trim_matches(|c: char| !c.is_alphanumeric()).split([':', '/']).next().unwrap_or_default();
    let is_host = name.rsplit_once('.').is_some_and(|(host, zone)| {
        !host.is_empty() && zone.len() > 1 && zone.chars().all(char::is_alphabetic)
    });
    let is_key = word.len() >= 16 && word.contains(|c: char| c.is_ascii_digit());
    is_host
        || is_key
        || name.parse::<Ipv4Addr>().is_ok()
        || ["://", "::", "@", "="].iter().any(|sign| word.contains(sign))
}

#[cfg(test)]
mod tests;
