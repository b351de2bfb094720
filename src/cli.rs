//! The command line. The exit code is 0 for success, 1 for a failure at run time, and 2 for wrong usage or
//! configuration.
//!
//! A subcommand calls the module that does the work, and prints the result. Data for scripts goes to standard output,
//! and messages for people go to standard error.

mod check;
mod completions;
#[cfg(feature = "dev")]
mod dev;
mod health;
mod keys;
mod openrpc;
mod serve;
#[cfg(feature = "dev")]
mod sim;
mod table;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use tracing::Level;

use crate::config::{self, Config};
use crate::telemetry;

#[cfg(feature = "dev")]
const DEV_HELP: &str = "Try it without any setup:\n    slotfront dev";
#[cfg(not(feature = "dev"))]
const DEV_HELP: &str =
    "The commands dev and sim, which simulate a cluster, need a build with the cargo feature dev.";

/// slotfront: a caching JSON-RPC proxy in front of Solana nodes.
#[derive(Debug, Parser)]
#[command(
    name = "slotfront",
    version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SLOTFRONT_REVISION"), ")"),
    max_term_width = 100,
    about = "A caching JSON-RPC proxy in front of Solana nodes",
    long_about = "A caching JSON-RPC proxy in front of Solana nodes: repeated reads cost a node only one call.\n\
                  It answers read-only methods at POST /v3/<API_KEY>, with keys, plans and limits.",
    after_help = format!(
        "{DEV_HELP}\n\n\
         Run it in front of your own nodes:\n    \
         slotfront keys create --file keys.toml --name alice\n    \
         SLOTFRONT_UPSTREAMS=node-1=http://10.0.0.1:8899 slotfront serve\n\n\
         Exit codes: 0 success, 1 failure at run time, 2 wrong usage or configuration."
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
    Keys(keys::Args),
    Usage(usage::Args),
    #[cfg(feature = "dev")]
    Sim(sim::Args),
    Openrpc(openrpc::Args),
    Completions(completions::Args),
}

/// The reason why a command ends early, which determines the exit code of the process.
#[derive(Debug)]
enum Failure {
    /// Exit code 1: a valid command failed at run time. The text is the message for the user.
    Runtime(String),
    /// Exit code 2: the arguments or the configuration are invalid. The text is the message for the user.
    Usage(String),
    /// Exit code 0: the reader of standard output has closed it, as `head` does.
    OutputClosed,
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
        if error.kind() == io::ErrorKind::BrokenPipe { Self::OutputClosed } else { Self::runtime(error) }
    }
}

/// The environment variables and the outputs of a command.
struct World<'a> {
    env: BTreeMap<String, String>,
    /// Standard output, for scripts.
    out: &'a mut dyn Write,
    /// Standard error, for people.
    err: &'a mut dyn Write,
}

impl World<'_> {
    /// Loads the configuration from `file` or the file that `SLOTFRONT_CONFIG` names, and from the environment. Without
    /// a file, loads it from the environment alone.
    fn config(&self, file: Option<PathBuf>) -> Result<Config, Failure> {
        config::load(self.config_file(file).as_deref(), &self.env).map_err(Failure::usage)
    }

    /// Returns the path of the configuration file: `file`, or the value of `SLOTFRONT_CONFIG`. `None` without both.
    fn config_file(&self, file: Option<PathBuf>) -> Option<PathBuf> {
        file.or_else(|| self.env.get("SLOTFRONT_CONFIG").map(PathBuf::from))
    }
}

/// Returns the definition of the command line. Tests parse the commands in the documentation with it.
#[doc(hidden)]
pub fn arguments() -> clap::Command {
    Cli::command()
}

/// Runs the command that the arguments of this process name, and returns its exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and version as errors, too, and knows their output stream and exit code.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let env = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut world = World { env: env.collect(), out: &mut out, err: &mut err };
    let result = run(cli.command, &mut world);
    let (code, message) = match result {
        Ok(()) | Err(Failure::OutputClosed) => return ExitCode::SUCCESS,
        Err(Failure::Runtime(message)) => (1, message),
        Err(Failure::Usage(message)) => (2, message),
    };
    let line = telemetry::json_line(Level::ERROR, &message);
    let _ = writeln!(err, "{}", line.unwrap_or_else(|| format!("slotfront: {message}")));
    ExitCode::from(code)
}

fn run(command: Command, world: &mut World<'_>) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "dev")]
        Command::Dev(args) => in_runtime(dev::run(args, world)),
        Command::Serve(args) => in_runtime(serve::run(args, world)),
        Command::Check(args) => in_runtime(check::run(args, world)),
        Command::Health(args) => in_runtime(health::run(args, world)),
        Command::Keys(args) => keys::run(args, world, jiff::Timestamp::now()),
        Command::Usage(args) => usage::run(&args, world),
        #[cfg(feature = "dev")]
        Command::Sim(args) => in_runtime(sim::run(args, world)),
        Command::Openrpc(args) => openrpc::run(&args, world),
        Command::Completions(args) => completions::run(&args, world),
    }
}

/// Returns the address at which a client on this machine reaches a listener bound to `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// The number of tasks that a thread runs between two polls for I/O events, and the maximum number of events of a poll.
/// If the two are equal, the data of a waiting request stays in the processor's cache even with thousands of
/// connections.
const TASKS_PER_POLL: u32 = 61;

/// The longest wait for threads that still block once a command is done. One may look up the address of a node, or wait for
/// a lock on the key file, for longer than a stop may take.
const THREADS_GRACE: Duration = Duration::from_secs(1);

/// Runs `work` on one runtime of many threads. With a runtime for each core, long work would block its neighbours, and a
/// hit took more of the processor.
fn in_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .event_interval(TASKS_PER_POLL)
        .max_io_events_per_tick(TASKS_PER_POLL as usize)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| Failure::Runtime(format!("cannot start the async runtime: {e}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(THREADS_GRACE);
    done
}
