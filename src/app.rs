//! The composition root: turns a [`Config`] into running listeners and background tasks, and later stops them.
//!
//! The caller binds the listeners, so that port 0 works and a port in use is the caller's error. A stop has five
//! stages:
//!
//! - Readiness fails, and answers ask clients to close their connections.
//! - Accepting stops, and requests in flight finish.
//! - Idle connections are closed.
//! - A deadline cuts the connections that are left.
//! - Background tasks and the admin listener end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, AdminState, ReloadRequest};
use crate::cache::Cache;
use crate::config::reload::{Changes, ConfigSource, InForce};
use crate::config::watch::LOOK_EVERY;
use crate::config::{Config, FollowMode};
use crate::fair::ByteBudget;
use crate::follow::{FollowedChain, Follower};
use crate::frontier::Frontier;
use crate::gateway::{Gateway, GatewayError, PerAddress};
use crate::http::listener;
use crate::http::shutdown::{GracePeriods, Phases};
use crate::http::{Front, LogSampler};
use crate::low_priority;
use crate::node::client::ClientError;
use crate::pool::Pool;
use crate::redis_store::mac::StoreMac;
use crate::redis_store::{SharedError, Store};
use crate::subscribe::{Hub, HubParts};
use crate::telemetry::events::EventKind;
use crate::telemetry::{self, Metrics, ReloadResult, Tracer};
use crate::tip::Tip;
use crate::tls::{Tls, TlsError};
pub use listeners::{BindError, Listeners, bind, bind_next};
use signals::{HangupSignal, Signals};

mod clock;
mod gauges;
mod listeners;
pub mod signals;

/// The longest wait for background tasks once all connections are closed. The tasks may be writing the usage file or
/// serving open status pages.
const TASKS_GRACE: Duration = Duration::from_secs(1);

pub struct App {
    pub public: SocketAddr,
    /// The address of the second public listener, if there is one.
    pub socket: Option<SocketAddr>,
    pub admin: SocketAddr,
    front: Arc<Front>,
    /// The lock that allows one reload of the configuration at a time.
    reloading: Mutex<()>,
    /// The receiver of reload requests. `None` once [`serve_reloads`] has taken it.
    reload_requests: Mutex<Option<mpsc::Receiver<ReloadRequest>>>,
    tasks: TaskTracker,
    connections: TaskTracker,
    ending: Ending,
}

/// The triggers for the stages of a stop, in the order of the stages.
struct Ending {
    /// The triggers for the stages in which the public listener stops. Readiness fails once `notice` is triggered.
    public: Phases,
    /// The token that ends background tasks and the admin listener. It is cancelled last.
    over: CancellationToken,
}

impl App {
    /// Starts all parts of the gateway and returns at once, without waiting for upstreams.
    ///
    /// # Errors
    /// An upstream client cannot be built, the address of a listener cannot be read, or another part is
    /// misconfigured: a certificate, the shared store or the trace collector.
    pub fn start(config: Config, gateway: Gateway, listeners: Listeners) -> Result<Self, StartError> {
        let periods = GracePeriods::of(config.server.unready_before_stop);
        Self::start_with(config, gateway, listeners, periods)
    }

