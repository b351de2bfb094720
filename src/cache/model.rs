//! Model-based tests of the cache. Random steps, such as calls, answers of nodes and purges, are applied to the
//! real cache. A model checks each answer.
//!
//! docs/testing.md says what each model covers, and how to add a step. Setting `PROPTEST_CASES=300000` generates
//! more test cases.

mod accounts;
mod blocks;
mod bounds;
mod carrying;
mod flights;
mod overtaken;
mod questions;
mod reference;
mod sequential;
mod stepped_cache;
mod waits;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::advance;

use super::entry::Payload;
use super::*;
use crate::jsonrpc::Params;
use crate::methods::{Commitment, Method, Profile, Pubkey, Slot};
use crate::node::NodeReply;
use crate::pool::UpstreamRequest;
use bounds::{AnswerBounds, EntryLife};
use questions::{Question, TestQuery};
use stepped_cache::{SteppedCache, TestCaller, on_a_stepped_clock, options};

/// The newest processed slot at the beginning of a generated test case.
const FIRST: Slot = 1_000;
