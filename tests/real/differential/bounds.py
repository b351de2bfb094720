"""The bounds of answers, and other constants.

The numbers repeat the defaults of slotfront's `[cache]`, and must change with them.
"""

COMMITMENTS = ("processed", "confirmed", "finalized")
ENCODINGS = (None, "binary", "base58", "base64", "base64+zstd", "jsonParsed")
CLOCK = "SysvarC1ock11111111111111111111111111111111"
U64_MAX = 2**64 - 1

# The factors of stale_while_revalidate, then the defaults of [cache].
STRETCH = {"processed": 1.0, "confirmed": 1.5, "finalized": 1.5}
TTL_S = {"processed": 0.4, "confirmed": 0.8, "finalized": 5.0}
MAX_LAG_SLOTS = {"processed": 1, "confirmed": 2, "finalized": 12}
VOTES_TTL_S = {"processed": 1.0, "confirmed": 2.0, "finalized": 10.0}
SAMPLES_TTL_S, NOT_YET_TTL_S = 15.0, 0.2
ONE_SLOT_TTL_S, SCAN_TTL_S, CONFIRMED_BLOCK_TTL_S = TTL_S["processed"], 30.0, 2.0
# The greatest age of the frontier: the probe interval of one second, its jitter, and the duration of a probe.
PROBE_S = 1.5
# How long an answer may be kept by the methods that have a lifetime of their own, or be behind the node's because it
# depends on what probes have shown. All others are compared with the node's answer just before.
TIP = ("getSlot", "getBlockHeight", "getLatestBlockhash", "getEpochInfo", "isBlockhashValid")
SCANS = ("getProgramAccounts", "getTokenLargestAccounts", "getLargestAccounts", "getSupply")
LATENESS_S = {
    **dict.fromkeys(TIP, PROBE_S),
    **dict.fromkeys(("getInflationGovernor", "getInflationRate", "getStakeMinimumDelegation", "getInflationReward", "getLeaderSchedule",
                     "getMinimumBalanceForRentExemption", "getFirstAvailableBlock", "minimumLedgerSlot"), PROBE_S),
    **dict.fromkeys(("getSlotLeader", "getTransactionCount", "getBlockProduction", "getBlockCommitment", "getRecentPrioritizationFees",
                     "getBlocks", "getBlocksWithLimit", "getSignaturesForAddress"), ONE_SLOT_TTL_S),
    **dict.fromkeys(SCANS, SCAN_TTL_S),
    "getTransaction": CONFIRMED_BLOCK_TTL_S,
}
# The number of slots by which a node's finalized answers may be ahead of their label.
FINALIZED_LEAD_SLOTS = 2

# The number of printed mismatches of each kind. At most two are printed for the same request.
MOST_PRINTED = 60


def stretched_lag(commitment):
    return int(MAX_LAG_SLOTS[commitment] * STRETCH[commitment])
