//! Nodes whose blocks are as large as those of mainnet, and callers of the gateway in front of them.
//!
//! The program has two commands. Both take the time of the chain's first slot as an argument. Both thereby know
//! the newest slot without exchanging it.
//!
//! - `nodes` serves a node on each given port until the program is ended.
//! - `callers` requests accounts for some seconds, checks each answer, and prints its counts. Each line of the
//!   output is a name and a value.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

mod callers;
mod nodes;

use clap::Parser;
use slotfront_lab::mainnet::Clock;
use slotfront_lab::wire::BoxError;

#[derive(Parser)]
struct Options {
    /// The time of the first slot, in milliseconds since 1970
    #[arg(long)]
    began_ms: u64,
    #[arg(long, default_value_t = 200)]
    slot_ms: u64,
    #[command(subcommand)]
    part: Part,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Serves a node on each port
    Nodes(nodes::Options),
    /// Requests accounts from the gateway
    Callers(callers::Options),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let Options { began_ms, slot_ms, part } = Options::parse();
    let clock = Clock { began_ms, slot_ms };
    match part {
        Part::Nodes(options) => nodes::serve(clock, options).await,
        Part::Callers(options) => callers::run(clock, options).await,
    }
}
