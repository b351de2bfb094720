//! The parts that the lab's benchmarks and examples share: the calls that they send, an HTTP client, and the
//! answers of their nodes.

pub mod dice;
pub mod ideal;
pub mod mix;
pub mod reads;
pub mod sized;
pub mod wire;
pub mod zipf;
