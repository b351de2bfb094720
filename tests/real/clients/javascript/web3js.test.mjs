// @solana/web3.js 1.x, unmodified: the eight methods through slotfront.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Connection, Keypair, LAMPORTS_PER_SOL, PublicKey, SystemProgram, Transaction, VersionedMessage } from '@solana/web3.js';

const scene = JSON.parse(process.env.SCENE);
const connection = new Connection(scene.url, 'finalized');
const key = (text) => new PublicKey(text);
const [mint, token, wallet, absent] = [scene.mint.address, scene.tokenAccount.address, scene.wallet, scene.absent].map(key);
const COMMITMENTS = ['processed', 'confirmed', 'finalized'];

/** Checks for a JSON-RPC error, which the library passes on. */
const code = (expected) => (error) => {
  assert.equal(error.code, expected, error.message);
  return true;
};

test('getAccountInfo: every commitment, slices, parsed, absent', async () => {
  for (const commitment of COMMITMENTS) {
    const { context, value } = await connection.getAccountInfoAndContext(mint, commitment);
    assert.ok(context.slot > scene.block.slot);
    assert.equal(value.owner.toBase58(), scene.mint.owner);
    assert.equal(value.data.length, scene.mint.space);
    assert.deepEqual([...value.data.subarray(0, 4)], scene.mint.head);
    assert.equal(value.executable, false);
    const slice = await connection.getAccountInfo(mint, { commitment, dataSlice: { offset: 1, length: 3 } });
    assert.deepEqual([...slice.data], scene.mint.head.slice(1));
    const parsed = (await connection.getParsedAccountInfo(mint, { commitment })).value.data;
    assert.equal(parsed.parsed.type, 'mint');
    assert.equal(parsed.parsed.info.decimals, scene.tokenAccount.decimals);
    assert.equal(await connection.getAccountInfo(absent, commitment), null);
  }
  const far = { minContextSlot: scene.block.slot + 1_000_000 };
  await assert.rejects(connection.getAccountInfoAndContext(mint, far), code(-32016));
});

test('getMultipleAccounts: order, gaps, parsed', async () => {
  for (const commitment of COMMITMENTS) {
    const { value } = await connection.getMultipleAccountsInfoAndContext([mint, absent, wallet], { commitment });
    assert.deepEqual(value.map((one) => one?.owner.toBase58() ?? null), [scene.mint.owner, null, SystemProgram.programId.toBase58()]);
    const parsed = await connection.getMultipleParsedAccounts([token, mint], { commitment });
    assert.equal(parsed.value[0].data.parsed.info.mint, scene.tokenAccount.mint);
    assert.equal(parsed.value[1].data.parsed.type, 'mint');
  }
  const many = Array(101).fill(mint);
  await assert.rejects(connection.getMultipleAccountsInfo(many), code(-32602));
});

test('getBlock: every detail, parsed, without rewards, skipped, too new a version', async () => {
  const { slot, ...truth } = scene.block;
  for (const commitment of ['confirmed', 'finalized']) {
    const at = { commitment, maxSupportedTransactionVersion: 0 };
    const full = await connection.getBlock(slot, at);
    assert.equal(full.blockhash, truth.blockhash);
    assert.equal(full.previousBlockhash, truth.previousBlockhash);
    assert.equal(full.parentSlot, truth.parentSlot);
    assert.equal(full.blockTime, truth.blockTime);
    assert.equal(full.transactions.length, truth.transactions);
    assert.equal(full.rewards.length, truth.rewards);
    assert.equal(full.transactions[0].transaction.signatures[0], truth.signature);
    assert.equal(full.transactions[0].meta.fee, truth.fee);
    assert.equal(full.transactions[0].transaction.message.getAccountKeys?.({ accountKeysFromLookups: full.transactions[0].meta.loadedAddresses }).get(0).toBase58(), truth.payer);
    const accounts = await connection.getBlock(slot, { ...at, transactionDetails: 'accounts' });
    assert.equal(accounts.transactions.length, truth.transactions);
    assert.equal(accounts.transactions[0].transaction.signatures[0], truth.signature);
    const none = await connection.getBlock(slot, { ...at, transactionDetails: 'none', rewards: false });
    assert.equal(none.blockhash, truth.blockhash);
    assert.equal(none.transactions, undefined);
    const parsed = await connection.getParsedBlock(slot, at);
    assert.equal(parsed.transactions[0].transaction.message.accountKeys[0].pubkey.toBase58(), truth.payer);
    const signatures = await connection.getBlockSignatures(slot, commitment);
    assert.equal(signatures.signatures[0], truth.signature);
    await assert.rejects(connection.getBlock(slot, { commitment }), code(-32015));
  }
  await assert.rejects(connection.getBlock(scene.skipped, { maxSupportedTransactionVersion: 0 }), (error) => [-32007, -32009].includes(error.code));
});

