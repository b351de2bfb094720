// @solana/kit, unmodified: the eight methods in every commitment and encoding of the library.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  address, appendTransactionMessageInstruction, compileTransactionMessage, createSolanaRpc, createTransactionMessage,
  getBase58Encoder, getBase64Encoder, getBase64Decoder, getCompiledTransactionMessageEncoder, isSolanaError, pipe,
  setTransactionMessageFeePayer, setTransactionMessageLifetimeUsingBlockhash,
  SOLANA_ERROR__RPC__TRANSPORT_HTTP_ERROR,
} from '@solana/kit';

const scene = JSON.parse(process.env.SCENE);
const rpc = createSolanaRpc(scene.url);
const [mint, token, wallet, absent] = [scene.mint.address, scene.tokenAccount.address, scene.wallet, scene.absent].map(address);
const COMMITMENTS = ['processed', 'confirmed', 'finalized'];
const SLOT = BigInt(scene.block.slot);

/** Checks for the library's error of a JSON-RPC code. */
const code = (expected) => (error) => {
  assert.ok(isSolanaError(error, expected), `${error}`);
  return true;
};
const http = (status) => (error) => {
  assert.ok(isSolanaError(error, SOLANA_ERROR__RPC__TRANSPORT_HTTP_ERROR), `${error}`);
  assert.equal(error.context.statusCode, status);
  return true;
};

test('getAccountInfo: every commitment and encoding', async () => {
  for (const commitment of COMMITMENTS) {
    const plain = await rpc.getAccountInfo(mint, { commitment, encoding: 'base64' }).send();
    assert.ok(plain.context.slot > SLOT);
    assert.equal(plain.value.owner, scene.mint.owner);
    assert.equal(plain.value.space, BigInt(scene.mint.space));
    const bytes = getBase64Encoder().encode(plain.value.data[0]);
    assert.equal(bytes.length, scene.mint.space);
    assert.deepEqual([...bytes.slice(0, 4)], scene.mint.head);
    const base58 = await rpc.getAccountInfo(mint, { commitment, encoding: 'base58' }).send();
    assert.deepEqual([...getBase58Encoder().encode(base58.value.data[0])], [...bytes]);
    const zstd = await rpc.getAccountInfo(mint, { commitment, encoding: 'base64+zstd' }).send();
    assert.equal(zstd.value.data[1], 'base64+zstd');
    assert.deepEqual([...getBase64Encoder().encode(zstd.value.data[0]).slice(0, 4)], [0x28, 0xb5, 0x2f, 0xfd]);
    const parsed = await rpc.getAccountInfo(mint, { commitment, encoding: 'jsonParsed' }).send();
    assert.equal(parsed.value.data.parsed.info.decimals, scene.tokenAccount.decimals);
    const slice = await rpc.getAccountInfo(mint, { commitment, encoding: 'base64', dataSlice: { offset: 1, length: 3 } }).send();
    assert.deepEqual([...getBase64Encoder().encode(slice.value.data[0])], scene.mint.head.slice(1));
    assert.equal((await rpc.getAccountInfo(absent, { commitment, encoding: 'base64' }).send()).value, null);
  }
  await assert.rejects(rpc.getAccountInfo(mint, { encoding: 'base64', minContextSlot: SLOT + 1_000_000n }).send(), code(-32016));
});

test('getMultipleAccounts: every commitment and encoding', async () => {
  for (const commitment of COMMITMENTS) {
    for (const encoding of ['base58', 'base64', 'base64+zstd', 'jsonParsed']) {
      const { value } = await rpc.getMultipleAccounts([mint, absent, wallet], { commitment, encoding }).send();
      assert.deepEqual(value.map((one) => one && one.owner), [scene.mint.owner, null, '11111111111111111111111111111111'], encoding);
      assert.ok(value[2].lamports > 0n);
    }
  }
});

