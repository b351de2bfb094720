//! Changes of settings, keys and upstreams while callers are served: callers notice nothing, and an invalid
//! change has no effect.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};
use slotfront::app::signals::Signals;
use slotfront::app::{self, Listeners};
use slotfront::config::ListedSettings;
use slotfront::config::reload::ConfigSource;
use slotfront::gateway::Gateway;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::Group;
use slotfront::telemetry::Metrics;
use slotfront_testkit::wire::{self, is_whole, read_until};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const TOKEN: &str = "an-admin-token";
const CALLERS: usize = 16;

/// A directory in the layout of a Kubernetes config map: `keys.toml` is a link into `..data`, which is itself a
/// link. A new version replaces only `..data`.
struct Mounted {
    dir: tempfile::TempDir,
    versions: AtomicU64,
}

impl Mounted {
    fn new(keys: &str) -> Self {
        let mounted = Self { dir: tempfile::tempdir().unwrap(), versions: AtomicU64::new(0) };
        mounted.swap(keys);
        std::os::unix::fs::symlink("..data/keys.toml", mounted.path("keys.toml")).unwrap();
        mounted
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the keys, and removes the directory of the previous version.
    fn swap(&self, keys: &str) {
        let number = self.versions.fetch_add(1, Ordering::Relaxed);
        let (version, link) = (self.path(&format!("..v{number}")), self.path("..data_tmp"));
        std::fs::create_dir(&version).unwrap();
        std::fs::write(version.join("keys.toml"), keys).unwrap();
        std::os::unix::fs::symlink(&version, &link).unwrap();
        std::fs::rename(&link, self.path("..data")).unwrap();
        if number > 0 {
            std::fs::remove_dir_all(self.path(&format!("..v{}", number - 1))).unwrap();
        }
    }
}

/// Returns a key of the plan `wide`, a key of the plan `small`, and the text of the key file that holds both.
fn made() -> (String, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let key = |plan| file.create(&NewKey::of("a", plan), now).unwrap().key.expose().to_owned();
    let (wide, small) = (key("wide"), key("small"));
    (wide, small, std::fs::read_to_string(file.path()).unwrap())
}

fn written(keys: &Path, upstreams: &[SocketAddr], wide_rps: &str) -> String {
    let nodes = upstreams.iter().enumerate();
    let nodes = nodes.map(|(i, at)| format!("[[upstream]]\nname = \"node-{i}\"\nurl = \"http://{at}\"\n"));
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n\
         [auth]\nadmin_token = \"{TOKEN}\"\nkeys_file = \"{}\"\n\
         [plans.wide]\nrps = {wide_rps}\nburst = 1000000\n\
         [plans.small]\nrps = 1\nburst = 5\nmonthly_units = 10\n{}",
        keys.display(),
        nodes.collect::<String>()
    )
}

/// Makes one call on an open connection, and returns its status.
async fn call_on(socket: &mut TcpStream, key: &str) -> u16 {
    let call = wire::call("getVoteAccounts").replace("/v3/dev", &format!("/v3/{key}"));
    socket.write_all(call.as_bytes()).await.unwrap();
    let answer = read_until(socket, is_whole).await;
    assert!(is_whole(&answer), "the answer is cut: {answer:?}");
    answer["HTTP/1.1 ".len()..][..3].parse().unwrap()
}

