"""The state of the chain at each slot, read directly from the nodes without faults."""

import asyncio
import base64
import json
import time

from connection import Connection

# The number of blocks in which accounts are looked for.
BLOCKS = 12
ACCOUNTS = 60
# The interval at which a new message is taken, because nodes know the fees of recent messages only.
RENEWED_S = 20
# The duration of a sleep of 0.1 s, or of a call, beyond which the machine has stalled. Calls may then time out.
STALL_S = 0.7
# The error code for a block that does not exist yet.
NOT_YET = -32004
# The error code for a finalized slot without a block.
SKIPPED = -32007


class Reference:
    """The accounts, vote accounts and fees at each observed slot, the samples, and the newest slots with their times."""

    def __init__(self, ports):
        self.nodes, self.accounts, self.messages = [Connection("127.0.0.1", port) for port in ports], [], []
        self.at, self.fees, self.votes, self.samples, self.blocks = {}, {}, {}, set(), {}
        self.renewed = 0.0
        # The time of the last slow answer. The nodes have no faults here, so the machine was slow.
        self.slow_at = 0.0
        # The newest slots by commitment, with the time before each request. The last one is the newest.
        self.tips, self.asking = [], asyncio.Lock()

    async def ask(self, method, params, node=0):
        async with self.asking:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            asked = time.monotonic()
            _, _, text = await self.nodes[node].post("/", body)
            if time.monotonic() - asked > STALL_S:
                self.slow_at = time.monotonic()
        return json.loads(text)

    async def find_accounts(self):
        """Collects the accounts of recent transactions, most written first, and the message of one of them."""
        newest = (await self.ask("getSlot", [{"commitment": "finalized"}]))["result"]
        found = {}
        for slot in range(newest - BLOCKS, newest + 1):
            await self.find_a_message(slot)
            block = await self.ask("getBlock", [slot, {"transactionDetails": "accounts", "maxSupportedTransactionVersion": 0}])
            for transaction in block.get("result", {}).get("transactions", []):
                for key in transaction["transaction"]["accountKeys"]:
                    found[key["pubkey"]] = found.get(key["pubkey"], 0) + key["writable"]
        self.accounts = sorted(found, key=found.get, reverse=True)[:ACCOUNTS]

    async def find_a_message(self, slot):
        """Takes the message of a block's last transaction, if any. Its fee is known for 150 blocks."""
        block = await self.ask("getBlock", [slot, {"encoding": "base64", "maxSupportedTransactionVersion": 0}])
        for transaction in block.get("result", {}).get("transactions", [])[-1:]:
            raw = base64.b64decode(transaction["transaction"][0])
            # The first byte is the number of signatures, of 64 bytes each. The message follows them.
            message = base64.b64encode(raw[1 + 64 * raw[0]:]).decode()
            self.messages = [*self.messages[-1:], message]
            self.renewed = time.monotonic()

    async def follow(self):
        """Reads the state of the chain ten times per second. Never ends."""
        while True:
            asked = time.monotonic()
            tips = [(await self.ask("getSlot", [{"commitment": c}]))["result"] for c in ("finalized", "confirmed", "processed")]
            if asked > self.renewed + RENEWED_S:
                await self.find_a_message(tips[0])
            self.tips.append((asked, dict(zip(("finalized", "confirmed", "processed"), tips))))
            processed = {"commitment": "processed"}
            answer = (await self.ask("getMultipleAccounts", [self.accounts, {"encoding": "base64", **processed}]))["result"]
            self.at[answer["context"]["slot"]] = dict(zip(self.accounts, answer["value"]))
            for message in self.messages:
                fee = (await self.ask("getFeeForMessage", [message, processed]))["result"]
                self.fees.setdefault(fee["context"]["slot"], {})[message] = [fee["value"]]
            votes = (await self.ask("getVoteAccounts", [processed]))["result"]
            self.votes[last_vote(votes)] = by_key(votes)
            # Each node has its own samples.
            for node in range(len(self.nodes)):
                for sample in (await self.ask("getRecentPerformanceSamples", [30], node))["result"]:
                    self.samples.add(json.dumps(sample))
            self.forget()
            await asyncio.sleep(0.1)

    def forget(self):
        """Removes what is older than any valid answer."""
        for held in (self.at, self.fees, self.votes):
            for slot in sorted(held)[:-1000]:
                del held[slot]
        del self.tips[:-4000]
        for slot in sorted(self.blocks)[:-500]:
            del self.blocks[slot]

    def tip(self, commitment, before):
        """Returns the newest slot that was known at the time `before`."""
        return next((tips[commitment] for at, tips in reversed(self.tips) if at <= before), 0)

    async def block(self, slot, config):
        """Returns a block of a node, or the code of its error. Final results are cached."""
        key = json.dumps(config, sort_keys=True)
        if key not in self.blocks.get(slot, {}):
            answer = await self.ask("getBlock", [slot, config])
            result = answer.get("result", answer.get("error", {}).get("code"))
            if result == NOT_YET:
                return result
            self.blocks.setdefault(slot, {})[key] = result
        return self.blocks[slot][key]


def last_vote(votes):
    return max(account["lastVote"] for account in votes["current"])


def by_key(votes):
    return {kind: {account["votePubkey"]: account for account in votes[kind]} for kind in ("current", "delinquent")}
