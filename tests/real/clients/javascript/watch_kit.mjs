// Watches an account, a program and signatures with @solana/kit, unmodified, as `watch_web3js.mjs` does. Its address is `ws`.
import * as kit from '@solana/kit';

const { ws, account, program, signatures, balances } = JSON.parse(process.env.WATCH);
const subscriptions = kit.createSolanaRpcSubscriptions(ws);
const abortSignal = new AbortController().signal;
const form = { commitment: 'confirmed', encoding: 'base64' };
const told = { account: [], program: [], signatures: {} };

async function collect(notifications, into, lamportsOf) {
  for await (const { value } of notifications) {
    const lamports = lamportsOf(value);
    if (lamports !== undefined) into.push(Number(lamports));
    if (into.at(-1) === balances.at(-1)) return;
  }
}

async function end(signature) {
  const notifications = await subscriptions.signatureNotifications(signature, { commitment: 'confirmed' }).subscribe({ abortSignal });
  for await (const { value } of notifications) {
    told.signatures[signature] = value.err;
    return;
  }
}

const accounts = await subscriptions.accountNotifications(kit.address(account), form).subscribe({ abortSignal });
const programs = await subscriptions.programNotifications(kit.address(program), form).subscribe({ abortSignal });
await Promise.all([
  collect(accounts, told.account, ({ lamports }) => lamports),
  collect(programs, told.program, (value) => (value.pubkey === account ? value.account.lamports : undefined)),
  ...signatures.map(end),
]);
console.log(JSON.stringify(told));
process.exit();