async fn ask(client: &Client, verb: &str, url: &str) -> (u16, String) {
    let request = client.request(verb.parse().unwrap(), url).bearer_auth(TOKEN);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn open_connections_survive_reloads() {
    let nodes = TestGateway::builder().nodes(2).start().await;
    let addresses = [0, 1].map(|i| nodes.cluster.node(i).address().expect("an address"));
    let (wide, small, keys) = made();
    let mounted = Mounted::new(&keys);
    let (path, keys_path) = (mounted.path("slotfront.toml"), mounted.path("keys.toml"));
    let write = |upstreams: &[SocketAddr], rps: &str| {
        std::fs::write(&path, written(&keys_path, upstreams, rps)).unwrap();
    };
    write(&addresses[..1], "1000000");
    let load = {
        let path = path.clone();
        move || slotfront::config::load(Some(&path), &BTreeMap::new())
    };
    // Only the reload calls below read the settings again, so the answer of each call shows the result of one
    // change. The key file is watched.
    let mut source = ConfigSource::unwatched(load);
    let config = source.load().unwrap();
    let (gateway, listeners) =
        (Gateway::new(&config, Metrics::new()).unwrap(), Listeners::bind(&config).await.unwrap());
    let public = listeners.public.local_addr().unwrap();
    let admin = format!("http://{}", listeners.admin.local_addr().unwrap());
    let (reload_url, metrics_url) = (format!("{admin}/api/reload"), format!("{admin}/metrics"));
    let running = app::run(config, gateway, listeners, source, Signals::catch().unwrap());

    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let caller = || async {
        let mut socket = TcpStream::connect(public).await.unwrap();
        while !over.load(Ordering::Relaxed) {
            assert_eq!(call_on(&mut socket, &wide).await, 200);
            calls.fetch_add(1, Ordering::Relaxed);
            // Sixteen callers without a pause would only keep the machine busy.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let changes = async {
        let mut limited = TcpStream::connect(public).await.unwrap();
        // Each call costs five of the ten units.
        for expected in [200, 200, 429] {
            assert_eq!(call_on(&mut limited, &small).await, expected);
        }
        let reload = |expected: u16, says: &'static str| {
            let (client, url) = (&nodes.client, &reload_url);
            async move {
                let (status, text) = ask(client, "POST", url).await;
                assert!(status == expected && text.contains(says), "{status} {text}");
            }
        };
        for round in 0..2 {
            let before = calls.load(Ordering::Relaxed);
            write(&addresses, "900000");
            reload(200, "upstream").await;
            write(&addresses, "many");
            reload(409, "line").await;
            write(&addresses, "0");
            reload(409, "plans.wide.rps").await;
            write(&addresses[1..], "1000000");
            std::fs::write(
                &path,
                std::fs::read_to_string(&path).unwrap().replace("plans.small", "plans.tiny"),
            )
            .unwrap();
            reload(409, "no plan is named \\\"small\\\"").await;
            write(&addresses[1..], "1000000");
            reload(200, "plans").await;

            // The number of the round in a comment makes each text new. The gateway would not count a text that it
            // has just read.
            let fresh = format!("{keys}# {round}\n");
            for (text, result) in [(format!("{keys}{keys}# {round}\n"), "rejected"), (fresh, "applied")] {
                let count = format!("slotfront_key_file_reads_total{{result=\"{result}\"}} {}", round + 1);
                mounted.swap(&text);
                until_counted(&nodes.client, &metrics_url, &count).await;
            }
            assert_eq!(call_on(&mut limited, &small).await, 429, "used units stay used");
            write(&addresses[..1], "1000000");
            reload(200, "upstream").await;
            let enough = || calls.load(Ordering::Relaxed) >= before + 10 * CALLERS as u64;
            nodes.until("the callers go on", enough).await;
        }
        let (_, metrics) = ask(&nodes.client, "GET", &metrics_url).await;
        for line in
            ["config_reloads_total{result=\"rejected\"} 6", "config_reloads_total{result=\"applied\"} 6"]
        {
            assert!(metrics.contains(line), "{line} is not in\n{metrics}");
        }
        over.store(true, Ordering::Relaxed);
    };
    let load = async { tokio::join!(changes, join_all((0..CALLERS).map(|_| caller()))) };
    tokio::select! {
        ended = running => panic!("{:?}", ended.err()),
        _ = load => {}
    }
}

#[tokio::test]
async fn swapped_secrets_are_in_force() {
    let nodes = TestGateway::builder().nodes(1).start().await;
    let node = nodes.cluster.node(0).address().expect("an address");
    let (wide, _, keys) = made();
    let mounted = Mounted::new(&keys);
    let path = mounted.path("slotfront.toml");
    // The file `url` of a mounted secret is a link into `..data`, which is swapped.
    std::os::unix::fs::symlink("..data/keys.toml", mounted.path("url")).unwrap();
    let text =
        written(&mounted.path("own.toml"), &[node], "1000000").replace(&format!("http://{node}"), "file:url");
    std::fs::write(&path, text).unwrap();
    std::fs::write(mounted.path("own.toml"), &keys).unwrap();
    mounted.swap("http://127.0.0.1:9");
    let mut source = ConfigSource::watched(move || slotfront::config::load(Some(&path), &BTreeMap::new()));
    let config = source.load().unwrap();
    let (gateway, listeners) =
        (Gateway::new(&config, Metrics::new()).unwrap(), Listeners::bind(&config).await.unwrap());
    let public = listeners.public.local_addr().unwrap();
    let metrics = format!("http://{}/metrics", listeners.admin.local_addr().unwrap());
    let running = app::run(config, gateway, listeners, source, Signals::catch().unwrap());
    let client = Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let calls = async {
        let mut socket = TcpStream::connect(public).await.unwrap();
        assert_eq!(call_on(&mut socket, &wide).await, 502, "nothing listens there");
        mounted.swap(&format!("http://{node}\n"));
        until_counted(&client, &metrics, "slotfront_config_reloads_total{result=\"applied\"} 1").await;
        let answered = async { while call_on(&mut socket, &wide).await != 200 {} };
        assert!(tokio::time::timeout(PATIENCE, answered).await.is_ok(), "the new address is never used");
    };
    tokio::select! {
        ended = running => panic!("{:?}", ended.err()),
        () = calls => {}
    }
}

/// Waits until the metrics contain this line.
async fn until_counted(client: &Client, metrics: &str, line: &str) {
    let looking = async {
        while !ask(client, "GET", metrics).await.1.contains(line) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, looking).await.is_ok(), "waited for {line}");
}