    /// Starts all parts of the gateway and returns at once, without waiting for upstreams. `periods` has the times
    /// that clients get to finish when the gateway stops.
    ///
    /// # Errors
    /// As for [`App::start`].
    pub fn start_with(
        config: Config,
        gateway: Gateway,
        listeners: Listeners,
        periods: GracePeriods,
    ) -> Result<Self, StartError> {
        let tls = Tls::of(&config)?;
        let (tasks, connections) = (TaskTracker::new(), TaskTracker::new());
        let ending = Ending { public: Phases::new(periods), over: CancellationToken::new() };
        let stop = &ending.over;
        let metrics = Arc::clone(gateway.metrics());
        let frontier = Arc::new(Frontier::new(config.upstreams.len()));
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics))?);
        let shared = config.shared.as_ref();
        let shared =
            shared.map(|settings| Store::new(settings, Arc::clone(&metrics), tasks.clone())).transpose()?;
        if let Some(shared) = &shared {
            shared.watch(stop);
        }
        let followed = Arc::<FollowedChain>::default();
        let cache = Cache::new(
            &config,
            Arc::clone(&frontier),
            Arc::clone(&pool),
            Arc::clone(&followed),
            Arc::clone(&metrics),
            tasks.clone(),
            shared.as_ref(),
        );
        let tip = Tip::new(Arc::clone(&pool), Arc::clone(&frontier), Arc::clone(&followed));
        let gateway = Arc::new(gateway);
        let tracer = tracer(&config, &metrics, &tasks, stop)?;
        tasks.spawn(telemetry::report_folds(stop.clone()));
        let outgoing = Arc::new(ByteBudget::new(config.server.max_outgoing));
        let incoming = Arc::new(ByteBudget::new(config.server.max_incoming));
        let in_force = Arc::new(InForce::new(config));
        let parts = HubParts {
            config: Arc::clone(&in_force),
            gateway: Arc::clone(&gateway),
            cache: Arc::clone(&cache),
            pool: Arc::clone(&pool),
            frontier: Arc::clone(&frontier),
            tip: Arc::clone(&tip),
            metrics: Arc::clone(&metrics),
        };
        let front = Arc::new(Front {
            config: in_force,
            gateway: Arc::clone(&gateway),
            cache,
            pool: Arc::clone(&pool),
            tip,
            subscriptions: Hub::start(parts, &tasks, stop),
            frontier,
            followed,
            metrics: Arc::clone(&metrics),
            tracer,
            access: LogSampler::default(),
            in_flight: Arc::default(),
            draining: ending.public.notice.clone(),
            tasks: tasks.clone(),
            outgoing,
            incoming,
            incoming_shares: PerAddress::new(),
        });
        let (public, admin) = (listeners.public.local_addr()?, listeners.admin.local_addr()?);
        let socket = listeners.socket.as_ref().map(TcpListener::local_addr).transpose()?;
        pool.probe(&tasks, stop);
        follow_chain(&front, shared.as_ref(), &tasks, stop);
        purge_on_cluster_change(&front, &tasks, stop);
        purge_on_fall(&front, &tasks, stop);
        clock::watch(&front, &tasks, stop);
        gateway.watch(&tasks, stop);
        if let Some(shared) = &shared {
            gateway.share(shared, &tasks, stop);
            front.cache.purger().watch(&tasks, stop);
        }
        if let Some(tls) = &tls {
            tls.watch(&metrics, &tasks, stop);
        }
        gauges::feed_metrics(&front);
        set_loaded_now(&metrics);
        let (reloads, reload_requests) = mpsc::channel(1);
        let router = admin::served(AdminState::new(Arc::clone(&front), reloads), &tasks, stop)
            .into_make_service_with_connect_info::<SocketAddr>();
        let ended = stop.clone().cancelled_owned();
        tasks.spawn(axum::serve(listeners.admin, router).with_graceful_shutdown(ended).into_future());
        connections.spawn(listener::run(
            Arc::clone(&front),
            std::iter::once(listeners.public).chain(listeners.socket).collect(),
            tls,
            connections.clone(),
            ending.public.clone(),
        ));
        let (reloading, reload_requests) = (Mutex::default(), Mutex::new(Some(reload_requests)));
        Ok(Self { public, socket, admin, front, reloading, reload_requests, tasks, connections, ending })
    }

    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// Puts the live settings of `new` in force, all or none. Blocks while it reads the key file. Returns the settings
    /// whose changes are in force, and those whose changes need a restart.
    ///
    /// # Errors
    /// The key file is refused under the new configuration, or an upstream client cannot be built.
    pub fn reload(&self, new: &Config) -> Result<Changes, StartError> {
        let _one = self.reloading.lock();
        let pool = &self.front.pool;
        let (next, changes) = self.front.config.after(new);
        // Every step that can fail comes before the first change.
        let members = pool.prepare(&next)?;
        self.front.gateway.replace(&next)?;
        pool.put_in_force(members);
        pool.probe(&self.tasks, &self.ending.over);
        if self.front.config.now().telemetry.log != next.telemetry.log {
            // The filter was checked with the configuration.
            let _ = telemetry::set_filter(&next.telemetry.log);
        }
        self.front.config.put(next);
        Ok(changes)
    }

    /// Stops the gateway: readiness fails, accepting stops, and requests in flight finish. Requests that take
    /// longer than `server.drain_timeout` are cut. A second call waits for the stop that is already under way.
    pub async fn stop(&self) {
        let drain = self.front.config.now().server.drain_timeout;
        let Phases { notice, stop, idle_close, abort, periods } = &self.ending.public;
        notice.trigger();
        // The notice period passes even without connections. A balancer that opens a connection for each request
        // continues to send requests until it sees that readiness fails.
        tokio::time::sleep(periods.notice).await;
        let deadline = Instant::now() + drain;
        stop.trigger();
        self.connections.close();
        let moment = deadline.min(Instant::now() + periods.last_moment);
        let _ = tokio::time::timeout_at(moment, self.connections.wait()).await;
        idle_close.trigger();
        if tokio::time::timeout_at(deadline, self.connections.wait()).await.is_err() {
            tracing::warn!(
                connections = self.connections.len(),
                requests = self.front.in_flight.load(Ordering::Relaxed),
                drain_timeout_ms = drain.as_millis(),
                "server.drain_timeout has passed: the remaining connections are cut"
            );
            abort.trigger();
            self.connections.wait().await;
        }
        self.ending.over.cancel();
        self.tasks.close();
        // The wait is short. Upstream calls may run until their own deadlines, but no caller waits for them.
        let _ = tokio::time::timeout(TASKS_GRACE, self.tasks.wait()).await;
        // Calls whose callers have gone may have added their price after the usage file was last written.
        self.front.gateway.save_last().await;
    }
}

