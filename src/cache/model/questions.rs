//! One fixed form of call for each method, and the true answer to each call at every slot. These calls suffice for
//! tests that need no other forms.
//!
//! The text of each answer depends on question, commitment and slot, so that a wrong answer is noticed.

use super::*;
use crate::pool::PoolReply;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Question {
    Account(u8),
    /// The list of accounts 0 and 1.
    List,
    /// The balance of account 0.
    Balance,
    Fee,
    Votes,
}

use Question::{Account, Balance, Fee, List, Votes};

/// A question at a commitment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TestQuery {
    pub(super) question: Question,
    pub(super) commitment: Commitment,
}

impl Question {
    /// Returns the question at a commitment.
    pub(super) fn at(self, commitment: Commitment) -> TestQuery {
        TestQuery { question: self, commitment }
    }
}

impl TestQuery {
    /// Returns the true result of the query at a slot.
    pub(super) fn result_at(self, slot: Slot) -> String {
        let mark = slot * 10 + self.commitment.index() as u64;
        let account = |n: u8| {
            let data = BASE64.encode([n; 5]);
            format!(
                r#"{{"data":["{data}","base64"],"executable":false,"lamports":{mark}{n},"owner":"{owner}","rentEpoch":0,"space":5}}"#,
                owner = Pubkey([0; 32])
            )
        };
        let value = match self.question {
            Account(n) => account(n),
            List => format!("[{},{}]", account(0), account(1)),
            Balance => format!(r#"{{"amount":"{mark}7"}}"#),
            Fee if self.is_null_at(slot) => "null".to_owned(),
            Fee => format!("{mark}8"),
            Votes => return format!(r#"{{"current":[{mark}],"delinquent":[]}}"#),
        };
        format!(r#"{{"context":{{"slot":{slot}}},"value":{value}}}"#)
    }

    /// Returns true if the true result of the query at a slot is null, which the cache never stores.
    pub(super) fn is_null_at(self, slot: Slot) -> bool {
        self.question == Fee && slot.is_multiple_of(3)
    }

    /// Returns the reply of a node at `slot` to a call that was sent at `sent_at`.
    pub(super) fn reply_at(self, slot: Slot, sent_at: Instant) -> PoolReply {
        let body = NodeReply::Result(self.result_at(slot).into());
        PoolReply { node: 0, body, sent_at, slot, finalized: Slot::MAX, is_short: false, blocks: None }
    }

    /// Converts the test's query to slotfront's own type.
    pub(super) fn query(self) -> Query {
        let c = self.commitment.as_str();
        let key = |n: u8| Pubkey([n; 32]).to_string();
        let config = format!(r#"{{"commitment":"{c}","encoding":"base64"}}"#);
        let (method, params) = match self.question {
            Account(n) => (Method::GetAccountInfo, format!(r#"["{}",{config}]"#, key(n))),
            List => (Method::GetMultipleAccounts, format!(r#"[["{}","{}"],{config}]"#, key(0), key(1))),
            Balance => (Method::GetTokenAccountBalance, format!(r#"["{}",{{"commitment":"{c}"}}]"#, key(0))),
            Fee => {
                // A legacy message of one signer, no further account and no instruction.
                let message = BASE64.encode([&[1, 0, 0, 1][..], &[9; 32], &[8; 32], &[0]].concat());
                (Method::GetFeeForMessage, format!(r#"["{message}",{{"commitment":"{c}"}}]"#))
            }
            Votes => (Method::GetVoteAccounts, format!(r#"[{{"commitment":"{c}"}}]"#)),
        };
        parse_query(method, &params)
    }

    /// Returns the limits of age and lag for an answer to the query.
    pub(super) fn bounds(self) -> AnswerBounds {
        match self.question {
            Account(_) | List | Balance => AnswerBounds::of_accounts(self.commitment),
            Fee => AnswerBounds::of_fees(self.commitment),
            Votes => AnswerBounds::of_vote_accounts(self.commitment),
        }
    }

    /// Returns the accounts that an answer to the query shows.
    pub(super) fn accounts(self) -> &'static [u8] {
        match self.question {
            Account(0) | Balance => &[0],
            Account(_) => &[1],
            List => &[0, 1],
            Fee | Votes => &[],
        }
    }

    /// Returns the queries whose entries hold the answer to this query. The answer to a list is also stored as an
    /// entry for each of its accounts.
    pub(super) fn stored_under(self) -> Vec<Self> {
        let questions =
            if self.question == List { vec![List, Account(0), Account(1)] } else { vec![self.question] };
        questions.into_iter().map(|question| question.at(self.commitment)).collect()
    }
}

/// Returns the query of a method with these params.
pub(super) fn parse_query(method: Method, params: &str) -> Query {
    Query::parse(method, &Params::Array(Bytes::from(params.to_owned())), Profile::Node).unwrap()
}
