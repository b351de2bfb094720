//! `slotfront openrpc`: prints the `OpenRPC` document, which describes the methods and their errors.

use super::{Failure, World};
use crate::http::openrpc;

/// Print the `OpenRPC` document.
#[derive(Debug, clap::Args)]
#[command(
    about = "Print the OpenRPC document of all methods",
    long_about = "Print the OpenRPC document of all methods, for client generators and playgrounds.\n\
                  A running gateway serves it at GET /openrpc.json.",
    after_help = "Example:\n    slotfront openrpc --server https://rpc.example/v3/KEY > openrpc.json"
)]
pub(super) struct Args {
    /// The gateway's URL to write into the document
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8899/v3/dev")]
    server: String,
}

pub(super) fn run(args: &Args, world: &mut World<'_>) -> Result<(), Failure> {
    writeln!(world.out, "{:#}", openrpc::document(&args.server))?;
    Ok(())
}
