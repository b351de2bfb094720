//! `getClusterNodes []`: the nodes that one node sees through gossip.

use serde_json::{Value, json};

use super::params::{self, ParamError};
use crate::jsonrpc::Params;

/// Refuses any param.
pub(super) fn parse(params: &Params) -> Result<(), ParamError> {
    params::none(params)
}

pub(super) fn params_json() -> Value {
    json!([])
}
