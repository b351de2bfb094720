// Makes payments with @solana/web3.js, unmodified, and counts what the library says of each.
//
// `PAY` is JSON: the address to pay through (`url`, and `ws` where the library's own guess of port + 1 would be wrong), a
// healthy node that knows what really landed (`truth`), the number of payments and how many are under way at once.
// Each payer has a connection of its own. Once each has made a payment, `paying` is printed, and a line of input lets them
// go on. Then one line of JSON is printed: the counts, and the times from sending to confirmation in milliseconds.
import { Connection, Keypair, LAMPORTS_PER_SOL, SystemProgram, Transaction, TransactionExpiredBlockheightExceededError } from '@solana/web3.js';

const { url, ws, truth, payments, atOnce, patience } = JSON.parse(process.env.PAY);
const node = new Connection(truth, 'confirmed');
const counts = { confirmed: 0, falseExpiries: 0, expired: 0, lost: 0, refused: 0, errors: {} };
const times = [];
let left = payments - atOnce;

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Returns the status of a payment on the node that knows, whether it landed long ago or not. */
const landed = async (signature) =>
  (await node.getSignatureStatuses([signature], { searchTransactionHistory: true })).value[0];

async function funded() {
  const payer = Keypair.generate();
  const signature = await node.requestAirdrop(payer.publicKey, 10 * LAMPORTS_PER_SOL);
  while (!['confirmed', 'finalized'].includes((await landed(signature))?.confirmationStatus)) await sleep(50);
  return payer;
}

function note(error) {
  const text = String(error?.message ?? error).replaceAll(/\s+/g, ' ').slice(0, 160);
  counts.errors[text] = (counts.errors[text] ?? 0) + 1;
}

/** Gives up waiting after the patience: the library itself waits for ever. */
const inTime = (promise) =>
  Promise.race([promise, sleep(patience).then(() => Promise.reject(new Error('no answer in time')))]);

async function pay(connection, payer) {
  let latest, signature;
  try {
    latest = await inTime(connection.getLatestBlockhash('confirmed'));
    const to = Keypair.generate().publicKey;
    const transaction = new Transaction({ feePayer: payer.publicKey, ...latest });
    transaction.add(SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: to, lamports: 1_000_000 }));
    transaction.sign(payer);
    signature = await inTime(connection.sendRawTransaction(transaction.serialize()));
  } catch (error) {
    counts.refused += 1;
    note(error);
    return;
  }
  const began = performance.now();
  const abort = new AbortController();
  const late = sleep(patience).then(() => 'late');
  try {
    const ended = await Promise.race([
      connection.confirmTransaction({ signature, ...latest, abortSignal: abort.signal }, 'confirmed'), late,
    ]);
    if (ended === 'late') {
      counts[(await landed(signature)) ? 'lost' : 'expired'] += 1;
    } else if (ended.value.err) {
      counts.refused += 1;
      note(JSON.stringify(ended.value.err));
    } else {
      counts.confirmed += 1;
      times.push(performance.now() - began);
    }
  } catch (error) {
    const isExpiry = error instanceof TransactionExpiredBlockheightExceededError;
    const status = await landed(signature);
    counts[isExpiry ? (status ? 'falseExpiries' : 'expired') : (status ? 'lost' : 'refused')] += 1;
    if (!isExpiry) note(error);
  } finally {
    abort.abort();
  }
}

const payers = await Promise.all(
  Array.from({ length: atOnce }, async () => [new Connection(url, { commitment: 'confirmed', wsEndpoint: ws }), await funded()]),
);
await Promise.all(payers.map(([connection, payer]) => pay(connection, payer)));
console.log('paying');
await new Promise((go) => process.stdin.once('data', go));
await Promise.all(
  payers.map(async ([connection, payer]) => {
    while (left-- > 0) await pay(connection, payer);
  }),
);
times.sort((a, b) => a - b);
const at = (part) => times[Math.min(times.length - 1, Math.floor(times.length * part))] ?? null;
console.log(JSON.stringify({ ...counts, p50: at(0.5), p99: at(0.99) }));
process.exit(0);
