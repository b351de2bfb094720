//! The configuration. A value in the environment overrides one in the file, which overrides the default.
//!
//! A `Config` exists only if every value is valid. All problems are reported at once, each with its path, value (never
//! a secret), rule and fix. `sections` says each setting once: name, type, default, bounds and help.

mod check;
mod dev;
mod load;
mod problem;
mod raw;
mod reader;
pub mod reload;
mod schema;
mod secret;
mod sections;
mod setting;
#[cfg(test)]
mod tests;
mod value;
pub(crate) mod watch;

pub use dev::DEV_KEY;
pub use load::{from_text, load, telemetry};
pub use problem::{Problem, Problems, ValueOrigin};
pub(crate) use problem::{folder_of, io_fault};
pub use schema::schema;
pub use secret::Secret;
pub(crate) use secret::sha256;
pub use sections::*;
pub use setting::CaFile;
