// Signs payments of a funded account, prints what there is to watch as one line of JSON, and makes them one after the other
// once a line comes on the input. `url` of `PAY` is where.
import { Connection, Keypair, LAMPORTS_PER_SOL, SystemProgram, Transaction } from '@solana/web3.js';
import { getBase58Decoder } from '@solana/kit';

const { url, payments } = JSON.parse(process.env.PAY);
const FEE = 5_000;
const connection = new Connection(url, 'confirmed');
const payer = Keypair.generate();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function landed(signature) {
  for (;;) {
    const { value: [status] } = await connection.getSignatureStatuses([signature]);
    if (['confirmed', 'finalized'].includes(status?.confirmationStatus)) return;
    await sleep(100);
  }
}

await landed(await connection.requestAirdrop(payer.publicKey, LAMPORTS_PER_SOL));
const latest = await connection.getLatestBlockhash();
const balances = [];
const signed = Array.from({ length: payments }, (_, i) => {
  const lamports = 1_000_000 + i;
  balances.push((balances.at(-1) ?? LAMPORTS_PER_SOL) - lamports - FEE);
  const transaction = new Transaction({ feePayer: payer.publicKey, ...latest });
  transaction.add(SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: Keypair.generate().publicKey, lamports }));
  transaction.sign(payer);
  return transaction;
});
const signatures = signed.map((transaction) => getBase58Decoder().decode(transaction.signature));
console.log(JSON.stringify({ account: payer.publicKey.toBase58(), program: SystemProgram.programId.toBase58(), signatures, balances }));
await new Promise((go) => process.stdin.once('data', go));
for (const [i, transaction] of signed.entries()) {
  await connection.sendRawTransaction(transaction.serialize());
  await landed(signatures[i]);
  // The next one is in another block, which changes the account once more.
  await sleep(1_000);
}
process.exit();
