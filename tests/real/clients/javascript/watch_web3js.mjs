// Watches an account, a program and signatures with @solana/web3.js, unmodified. `WATCH` is JSON: the address `url`, the account,
// the program, the signatures, and the account's balances. Once all has been told, one line of JSON says what.
import { Connection, PublicKey } from '@solana/web3.js';

const { url, account, program, signatures, balances } = JSON.parse(process.env.WATCH);
const connection = new Connection(url, 'confirmed');
const told = { account: [], program: [], signatures: {} };

function note() {
  const isWhole = (list) => list.at(-1) === balances.at(-1);
  if (isWhole(told.account) && isWhole(told.program) && Object.keys(told.signatures).length === signatures.length) {
    console.log(JSON.stringify(told));
    process.exit();
  }
}

connection.onAccountChange(new PublicKey(account), ({ lamports }) => {
  told.account.push(lamports);
  note();
});
connection.onProgramAccountChange(new PublicKey(program), ({ accountId, accountInfo }) => {
  if (accountId.toBase58() === account) told.program.push(accountInfo.lamports);
  note();
});
for (const signature of signatures) {
  connection.onSignature(signature, ({ err }) => {
    told.signatures[signature] = err;
    note();
  });
}
