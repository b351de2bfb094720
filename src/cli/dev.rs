//! `slotfront dev`: runs a simulated cluster and a gateway in front of it, without setup.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use slotfront_sim::{Cluster, Settings};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Failure, World, reachable, sim};
use crate::app::signals::Signals;
use crate::app::{self, Listeners};
use crate::config::reload::ConfigSource;
use crate::config::{Config, DEV_KEY, FollowMode, ListedSettings, Secret, Upstream};
use crate::gateway::Gateway;
use crate::gateway::keys::generate_key;
use crate::methods::Group;
use crate::telemetry::{self, Metrics};

/// Run a simulated cluster and a gateway in front of it, without setup
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run a simulated cluster and a gateway in front of it, without setup.\n\
                  Prints a curl command to try, and the address of the status page. The API key is dev.\n\
                  Further read methods that the simulated nodes support pass through to them.",
    after_help = "Example, a larger cluster with another history and any free port:\n    \
                  slotfront dev --nodes 5 --seed 42 --listen 127.0.0.1:0"
)]
pub(super) struct Args {
    /// The address of the gateway; port 0 takes any free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8899")]
    listen: SocketAddr,
    /// The address of metrics, health and the status page
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9899")]
    admin: SocketAddr,
    /// The number of simulated nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = sim::nodes())]
    nodes: u16,
    /// The seed of the simulated history; the same seed gives the same history
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    // Signals are caught before any output, because a program that waits for the output may send a signal at once.
    let signals = Signals::catch()?;
    let bound = app::bind("--listen", args.listen).await.map_err(Failure::runtime)?;
    let admin = app::bind("--admin", args.admin).await.map_err(Failure::runtime)?;
    let socket = sim::bind_next(bound.local_addr()?, world).await?;
    let listeners = Listeners { public: bound, socket, no_socket: None, admin };
    let (public, admin) = (listeners.public.local_addr()?, listeners.admin.local_addr()?);
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let nodes = sim::bind("the simulated node", loopback, args.nodes).await?;
    let mut upstreams = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let address = node.local_addr()?;
        let plain = Upstream::plain(format!("sim-{}", i + 1), Secret::new(format!("http://{address}")));
        upstreams.push(Upstream { ws_url: Some(Secret::new(format!("ws://{address}"))), ..plain });
    }
    let settings = Settings { seed: args.seed, nodes: nodes.len(), ..Settings::default() };
    let cluster = Cluster::new(settings.with_newest_slot_at(jiff::Timestamp::now().as_second()));
    let mut config = Config::dev(args.listen, args.admin, upstreams);
    config.pool.genesis_hash = Some(cluster.genesis_hash());
    // A developer does not want to wait.
    config.server.drain_timeout = Duration::from_secs(1);
    config.list_method("requestAirdrop", ListedSettings::of(Group::Provider));
    config.send.enabled = true;
    config.plans.values_mut().for_each(|plan| (plan.send, plan.explain) = (true, true));
    config.follow.mode = FollowMode::On;
    let token = generate_key().map_err(Failure::runtime)?;
    config.auth.admin_token = Some(token.clone());
    telemetry::init(&config.telemetry).map_err(Failure::runtime)?;
    let gateway = Gateway::new(&config, Metrics::new()).map_err(Failure::runtime)?;

    let read = cluster.examples().wallets.first().map(ToString::to_string).unwrap_or_default();
    let own = sim::wallet(&cluster);
    writeln!(
        world.out,
        "{}",
        welcome(&args, [reachable(public), reachable(admin)], token.expose(), &read, &own)
    )?;
    world.out.flush()?;

    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    cluster.serve(nodes, &tasks, stop.clone()).await;
    let again = config.clone();
    let source = ConfigSource::unwatched(move || Ok(again.clone()));
    let result = app::run(config, gateway, listeners, source, signals).await.map_err(Failure::runtime);
    stop.cancel();
    result
}

/// Returns the text for a developer: an account to read, and the key of an account of the developer's own.
fn welcome(args: &Args, [public, admin]: [SocketAddr; 2], token: &str, read: &str, own: &str) -> String {
    let key = DEV_KEY;
    format!(
        "slotfront dev: {} simulated nodes (seed {}) and the gateway in front of them\n\n  \
         gateway  http://{public}/v3/{key}\n  \
         status   http://{admin}/\n  \
         token    {token} (for the actions of the status page)\n\n\
         Send this twice within five seconds and compare the Cache-Status headers:\n\n  \
         curl -i http://{public}/v3/{key} -H 'Content-Type: application/json' -d \
         '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"getAccountInfo\",\
         \"params\":[\"{read}\",{{\"encoding\":\"base64\"}}]}}'\n\n\
         {own}\n\n\
         Press Ctrl-C to stop.",
        args.nodes, args.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn welcome_shows_addresses_and_a_command() {
        let args = Args {
            listen: "0.0.0.0:8899".parse().unwrap(),
            admin: "[::]:9899".parse().unwrap(),
            nodes: 3,
            seed: 1,
        };
        let text = welcome(&args, [args.listen, args.admin].map(reachable), "TOKEN", "WALLET", "KEY");
        insta::assert_snapshot!(text, @r#"
    slotfront dev: 3 simulated nodes (seed 1) and the gateway in front of them

      gateway  http://127.0.0.1:8899/v3/dev
      status   http://[::1]:9899/
      token    TOKEN (for the actions of the status page)

    Send this twice within five seconds and compare the Cache-Status headers:

      curl -i http://127.0.0.1:8899/v3/dev -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["WALLET",{"encoding":"base64"}]}'

    KEY

    Press Ctrl-C to stop.
    "#);
    }
}
