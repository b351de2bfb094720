//! The composition root: a [`Config`] becomes running listeners and background tasks, and ends again in order.
//!
//! Everything is passed in: listeners are bound by the caller, so that port 0 works and a port in use is the caller's
//! clear error. Ending goes in stages: readiness fails and answers tell clients to go, they are given time for it,
//! accepting stops, requests in flight finish, a deadline cuts the rest, and last go the background tasks and the admin
//! listener.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, Controls, ReloadRequest};
use crate::cache::Cache;
use crate::config::Config;
use crate::config::reload::{Changes, Source};
use crate::frontier::Frontier;
use crate::gateway::{Gateway, GatewayError};
use crate::http::access::Sampled;
use crate::http::ends::{Ends, GracePeriods};
use crate::http::listener;
use crate::http::tls::{Tls, TlsError};
use crate::http::{Front, Outgoing};
use crate::low_priority;
use crate::node::client::ClientError;
use crate::pool::Pool;
use crate::redis_store::{SharedError, Store};
use crate::telemetry::{self, Metrics, ReloadResult, Tracer};
use signals::{Hangup, Signals};

mod clock;
mod gauges;
mod nodes;
pub mod signals;
mod status;

/// What still runs when the last connection has gone: the last writing of use, open status pages.
const LAST_TASKS: Duration = Duration::from_secs(1);
/// Between two looks at the configuration file.
const CONFIG_LOOK: Duration = Duration::from_secs(1);

/// The two listeners, bound.
#[derive(Debug)]
pub struct Listeners {
    /// The public one.
    pub public: TcpListener,
    /// Metrics, health, status page.
    pub admin: TcpListener,
}

/// Why the listeners cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: cannot listen on {address}: {cause}{hint}")]
pub struct BindError {
    setting: &'static str,
    address: SocketAddr,
    cause: std::io::Error,
    hint: &'static str,
}

impl Listeners {
    /// Binds both as `config` says.
    ///
    /// # Errors
    /// The first address that cannot be had, named with its setting.
    pub async fn bind(config: &Config) -> Result<Self, BindError> {
        Ok(Self {
            public: bind("server.listen", config.server.listen).await?,
            admin: bind("server.admin_listen", config.server.admin_listen).await?,
        })
    }
}

/// One listener; its error names the setting and the address, and what to do where the port is in use.
///
/// # Errors
/// The address cannot be had.
pub async fn bind(setting: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|cause| {
        let in_use = cause.kind() == std::io::ErrorKind::AddrInUse;
        let hint = if in_use { "; stop what holds it, or choose another port (0 takes any)" } else { "" };
        BindError { setting, address, cause, hint }
    })
}

/// A running gateway.
pub struct App {
    /// Where the public listener is bound.
    pub public: SocketAddr,
    /// Where the admin listener is bound.
    pub admin: SocketAddr,
    front: Arc<Front>,
    /// The configuration that was read last: what of it takes effect at once is in force.
    in_force: ArcSwap<Config>,
    /// One reload at a time.
    reloading: Mutex<()>,
    /// Admin calls for a reload, until somebody reads the configuration.
    wishes: Mutex<Option<mpsc::Receiver<ReloadRequest>>>,
    tasks: TaskTracker,
    connections: TaskTracker,
    ending: Ending,
}

/// The stages of the end, in order.
struct Ending {
    /// Of the public listener; with its notice, readiness fails.
    public: Ends,
    /// Background tasks and the admin listener end.
    over: CancellationToken,
}

impl App {
    /// Starts everything and returns at once; nothing waits for an upstream.
    ///
    /// # Errors
    /// An upstream whose client cannot be built.
    pub fn start(config: Config, gateway: Gateway, listeners: Listeners) -> Result<Self, StartError> {
        let periods = GracePeriods::of(config.server.drain_timeout);
        Self::start_with(config, gateway, listeners, periods)
    }

