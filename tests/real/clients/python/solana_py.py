"""solana-py with solders, unmodified: the eight methods in every commitment and encoding of the library."""

import asyncio
import base64
import json
import os
import unittest

from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Finalized, Processed
from solana.rpc.core import RPCException
from solana.rpc.models import DataSliceOpts
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.errors import InvalidParamsMessage
from solders.transaction_status import TransactionDetails

SCENE = json.loads(os.environ["SCENE"])
COMMITMENTS = (Processed, Confirmed, Finalized)
MINT, TOKEN, WALLET, ABSENT = (
    Pubkey.from_string(text)
    for text in (SCENE["mint"]["address"], SCENE["tokenAccount"]["address"], SCENE["wallet"], SCENE["absent"]))


class SolanaPy(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = AsyncClient(SCENE["url"])
        self.addAsyncCleanup(self.client.close)

    async def test_get_account_info(self):
        for commitment in COMMITMENTS:
            plain = await self.client.get_account_info(MINT, commitment)
            self.assertGreater(plain.context.slot, SCENE["block"]["slot"])
            self.assertEqual(str(plain.value.owner), SCENE["mint"]["owner"])
            self.assertEqual(len(plain.value.data), SCENE["mint"]["space"])
            for encoding in ("base58", "base64", "base64+zstd"):
                with self.subTest(commitment=commitment, encoding=encoding):
                    same = await self.client.get_account_info(MINT, commitment, encoding)
                    self.assertEqual(list(same.value.data[:4]), SCENE["mint"]["head"])
            part = await self.client.get_account_info(MINT, commitment, data_slice=DataSliceOpts(offset=1, length=3))
            self.assertEqual(list(part.value.data), SCENE["mint"]["head"][1:])
            parsed = await self.client.get_account_info_json_parsed(MINT, commitment)
            self.assertEqual(parsed.value.data.parsed["info"]["decimals"], SCENE["tokenAccount"]["decimals"])
            self.assertIsNone((await self.client.get_account_info(ABSENT, commitment)).value)

    async def test_get_multiple_accounts(self):
        owners = [SCENE["mint"]["owner"], None, "1" * 32]
        for commitment in COMMITMENTS:
            for encoding in ("base58", "base64", "base64+zstd"):
                some = await self.client.get_multiple_accounts([MINT, ABSENT, WALLET], commitment, encoding)
                self.assertEqual([one and str(one.owner) for one in some.value], owners)
            parsed = await self.client.get_multiple_accounts_json_parsed([TOKEN, MINT], commitment)
            self.assertEqual(parsed.value[0].data.parsed["info"]["mint"], SCENE["tokenAccount"]["mint"])

    async def test_get_block(self):
        truth = SCENE["block"]
        ask = lambda *more, **options: self.client.get_block(
            truth["slot"], *more, max_supported_transaction_version=0, **options)
        for commitment in (Confirmed, Finalized):
            for encoding in ("json", "jsonParsed", "base58", "base64"):
                with self.subTest(commitment=commitment, encoding=encoding):
                    full = (await ask(encoding, commitment=commitment)).value
                    self.assertEqual(str(full.blockhash), truth["blockhash"])
                    self.assertEqual((full.parent_slot, full.block_time, full.block_height),
                                     (truth["parentSlot"], truth["blockTime"], truth["blockHeight"]))
                    self.assertEqual((len(full.transactions), len(full.rewards)), (truth["transactions"], truth["rewards"]))
                    self.assertEqual(full.transactions[0].meta.fee, truth["fee"])
            signatures = (await ask(transaction_details=TransactionDetails.Signatures, commitment=commitment)).value
            self.assertEqual(str(signatures.signatures[0]), truth["signature"])
            accounts = (await ask(transaction_details=TransactionDetails.Accounts, commitment=commitment)).value
            self.assertEqual(len(accounts.transactions), truth["transactions"])
            none = (await ask(transaction_details=TransactionDetails.None_, rewards=False, commitment=commitment)).value
            self.assertEqual(str(none.blockhash), truth["blockhash"])
            self.assertIsNone(none.transactions)
        with self.assertRaises(RPCException) as refused:
            await self.client.get_block(SCENE["skipped"], max_supported_transaction_version=0)
        self.assertIn("skipped", str(refused.exception.args[0].message))

    async def test_votes_balances_and_fees_at_every_commitment(self):
        payer = Pubkey.from_string(SCENE["wallet"])
        for commitment in COMMITMENTS:
            votes = (await self.client.get_vote_accounts(commitment=commitment)).value
            self.assertEqual((len(votes.current), len(votes.delinquent)), (SCENE["votes"]["current"], SCENE["votes"]["delinquent"]))
            one = (await self.client.get_vote_accounts(Pubkey.from_string(SCENE["votes"]["one"]), commitment)).value
            self.assertEqual([str(vote.vote_pubkey) for vote in one.current], [SCENE["votes"]["one"]])
            balance = (await self.client.get_token_account_balance(TOKEN, commitment)).value
            self.assertEqual(balance.decimals, SCENE["tokenAccount"]["decimals"])
            self.assertEqual(float(balance.ui_amount_string), int(balance.amount) / 10**balance.decimals)
            fresh = (await self.client.get_latest_blockhash(Finalized)).value.blockhash
            message = MessageV0.try_compile(payer, [Instruction(MINT, b"\x01", [])], [], fresh)
            self.assertEqual((await self.client.get_fee_for_message(message, commitment)).value, 5000)
            stale = MessageV0.try_compile(payer, [Instruction(MINT, b"\x01", [])], [], Hash.default())
            self.assertIsNone((await self.client.get_fee_for_message(stale, commitment)).value)
        with self.assertRaises(RPCException) as refused:
            await self.client.get_token_account_balance(WALLET)
        self.assertIsInstance(refused.exception.args[0], InvalidParamsMessage)

    async def test_samples_and_nodes(self):
        samples = (await self.client.get_recent_performance_samples(2)).value
        self.assertTrue(samples and samples[0].num_transactions > 0)
        nodes = (await self.client.get_cluster_nodes()).value
        self.assertEqual(len(nodes), SCENE["nodes"])

    async def test_simulations_work_and_writes_are_refused(self):
        self.assertTrue(await self.client.is_connected())
        self.assertGreater((await self.client.get_balance(WALLET)).value, 0)
        self.assertGreaterEqual((await self.client.get_slot(Processed)).value, SCENE["block"]["slot"])
        with self.assertRaises(RPCException) as refused:
            await self.client.send_raw_transaction(base64.b64decode("AQ=="))
        self.assertIn("sendTransaction writes", str(refused.exception))

    async def test_unknown_key_is_refused_with_401(self):
        async with AsyncClient(SCENE["unknown"]) as unknown:
            with self.assertRaises(SolanaRpcException) as refused:
                await unknown.get_cluster_nodes()
            self.assertEqual(refused.exception.__cause__.response.status_code, 401)

    async def test_rate_limit_gives_429_unless_the_library_paces(self):
        """The library does not retry after a 429. It has a limiter instead."""
        async with AsyncClient(SCENE["slow"]["python"]) as slow:
            answers = await asyncio.gather(*(slow.get_cluster_nodes() for _ in range(6)), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, Exception)]
            self.assertTrue(1 <= len(refused) < 6, answers)
            for error in refused:
                response = error.__cause__.response
                self.assertEqual(response.status_code, 429)
                self.assertGreaterEqual(int(response.headers["retry-after"]), 1)
        await asyncio.sleep(3)
        async with AsyncClient(SCENE["slow"]["python"]) as slow:
            self.assertEqual(len((await slow.get_cluster_nodes()).value), SCENE["nodes"])


if __name__ == "__main__":
    unittest.main()
