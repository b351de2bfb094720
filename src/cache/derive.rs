//! Answers made from what is kept in another form, byte for byte as a node would write them.

pub mod account;
pub mod samples;
