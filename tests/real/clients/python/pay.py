"""Pays with solana-py, unmodified, while the payer's account is watched. The library gets the addresses `url` and `ws` of `PAY`,
and nothing else. Prints one line of JSON: the status of the payment, and the kinds of the notifications."""

import asyncio
import json
import os

from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.websocket_api import SolanaWsClient
from solders.keypair import Keypair
from solders.message import Message
from solders.system_program import TransferParams, transfer
from solders.transaction import Transaction

PAY = json.loads(os.environ["PAY"])
KINDS = {"AccountNotification", "SignatureNotification", "SlotNotification"}


async def main():
    client, payer = AsyncClient(PAY["url"], commitment=Confirmed), Keypair()
    airdrop = (await client.request_airdrop(payer.pubkey(), 10**9)).value
    await client.confirm_transaction(airdrop, commitment=Confirmed)
    async with SolanaWsClient(PAY["ws"]) as socket:
        account = await socket.account_subscribe(pubkey=payer.pubkey(), commitment=Confirmed)
        await socket.slot_subscribe()
        latest = (await client.get_latest_blockhash()).value
        params = TransferParams(from_pubkey=payer.pubkey(), to_pubkey=Keypair().pubkey(), lamports=1_000_000)
        message = Message.new_with_blockhash([transfer(params)], payer.pubkey(), latest.blockhash)
        paid = (await client.send_raw_transaction(bytes(Transaction([payer], message, latest.blockhash)))).value
        ended = await client.confirm_transaction(paid, commitment=Confirmed, last_valid_block_height=latest.last_valid_block_height)
        # The payment has landed, and its notification comes all the same.
        await socket.signature_subscribe(signature=paid, commitment=Confirmed)
        kinds = set()
        while not KINDS <= kinds:
            kinds.add(type(await socket.recv()).__name__)
        await socket.unsubscribe(account)
    await client.close()
    status = ended.value[0]
    print(json.dumps({"error": status.err, "status": str(status.confirmation_status), "kinds": sorted(kinds)}))


asyncio.run(main())
