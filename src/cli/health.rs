//! `slotfront health`: asks a gateway on this machine for its readiness. Containers use it as their health check.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Failure, World, reachable};

/// The longest wait for the answer. A container's health check usually waits longer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of the answer, in bytes. Even a full list of the reasons for not being ready is shorter.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// Ask a running gateway for its readiness
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Ask the admin listener of a running gateway on this machine for /readyz, and print its state and why.\n\
                  Degraded counts as ready: stale answers are better than none.",
    after_help = "Examples:\n    slotfront health --config slotfront.toml\n    slotfront health --admin 127.0.0.1:9899\n\n\
                  Exit codes: 0 ready, 1 not ready or not running, 2 wrong usage or configuration."
)]
pub(super) struct Args {
    /// The configuration file of the gateway [default: the file that `SLOTFRONT_CONFIG` names]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of the gateway's admin listener, instead of the one in the configuration
    #[arg(long, value_name = "ADDR", conflicts_with = "config")]
    admin: Option<SocketAddr>,
    /// Print the readiness as JSON, and nothing else; `unreachable` is the state of a gateway that does not answer
    #[arg(long)]
    json: bool,
}

/// The answer of `/readyz`, or that there is none.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct AdminAnswer {
    state: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

impl AdminAnswer {
    fn unreachable(why: String) -> Self {
        Self { state: "unreachable".to_owned(), reasons: vec![why] }
    }
}

impl std::fmt::Display for AdminAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.state)?;
        self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
    }
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    let admin = match args.admin {
        Some(admin) => admin,
        None => configured(args.config, world)?,
    };
    let admin = reachable(admin);
    let asked = tokio::time::timeout(TIMEOUT, ask(admin)).await;
    let answer = asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    let health = match answer {
        Err(error) => AdminAnswer::unreachable(format!("{admin} does not answer: {error}")),
        Ok(answer) => read(&answer).unwrap_or_else(|| {
            let first = answer.lines().next().unwrap_or_default();
            AdminAnswer::unreachable(format!("{admin} does not answer as slotfront does: {first:?}"))
        }),
    };
    if args.json {
        writeln!(world.out, "{:#}", serde_json::json!(health))?;
    } else {
        writeln!(world.out, "{health}")?;
    }
    match health.state.as_str() {
        "ready" | "degraded" => Ok(()),
        state => Err(Failure::Runtime(format!("not ready ({state})"))),
    }
}

/// Reads an answer of `/readyz`. `None` for any other text.
fn read(answer: &str) -> Option<AdminAnswer> {
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// The advice for callers who have named no configuration.
const NO_CONFIGURATION: &str =
    "or name the gateway's admin address with --admin ADDR, which needs no configuration";

fn configured(file: Option<PathBuf>, world: &World<'_>) -> Result<SocketAddr, Failure> {
    let file = world.config_file(file);
    let is_named = file.is_some();
    match world.config(file) {
        Err(Failure::Usage(message)) if !is_named => {
            Err(Failure::Usage(format!("{message}\n\n  {NO_CONFIGURATION}")))
        }
        config => Ok(config?.server.admin_listen),
    }
}

async fn ask(admin: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    // Over HTTP/1.0 the server closes the connection at the end of the answer.
    stream.write_all(format!("GET /readyz HTTP/1.0\r\nHost: {admin}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
