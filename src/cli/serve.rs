//! `slotfront serve`: production.

use std::path::PathBuf;

use super::{Failure, World, reachable};
use crate::app::signals::Signals;
use crate::app::{self, Listeners};
use crate::config::{self, reload::Source};
use crate::gateway::Gateway;
use crate::http::tls::Tls;
use crate::telemetry;

/// Run the gateway in front of your own nodes
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run the gateway in front of your own nodes, until Ctrl-C or SIGTERM: calls in work finish first.\n\
                  Every setting of the file can also come from the environment, and all of them have defaults but the nodes.",
    after_help = "Examples:\n    slotfront serve --config slotfront.toml\n    \
                  SLOTFRONT_UPSTREAMS=a=http://10.0.0.1:8899,b=http://10.0.0.2:8899 slotfront serve"
)]
pub(super) struct Args {
    /// The configuration; without it, `SLOTFRONT_CONFIG` names it, or the environment is all of it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    // Before anything is said: whoever has read where it listens may already want it to end.
    let signals = Signals::catch()?;
    let file = world.config_file(args.config);
    let (path, env) = (file.clone(), world.env.clone());
    let source = Source::new(move || config::load(path.as_deref(), &env), file);
    let config = source.load().map_err(Failure::usage)?;
    telemetry::init(&config.telemetry).map_err(Failure::runtime)?;
    for warning in &config.warnings {
        tracing::warn!(setting = warning.path, fix = warning.fix, "this setting {}", warning.rule);
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
