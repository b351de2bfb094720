//! `slotfront check`: validates a configuration and, with `--probe`, examines upstreams, files and limits.

mod advice;
mod doctor;
mod examine;
mod files;
mod machine;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::table::TextTable;
use super::{Failure, World};
use crate::app::bind_next;
use crate::config::{self, AuthMode, Config, Upstream, WsListen};
use crate::gateway::Gateway;
use crate::gateway::keys::file::KeyFile;
use crate::methods::Commitment;
use crate::node::{BufferBudget, Client};
use crate::redis_store::Store;
use crate::telemetry::Metrics;
use crate::tls::Tls;
pub(super) use doctor::Finding;
use doctor::ProbeResult;
pub(super) use files::of_certificate;
pub(super) use machine::of_process;

/// What to do if the port after that of `server.listen` is not free.
pub(super) const FREE_NEXT_PORT: &str =
    "free the port, or set server.ws_listen to another address and tell it to your callers, or to \"off\"";

/// Check a configuration; with --probe also nodes, files and limits
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Check a configuration and the files that it names, also when the certificate expires, and report all\n\
                  problems at once.\n\
                  With --probe, ask every upstream for its version, cluster, slots, health, history and\n\
                  clock, measure its latency, send thirty small calls at once to find its rate limit, check that the\n\
                  shared store can be read and written and the usage file written, and check file permissions\n\
                  and the limit of open files. Each finding comes with a fix. The length of ten blocks is\n\
                  measured, for advice about follow.mode.",
    after_help = "Example:\n    slotfront check --config slotfront.toml --probe\n\n\
                  Exit codes: 0 valid (also with findings), 1 --probe found a fault, 2 invalid."
)]
pub(super) struct Args {
    /// The configuration file [default: the file that `SLOTFRONT_CONFIG` names; without either, all settings come
    /// from the environment]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also examine every upstream, the shared store, files and limits
    #[arg(long)]
    probe: bool,
    /// Print the findings as JSON, and nothing else
    #[arg(long)]
    json: bool,
    /// Print the JSON Schema of the configuration file, for editors, and check nothing
    #[arg(long, conflicts_with_all = ["config", "probe", "json"])]
    schema: bool,
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    if args.schema {
        return Ok(writeln!(world.out, "{:#}", config::schema())?);
    }
    let file = world.config_file(args.config);
    let config = world.config(file.clone())?;
    let json = args.json;
    Gateway::new(&config, Metrics::new()).map_err(Failure::usage)?;
    Tls::of(&config).map_err(Failure::usage)?;
    let budget = Arc::new(BufferBudget::new(config.pool.max_buffered));
    let client = |upstream| Client::new(upstream, &config.pool, Arc::clone(&budget));
    let clients =
        config.upstreams.iter().map(client).collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    let store = |settings| Store::new(settings, Metrics::new(), TaskTracker::new());
    let store = config.shared.as_ref().map(store).transpose().map_err(Failure::usage)?;
    if !json {
        writeln!(world.out, "{}", summary(&config))?;
    }
    let mut findings = doctor::of_settings(&config);
    let listen = config.server.listen;
    // If this port is taken, too, slotfront is probably running, and has both.
    if config.server.ws_listen == WsListen::Next
        && listen.port() != 0
        && let Ok(_held) = TcpListener::bind(listen).await
        && let Err(why) = bind_next(listen).await
    {
        findings.push(Finding::warning(why, FREE_NEXT_PORT));
    }
    findings.extend(files::of_certificate(&config, Timestamp::now()));
    if let (AuthMode::Keys, Some(path)) = (config.auth.mode, &config.auth.keys_file) {
        let keys = KeyFile::new(path).list().map_err(Failure::usage)?;
        findings.extend(files::of_keys(path, &keys, &config.server.trusted_proxies));
    }
    if !args.probe {
        findings.extend(doctor::of_genesis_hash(&config, None));
        // No failure, because a service may run this before its start, which an expired certificate must not prevent.
        print_findings(&findings, json, world)?;
        return Ok(());
    }
    let examined = clients.iter().zip(&config.upstreams);
    let probed = join_all(examined.map(|(client, upstream)| examine::examine(client, upstream.rps))).await;
    if !json {
        writeln!(world.out, "\n{}", table(&config.upstreams, &probed))?;
    }
    findings.extend(doctor::of_upstreams(&config, &probed));
    findings.extend(files::of_files(&config, file.as_deref()));
    // The gateway keeps the usage of keys only, so the usage file matters only in the mode `keys`.
    if let (AuthMode::Keys, Some(path)) = (config.auth.mode, &config.auth.usage_file) {
        findings.extend(files::of_usage_file(path));
    }
    findings.extend(machine::of_process(&config));
    findings.extend(machine::of_open_files(&config, machine::open_files()));
    if let Some(store) = store {
        let found = store.probe().await;
        if !json {
            writeln!(world.out, "\nshared store: {}", found.err().unwrap_or("ok"))?;
        }
        findings.extend(found.err().map(doctor::of_shared_store));
    }
    if json {
        return failed(print_findings(&findings, json, world)?);
    }
    let is_private = join_all(config.upstreams.iter().map(advice::has_private_address)).await;
    writeln!(world.out, "\n{}", advice::following(&config, &probed, &is_private))?;
    if findings.is_empty() {
        writeln!(world.out, "\nno findings")?;
    }
    failed(print_findings(&findings, json, world)?)
}

