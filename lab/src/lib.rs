//! The parts that the programs of the lab share: the calls of the loads, a client, and the answers of the measured node.

pub mod block;
pub mod dice;
pub mod ideal;
pub mod mainnet;
pub mod mix;
pub mod reads;
pub mod sized;
pub mod wire;
pub mod zipf;
