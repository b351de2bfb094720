//! `slotfront dev`: a simulated cluster and the gateway in front of it, with nothing to set up.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use slotfront_sim::{Cluster, Settings, further_methods};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Failure, World, reachable, sim};
use crate::app::signals::Signals;
use crate::app::{self, Listeners};
use crate::config::reload::Source;
use crate::config::{Config, Secret, Upstream, defaults};
use crate::gateway::Gateway;
use crate::telemetry;

/// A simulated cluster and the gateway in front of it, with nothing to set up
#[derive(Debug, clap::Args)]
#[command(
    long_about = "A simulated cluster and the gateway in front of it, with nothing to set up.\n\
                  Prints a curl line that works when pasted, and the address of the status page. The API key is dev.\n\
                  Read methods beside the eight that the simulated nodes answer are forwarded to them.",
    after_help = "Example, a larger cluster with another history, the gateway on any free port:\n    \
                  slotfront dev --nodes 5 --seed 42 --listen 127.0.0.1:0"
)]
pub(super) struct Args {
    /// Address of the gateway; port 0 takes any that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8899")]
    listen: SocketAddr,
    /// Address of metrics, health and the status page
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9899")]
    admin: SocketAddr,
    /// How many nodes are simulated
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = sim::nodes())]
    nodes: u16,
    /// What the simulated history is made from: the same seed, the same history
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    // Before anything is said: whoever has read where it listens may already want it to end.
    let signals = Signals::catch()?;
    let listeners = Listeners {
        public: app::bind("--listen", args.listen).await.map_err(Failure::runtime)?,
        admin: app::bind("--admin", args.admin).await.map_err(Failure::runtime)?,
    };
    let (public, admin) = (listeners.public.local_addr()?, listeners.admin.local_addr()?);
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let nodes = sim::bind("the simulated node", loopback, args.nodes).await?;
    let mut upstreams = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let url = format!("http://{}", node.local_addr()?);
        upstreams.push(Upstream::plain(format!("sim-{}", i + 1), Secret::new(url)));
    }
    let mut config = Config::dev(args.listen, args.admin, upstreams);
    // A tenth of it is the notice, for which a balancer would want more and a developer wants less.
    config.server.drain_timeout = Duration::from_secs(1);
    // A client library reads more than the eight before it does anything: getSlot, getLatestBlockhash.
    config.passthrough = further_methods();
    telemetry::init(&config.telemetry).map_err(Failure::runtime)?;
    let gateway = Gateway::new(&config).map_err(Failure::runtime)?;

    let settings = Settings { seed: args.seed, nodes: nodes.len(), ..Settings::default() };
    let cluster = Cluster::new(settings.with_newest_slot_at(jiff::Timestamp::now().as_second()));
    let wallet = cluster.examples().wallets.first().map(ToString::to_string).unwrap_or_default();
    writeln!(world.out, "{}", welcome(&args, reachable(public), reachable(admin), &wallet))?;
    world.out.flush()?;

    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    cluster.serve(nodes, &tasks, stop.clone()).await;
    let again = config.clone();
    let source = Source::new(move || Ok(again.clone()), None);
    let result = app::run(config, gateway, listeners, source, signals).await.map_err(Failure::runtime);
    stop.cancel();
    result
}

fn welcome(args: &Args, public: SocketAddr, admin: SocketAddr, wallet: &str) -> String {
    let key = defaults::DEV_KEY;
    format!(
        "slotfront dev: {} simulated nodes (seed {}) and the gateway in front of them\n\n  \
         gateway  http://{public}/v3/{key}\n  \
         status   http://{admin}/\n\n\
         Try it, twice within five seconds, and compare the Cache-Status headers:\n\n  \
         curl -i http://{public}/v3/{key} -H 'Content-Type: application/json' -d \
         '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"getAccountInfo\",\
         \"params\":[\"{wallet}\",{{\"encoding\":\"base64\"}}]}}'\n\n\
         Ctrl-C ends it.",
        args.nodes, args.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_names_all_that_one_needs() {
        let args = Args {
            listen: "0.0.0.0:8899".parse().unwrap(),
            admin: "[::]:9899".parse().unwrap(),
            nodes: 3,
            seed: 1,
        };
        let text = welcome(&args, reachable(args.listen), reachable(args.admin), "WALLET");
        insta::assert_snapshot!(text, @r#"
    slotfront dev: 3 simulated nodes (seed 1) and the gateway in front of them

      gateway  http://127.0.0.1:8899/v3/dev
      status   http://[::1]:9899/

    Try it, twice within five seconds, and compare the Cache-Status headers:

      curl -i http://127.0.0.1:8899/v3/dev -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["WALLET",{"encoding":"base64"}]}'

    Ctrl-C ends it.
    "#);
    }
}
