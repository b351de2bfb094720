//! The command line: arguments in, exit code out. 0 is success, 1 a failure at run time, 2 wrong use or configuration.
//!
//! Decides nothing: each subcommand calls the room that does the work, and says what came of it. What a script may
//! want to read goes to standard output, what a person should know to standard error.

mod check;
mod completions;
#[cfg(feature = "dev")]
mod dev;
mod health;
mod keys;
mod openrpc;
mod replay;
mod serve;
#[cfg(feature = "dev")]
mod sim;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Config};

#[cfg(feature = "dev")]
const DEV_HELP: &str = "See it work, with nothing to set up:\n    slotfront dev";
#[cfg(not(feature = "dev"))]
const DEV_HELP: &str = "The commands dev and sim, which simulate a cluster, come with the cargo feature dev.";

/// slotfront: a caching JSON-RPC proxy in front of Solana nodes.
#[derive(Debug, Parser)]
#[command(
    name = "slotfront",
    version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SLOTFRONT_REVISION"), ")"),
    max_term_width = 100,
    about = "A caching JSON-RPC proxy in front of Solana nodes",
    long_about = "A caching JSON-RPC proxy in front of Solana nodes: many readers cost a node what one reader cost.\n\
                  It answers eight read-only methods at POST /v3/<API_KEY>, with keys, plans and limits.",
    after_help = format!(
        "{DEV_HELP}\n\n\
         Run it in front of your own nodes:\n    \
         slotfront keys create --file keys.toml --name alice\n    \
         SLOTFRONT_UPSTREAMS=node-1=http://10.0.0.1:8899 slotfront serve\n\n\
         Exit codes: 0 success, 1 failure at run time, 2 wrong use or configuration."
    )
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(feature = "dev")]
    Dev(dev::Args),
    Serve(serve::Args),
    Check(check::Args),
    Health(health::Args),
    Replay(replay::Args),
    Keys(keys::Args),
    #[cfg(feature = "dev")]
    Sim(sim::Args),
    Openrpc(openrpc::Args),
    Completions(completions::Args),
}

/// Why a command failed, by its exit code.
#[derive(Debug)]
enum Failure {
    /// 1: what was asked for was right, and could not be done.
    Runtime(String),
    /// 2: what was asked for, or configured, cannot be.
    Usage(String),
    /// 0: who read our output has read enough, as `head` does.
    Unread,
}

impl Failure {
    fn runtime(error: impl Display) -> Self {
        Self::Runtime(error.to_string())
    }

    fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Unread } else { Self::runtime(error) }
    }
}

/// What a command has of its surroundings.
struct World<'a> {
    env: BTreeMap<String, String>,
    /// For scripts.
    out: &'a mut dyn Write,
    /// For people.
    err: &'a mut dyn Write,
}

impl World<'_> {
    /// The configuration in `file`, or in the file that `SLOTFRONT_CONFIG` names, or in the environment alone.
    fn config(&self, file: Option<PathBuf>) -> Result<Config, Failure> {
        config::load(self.config_file(file).as_deref(), &self.env).map_err(Failure::usage)
    }

    /// The file that holds the configuration, if one does.
    fn config_file(&self, file: Option<PathBuf>) -> Option<PathBuf> {
        file.or_else(|| self.env.get("SLOTFRONT_CONFIG").map(PathBuf::from))
    }
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, too: it knows where each is to be written, and its exit code.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let env = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut world = World { env: env.collect(), out: &mut out, err: &mut err };
    let result = run(cli.command, &mut world);
    let (code, message) = match result {
        Ok(()) | Err(Failure::Unread) => return ExitCode::SUCCESS,
        Err(Failure::Runtime(message)) => (1, message),
        Err(Failure::Usage(message)) => (2, message),
    };
    let _ = writeln!(err, "slotfront: {message}");
    ExitCode::from(code)
}

fn run(command: Command, world: &mut World<'_>) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "dev")]
        Command::Dev(args) => in_runtime(dev::run(args, world)),
        Command::Serve(args) => in_runtime(serve::run(args, world)),
        Command::Check(args) => in_runtime(check::run(args, world)),
        Command::Health(args) => in_runtime(health::run(args, world)),
        Command::Replay(args) => in_runtime(replay::run(args, world)),
        Command::Keys(args) => keys::run(args, world, jiff::Timestamp::now()),
        #[cfg(feature = "dev")]
        Command::Sim(args) => in_runtime(sim::run(args, world)),
        Command::Openrpc(args) => openrpc::run(&args, world),
        Command::Completions(args) => completions::run(&args, world),
    }
}

/// Returns the address at which a client on this machine finds a listener.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// Tasks that a thread runs before it asks the kernel what has come, and the most that it then takes: no more than it runs
/// until the next time. With thousands of connections all that waits would else be taken at once, in several rounds, and be
/// gone from the processor's caches when its turn comes.
const TURN: u32 = 61;

fn in_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .event_interval(TURN)
        .max_io_events_per_tick(TURN as usize)
        .enable_all()
        .build();
    runtime.map_err(|e| Failure::Runtime(format!("no runtime: {e}")))?.block_on(work)
}
