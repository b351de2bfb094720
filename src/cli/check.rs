//! `slotfront check`: whether a configuration is valid, and who its upstreams are.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use super::table::Table;
use super::{Failure, World};
use crate::config::{self, AuthMode, Config, Upstream};
use crate::gateway::Gateway;
use crate::http::tls::Tls;
use crate::methods::Commitment;
use crate::node::{BufferBudget, Client, Fault};
use crate::pool::probe::{self, Identity, Pulse};
use crate::shared::Store;
use crate::telemetry::Metrics;

/// Check a configuration, and with --probe ask every upstream who it is
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Check a configuration and the files that it names. All that is wrong is told at once.\n\
                  With --probe every upstream is asked for its version, cluster, slots and health, and the shared\n\
                  store whether it lets us read and write.",
    after_help = "Example:\n    slotfront check --config slotfront.toml --probe\n\n\
                  Exit codes: 0 valid, 1 an upstream or the shared store is not usable, 2 not valid."
)]
pub(super) struct Args {
    /// The configuration; without it, `SLOTFRONT_CONFIG` names it, or the environment is all of it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask every upstream who it is
    #[arg(long)]
    probe: bool,
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    let config = world.config(args.config)?;
    Gateway::new(&config).map_err(Failure::usage)?;
    Tls::of(&config).map_err(Failure::usage)?;
    let budget = Arc::new(BufferBudget::new(config.pool.max_buffered));
    let client = |upstream| Client::new(upstream, &config.pool, Arc::clone(&budget));
    let clients =
        config.upstreams.iter().map(client).collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    let store = |settings| Store::new(settings, Metrics::new(), TaskTracker::new());
    let store = config.shared.as_ref().map(store).transpose().map_err(Failure::usage)?;
    writeln!(world.out, "{}", summary(&config))?;
    if !args.probe {
        return Ok(());
    }
    let probed = join_all(clients.iter().map(ask)).await;
    writeln!(world.out, "\n{}", findings(&config.upstreams, &probed))?;
    let mut faults = faults(&config, &probed);
    if let Some(store) = store {
        let found = store.probe().await;
        writeln!(world.out, "\nshared store: {}", found.err().unwrap_or("ok"))?;
        faults.extend(found.err().map(|why| format!("the shared store is not usable: {why}")));
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::Runtime(faults.join("\n"))) }
}

/// What the configuration comes to, in a few lines.
fn summary(config: &Config) -> String {
    let names = |names: Vec<&str>| names.join(", ");
    let who = match (config.auth.mode, &config.auth.open_plan, &config.auth.keys_file) {
        (AuthMode::Open, None, _) => "anybody, without limits".to_owned(),
        (AuthMode::Open, Some(plan), _) => format!("anybody, each address with plan {plan}"),
        (AuthMode::Keys, _, Some(file)) if !file.exists() => {
            let file = file.display();
            format!("nobody yet: make a key with `slotfront keys create --file {file} --name NAME`")
        }
        (AuthMode::Keys, _, Some(file)) => format!("keys of {}", file.display()),
        (AuthMode::Keys, _, None) => "nobody".to_owned(),
    };
    let shared = match &config.shared {
        None => "",
        Some(config::Shared { cluster: true, .. }) => "\n  shared     with a store, a cluster",
        Some(_) => "\n  shared     with a store",
    };
    format!(
        "valid\n  listen     {}{} (admin {})\n  upstreams  {}\n  plans      {}\n  callers    {who}{shared}",
        config.server.listen,
        if config.server.tls.is_some() { " with TLS" } else { "" },
        config.server.admin_listen,
        names(config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect()),
        names(config.plans.keys().map(String::as_str).collect()),
    )
}

/// What an upstream said, or why it said nothing.
type Probed = Result<(Identity, Pulse), String>;

async fn ask(client: &Client) -> Probed {
    let (identity, pulse) = tokio::join!(probe::identity(client), probe::pulse(client));
    let reason = |fault: Fault| fault.to_string();
    Ok((identity.map_err(reason)?, pulse.map_err(reason)?))
}

fn findings(upstreams: &[Upstream], probed: &[Probed]) -> String {
    let mut table = Table::new([
        "upstream",
        "tier",
        "health",
        "version",
        "cluster",
        "processed",
        "confirmed",
        "finalized",
        "first block",
    ]);
    for (upstream, probed) in upstreams.iter().zip(probed) {
        let (name, tier) = (upstream.name.clone(), upstream.tier.to_string());
        let unknown = || "?".to_owned();
        table.row(match probed {
            Err(reason) => {
                let mut row = vec![unknown(); 9];
                (row[0], row[1], row[2]) = (name, tier, reason.clone());
                row
            }
            Ok((identity, pulse)) => {
                let slot = |c| pulse.slots.get(c).map_or_else(unknown, |slot: u64| slot.to_string());
                vec![
                    name,
                    tier,
                    pulse.health.clone().err().unwrap_or_else(|| "ok".to_owned()),
                    identity.version.clone().unwrap_or_else(unknown),
                    identity.genesis.clone().unwrap_or_else(unknown),
                    slot(Commitment::Processed),
                    slot(Commitment::Confirmed),
                    slot(Commitment::Finalized),
                    identity.first_available.map_or_else(unknown, |slot| slot.to_string()),
                ]
            }
        });
    }
    table.to_string()
}

/// Why upstreams would not be used, each by name.
fn faults(config: &Config, probed: &[Probed]) -> Vec<String> {
    let genesis = |probed: &Probed| probed.as_ref().ok().and_then(|(identity, _)| identity.genesis.clone());
    let cluster = config.pool.genesis_hash.clone().or_else(|| probed.iter().find_map(genesis));
    let mut faults = Vec::new();
    for (upstream, probed) in config.upstreams.iter().zip(probed) {
        let name = &upstream.name;
        match probed {
            Err(reason) => faults.push(format!("upstream {name} does not answer: {reason}")),
            Ok((_, Pulse { health: Err(words), .. })) => {
                faults.push(format!("upstream {name} is not healthy: {words}"));
            }
            Ok((Identity { genesis: Some(own), .. }, _)) if Some(own) != cluster.as_ref() => {
                let cluster = cluster.as_deref().unwrap_or_default();
                faults.push(format!("upstream {name} is of another cluster: {own}, not {cluster}"));
            }
            Ok(_) => {}
        }
    }
    faults
}
