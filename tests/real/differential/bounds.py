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
# The greatest age of the frontier: the probe interval of one second, its jitter, and the duration of a probe.
PROBE_S = 1.5
# The number of slots by which a node's finalized answers may be ahead of their label.
FINALIZED_LEAD_SLOTS = 2

# The number of printed mismatches of each kind. At most two are printed for the same request.
MOST_PRINTED = 60


def stretched_lag(commitment):
    return int(MAX_LAG_SLOTS[commitment] * STRETCH[commitment])