test('getBlock: every encoding and detail', async () => {
  const { slot: _, ...truth } = scene.block;
  for (const commitment of ['confirmed', 'finalized']) {
    const at = { commitment, maxSupportedTransactionVersion: 0 };
    for (const encoding of ['json', 'jsonParsed', 'base58', 'base64']) {
      const full = await rpc.getBlock(SLOT, { ...at, encoding }).send();
      assert.equal(full.blockhash, truth.blockhash);
      assert.equal(full.blockHeight, BigInt(truth.blockHeight));
      assert.equal(full.blockTime, BigInt(truth.blockTime));
      assert.equal(full.transactions.length, truth.transactions);
      assert.equal(full.rewards.length, truth.rewards);
      assert.equal(full.transactions[0].meta.fee, BigInt(truth.fee));
    }
    const signatures = await rpc.getBlock(SLOT, { ...at, transactionDetails: 'signatures' }).send();
    assert.equal(signatures.signatures[0], truth.signature);
    const accounts = await rpc.getBlock(SLOT, { ...at, transactionDetails: 'accounts' }).send();
    assert.equal(accounts.transactions[0].transaction.accountKeys[0].pubkey, truth.payer);
    const none = await rpc.getBlock(SLOT, { ...at, transactionDetails: 'none', rewards: false }).send();
    assert.equal(none.parentSlot, BigInt(truth.parentSlot));
    assert.ok(!('transactions' in none) && !('rewards' in none));
    await assert.rejects(rpc.getBlock(SLOT, { commitment }).send(), code(-32015));
  }
  const skipped = rpc.getBlock(BigInt(scene.skipped), { maxSupportedTransactionVersion: 0 }).send();
  await assert.rejects(skipped, (error) => [-32007, -32009].some((one) => isSolanaError(error, one)));
});

test('getVoteAccounts, getTokenAccountBalance, getFeeForMessage at every commitment', async () => {
  for (const commitment of COMMITMENTS) {
    const votes = await rpc.getVoteAccounts({ commitment }).send();
    assert.deepEqual([votes.current.length, votes.delinquent.length], [scene.votes.current, scene.votes.delinquent]);
    const one = await rpc.getVoteAccounts({ commitment, votePubkey: address(scene.votes.one) }).send();
    assert.deepEqual([one.current.length, one.current[0].votePubkey], [1, scene.votes.one]);
    const { value } = await rpc.getTokenAccountBalance(token, { commitment }).send();
    assert.equal(value.decimals, scene.tokenAccount.decimals);
    assert.equal(Number(value.uiAmountString), Number(value.amount) / 10 ** value.decimals);
    const { value: blockhash } = await rpc.getLatestBlockhash({ commitment: 'finalized' }).send();
    const message = pipe(
      createTransactionMessage({ version: 0 }),
      (m) => setTransactionMessageFeePayer(wallet, m),
      (m) => setTransactionMessageLifetimeUsingBlockhash(blockhash, m),
      (m) => appendTransactionMessageInstruction({ programAddress: mint, data: new Uint8Array([1]) }, m),
      compileTransactionMessage,
      (m) => getBase64Decoder().decode(getCompiledTransactionMessageEncoder().encode(m)),
    );
    assert.equal((await rpc.getFeeForMessage(message, { commitment }).send()).value, 5000n);
  }
  await assert.rejects(rpc.getTokenAccountBalance(wallet).send(), code(-32602));
});

test('getRecentPerformanceSamples and getClusterNodes', async () => {
  const samples = await rpc.getRecentPerformanceSamples(2).send();
  assert.ok(samples.length >= 1 && samples[0].numTransactions > 0n);
  const nodes = await rpc.getClusterNodes().send();
  assert.equal(nodes.length, scene.nodes);
});

test('simulations work, and writes are refused', async () => {
  assert.ok((await rpc.getSlot({ commitment: 'processed' }).send()) >= SLOT);
  assert.ok((await rpc.getBalance(wallet).send()).value > 0n);
  assert.equal(await rpc.getHealth().send(), 'ok');
  await assert.rejects(rpc.sendTransaction('AQ==', { encoding: 'base64' }).send(), (error) => {
    assert.ok(isSolanaError(error, -32601), `${error}`);
    assert.match(`${error.message} ${JSON.stringify(error.context)}`, /sendTransaction writes/);
    return true;
  });
});

test('an unknown key is refused with 401', async () => {
  await assert.rejects(createSolanaRpc(scene.unknown).getClusterNodes().send(), http(401));
});

// The library does not retry. Its error has the headers, so the caller can read Retry-After.
test('over the rate limit, the error has the status, the reason and Retry-After', async () => {
  const slow = createSolanaRpc(scene.slow.kit);
  // The library merges equal concurrent calls, so these differ.
  const configs = COMMITMENTS.flatMap((commitment) => [{ commitment }, { commitment, minContextSlot: SLOT }]);
  const all = await Promise.allSettled(configs.map((config) => slow.getSlot(config).send()));
  const refused = all.filter((one) => one.status === 'rejected');
  assert.ok(refused.length >= 1 && refused.length < configs.length, `${refused.length}`);
  for (const { reason } of refused) {
    http(429)(reason);
    const seconds = Number(reason.context.headers.get('retry-after'));
    assert.ok(seconds >= 1 && seconds <= 3, `${seconds}`);
    assert.equal(reason.context.headers.get('x-slotfront-error'), '-32092 rate');
  }
  await new Promise((done) => setTimeout(done, 3000));
  assert.ok((await slow.getSlot().send()) >= SLOT);
});
