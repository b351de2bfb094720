//! `slotfront serve`: runs the gateway in production.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tracing::Level;

use super::{Failure, World, check, reachable};
use crate::app::signals::Signals;
use crate::app::{self, Listeners};
use crate::config::{self, AuthMode, Config, LogFormat, reload::ConfigSource};
use crate::gateway::{Gateway, UsageError, UsageLock};
use crate::telemetry::{self, Metrics};
use crate::tls::Tls;

/// The time after its drain in which another process ends, and gives back its usage file.
const AFTER_DRAIN: Duration = Duration::from_secs(8);

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
    let mut signals = Signals::catch()?;
    let file = world.config_file(args.config);
    let (of_source, env) = (file.clone(), world.env.clone());
    let mut source = ConfigSource::watched(move || config::load(of_source.as_deref(), &env));
    let loaded = source.load().inspect_err(|_| {
        // Nobody who reads the output of `serve` with a program has asked for lines that it cannot read.
        let telemetry = config::telemetry(file.as_deref(), &world.env);
        if telemetry.format == LogFormat::Json {
            let _ = telemetry::init(&telemetry);
        }
    });
    let mut config = loaded.map_err(Failure::usage)?;
    telemetry::init(&config.telemetry).map_err(Failure::runtime)?;
    for warning in &config.warnings {
        tracing::warn!(setting = warning.path, fix = warning.fix, "{} {}", warning.path, warning.rule);
    }
    for finding in
        check::of_process(&config).into_iter().chain(check::of_certificate(&config, Timestamp::now()))
    {
        tracing::warn!(fix = finding.fix, "{}", finding.what);
    }
    // Held until this function returns. The gateway reads the file once it is held.
    let _usage_lock = tokio::select! {
        locked = lock_usage_file(&mut config) => locked.map_err(Failure::runtime)?,
        () = signals.stop.received() => return Ok(()),
    };
    let gateway = Gateway::new(&config, Metrics::new()).map_err(Failure::usage)?;
    let scheme = Tls::of(&config).map_err(Failure::usage)?.map_or("http", |_| "https");
    let listeners = Listeners::bind(&config).await.map_err(Failure::runtime)?;
    if let Some(why) = &listeners.no_socket {
        tracing::warn!(setting = "server.ws_listen", fix = check::FREE_NEXT_PORT, "{why}");
    }
    let (public, admin) = (listeners.public.local_addr()?, listeners.admin.local_addr()?);
    let said = format!(
        "listening on {scheme}://{}/v3/<API_KEY>, status on http://{}/",
        reachable(public),
        reachable(admin)
    );
    writeln!(world.out, "{}", telemetry::json_line(Level::INFO, &said).unwrap_or(said))?;
    world.out.flush()?;
    app::run(config, gateway, listeners, source, signals).await.map_err(Failure::runtime)
}

/// Takes the lock on the usage file, which another process may hold while it drains. In the mode `open` nothing is
/// counted in the file, so a file that another process holds is left out of `config`.
async fn lock_usage_file(config: &mut Config) -> Result<Option<UsageLock>, UsageError> {
    let Some(path) = &config.auth.usage_file else { return Ok(None) };
    let counts = config.auth.mode == AuthMode::Keys;
    let stop = config.server.unready_before_stop + config.server.drain_timeout;
    let patience = if counts { stop + AFTER_DRAIN } else { Duration::ZERO };
    let locked = UsageLock::wait(path, patience).await;
    if let (Err(error), false) = (&locked, counts) {
        tracing::warn!(%error, "auth.mode is \"open\", so this process needs no usage file; if a reload changes the mode, restart as well");
        config.auth.usage_file = None;
        return Ok(None);
    }
    locked
}
