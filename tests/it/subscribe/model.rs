//! A model of connections: random calls in different words, refused ones, storms of joins and leaves, slots, landed
//! transactions, forks, restarts of the chain, nodes that are lost or fall behind, and slow and failing reads. Whatever the
//! order and whatever the other clients do, an answer comes before its notifications, nothing comes after an unsubscription, slots rise,
//! each landed transaction is notified of once and none that no node has called landed, and no notification is missing
//! unless the connection was closed with a code that says so. No read is below a slot that anybody was shown, unless the
//! chain has restarted lower.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slotfront::methods::Commitment::{self, Confirmed, Finalized, Processed};
use slotfront::methods::Slot;
use slotfront_sim::{Fault, HISTORY_SEARCH, Hold};
use slotfront_testkit::{PATIENCE, TestGateway, TestSocket, node_answer};
use tokio::time::Instant;

use super::CLOCK;
use super::relay::{self, NodeSocket};

/// The number of steps of a run, and of the clients in it.
const STEPS: usize = 36;
const CLIENTS: usize = 3;
/// The number of notifications of a burst, and the bytes of each. Together they exceed what may wait for a client and what
/// the kernel buffers.
const BURST: u64 = 40;
const BURST_BYTES: usize = 200_000;
/// The slots by which a node goes back: it stays healthy, or not. Then those by which a cluster restarts lower.
const LAGS: [u64; 2] = [4, 200];
const RESTART: u64 = 20;
/// The times that one client joins and leaves each question in a storm.
const STORM: usize = 8;
/// The reads for which a notification of an account or a late signature may wait.
const READS: [&str; 3] = ["getMultipleAccounts", "getAccountInfo", HISTORY_SEARCH];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Clock,
    Slot,
    Root,
    Signature(usize),
    Logs(u64),
}

impl Question {
    /// Returns the call in one of several spellings. `sent` are the transactions so far.
    fn call(self, sent: &[Sent], spelling: u64) -> (&'static str, Value) {
        let (method, first, config, default) = match self {
            Self::Slot => return ("slotSubscribe", json!([])),
            Self::Root => return ("rootSubscribe", json!([])),
            Self::Clock => {
                let config = json!({"commitment": "confirmed", "encoding": "base64"});
                ("accountSubscribe", json!(CLOCK), config, "dataSlice")
            }
            Self::Signature(number) => {
                let Sent { signature, waited_at, .. } = &sent[number];
                let config = json!({"commitment": waited_at});
                ("signatureSubscribe", json!(signature), config, "enableReceivedNotification")
            }
            Self::Logs(topic) => {
                let mentions = json!({"mentions": [format!("topic-{topic}")]});
                ("logsSubscribe", mentions, json!({"commitment": "finalized"}), "commitment")
            }
        };
        let mut config = config;
        match spelling % 4 {
            0 => {}
            1 => config["unknown"] = spelling.into(),
            2 => config[default] = Value::Null,
            _ if default == "commitment" => return (method, json!([first])),
            _ => config["minContextSlot"] = 1.into(),
        }
        (method, json!([first, config]))
    }

    fn unsubscribe(self) -> String {
        let method = match self {
            Self::Clock => "accountUnsubscribe",
            Self::Slot => "slotUnsubscribe",
            Self::Root => "rootUnsubscribe",
            Self::Signature(_) => "signatureUnsubscribe",
            Self::Logs(_) => "logsUnsubscribe",
        };
        method.to_owned()
    }
}

/// A client as the model sees it.
struct ModelClient {
    socket: TestSocket,
    /// The subscriptions, with the last slot, root or number that each was notified of.
    subscriptions: BTreeMap<u64, (Question, Option<u64>)>,
    /// The code with which the connection was closed.
    closed: Option<u16>,
}

/// A transaction.
struct Sent {
    signature: String,
    /// The commitment at which it is waited for.
    waited_at: Commitment,
    /// The commitment that a node on another fork has claimed.
    claimed: Option<Commitment>,
}