    /// Starts everything and returns at once. A stop gives its clients the times of `periods`.
    ///
    /// # Errors
    /// As [`App::start`].
    pub fn start_with(
        config: Config,
        gateway: Gateway,
        listeners: Listeners,
        periods: GracePeriods,
    ) -> Result<Self, StartError> {
        let tls = Tls::of(&config)?;
        let (tasks, connections) = (TaskTracker::new(), TaskTracker::new());
        let ending = Ending { public: Ends::new(periods), over: CancellationToken::new() };
        let stop = &ending.over;
        let config = Arc::new(config);
        let metrics = Metrics::new();
        let frontier = Arc::new(Frontier::new(config.upstreams.len()));
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics))?);
        let shared = config.shared.as_ref();
        let shared =
            shared.map(|settings| Store::new(settings, Arc::clone(&metrics), tasks.clone())).transpose()?;
        if let Some(shared) = &shared {
            shared.watch(stop);
        }
        let cache = Cache::new(
            &config,
            Arc::clone(&frontier),
            Arc::clone(&pool),
            Arc::clone(&metrics),
            tasks.clone(),
            shared.as_ref(),
        );
        let gateway = Arc::new(gateway);
        let tracer = tracer(&config, &metrics, &tasks, stop)?;
        tasks.spawn(telemetry::report_folds(stop.clone()));
        let outgoing = Outgoing::new(config.server.max_outgoing);
        let front = Arc::new(Front {
            config,
            gateway: Arc::clone(&gateway),
            cache,
            pool: Arc::clone(&pool),
            frontier,
            metrics: Arc::clone(&metrics),
            tracer,
            access: Sampled::default(),
            in_flight: Arc::default(),
            tasks: tasks.clone(),
            outgoing,
        });
        let (public, admin) = (listeners.public.local_addr()?, listeners.admin.local_addr()?);
        gateway.report_to(&metrics);
        pool.probe(&tasks, stop);
        empty_on_another_cluster(&front, &tasks, stop);
        clock::watch(&front, &tasks, stop);
        gateway.watch(&tasks, stop);
        if let Some(shared) = &shared {
            gateway.share(shared, &tasks, stop);
            front.cache.watch_purges(&tasks, stop);
        }
        if let Some(tls) = &tls {
            tls.watch(&tasks, stop);
        }
        gauges::feed_metrics(&front);
        set_loaded_now(&metrics);
        let source = status::Source::new(Arc::clone(&front), ending.public.notice.clone());
        let (reloads, wishes) = mpsc::channel(1);
        let token = front.config.auth.admin_token.clone();
        let controls = Controls { token, gateway, reloads };
        let state = admin::AdminState::new(metrics, source, controls, stop.clone());
        state.watch(&tasks);
        let (router, ended) = (admin::router(state), stop.clone().cancelled_owned());
        tasks.spawn(axum::serve(listeners.admin, router).with_graceful_shutdown(ended).into_future());
        connections.spawn(listener::run(
            Arc::clone(&front),
            listeners.public,
            tls,
            connections.clone(),
            ending.public.clone(),
        ));
        let in_force = ArcSwap::new(Arc::clone(&front.config));
        let (reloading, wishes) = (Mutex::default(), Mutex::new(Some(wishes)));
        Ok(Self { public, admin, front, in_force, reloading, wishes, tasks, connections, ending })
    }

    /// What every request is served with, for tests and tools in the same process.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// Puts `new` in force as far as it can be without a restart, all of that or nothing. Reads files, and blocks for as
    /// long as a large key file takes.
    ///
    /// # Errors
    /// The key file cannot be taken with it, or an upstream's client cannot be built.
    pub fn reload(&self, new: &Config) -> Result<Changes, ReloadError> {
        let _one = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = &self.front.pool;
        // All that can fail comes before the first change.
        let members = pool.prepare(new)?;
        self.front.gateway.replace(new)?;
        pool.put_in_force(members);
        pool.probe(&self.tasks, &self.ending.over);
        let before = self.in_force.swap(Arc::new(new.clone()));
        if before.telemetry.log != new.telemetry.log {
            // It was judged with the rest of the configuration.
            let _ = telemetry::set_filter(&new.telemetry.log);
        }
        Ok(Changes {
            at_once: Changes::between(&before, new).at_once,
            after_restart: Changes::between(&self.front.config, new).after_restart,
        })
    }

    /// Ends it: readiness fails, then accepting stops, requests in flight finish, and what has not within
    /// `server.drain_timeout` is cut. A second call joins the first.
    pub async fn stop(&self) {
        let drain = self.front.config.server.drain_timeout;
        let deadline = Instant::now() + drain;
        let Ends { notice, stop, silence, cut, periods } = &self.ending.public;
        notice.give();
        // Kept without clients, too. A balancer that opens a connection for each request may send one until it has seen that
        // readiness fails.
        tokio::time::sleep(periods.notice).await;
        stop.give();
        self.connections.close();
        let moment = deadline.min(Instant::now() + periods.last_moment);
        let _ = tokio::time::timeout_at(moment, self.connections.wait()).await;
        silence.give();
        if tokio::time::timeout_at(deadline, self.connections.wait()).await.is_err() {
            tracing::warn!(
                connections = self.connections.len(),
                requests = self.front.in_flight.load(Ordering::Relaxed),
                drain_timeout_ms = drain.as_millis(),
                "drain timeout: what is still served is cut"
            );
            cut.give();
            self.connections.wait().await;
        }
        self.ending.over.cancel();
        self.tasks.close();
        // Flights have deadlines of their own; nobody waits for them any more.
        let _ = tokio::time::timeout(LAST_TASKS, self.tasks.wait()).await;
        // Calls whose callers had gone may have landed after the last writing.
        let gateway = Arc::clone(&self.front.gateway);
        let _ = low_priority::run(move || gateway.save()).await;
    }
}

