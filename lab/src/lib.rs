//! The parts that the programs of the lab share: what loads ask, and what the node behind the measured servers answers.

pub mod block;
pub mod dice;
pub mod mix;
pub mod sized;
pub mod wire;