/// What clients may be told.
struct World {
    gateway: TestGateway,
    nodes: [NodeSocket; 2],
    /// The transactions. The last one is in the next block, or has landed.
    sent: Vec<Sent>,
    /// The highest slot, and the highest height, that was shown at each commitment since the last restart.
    shown: [Slot; 3],
    heights: [u64; 3],
}

struct Model {
    world: World,
    clients: Vec<ModelClient>,
    /// The last number that the nodes logged for each topic.
    logged: [u64; 2],
    random: u64,
    /// The number of reads that were answered.
    reads: usize,
}

impl World {
    fn show(&mut self, commitment: Commitment, slot: Slot) {
        for shown in &mut self.shown[..=commitment.index()] {
            *shown = slot.max(*shown);
        }
    }

    /// Returns true if a node has said that the transaction is at the commitment at which it is waited for.
    fn has_landed(&self, number: usize) -> bool {
        let Sent { signature, waited_at, claimed } = &self.sent[number];
        let params = json!([[signature], {"searchTransactionHistory": true}]);
        let is_at = |node| {
            let answer = node_answer(node, "getSignatureStatuses", &params);
            let status = &answer["result"]["value"][0]["confirmationStatus"];
            Commitment::ALL.into_iter().find(|c| status == c.as_str()) >= Some(*waited_at)
        };
        *claimed >= Some(*waited_at) || self.gateway.cluster.nodes().iter().any(|node| is_at(node))
    }
}

impl ModelClient {
    async fn new(gateway: &TestGateway) -> Self {
        let socket = gateway.socket().await;
        Self { socket, subscriptions: BTreeMap::new(), closed: None }
    }

    fn has(&self, question: Question) -> bool {
        self.closed.is_none() && self.subscriptions.values().any(|(own, _)| *own == question)
    }

    /// Checks a notification.
    fn note(&mut self, world: &mut World, message: &Value) {
        let (params, id) = (&message["params"], message["params"]["subscription"].as_u64().unwrap());
        let known = self.subscriptions.get_mut(&id);
        let (question, last) =
            known.unwrap_or_else(|| panic!("before the answer or after the end: {message}"));
        let result = &params["result"];
        let number = match question {
            Question::Clock | Question::Signature(_) => result["context"]["slot"].as_u64(),
            Question::Slot => result["slot"].as_u64(),
            Question::Root => result.as_u64(),
            Question::Logs(_) => result["value"].as_u64(),
        };
        let number = number.unwrap_or_else(|| panic!("{message}"));
        match *question {
            Question::Slot => world.show(Processed, number),
            Question::Root => world.show(Finalized, number),
            Question::Signature(of) => {
                assert!(world.has_landed(of), "no node has said so: {message}");
                world.show(world.sent[of].waited_at, number);
                // A second notification would have an unknown subscription.
                self.subscriptions.remove(&id);
                return;
            }
            Question::Clock | Question::Logs(_) => {}
        }
        if let Some(last) = last.replace(number) {
            let expected = match question {
                Question::Logs(_) => Some(last + 1),
                Question::Root => (last + 1..=number).find(|slot| world.gateway.cluster.has_block(*slot)),
                _ => Some(number).filter(|number| *number > last),
            };
            assert_eq!(Some(number), expected, "{question:?} after {last}");
        }
    }

    /// Makes a call. `None` if the connection is closed instead.
    async fn call(&mut self, world: &mut World, method: &str, params: Value) -> Option<Value> {
        let answer = self.socket.try_call(method, params).await;
        for notification in self.socket.take_notified() {
            self.note(world, &notification);
        }
        answer.inspect_err(|code| self.closed = Some(*code)).ok()
    }

    /// Reads until `enough` holds or the connection is closed.
    async fn read_until(&mut self, world: &mut World, enough: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE / 4;
        while self.closed.is_none() && !enough(self) {
            assert!(Instant::now() < deadline, "a notification is missing: {:?}", self.subscriptions);
            match self.socket.next().await {
                Ok(message) => self.note(world, &message),
                Err(code) => self.closed = Some(code),
            }
        }
    }
}

