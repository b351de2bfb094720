"""What the chain says, slot by slot, asked of the nodes directly and past all faults."""

import asyncio
import base64
import json
import time

from wire import Connection

# A transaction's keys are taken from so many blocks.
BLOCKS = 12
ACCOUNTS = 60
# Fees of so old messages are still told.
RENEWED_S = 20
# The code for a block that is not there yet.
NOT_YET = -32004
# The code for a slot that is final and holds none.
SKIPPED = -32007


class Truth:
    """Every account, the vote accounts and a fee at each slot that was seen; the samples; the tips and when they were."""

    def __init__(self, ports):
        self.nodes, self.accounts, self.messages = [Connection("127.0.0.1", port) for port in ports], [], []
        self.at, self.fees, self.votes, self.samples, self.blocks = {}, {}, {}, set(), {}
        self.renewed = 0.0
        # The newest slot at each commitment, with the moment before it was asked for; newest last.
        self.tips, self.asking = [], asyncio.Lock()

    async def ask(self, method, params, node=0):
        async with self.asking:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            _, _, text = await self.nodes[node].post("/", body)
        return json.loads(text)

    async def find_what_there_is(self):
        """Accounts that live transactions name, and one of those transactions' messages."""
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
        """One of a block, if there is one: nobody tells its fee any more when 150 blocks have followed."""
        block = await self.ask("getBlock", [slot, {"encoding": "base64", "maxSupportedTransactionVersion": 0}])
        for transaction in block.get("result", {}).get("transactions", [])[-1:]:
            raw = base64.b64decode(transaction["transaction"][0])
            # One signature of 64 bytes each, after a byte that counts them.
            message = base64.b64encode(raw[1 + 64 * raw[0]:]).decode()
            self.messages = [*self.messages[-1:], message]
            self.renewed = time.monotonic()

    async def follow(self):
        """Never ends."""
        while True:
            asked = time.monotonic()
            tips = [(await self.ask("getSlot", [{"commitment": c}]))["result"] for c in ("finalized", "confirmed", "processed")]
            if asked > self.renewed + RENEWED_S:
                await self.find_a_message(tips[0])
            self.tips.append((asked, dict(zip(("finalized", "confirmed", "processed"), tips))))
            processed = {"commitment": "processed"}
            # Two readings that name one slot are that slot's.
            answer = (await self.ask("getMultipleAccounts", [self.accounts, {"encoding": "base64", **processed}]))["result"]
            self.at[answer["context"]["slot"]] = dict(zip(self.accounts, answer["value"]))
            for message in self.messages:
                fee = (await self.ask("getFeeForMessage", [message, processed]))["result"]
                self.fees.setdefault(fee["context"]["slot"], {})[message] = [fee["value"]]
            votes = (await self.ask("getVoteAccounts", [processed]))["result"]
            self.votes[last_vote(votes)] = by_key(votes)
            # Each node has minutes of its own.
            for node in range(len(self.nodes)):
                for sample in (await self.ask("getRecentPerformanceSamples", [30], node))["result"]:
                    self.samples.add(json.dumps(sample))
            self.forget()
            await asyncio.sleep(0.1)

    def forget(self):
        """What is older than any answer may be: a thousand slots are minutes."""
        for held in (self.at, self.fees, self.votes):
            for slot in sorted(held)[:-1000]:
                del held[slot]
        del self.tips[:-4000]
        for slot in sorted(self.blocks)[:-500]:
            del self.blocks[slot]

    def tip(self, commitment, before):
        """The newest slot that is known to have been reached at that moment."""
        return next((tips[commitment] for at, tips in reversed(self.tips) if at <= before), 0)

    async def block(self, slot, config):
        """A block as a node gives it, or its error's code; kept once it cannot change."""
        key = json.dumps(config, sort_keys=True)
        if key not in self.blocks.get(slot, {}):
            answer = await self.ask("getBlock", [slot, config])
            said = answer.get("result", answer.get("error", {}).get("code"))
            if said == NOT_YET:
                return said
            self.blocks.setdefault(slot, {})[key] = said
        return self.blocks[slot][key]


def last_vote(votes):
    return max(account["lastVote"] for account in votes["current"])


def by_key(votes):
    return {kind: {account["votePubkey"]: account for account in votes[kind]} for kind in ("current", "delinquent")}