/// Creates the tracer. If a trace collector is configured, a task spawned on `tasks` exports the spans until
/// `stop` is cancelled.
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

/// Starts a task that follows the cluster's blocks, unless `follow.mode` is off. Accounts that no block has written
/// can then be served at later slots.
fn follow_chain(
    front: &Arc<Front>,
    shared: Option<&Arc<Store>>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let config = front.config.now();
    let settings = config.follow.clone();
    let secret = config.shared.as_ref().and_then(|shared| shared.secret.as_ref());
    let shared = shared.map(|store| (Arc::clone(store), StoreMac::new(secret)));
    if settings.mode != FollowMode::Off {
        let Front { followed, pool, frontier, metrics, .. } = &**front;
        let follower = Follower::new(
            Arc::clone(followed),
            Arc::clone(pool),
            Arc::clone(frontier),
            Arc::clone(metrics),
            tasks.clone(),
            settings,
            shared,
        );
        tasks.spawn(follower.run(stop.clone()));
    }
}

/// Watches for a change of the cluster to which the pool's nodes belong. Each change purges the cache, and ends all
/// subscriptions.
fn purge_on_cluster_change(front: &Arc<Front>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (front, stop, mut clusters) = (Arc::clone(front), stop.clone(), front.pool.clusters());
    tasks.spawn(async move {
        while let Some(Ok(())) = stop.run_until_cancelled(clusters.changed()).await {
            front.cache.purger().purge_all_clusters();
            front.subscriptions.restart();
        }
    });
}

/// Watches for a fall of the newest finalized slot, as after the restart of a cluster at a lower slot. What was stored as
/// final above that slot would be served for a day, although the cluster may have other blocks there now.
fn purge_on_fall(front: &Arc<Front>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (front, stop) = (Arc::clone(front), stop.clone());
    tasks.spawn(async move {
        while let Some(slot) = stop.run_until_cancelled(front.frontier.final_slots_abandoned()).await {
            let purger = Arc::clone(front.cache.purger());
            // A walk over a million entries would block an async worker.
            let entries =
                tokio::task::spawn_blocking(move || purger.purge_above(slot)).await.unwrap_or_default();
            tracing::warn!(
                slot,
                purge.entries = entries,
                "the newest finalized slot has fallen: what was cached as final above this slot was purged"
            );
        }
    });
}

