//! Models of the cache. Random steps run the real cache, and each answer is checked against a model's
//! promises.
//!
//! docs/models.md says what each model covers, and how to add a step. `PROPTEST_CASES=300000` runs more
//! cases.

mod accounts;
mod blocks;
mod bounds;
mod carrying;
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

/// The newest known slot at processed when a case begins.
const FIRST: Slot = 1_000;
