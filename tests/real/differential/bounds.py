"""The bounds that answers are judged by, and other fixed values.

The numbers repeat the defaults of slotfront's `[cache]`: where they change there, change them here.
"""

COMMITMENTS = ("processed", "confirmed", "finalized")
ENCODINGS = (None, "binary", "base58", "base64", "base64+zstd", "jsonParsed")
CLOCK = "SysvarC1ock11111111111111111111111111111111"
U64_MAX = 2**64 - 1

# The defaults of [cache], and the factor of stale_while_revalidate.
STRETCH = {"processed": 1.0, "confirmed": 1.5, "finalized": 1.5}
TTL_S = {"processed": 0.4, "confirmed": 0.8, "finalized": 5.0}
MAX_LAG_SLOTS = {"processed": 1, "confirmed": 2, "finalized": 12}
VOTES_TTL_S = {"processed": 1.0, "confirmed": 2.0, "finalized": 10.0}
SAMPLES_TTL_S, NODES_TTL_S, NOT_YET_TTL_S = 15.0, 60.0, 0.2
# The frontier is at most one probe old: an interval of one second, its jitter, and the time that a probe takes.
PROBE_S = 1.5
# Beyond their label, a node's finalized answers may hold data of so many slots.
FINALIZED_LEAD_SLOTS = 2

# Of each kind of mismatch at most so many are printed, and of these at most two for the same request.
MOST_PRINTED = 60


def stretched_lag(commitment):
    return int(MAX_LAG_SLOTS[commitment] * STRETCH[commitment])