/// The reasons why the gateway cannot start, or a new configuration cannot take effect.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Shared(#[from] SharedError),
    #[error(transparent)]
    Traces(#[from] telemetry::otlp::OtlpError),
    #[error("the system does not tell the address of server.listen or server.admin_listen: {0}")]
    Address(#[from] std::io::Error),
}

/// Runs the gateway until Ctrl-C or SIGTERM, and then stops it as [`App::stop`] does. A second signal ends the
/// process at once. On SIGHUP, on an admin request, and when the configuration file changes, the configuration is
/// reloaded from `source`.
///
/// # Errors
/// As for [`App::start`].
pub async fn run(
    config: Config,
    gateway: Gateway,
    listeners: Listeners,
    mut source: ConfigSource,
    signals: Signals,
) -> Result<(), StartError> {
    let Signals { mut stop, mut hangup } = signals;
    let app = Arc::new(App::start(config, gateway, listeners)?);
    let ws_listen = app.socket.map(tracing::field::display);
    tracing::info!(server.listen = %app.public, server.ws_listen = ws_listen, server.admin_listen = %app.admin, "slotfront is running");
    tokio::select! {
        () = stop.received() => {}
        () = serve_reloads(&app, &mut source, &mut hangup) => {}
    }
    tracing::info!("stopping: requests in flight finish first");
    tokio::select! {
        () = app.stop() => {}
        () = stop.received() => tracing::warn!("second signal: exiting at once, and requests in flight are cut"),
    }
    Ok(())
}

/// Reloads the configuration on SIGHUP, on an admin request, and when the configuration file changes. Never returns.
async fn serve_reloads(app: &Arc<App>, source: &mut ConfigSource, hangup: &mut HangupSignal) {
    let reload_requests = app.reload_requests.lock().take();
    let mut reload_requests = reload_requests.unwrap_or_else(|| mpsc::channel(1).1);
    loop {
        let mut request = None;
        let is_asked_for = tokio::select! {
            () = hangup.received() => true,
            Some(asked) = reload_requests.recv() => {
                request = Some(asked);
                true
            }
            () = tokio::time::sleep(LOOK_EVERY), if source.is_watched() => false,
        };
        let load = source.loader();
        // Reading files blocks.
        let loaded = tokio::task::spawn_blocking(move || load()).await.ok();
        if !loaded.as_ref().map_or(is_asked_for, |loaded| source.is_due(loaded, is_asked_for)) {
            continue;
        }
        let reloaded = Arc::clone(app);
        // Reading a large key file takes a second, so it gets a lower priority than calls.
        let reloading = low_priority::run(move || {
            let new = loaded?.map_err(|problems| problems.to_string());
            Some(new.and_then(|new| reloaded.reload(&new).map_err(|error| error.to_string())))
        });
        let applied = reloading
            .await
            .flatten()
            .unwrap_or_else(|| Err("an internal error stopped the reload".to_owned()));
        let metrics = &app.front.metrics;
        match &applied {
            Ok(Changes { at_once, after_restart }) => {
                metrics.config_reloads.at(ReloadResult::Applied).inc();
                set_loaded_now(metrics);
                tracing::info!(?at_once, ?after_restart, "configuration reloaded");
                metrics
                    .events
                    .note(EventKind::Reload, format!("configuration reloaded, changed at once: {at_once:?}"));
            }
            Err(problems) => {
                metrics.config_reloads.at(ReloadResult::Rejected).inc();
                tracing::error!(%problems, "configuration refused; the old one stays in force");
                metrics.events.note(EventKind::Reload, "configuration refused; the log says why");
            }
        }
        if let Some(request) = request {
            // The requester may no longer wait.
            let _ = request.send(applied);
        }
    }
}

fn set_loaded_now(metrics: &Metrics) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    metrics.config_last_reload_success.at(()).set(now.as_secs_f64());
}
