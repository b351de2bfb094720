//! `slotfront serve`: runs the gateway in production.

use std::path::PathBuf;

use super::{Failure, World, reachable};
use crate::app::signals::Signals;
use crate::app::{self, Listeners};
use crate::config::{self, reload::ConfigSource};
use crate::gateway::Gateway;
use crate::http::tls::Tls;
use crate::telemetry;

/// Run the gateway in front of your own nodes
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run the gateway in front of your own nodes, until Ctrl-C or SIGTERM. Calls in flight finish first.\n\
                  Every setting can come from the file or the environment, and all but the nodes have defaults.",
    after_help = "Examples:\n    slotfront serve --config slotfront.toml\n    \
                  SLOTFRONT_UPSTREAMS=a=http://10.0.0.1:8899,b=http://10.0.0.2:8899 slotfront serve"
)]
pub(super) struct Args {
    /// The configuration file [default: the file that `SLOTFRONT_CONFIG` names; without either, all settings come
    /// from the environment]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    // Signals are caught before any output, because a program that waits for the output may send a signal at once.
    let signals = Signals::catch()?;
    let file = world.config_file(args.config);
    let (path, env) = (file.clone(), world.env.clone());
    let source = ConfigSource::new(move || config::load(path.as_deref(), &env), file);
    let config = source.load().map_err(Failure::usage)?;
    telemetry::init(&config.telemetry).map_err(Failure::runtime)?;
    for warning in &config.warnings {
        tracing::warn!(setting = warning.path, fix = warning.fix, "{} {}", warning.path, warning.rule);
    }
    let gateway = Gateway::new(&config).map_err(Failure::usage)?;
    let scheme = Tls::of(&config).map_err(Failure::usage)?.map_or("http", |_| "https");
    let listeners = Listeners::bind(&config).await.map_err(Failure::runtime)?;
    let (public, admin) = (listeners.public.local_addr()?, listeners.admin.local_addr()?);
    writeln!(
        world.out,
        "listening on {scheme}://{}/v3/<API_KEY>, status on http://{}/",
        reachable(public),
        reachable(admin)
    )?;
    world.out.flush()?;
    app::run(config, gateway, listeners, source, signals).await.map_err(Failure::runtime)
}
