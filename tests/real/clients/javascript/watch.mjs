// Makes payments, watches each of their signatures over a WebSocket, and asks for the height of the chain all the while, on
// HTTP connections of the same key.
//
// A payment whose blockhash ends with the very block in which it lands has expired at the next height. So a height above
// that of its block which arrives before its notification is a false expiry, if it was asked for after the subscription
// was answered.
//
// `PAY` is JSON: the address to pay through (`url`, `ws`), a node that knows what really landed (`truth`), the number of
// payments, how many are under way at once, and the longest wait for one. Each signature is printed when its transaction
// is made, and one line of JSON at the end: the counts, and the times from sending to notification in milliseconds.
import http from 'node:http';
import { Connection, Keypair, LAMPORTS_PER_SOL, SystemProgram, Transaction } from '@solana/web3.js';
import { getBase58Decoder } from '@solana/kit';
import WebSocket from 'ws';

const { url, ws, truth, payments, atOnce, patience } = JSON.parse(process.env.PAY);
const node = new Connection(truth, 'confirmed');
const counts = { confirmed: 0, falseExpiries: 0, lost: 0, refused: 0, closed: 0, heights: 0, errors: {} };
const times = [];
let left = payments;

/** Lets everything be read that has arrived by now: an event loop reads sockets in an order of its own. */
async function readAll() {
  for (let i = 0; i < 2; i += 1) await new Promise((done) => setImmediate(done));
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function note(error) {
  const text = String(error?.message ?? error).replaceAll(/\s+/g, ' ').slice(0, 160);
  counts.errors[text] = (counts.errors[text] ?? 0) + 1;
}

async function until(read) {
  for (const began = performance.now(); performance.now() - began < patience; ) {
    const value = await read();
    if (value) return value;
    await sleep(50);
  }
  throw new Error('nothing has landed in time');
}

const landed = async (signature) => {
  const status = (await node.getSignatureStatuses([signature], { searchTransactionHistory: true })).value[0];
  return ['confirmed', 'finalized'].includes(status?.confirmationStatus) && status;
};

/** A client with one WebSocket and one HTTP connection, on which it makes one call after the other. */
class Client {
  agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  waiting = new Map();
  last = 0;

  /** Makes a call over HTTP. Its answer is handed over as soon as its last byte is read. */
  call(method, params) {
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });
    return new Promise((done, fail) => {
      const request = http.request(url, { method: 'POST', agent: this.agent, headers: { 'content-type': 'application/json' } }, (response) => {
        let text = '';
        response.on('data', (part) => (text += part));
        response.on('end', () => {
          const answer = JSON.parse(text);
          if (answer.error) fail(new Error(`${method}: ${answer.error.message}`));
          else done(answer.result);
        });
      });
      request.on('error', fail);
      request.end(body);
    });
  }

  /** Opens the socket, unless it is open. */
  async open() {
    if (this.socket?.readyState === WebSocket.OPEN) return;
    const socket = new WebSocket(ws);
    this.socket = socket;
    this.waiting.clear();
    this.ended = new Set();
    socket.on('message', (data) => {
      const { id, result, error, params } = JSON.parse(data);
      if (!params) {
        this.waiting.get(id)?.({ result, error });
      } else {
        // It may be read together with the answer to its subscription, before anybody waits for it.
        this.ended.add(params.subscription);
        this.waiting.get(`of ${params.subscription}`)?.({});
      }
    });
    await new Promise((done, fail) => socket.once('open', done).once('error', fail));
    socket.on('close', (code) => {
      counts.closed += 1;
      for (const end of this.waiting.values()) end({ error: { message: `closed by ${code}` } });
    });
  }

  /** Subscribes to a signature. Once that is answered, returns its end, a promise, in an object. */
  async watch(signature) {
    await this.open();
    const id = (this.last += 1);
    const answered = new Promise((done) => this.waiting.set(id, done));
    this.socket.send(JSON.stringify({ jsonrpc: '2.0', id, method: 'signatureSubscribe', params: [signature, { commitment: 'confirmed' }] }));
    const { result, error } = await answered;
    this.waiting.delete(id);
    if (error) throw new Error(error.message);
    const ends = new Promise((done) => this.waiting.set(`of ${result}`, done));
    return { ends: this.ended.has(result) ? Promise.resolve({}) : ends };
  }
}

/** Pays once. Every second payment is sent before it is watched, as libraries do, and the others after that. */
async function pay(client, payer, number) {
  const { value: latest } = await client.call('getLatestBlockhash', [{ commitment: 'confirmed' }]);
  const transaction = new Transaction({ feePayer: payer.publicKey, ...latest });
  const to = Keypair.generate().publicKey;
  transaction.add(SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: to, lamports: 1_000_000 }));
  transaction.sign(payer);
  const signature = getBase58Decoder().decode(transaction.signature);
  console.log(signature);
  const send = () => client.call('sendTransaction', [transaction.serialize().toString('base64'), { encoding: 'base64', preflightCommitment: 'confirmed' }]);
  const ended = {};
  let watched;
  const watch = async () => {
    watched = await client.watch(signature);
  };
  let began;
  for (const step of number % 2 ? [send, watch] : [watch, send]) {
    if (step === send) began = performance.now();
    await step();
  }
  const end = watched.ends.then((told) => Object.assign(ended, { at: performance.now(), ...told }));
  let highest = 0;
  while (!ended.at && performance.now() - began < patience) {
    const height = await client.call('getBlockHeight', [{ commitment: 'confirmed' }]);
    counts.heights += 1;
    await readAll();
    if (!ended.at) highest = height;
    await Promise.race([end, sleep(5)]);
  }
  if (ended.error) note(ended.error);
  const status = await until(() => landed(signature));
  const { blockHeight } = await node.getBlock(status.slot, { maxSupportedTransactionVersion: 0 });
  if (highest > blockHeight) counts.falseExpiries += 1;
  if (ended.at && !ended.error) {
    counts.confirmed += 1;
    times.push(ended.at - began);
  } else {
    counts.lost += 1;
  }
}

async function wallet() {
  const payer = Keypair.generate();
  const funded = await node.requestAirdrop(payer.publicKey, 10 * LAMPORTS_PER_SOL);
  await until(() => landed(funded));
  const client = new Client();
  while (left > 0) {
    left -= 1;
    try {
      await pay(client, payer, left);
    } catch (error) {
      counts.refused += 1;
      note(error);
    }
  }
}

await Promise.all(Array.from({ length: atOnce }, wallet));
times.sort((a, b) => a - b);
const at = (part) => times[Math.min(times.length - 1, Math.floor(times.length * part))] ?? null;
console.log(JSON.stringify({ ...counts, p50: at(0.5), p99: at(0.99) }));
process.exit(0);
