//! `getClusterNodes []`: the nodes that one node sees through gossip.

use serde_json::{Value, json};

use super::description::{Description, schema};
use super::params::{self, ParamError};
use crate::jsonrpc::Params;

/// Refuses any param.
pub(super) fn parse(params: &Params) -> Result<(), ParamError> {
    params::none(params)
}

pub(super) fn params_json() -> Value {
    json!([])
}

pub(super) fn describe() -> Description {
    let text = json!({ "type": ["string", "null"] });
    let address = json!({ "description": "ip:port", "type": ["string", "null"] });
    Description::bare(
        "The nodes that one node sees through gossip, in no order.",
        json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pubkey", "gossip", "tpu", "rpc", "version"],
                "properties": {
                    "pubkey": schema("Pubkey"),
                    "gossip": address,
                    "tvu": address,
                    "tpu": address,
                    "tpuQuic": address,
                    "tpuForwards": address,
                    "tpuForwardsQuic": address,
                    "tpuVote": address,
                    "serveRepair": address,
                    "rpc": address,
                    "pubsub": address,
                    "version": text,
                    "clientId": text,
                    "featureSet": { "type": ["integer", "null"] },
                    "shredVersion": { "type": ["integer", "null"] },
                },
            },
        }),
        json!([{
            "clientId": "Agave",
            "featureSet": 3_718_597_879_u32,
            "gossip": "127.0.0.1:18902",
            "pubkey": "AtNrpWeYvD1AEFe43adFn74Yq7Tg7Qyow7MzFaatsjQE",
            "pubsub": "127.0.0.1:18900",
            "rpc": "127.0.0.1:18899",
            "serveRepair": "127.0.0.1:18917",
            "shredVersion": 43_187,
            "tpu": null,
            "tpuForwards": null,
            "tpuForwardsQuic": "127.0.0.1:18911",
            "tpuQuic": "127.0.0.1:18910",
            "tpuVote": "127.0.0.1:18912",
            "tvu": "127.0.0.1:18909",
            "version": "4.0.0",
        }]),
    )
}
