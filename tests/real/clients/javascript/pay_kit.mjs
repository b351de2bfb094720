// Pays with @solana/kit, unmodified, while the payer's account and the slots are watched. The library gets the addresses `url`
// and `ws` of `PAY`, and nothing else. Prints one line of JSON: what arrived.
import * as kit from '@solana/kit';

const { url, ws, payments } = JSON.parse(process.env.PAY);
const rpc = kit.createSolanaRpc(url);
const rpcSubscriptions = kit.createSolanaRpcSubscriptions(ws);
const payer = await kit.generateKeyPairSigner();
const commitment = 'confirmed';
await kit.airdropFactory({ rpc, rpcSubscriptions })({ commitment, lamports: kit.lamports(1_000_000_000n), recipientAddress: payer.address });

const stop = new AbortController();
const accounts = await rpcSubscriptions.accountNotifications(payer.address, { commitment }).subscribe({ abortSignal: stop.signal });
const slots = await rpcSubscriptions.slotNotifications().subscribe({ abortSignal: stop.signal });
const seen = { accounts: [], slots: [] };
const collect = async (notifications, into, number) => {
  for await (const notification of notifications) {
    into.push(Number(notification.slot ?? notification.context.slot));
    if (into.length === number) return;
  }
};
const collected = Promise.all([collect(accounts, seen.accounts, payments), collect(slots, seen.slots, 3)]);

/** Returns the System program's instruction that transfers lamports from the payer. */
function transfer(to, lamports) {
  const data = new DataView(new ArrayBuffer(12));
  data.setUint32(0, 2, true);
  data.setBigUint64(4, lamports, true);
  return {
    programAddress: kit.address('11111111111111111111111111111111'),
    accounts: [
      { address: payer.address, role: kit.AccountRole.WRITABLE_SIGNER, signer: payer },
      { address: to, role: kit.AccountRole.WRITABLE },
    ],
    data: new Uint8Array(data.buffer),
  };
}

const send = kit.sendAndConfirmTransactionFactory({ rpc, rpcSubscriptions });
for (let i = 0; i < payments; i += 1) {
  const { value: latest } = await rpc.getLatestBlockhash({ commitment }).send();
  const to = (await kit.generateKeyPairSigner()).address;
  const message = kit.pipe(
    kit.createTransactionMessage({ version: 0 }),
    (m) => kit.setTransactionMessageFeePayerSigner(payer, m),
    (m) => kit.setTransactionMessageLifetimeUsingBlockhash(latest, m),
    (m) => kit.appendTransactionMessageInstruction(transfer(to, 1_000_000n), m),
  );
  await send(await kit.signTransactionMessageWithSigners(message), { commitment });
}
await collected;
stop.abort();
console.log(JSON.stringify(seen));
process.exit();