/// Returns the failure that a number of faults is.
fn failed(faults: usize) -> Result<(), Failure> {
    match faults {
        0 => Ok(()),
        1 => Err(Failure::runtime("1 fault found")),
        n => Err(Failure::Runtime(format!("{n} faults found"))),
    }
}

/// Prints the problems that were found, faults before warnings. Returns the number of faults.
fn print_findings(findings: &[Finding], json: bool, world: &mut World<'_>) -> io::Result<usize> {
    let (faults, warnings): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.fault);
    if json {
        let all: Vec<_> = faults.iter().chain(&warnings).collect();
        writeln!(world.out, "{:#}", serde_json::json!({ "valid": true, "findings": all }))?;
        return Ok(faults.len());
    }
    for finding in faults.iter().chain(&warnings) {
        writeln!(world.out, "\n{finding}")?;
    }
    Ok(faults.len())
}

/// Summarizes the configuration in a few lines.
fn summary(config: &Config) -> String {
    let names = |names: Vec<&str>| names.join(", ");
    let who = match (config.auth.mode, &config.auth.open_plan, &config.auth.keys_file) {
        (AuthMode::Open, None, _) => "everyone, without limits".to_owned(),
        (AuthMode::Open, Some(plan), _) => format!("everyone, each address with plan {plan}"),
        (AuthMode::Keys, _, Some(file)) if !file.exists() => {
            let file = file.display();
            format!("nobody yet; create a key with `slotfront keys create --file {file} --name NAME`")
        }
        (AuthMode::Keys, _, Some(file)) => format!("the keys in {}", file.display()),
        (AuthMode::Keys, _, None) => "nobody".to_owned(),
    };
    let shared = match &config.shared {
        None => "",
        Some(config::SharedSettings { cluster: true, .. }) => "\n  shared     a Redis cluster",
        Some(_) => "\n  shared     a Redis server",
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

/// Formats the results of probing the upstreams as a table.
fn table(upstreams: &[Upstream], probed: &[ProbeResult]) -> String {
    let mut table = TextTable::new([
        "upstream",
        "tier",
        "health",
        "version",
        "cluster",
        "processed",
        "confirmed",
        "finalized",
        "first block",
        "getSlot",
    ]);
    for (upstream, probed) in upstreams.iter().zip(probed) {
        let (name, tier) = (upstream.name.clone(), upstream.tier.to_string());
        let unknown = || "?".to_owned();
        table.row(match probed {
            Err(fault) => {
                let mut row = vec![unknown(); 10];
                (row[0], row[1], row[2]) = (name, tier, fault.to_string());
                row
            }
            Ok(one) => {
                let slot = |c| one.slot(c).map_or_else(unknown, |slot| slot.to_string());
                vec![
                    name,
                    tier,
                    one.pulse.health.clone().err().unwrap_or_else(|| "ok".to_owned()),
                    one.identity.version.clone().unwrap_or_else(unknown),
                    one.identity.genesis.hash().cloned().unwrap_or_else(unknown),
                    slot(Commitment::Processed),
                    slot(Commitment::Confirmed),
                    slot(Commitment::Finalized),
                    one.identity.first_available.map_or_else(unknown, |slot| slot.to_string()),
                    format!("{:.1} ms", one.latency.as_secs_f64() * 1000.0),
                ]
            }
        });
    }
    table.to_string()
}