/// What records traces, if the settings say where they go; it sends them as one of `tasks`.
#[cfg(feature = "otlp")]
fn tracer(
    config: &Config,
    metrics: &Arc<Metrics>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Tracer, StartError> {
    let Some((exporter, sender)) = telemetry::otlp::exporter(&config.telemetry, metrics)? else {
        return Ok(Tracer::default());
    };
    tasks.spawn(sender.run(stop.clone()));
    Ok(Tracer::to(exporter))
}

/// Nothing records traces in this build; callers' own go on to the nodes.
#[cfg(not(feature = "otlp"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
fn tracer(
    _: &Config,
    _: &Arc<Metrics>,
    _: &TaskTracker,
    _: &CancellationToken,
) -> Result<Tracer, StartError> {
    Ok(Tracer::default())
}

/// Empties the cache when the pool is of another cluster, or when a node of another one was asked, and then forgets
/// which slots keys were shown: in this order, or a hit of the old cluster would be remembered anew.
fn empty_on_another_cluster(front: &Arc<Front>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (front, stop, mut clusters) = (Arc::clone(front), stop.clone(), front.pool.clusters());
    tasks.spawn(async move {
        while let Some(Ok(())) = stop.run_until_cancelled(clusters.changed()).await {
            front.cache.purge_all_clusters();
            front.gateway.forget_shown_slots();
        }
    });
}

/// Why a new configuration cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// An upstream's client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The key file.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
}

/// Why it cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An upstream's client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The listener's certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The shared store's address or certificate.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The way to the trace collector.
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Traces(#[from] telemetry::otlp::OtlpError),
    /// A listener without an address.
    #[error("a listener has no address: {0}")]
    Address(#[from] std::io::Error),
}

/// Runs until Ctrl-C or SIGTERM, then ends in order; a second signal ends at once. SIGHUP, or another content of the
/// configuration file, reads `source` again.
///
/// # Errors
/// As [`App::start`].
pub async fn run(
    config: Config,
    gateway: Gateway,
    listeners: Listeners,
    mut source: Source,
    signals: Signals,
) -> Result<(), StartError> {
    let Signals { mut stop, mut hangup } = signals;
    let app = Arc::new(App::start(config, gateway, listeners)?);
    tracing::info!(server.listen = %app.public, server.admin_listen = %app.admin, "slotfront is running");
    tokio::select! {
        () = stop.asked() => {}
        () = follow(&app, &mut source, &mut hangup) => {}
    }
    tracing::info!("stopping: requests in flight finish first");
    tokio::select! {
        () = app.stop() => {}
        () = stop.asked() => tracing::warn!("second signal: ending at once"),
    }
    Ok(())
}

/// Reads the configuration again on SIGHUP, on an admin call and when its file has changed. Never ends.
async fn follow(app: &Arc<App>, source: &mut Source, hangup: &mut Hangup) {
    let wishes = app.wishes.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut wishes = wishes.unwrap_or_else(|| mpsc::channel(1).1);
    loop {
        let mut wish = None;
        tokio::select! {
            // What is read now is no change at the next look.
            () = hangup.asked() => source.taken(),
            Some(asked) = wishes.recv() => {
                wish = Some(asked);
                source.taken();
            }
            () = tokio::time::sleep(CONFIG_LOOK) => {
                if !source.changed() {
                    continue;
                }
            }
        }
        let (load, reloaded) = (source.loader(), Arc::clone(app));
        // A large key file takes a second, in which calls want the cores.
        let reloading = low_priority::run(move || {
            let new = load().map_err(|problems| problems.to_string())?;
            reloaded.reload(&new).map_err(|error| error.to_string())
        });
        let applied = reloading.await.unwrap_or_else(|| Err("the reload did not come to its end".to_owned()));
        let metrics = &app.front.metrics;
        match &applied {
            Ok(Changes { at_once, after_restart }) => {
                metrics.config_reloads.at(ReloadResult::Applied).inc();
                set_loaded_now(metrics);
                tracing::info!(?at_once, ?after_restart, "configuration read again");
            }
            Err(problems) => {
                metrics.config_reloads.at(ReloadResult::Rejected).inc();
                tracing::error!(%problems, "configuration refused: the old one stays in force");
            }
        }
        if let Some(wish) = wish {
            // Whoever asked may have gone.
            let _ = wish.send(applied);
        }
    }
}

fn set_loaded_now(metrics: &Metrics) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    metrics.config_last_reload_success.at(()).set(now.as_secs_f64());
}