impl Model {
    async fn new(seed: u64) -> Self {
        let (gateway, nodes) = relay::start().await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(ModelClient::new(&gateway).await);
        }
        let world = World { gateway, nodes, sent: Vec::new(), shown: [0; 3], heights: [0; 3] };
        Self { world, clients, logged: [0; 2], random: seed, reads: 0 }
    }

    /// Returns a random number below `bound` (splitmix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    async fn step(&mut self) {
        let at = usize::try_from(self.below(CLIENTS as u64)).unwrap();
        match self.below(32) {
            0..8 => self.subscribe(at).await,
            8..11 => self.unsubscribe(at).await,
            11..14 => {
                let slots = 1 + self.below(3);
                self.world.gateway.step_by(slots).await;
            }
            14 => self.land().await,
            15..18 => {
                let topic = usize::try_from(self.below(2)).unwrap();
                self.log(topic, 1, 0).await;
            }
            18 => self.lose_node().await,
            19 => {
                let topic = usize::try_from(self.below(2)).unwrap();
                self.log(topic, BURST, BURST_BYTES).await;
            }
            20..23 => self.read().await,
            23 => {
                let node = usize::try_from(self.below(3)).unwrap();
                self.go_back(node).await;
            }
            24 => self.fork().await,
            25 => self.be_refused(at).await,
            26 => self.fail_reads().await,
            27 | 28 => self.hold_reads().await,
            29 | 30 => self.storm(at).await,
            _ => self.restart().await,
        }
        for at in 0..CLIENTS {
            if let Some(code) = self.clients[at].closed {
                assert!([0, 1012, 1013].contains(&code), "{code}");
                self.clients[at] = ModelClient::new(&self.world.gateway).await;
            }
        }
    }

    /// Returns the question for the last transaction.
    fn last_sent(&self) -> Question {
        Question::Signature(self.world.sent.len() - 1)
    }

    async fn subscribe(&mut self, at: usize) {
        let question = match self.below(6) {
            0 => Question::Clock,
            1 => Question::Slot,
            2 => Question::Root,
            3 => self.last_sent(),
            topic => Question::Logs(topic - 4),
        };
        self.subscribe_to(at, question).await;
    }

    async fn subscribe_to(&mut self, at: usize, question: Question) {
        let spelling = self.below(100);
        let (client, (method, params)) = (&mut self.clients[at], question.call(&self.world.sent, spelling));
        let had = client.subscriptions.iter().find(|(_, (own, _))| *own == question).map(|(id, _)| *id);
        let Some(answer) = client.call(&mut self.world, method, params).await else { return };
        let id = answer["result"].as_u64().unwrap_or_else(|| panic!("{question:?}: {answer}"));
        // The subscription to a signature may have ended meanwhile.
        match had.filter(|had| client.subscriptions.contains_key(had)) {
            Some(had) => assert_eq!(id, had, "equal params are one subscription"),
            None => assert!(client.subscriptions.insert(id, (question, None)).is_none(), "ids are unique"),
        }
    }

    async fn unsubscribe(&mut self, at: usize) {
        let among = self.clients[at].subscriptions.len() as u64;
        if among == 0 {
            return;
        }
        let chosen = usize::try_from(self.below(among)).unwrap();
        let (&id, &(question, _)) = self.clients[at].subscriptions.iter().nth(chosen).unwrap();
        self.leave(at, id, question).await;
    }

    async fn leave(&mut self, at: usize, id: u64, question: Question) {
        let client = &mut self.clients[at];
        let Some(answer) = client.call(&mut self.world, &question.unsubscribe(), json!([id])).await else {
            return;
        };
        // The subscription of a signature may have ended meanwhile.
        if client.subscriptions.remove(&id).is_some() {
            assert_eq!(answer["result"], true);
        } else {
            assert_eq!(answer["error"]["message"], "Invalid subscription id.");
        }
    }

    /// One client joins and leaves all questions again and again.
    async fn storm(&mut self, at: usize) {
        let last = self.last_sent();
        for question in [Question::Clock, last, Question::Logs(0), Question::Root].repeat(STORM) {
            self.subscribe_to(at, question).await;
            let of = |(id, (own, _)): (&u64, &(Question, _))| (*own == question).then_some(*id);
            if let Some(id) = self.clients[at].subscriptions.iter().find_map(of) {
                self.leave(at, id, question).await;
            }
            if self.clients[at].closed.is_some() {
                return;
            }
        }
    }

    /// A client makes calls that are refused. The second one of each kind has to wait, which is nobody else's trouble.
    async fn be_refused(&mut self, at: usize) {
        for (method, params) in [("accountSubscribe", json!(["none"])), ("logsSubscribe", json!(["refuse"]))]
        {
            let answer = self.clients[at].call(&mut self.world, method, params).await;
            assert!(answer.is_none_or(|answer| answer["error"].is_object()));
        }
    }

    /// Lets all reads fail for some slots, which costs nobody a change or the connection.
    async fn fail_reads(&mut self) {
        let refusal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
        for method in READS {
            self.world.gateway.cluster.fault_everywhere(method, &refusal);
        }
        self.world.gateway.step_by(3).await;
        self.catch_up().await;
        self.world.gateway.cluster.clear_faults();
        self.change_clock().await;
    }

    /// Lets reads take as long as it takes a transaction to land, whose watchers do not wait for them.
    async fn hold_reads(&mut self) {
        let cluster = &self.world.gateway.cluster;
        let held: Vec<_> =
            cluster.nodes().iter().flat_map(|node| READS.map(|method| node.hold(method))).collect();
        self.land().await;
        held.iter().for_each(Hold::release);
        self.change_clock().await;
    }

    /// Makes a block. All who watch the clock are told of it, or of a later one.
    async fn change_clock(&mut self) {
        let block = self.world.gateway.cluster.step_to_block();
        while self.world.gateway.cluster.slot(Confirmed) < block {
            self.world.gateway.step_by(1).await;
        }
        let is_told =
            |(question, seen): &(Question, Option<u64>)| *question != Question::Clock || *seen >= Some(block);
        self.all_read_until(|client| client.subscriptions.values().all(is_told)).await;
    }

    /// Reads until `enough` holds for every client whose connection is open.
    async fn all_read_until(&mut self, enough: impl Fn(&ModelClient) -> bool) {
        for client in &mut self.clients {
            client.read_until(&mut self.world, &enough).await;
        }
    }

    /// Checks everything that clients were told by now.
    async fn catch_up(&mut self) {
        for client in &mut self.clients {
            client.call(&mut self.world, "slotUnsubscribe", json!([0])).await;
        }
    }

    /// Sends a transaction, which will be in the next block.
    fn send(&mut self) {
        let cluster = &self.world.gateway.cluster;
        let params = json!([cluster.examples().wallets[0].to_string(), 1]);
        let answer = node_answer(cluster.node(0), "requestAirdrop", &params);
        let signature = answer["result"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let waited_at = if self.below(3) == 0 { Finalized } else { Confirmed };
        self.world.sent.push(Sent { signature, waited_at, claimed: None });
    }

    /// Lets the last transaction land, and sends another one. All who wait for it are told.
    async fn land(&mut self) {
        let (question, waited_at) = (self.last_sent(), self.world.sent.last().unwrap().waited_at);
        let landed = self.world.gateway.cluster.step_to_block();
        while self.world.gateway.cluster.slot(waited_at) < landed {
            self.world.gateway.step_by(1).await;
        }
        self.all_read_until(|client| !client.has(question)).await;
        self.send();
    }

    /// Lets a node call a transaction processed or confirmed, in a block of another fork that it takes back. Those who wait
    /// for what it says are told, and those who subscribe after that only once the transaction has landed.
    async fn fork(&mut self) {
        self.go_back(2).await;
        // Nobody waits for another transaction, so each question for statuses has one signature.
        self.land().await;
        let (question, claimed) = (self.last_sent(), [Processed, Confirmed][usize::from(self.below(2) == 0)]);
        for at in 0..CLIENTS - 1 {
            self.subscribe_to(at, question).await;
        }
        let slot = self.world.gateway.cluster.slot(Processed);
        let status = json!({"slot": slot, "confirmations": 0, "err": null, "status": {"Ok": null},
            "confirmationStatus": claimed});
        let claim = Fault::Result(json!({"context": {"slot": slot}, "value": [status]}));
        let sent = self.world.sent.last_mut().unwrap();
        let is_told = claimed >= sent.waited_at;
        sent.claimed = Some(claimed);
        self.world.gateway.cluster.node(0).fault_on("getSignatureStatuses", claim, None);
        if is_told {
            self.all_read_until(|client| !client.has(question)).await;
        } else {
            self.asked_again().await;
        }
        self.world.gateway.cluster.clear_faults();
        self.world.sent.last_mut().unwrap().claimed = None;
        for at in 0..CLIENTS {
            self.subscribe_to(at, question).await;
        }
        self.asked_again().await;
        self.catch_up().await;
        assert!(
            self.clients.iter().all(|client| client.closed.is_some() || client.has(question)),
            "what a node has taken back has landed"
        );
        self.land().await;
    }

    /// Waits until the node that is asked first has answered a question for statuses that it gets from now on. Nobody asks
    /// once all connections that wait are closed.
    async fn asked_again(&mut self) {
        let (question, deadline) = (self.last_sent(), Instant::now() + PATIENCE / 4);
        let before = self.status_calls();
        while self.status_calls() <= before + 1 && self.clients.iter().any(|client| client.has(question)) {
            assert!(Instant::now() < deadline, "no statuses are asked for");
            let open = self.world.gateway.connections();
            let is_over = || self.status_calls() > before + 1 || self.world.gateway.connections() < open;
            self.world.gateway.until("two statuses are asked for, or a connection is closed", is_over).await;
            // Clients hear of a closed connection when they read.
            self.catch_up().await;
        }
    }

    fn status_calls(&self) -> u64 {
        self.world.gateway.cluster.node(0).calls("getSignatureStatuses")
    }

    /// Lets the nodes log to `topic`, which all subscribers see, unless they read too slowly.
    async fn log(&mut self, topic: usize, times: u64, bytes: usize) {
        let question = Question::Logs(topic as u64);
        for _ in 0..times {
            self.logged[topic] += 1;
            let result =
                json!({"context": {"slot": 1}, "value": self.logged[topic], "padding": " ".repeat(bytes)});
            for node in &self.world.nodes {
                node.notify(&format!("topic-{topic}\""), "logsNotification", &result);
            }
        }
        let last = Some(self.logged[topic]);
        self.all_read_until(|client| {
            client.subscriptions.values().all(|(own, seen)| *own != question || *seen == last)
        })
        .await;
    }

    /// Closes the WebSockets of the nodes. Everybody who was fed by them is told.
    async fn lose_node(&mut self) {
        self.world.nodes.iter().for_each(NodeSocket::close);
        self.all_read_until(|client| !client.has(Question::Logs(0)) && !client.has(Question::Logs(1))).await;
    }

    /// Lets this node go back, and the others come back. There are two nodes.
    async fn go_back(&mut self, node: usize) {
        let lag = LAGS[usize::from(self.below(2) == 0)];
        let gateway = &self.world.gateway;
        for (at, of) in gateway.cluster.nodes().iter().enumerate() {
            of.set_lag(if at == node { lag } else { 0 });
        }
        let lags = |at| gateway.lag(at, Processed).is_some_and(|lag| (lag > 0) == (at == node));
        gateway.until("the nodes have gone back or come back", || lags(0) && lags(1)).await;
        gateway.settled().await;
    }

    /// Lets the cluster restart lower. Everybody who may have missed something is told, and reads go back.
    async fn restart(&mut self) {
        self.land().await;
        let before = self.world.gateway.cluster.slot(Processed);
        self.world.gateway.restart_cluster(RESTART).await;
        self.all_read_until(|client| {
            ![Question::Clock, Question::Slot, Question::Root].iter().any(|fed| client.has(*fed))
        })
        .await;
        (self.world.shown, self.world.heights) = ([0; 3], [0; 3]);
        self.read().await;
        assert!(
            self.world.shown.iter().all(|shown| *shown < before),
            "a slot of before the restart is shown"
        );
        self.send();
    }

    /// Reads a slot or a height. It is not below one that anybody was shown, although the node that is asked first may
    /// answer from below it.
    async fn read(&mut self) {
        let commitment = Commitment::ALL[usize::try_from(self.below(3)).unwrap()];
        let methods = ["getSlot", "getEpochInfo", "getLatestBlockhash", "getBlockHeight"];
        let method = methods[usize::try_from(self.below(4)).unwrap()];
        let shown = self.world.shown[commitment.index()];
        if shown > 0 && self.below(2) == 0 {
            self.go_back(2).await;
            let behind = Fault::With(json!({"absoluteSlot": shown - 3}));
            self.world.gateway.cluster.node(0).fault_on("getEpochInfo", behind, None);
        }
        let reply = self.world.gateway.call(method, json!([{"commitment": commitment}])).send().await;
        self.world.gateway.cluster.clear_faults();
        // If no node is there in time, nothing is shown.
        let Some(result) = reply.json().get("result").cloned() else { return };
        self.reads += 1;
        let slot = match method {
            "getBlockHeight" => {
                let (height, highest) = (result.as_u64(), &mut self.world.heights[commitment.index()]);
                assert!(height >= Some(*highest), "{method} {commitment}: {height:?} after {highest}");
                *highest = height.unwrap();
                return;
            }
            "getEpochInfo" => result["absoluteSlot"].as_u64(),
            "getLatestBlockhash" => result["context"]["slot"].as_u64(),
            _ => result.as_u64(),
        };
        assert!(slot >= Some(shown), "{method} {commitment}: {slot:?} after {shown}");
        self.world.show(commitment, slot.unwrap());
    }

    /// Reads everything that is left: the newest slots and the roots up to the newest. Then everybody leaves.
    async fn finish(mut self) {
        assert!(self.reads > 0, "no read was answered");
        let gateway = &self.world.gateway;
        let before: Slot = gateway.cluster.slot(Finalized);
        while gateway.cluster.slot(Finalized) <= before + 2 {
            gateway.step_by(1).await;
        }
        let newest = gateway.cluster.slot(Finalized);
        let root = (0..=newest).rev().find(|slot| gateway.cluster.has_block(*slot));
        self.all_read_until(|client| {
            let mut seen = client.subscriptions.values();
            seen.all(|(question, seen)| *question != Question::Root || *seen == root)
        })
        .await;
        drop(self.clients);
        self.world.gateway.app.stop().await;
    }
}

async fn connections_keep_their_promises_in_any_order(seed: u64) {
    let mut model = Model::new(seed).await;
    model.send();
    for _ in 0..STEPS {
        model.step().await;
    }
    model.finish().await;
}

/// Declares a test for each seed, so that they run side by side.
macro_rules! of_seeds {
    ($($test:ident: $seed:literal),*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            connections_keep_their_promises_in_any_order($seed).await;
        })*
    };
}

of_seeds! {
    connections_keep_their_promises_in_any_order_1: 1,
    connections_keep_their_promises_in_any_order_2: 2,
    connections_keep_their_promises_in_any_order_3: 3,
    connections_keep_their_promises_in_any_order_4: 4,
    connections_keep_their_promises_in_any_order_5: 5,
    connections_keep_their_promises_in_any_order_6: 6
}
