//! A model of connections: random calls, slots, landed transactions, losses of nodes and slow reads. Whatever the order,
//! an answer comes before its notifications, nothing comes after an unsubscription, slots rise, each landed transaction is
//! notified of once, and no notification is missing unless the connection was closed with a code that says so.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slotfront::methods::Commitment::{Confirmed, Finalized};
use slotfront::methods::Slot;
use slotfront_testkit::{PATIENCE, TestGateway, TestSocket};
use tokio::time::Instant;

use super::CLOCK;
use super::relay::{self, NodeSocket};

/// The number of steps of a run, and of the clients in it.
const STEPS: usize = 60;
const CLIENTS: usize = 3;
/// The number of notifications of a burst, and the bytes of each. Together they exceed what may wait for a client and what
/// the kernel buffers.
const BURST: u64 = 40;
const BURST_BYTES: usize = 200_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Clock,
    Slot,
    Root,
    Signature(usize),
    Logs(u64),
}

impl Question {
    /// Returns the call. `signatures` are those of the transactions so far.
    fn call(self, signatures: &[String]) -> (&'static str, Value) {
        match self {
            Self::Clock => {
                ("accountSubscribe", json!([CLOCK, {"commitment": "confirmed", "encoding": "base64"}]))
            }
            Self::Slot => ("slotSubscribe", json!([])),
            Self::Root => ("rootSubscribe", json!([])),
            Self::Signature(number) => {
                ("signatureSubscribe", json!([signatures[number], {"commitment": "confirmed"}]))
            }
            Self::Logs(topic) => ("logsSubscribe", json!([{"mentions": [format!("topic-{topic}")]}])),
        }
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

struct Model {
    gateway: TestGateway,
    nodes: [NodeSocket; 2],
    clients: Vec<ModelClient>,
    /// The signatures of the transactions. The last one was sent, and is in the next block.
    signatures: Vec<String>,
    /// The last number that the nodes logged for each topic.
    logged: [u64; 2],
    random: u64,
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
    fn note(&mut self, gateway: &TestGateway, message: &Value) {
        let (params, id) = (&message["params"], message["params"]["subscription"].as_u64().unwrap());
        let known = self.subscriptions.get_mut(&id);
        let (question, last) =
            known.unwrap_or_else(|| panic!("before the answer or after the end: {message}"));
        let result = &params["result"];
        let number = match question {
            Question::Clock => result["context"]["slot"].as_u64(),
            Question::Slot => result["slot"].as_u64(),
            Question::Root => result.as_u64(),
            Question::Logs(_) => result["value"].as_u64(),
            Question::Signature(_) => {
                // A second notification would have an unknown subscription.
                self.subscriptions.remove(&id);
                return;
            }
        };
        let number = number.unwrap_or_else(|| panic!("{message}"));
        if let Some(last) = last.replace(number) {
            let expected = match question {
                Question::Logs(_) => Some(last + 1),
                Question::Root => (last + 1..=number).find(|slot| gateway.cluster.has_block(*slot)),
                _ => Some(number).filter(|number| *number > last),
            };
            assert_eq!(Some(number), expected, "{question:?} after {last}");
        }
    }

    /// Makes a call. `None` if the connection is closed instead.
    async fn call(&mut self, gateway: &TestGateway, method: &str, params: Value) -> Option<Value> {
        let answer = self.socket.try_call(method, params).await;
        for notification in self.socket.take_notified() {
            self.note(gateway, &notification);
        }
        answer.inspect_err(|code| self.closed = Some(*code)).ok()
    }

    /// Reads until `enough` holds or the connection is closed.
    async fn read_until(&mut self, gateway: &TestGateway, enough: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE / 4;
        while self.closed.is_none() && !enough(self) {
            assert!(Instant::now() < deadline, "a notification is missing: {:?}", self.subscriptions);
            match self.socket.next().await {
                Ok(message) => self.note(gateway, &message),
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
        Self { gateway, nodes, clients, signatures: Vec::new(), logged: [0; 2], random: seed }
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
        match self.below(20) {
            0..8 => self.subscribe(at).await,
            8..11 => self.unsubscribe(at).await,
            11..14 => {
                let slots = 1 + self.below(3);
                self.gateway.step_by(slots).await;
            }
            14 => self.land().await,
            15..18 => {
                let topic = usize::try_from(self.below(2)).unwrap();
                self.log(topic, 1, 0).await;
            }
            18 => self.lose_node().await,
            _ => {
                let topic = usize::try_from(self.below(2)).unwrap();
                self.log(topic, BURST, BURST_BYTES).await;
            }
        }
        for at in 0..CLIENTS {
            if let Some(code) = self.clients[at].closed {
                assert!([0, 1012, 1013].contains(&code), "{code}");
                self.clients[at] = ModelClient::new(&self.gateway).await;
            }
        }
    }

    async fn subscribe(&mut self, at: usize) {
        let question = match self.below(6) {
            0 => Question::Clock,
            1 => Question::Slot,
            2 => Question::Root,
            3 => Question::Signature(self.signatures.len() - 1),
            topic => Question::Logs(topic - 4),
        };
        let (client, (method, params)) = (&mut self.clients[at], question.call(&self.signatures));
        let had = client.subscriptions.iter().find(|(_, (own, _))| *own == question).map(|(id, _)| *id);
        let Some(answer) = client.call(&self.gateway, method, params).await else { return };
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
        let client = &mut self.clients[at];
        let (&id, &(question, _)) = client.subscriptions.iter().nth(chosen).unwrap();
        let Some(answer) = client.call(&self.gateway, &question.unsubscribe(), json!([id])).await else {
            return;
        };
        // The subscription of a signature may have ended meanwhile.
        if client.subscriptions.remove(&id).is_some() {
            assert_eq!(answer["result"], true);
        } else {
            assert_eq!(answer["error"]["message"], "Invalid subscription id.");
        }
    }

    /// Sends a transaction, which will be in the next block.
    fn send(&mut self) {
        let wallet = self.gateway.cluster.examples().wallets[0].to_string();
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "requestAirdrop", "params": [wallet, 1]});
        let answer = self.gateway.cluster.node(0).answer(call.to_string().as_bytes());
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        self.signatures.push(answer["result"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned());
    }

    /// Lets the last transaction land, and sends another one. All who wait for it are told.
    async fn land(&mut self) {
        let question = Question::Signature(self.signatures.len() - 1);
        let landed = self.gateway.cluster.step_to_block();
        while self.gateway.cluster.slot(Confirmed) < landed {
            self.gateway.step_by(1).await;
        }
        for client in &mut self.clients {
            client.read_until(&self.gateway, |client| !client.has(question)).await;
        }
        self.send();
    }

    /// Lets the nodes log to `topic`, which all subscribers see, unless they read too slowly.
    async fn log(&mut self, topic: usize, times: u64, bytes: usize) {
        let question = Question::Logs(topic as u64);
        for _ in 0..times {
            self.logged[topic] += 1;
            let result =
                json!({"context": {"slot": 1}, "value": self.logged[topic], "padding": " ".repeat(bytes)});
            for node in &self.nodes {
                node.notify(&format!("topic-{topic}\""), "logsNotification", &result);
            }
        }
        let last = Some(self.logged[topic]);
        let is_told = |client: &ModelClient| {
            client.subscriptions.values().all(|(own, seen)| *own != question || *seen == last)
        };
        for client in &mut self.clients {
            client.read_until(&self.gateway, is_told).await;
        }
    }

    /// Closes the WebSockets of the nodes. Everybody who was fed by them is told.
    async fn lose_node(&mut self) {
        self.nodes.iter().for_each(NodeSocket::close);
        let is_fed = |client: &ModelClient| client.has(Question::Logs(0)) || client.has(Question::Logs(1));
        for client in &mut self.clients {
            client.read_until(&self.gateway, |client| !is_fed(client)).await;
        }
    }

    /// Reads everything that is left: the newest slots and the roots up to the newest.
    async fn finish(&mut self) {
        let before: Slot = self.gateway.cluster.slot(Finalized);
        while self.gateway.cluster.slot(Finalized) <= before + 2 {
            self.gateway.step_by(1).await;
        }
        let (gateway, newest) = (&self.gateway, self.gateway.cluster.slot(Finalized));
        let root = (0..=newest).rev().find(|slot| gateway.cluster.has_block(*slot));
        for client in &mut self.clients {
            let is_told = |client: &ModelClient| {
                client
                    .subscriptions
                    .values()
                    .all(|(question, seen)| *question != Question::Root || *seen == root)
            };
            client.read_until(gateway, is_told).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_keep_their_promises_in_any_order() {
    for seed in 1..=3 {
        let mut model = Model::new(seed).await;
        model.send();
        for _ in 0..STEPS {
            model.step().await;
        }
        model.finish().await;
        model.gateway.app.stop().await;
    }
}