test('getVoteAccounts, getTokenAccountBalance, getFeeForMessage at every commitment', async () => {
  const message = VersionedMessage.deserialize(Buffer.from(scene.message, 'base64'));
  for (const commitment of COMMITMENTS) {
    const votes = await connection.getVoteAccounts(commitment);
    assert.deepEqual([votes.current.length, votes.delinquent.length], [scene.votes.current, scene.votes.delinquent]);
    assert.ok(votes.current[0].activatedStake > 0);
    const { value } = await connection.getTokenAccountBalance(token, commitment);
    assert.equal(value.decimals, scene.tokenAccount.decimals);
    assert.equal(value.uiAmount, Number(value.amount) / 10 ** value.decimals);
    const fresh = (await connection.getLatestBlockhash('finalized')).blockhash;
    const transfer = new Transaction({ feePayer: wallet, blockhash: fresh, lastValidBlockHeight: 0 })
      .add(SystemProgram.transfer({ fromPubkey: wallet, toPubkey: mint, lamports: 1 }));
    assert.equal((await connection.getFeeForMessage(transfer.compileMessage(), commitment)).value, 5000);
    message.recentBlockhash = fresh;
    assert.ok((await connection.getFeeForMessage(message, commitment)).value >= 5000);
    message.recentBlockhash = absent.toBase58();
    assert.equal((await connection.getFeeForMessage(message, commitment)).value, null);
  }
  await assert.rejects(connection.getTokenAccountBalance(wallet), code(-32602));
});

test('getRecentPerformanceSamples and getClusterNodes', async () => {
  const samples = await connection.getRecentPerformanceSamples(2);
  assert.ok(samples.length >= 1 && samples.length <= 2);
  assert.ok(samples[0].numTransactions > 0 && samples[0].samplePeriodSecs > 0);
  const nodes = await connection.getClusterNodes();
  assert.equal(nodes.length, scene.nodes);
  assert.ok(nodes.every((node) => key(node.pubkey) && node.rpc));
});

test('simulations work, and writes are refused', async () => {
  assert.ok((await connection.getSlot('processed')) >= (await connection.getSlot('finalized')));
  assert.ok((await connection.getBalance(wallet)) > 0);
  assert.ok((await connection.getEpochInfo()).epoch > 0);
  assert.match((await connection.getVersion())['solana-core'], /^\d/);
  const payer = Keypair.generate();
  const transaction = new Transaction({ feePayer: payer.publicKey, ...(await connection.getLatestBlockhash()) })
    .add(SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: wallet, lamports: LAMPORTS_PER_SOL }));
  await assert.rejects(connection.sendTransaction(transaction, [payer], { skipPreflight: true }), /sendTransaction writes.*RPC node/s);
  await assert.rejects(connection.requestAirdrop(wallet, 1), /requestAirdrop writes/);
  // A scan needs a plan that opens it.
  await assert.rejects(connection.getSupply(), /403.*getSupply is not allowed/s);
});

test('an unknown key is refused with a message', async () => {
  await assert.rejects(new Connection(scene.unknown).getClusterNodes(), /401.*Unauthorized/s);
});

test('over the rate limit, the retries of the library get every answer', async () => {
  const slow = new Connection(scene.slow.web3js);
  for (let i = 0; i < 5; i++) assert.equal((await slow.getClusterNodes()).length, scene.nodes);
});