#[tokio::test]
async fn slow_reload_blocks_no_request() {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let nodes = TestGateway::builder().nodes(1).start().await;
    let config = nodes.front().config.copy();
    assert_eq!((config.server.listen, config.server.admin_listen), (any, any));
    let mut served = config.clone();
    served.auth.admin_token = Some(slotfront::config::Secret::new(TOKEN));
    let (begun, mut reading) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let read_again = served.clone();
    // The reload ends when the test lets it. A real reload of a hundred thousand keys takes a second.
    let source = ConfigSource::unwatched(move || {
        begun.send(()).unwrap();
        wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        Ok(read_again.clone())
    });
    let (gateway, listeners) =
        (Gateway::new(&served, Metrics::new()).unwrap(), Listeners::bind(&served).await.unwrap());
    let public = listeners.public.local_addr().unwrap();
    let admin = format!("http://{}", listeners.admin.local_addr().unwrap());
    let running = app::run(served, gateway, listeners, source, Signals::catch().unwrap());
    let calls = async {
        let url = format!("{admin}/api/reload");
        let reload = ask(&nodes.client, "POST", &url);
        let meanwhile = async {
            reading.recv().await.unwrap();
            let mut socket = TcpStream::connect(public).await.unwrap();
            for _ in 0..3 {
                assert_eq!(call_on(&mut socket, "dev").await, 200);
            }
            go_on.send(()).unwrap();
        };
        let ((status, text), ()) = tokio::join!(reload, meanwhile);
        let unchanged = json!({"at_once": [], "after_restart": []});
        assert_eq!((status, serde_json::from_str::<Value>(&text).unwrap()), (200, unchanged));
    };
    tokio::select! {
        ended = running => panic!("{:?}", ended.err()),
        () = calls => {}
    }
}

#[tokio::test]
async fn a_raised_limit_of_answers_is_that_of_a_batch_at_once() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let long = gateway.get_nodes().send().await.text.len();
    for (limit, expected) in [(2 * long, 1), (64 << 20, 4)] {
        let mut new = gateway.front().config.copy();
        new.pool.max_response = limit;
        assert_eq!(gateway.app.reload(&new).unwrap().at_once, ["pool.max_response"]);
        let replies = gateway.batch([1, 2, 3, 4].map(|id| gateway.get_nodes().id(id))).send().await.json();
        let given = replies.as_array().unwrap().iter().filter(|reply| reply["result"].is_array()).count();
        assert!(given >= expected && (given == 4) == (expected == 4), "{limit}: {given} of 4");
    }
}

#[tokio::test]
async fn a_listed_method_is_open_at_once_and_keeps_its_group() {
    const METHOD: &str = "getSomethingNew";
    let gateway = TestGateway::builder().start().await;
    let first = gateway.front().config.copy();
    let mut listed = first.clone();
    listed.list_method(METHOD, ListedSettings::of(Group::Core));
    let mut elsewhere = listed.clone();
    for settings in elsewhere.methods.values_mut() {
        (settings.upstreams, settings.group) = (vec![gateway.cluster.upstream(1).name], Group::Scans);
    }
    let path = format!("methods.{METHOD}");
    let (group, upstreams) = (format!("{path}.group"), format!("{path}.upstreams"));
    let plans = "plans".to_owned();
    for (new, at_once, after_restart, nodes) in [
        (&listed, vec![path.clone(), plans.clone()], vec![], Some([0, 1])),
        (&elsewhere, vec![upstreams], vec![group], Some([1, 1])),
        (&first, vec![path, plans], vec![], None),
    ] {
        let changes = gateway.app.reload(new).unwrap();
        assert_eq!((changes.at_once, changes.after_restart), (at_once, after_restart));
        let before = [0, 1].map(|node| gateway.cluster.node(node).calls(METHOD));
        let reply = gateway.call(METHOD, json!([])).send().await;
        let asked = [0, 1].map(|node| gateway.cluster.node(node).calls(METHOD) - before[node]);
        match nodes {
            Some(nodes) => assert!(nodes.iter().any(|node| asked[*node] > 0), "{asked:?} {}", reply.text),
            None => assert_eq!((asked, reply.code()), ([0, 0], -32601)),
        }
    }
}

#[tokio::test]
async fn a_new_limit_of_batches_needs_a_restart() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut new = gateway.front().config.copy();
    new.server.max_batch = 2;
    let changes = gateway.app.reload(&new).unwrap();
    assert_eq!((changes.at_once, changes.after_restart), (vec![], vec!["server.max_batch".to_owned()]));
    let reply = gateway.batch([gateway.get_nodes(), gateway.get_nodes(), gateway.get_nodes()]).send().await;
    assert_eq!(reply.json().as_array().map(Vec::len), Some(3), "{}", reply.text);
}
