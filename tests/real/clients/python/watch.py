"""Watches an account, a program and signatures with solana-py, unmodified. `WATCH` is JSON: the address `ws`, the account, the
program, the signatures, and the account's balances. Once all has been told, one line of JSON says what."""

import asyncio
import json
import os

from solana.rpc.commitment import Confirmed
from solana.rpc.websocket_api import SolanaWsClient
from solders.pubkey import Pubkey
from solders.signature import Signature

WATCH = json.loads(os.environ["WATCH"])


async def main():
    last, account = WATCH["balances"][-1], Pubkey.from_string(WATCH["account"])
    told, waiting = {"account": [], "program": [], "signatures": {}}, {}
    async with SolanaWsClient(WATCH["ws"]) as socket:
        await socket.account_subscribe(pubkey=account, commitment=Confirmed)
        await socket.program_subscribe(program_id=Pubkey.from_string(WATCH["program"]), commitment=Confirmed)
        for signature in WATCH["signatures"]:
            subscribed = await socket.signature_subscribe(signature=Signature.from_string(signature), commitment=Confirmed)
            waiting[subscribed.subscription_id] = signature
        while not (told["account"][-1:] == told["program"][-1:] == [last] and len(told["signatures"]) == len(WATCH["signatures"])):
            message = await socket.recv()
            value, kind = message.result.value, type(message).__name__
            if kind == "AccountNotification":
                told["account"].append(value.lamports)
            elif kind == "ProgramNotification":
                told["program"] += [value.account.lamports] if value.pubkey == account else []
            elif kind == "SignatureNotification":
                told["signatures"][waiting[message.subscription]] = value.err
    print(json.dumps(told))


asyncio.run(main())
