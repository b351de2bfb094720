"""What the dashboards show: per panel its title, its unit, a sentence, and its queries. `grafana.py` says how to read them.

The groups of outcomes are those of the program: the first three came from what was kept, the first six are answers.
"""

from grafana import choice, dashboard, heat, lines, row, share, shares, stack, stat, states, steps, table, words

HIT = 'outcome=~"hit|stale|derived"'
ANSWER = 'outcome=~"hit|stale|derived|collapsed|miss|bypass"'
# Whether an upstream's calls are a caller's: probes have no method of ours.
CALL = 'method!="other"'

USABLE = words(("not usable", "red"), ("usable", "green"))
BREAKER = words(("closed", "green"), ("half-open", "orange"), ("open", "red"))


def of(metric, *labels):
    """The series of a metric at the chosen instances that have these labels, too."""
    return f"{metric}{{{','.join(['@', *labels])}}}"


def calls(*labels, by=""):
    """Calls a second with these labels."""
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({of('slotfront_requests_total', *labels)}[~]))"


def ratio(part, whole, *labels, by=""):
    """The share that calls of one kind have in calls of another, `None` for all, among those with these labels."""
    return share_of(calls(*labels, part, by=by), calls(*labels, *([whole] if whole else []), by=by))


def share_of(part, whole):
    """A part in a whole; nothing, not unknown, where no call of that kind was ever seen."""
    return f"({part} or {whole} * 0) / {whole}"


def latency(quantile, *labels):
    """A quantile of calls' durations."""
    series = of("slotfront_request_duration_seconds_bucket", *labels)
    return f"histogram_quantile({quantile}, sum by (le) (rate({series}[~])))"


def lag(quantile, by="commitment"):
    """A quantile of how many slots answers from the cache were behind."""
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate(slotfront_cache_served_lag_slots_bucket{{@}}[~])))"


ASKED = f"sum(rate({of('slotfront_upstream_requests_total', CALL)}[~]))"
SAVED = f"clamp_min(1 - {ASKED} / {calls(ANSWER)}, 0)"

OVERVIEW = dashboard(
    "overview", "Overview", "Traffic, what the cache saves, how fast and how fresh answers are.",
    [
        row("At a glance",
            stat("Calls", "reqps", "Calls a second, each element of a batch one, whatever became of them.", calls()),
            share("Hit ratio", "Share of answers that came straight from the cache: hit, stale or derived.",
                  ratio(HIT, ANSWER)),
            share("Upstream calls saved", "Share of answers that cost no upstream call; retries and refreshes count "
                  "against it, probes do not.", SAVED),
            stat("Hit latency, p99", "s", "One hit in a hundred takes longer than this, from request head to answer head.",
                 latency(0.99, 'outcome="hit"')),
            share("Failing calls", "Share of calls that ended in an error of ours: overloaded, no upstream, or timed out.",
                  ratio('outcome="error"', None), max=None, decimals=2,
                  thresholds=steps("green", ("orange", 0.001), ("red", 0.01))),
            stat("Usable upstreams", "short", "Upstreams that take calls, the fewest over the instances shown.",
                 "min(sum by (instance) (slotfront_upstream_up{@}))",
                 thresholds=steps("red", ("orange", 1), ("green", 2)))),
        row("Traffic",
            stack("Calls by outcome", "reqps", "How calls ended: from what was kept, from a node, refused, or failed.",
                  ("{{outcome}}", calls(by="outcome"))),
            stack("Calls by method", "reqps", "Calls by method; `other` is a method that is not served.",
                  ("{{method}}", calls(by="method"))),
            shares("Hit ratio by method", "Share of each method's answers that came straight from the cache.",
                   ("{{method}}", ratio(HIT, ANSWER, by="method"))),
            lines("Upstream calls saved", "reqps", "Answers given, and calls of nodes that they cost; the gap is what the "
                  "cache saves them.", ("answers", calls(ANSWER)), ("upstream calls", ASKED)),
            lines("In flight and connections", "short", "HTTP requests being served and open connections on the public "
                  "listener.", ("requests in flight", "sum(slotfront_requests_in_flight{@})"),
                  ("connections", "sum(slotfront_connections{@})")),
            lines("Answers in bytes", "Bps", "Bytes of answers before compression, by method.",
                  ("{{method}}", "sum by (method) (rate(slotfront_response_bytes_total{@}[~]))"))),
        row("Latency",
            lines("Latency by outcome", "s", "Median and 99th percentile of hits and misses, on a logarithmic scale.",
                  *[(f"{outcome} p{percent}", latency(percent / 100, f'outcome="{outcome}"'))
                    for outcome in ("hit", "miss") for percent in (50, 99)], log=True),
            lines("Latency of all calls", "s", "Percentiles over all outcomes, on a logarithmic scale.",
                  *[(f"p{percent}", latency(percent / 100)) for percent in (50, 90, 95, 99)], log=True)),
        row("Errors",
            shares("Failing calls by method", "Share of each method's calls that ended in an error of ours.",
                   ("{{method}}", ratio('outcome="error"', None, by="method")), width=8),
            stack("Errors of nodes passed on", "reqps", "JSON-RPC errors that a node gave and that were passed on "
                  "unchanged, by code.", ("{{code}}", "sum by (code) (rate(slotfront_node_errors_total{@}[~]))"), width=8),
            stack("Refused for limits and keys", "reqps", "Calls over a rate or quota by reason, and keys not accepted by "
                  "reason.", ("limit: {{reason}}", "sum by (reason) (rate(slotfront_key_limited_total{@}[~]))"),
                  ("key: {{reason}}", "sum by (reason) (rate(slotfront_auth_failures_total{@}[~]))"), width=8)),
        row("Freshness",
            lines("Slots served behind", "short", "How many slots accounts and fees from the cache were behind the frontier: median "
                  "and 99th percentile by commitment.", ("{{commitment}} p50", lag(0.5)), ("{{commitment}} p99", lag(0.99)),
                  width=8),
            lines("Frontier", "short", "Slots a second that the frontier advances, 4 to 5 on mainnet today; at zero the chain, "
                  "or our view of it, stands still.",
                  ("{{commitment}}", "max by (commitment) (deriv(slotfront_frontier_slot{@}[2m]))"), width=8),
            lines("Age of the frontier", "s", "How long ago the frontier last moved, the oldest over the instances shown.",
                  ("{{commitment}}", "max by (commitment) (slotfront_frontier_age_seconds{@})"), width=8)),
        row("Process",
            lines("Memory", "bytes", "Resident memory of each instance.",
                  ("{{instance}}", "process_resident_memory_bytes{@} and on (job, instance) slotfront_build_info"), width=8),
            lines("Processor", "short", "Cores that each instance keeps busy.",
                  ("{{instance}}", "rate(process_cpu_seconds_total{@}[~]) and on (job, instance) slotfront_build_info"),
                  width=8),
            lines("Reloads of the configuration", "short", "Changes of the configuration since the start, by what became "
                  "of them.", ("{{result}}", "sum by (result) (slotfront_config_reloads_total{@})"), width=8)),
    ])

METHOD = 'method=~"$method"'
CACHE = dashboard(
    "cache", "Cache", "What is kept, what it serves, how old that is, and why the rest is not served from it.",
    [
        row("At a glance",
            share("Hit ratio", "Share of answers that came straight from the cache: hit, stale or derived.",
                  ratio(HIT, ANSWER, METHOD)),
            share("Derived", "Share of answers made from an entry of another form.",
                  ratio('outcome="derived"', ANSWER, METHOD)),
            share("Collapsed", "Share of answers that waited for a call which another caller had begun.",
                  ratio('outcome="collapsed"', ANSWER, METHOD)),
            share("Fill", "Bytes held as a share of the capacity, the fullest of the instances shown; full is normal.",
                  "max(slotfront_cache_bytes{@} / slotfront_cache_capacity_bytes{@})"),
            stat("Entries", "short", "Entries held, all instances together.", "sum(slotfront_cache_entries{@})"),
            stat("Mismatches", "short", "Hits of the last day that a node contradicted afterwards; any one is worth a look, "
                 "and needs `verify.sample`.", 'sum(increase(slotfront_verify_total{@,result="mismatch"}[1d]))',
                 thresholds=steps("green", ("red", 1)))),
        row("Outcomes",
            stack("Answers by outcome", "reqps", "Answers of the chosen methods, by where they came from.",
                  ("{{outcome}}", calls(METHOD, ANSWER, by="outcome"))),
            shares("Hit ratio by commitment", "Share of answers that came straight from the cache, by commitment.",
                   ("{{commitment}}", ratio(HIT, ANSWER, METHOD, by="commitment"))),
            shares("Hit ratio by method", "Share of each method's answers that came straight from the cache.",
                   ("{{method}}", ratio(HIT, ANSWER, METHOD, by="method"))),
            table("Outcomes by method and commitment", "reqps", "Answers a second of each method at each commitment now.",
                  *[(outcome, "reqps", calls(METHOD, f'outcome="{outcome}"', by="method, commitment"))
                    for outcome in ("hit", "stale", "derived", "collapsed", "miss", "bypass")], width=12, sort="hit"),
            stack("Derived answers by method", "reqps", "Answers made from an entry of another form.",
                  ("{{method}}", calls(METHOD, 'outcome="derived"', by="method"))),
            stack("Collapsed answers by method", "reqps", "Answers that waited for a call which another caller had begun.",
                  ("{{method}}", calls(METHOD, 'outcome="collapsed"', by="method")))),
        row("Freshness",
            heat("Age in slots", "short", "How many slots behind the frontier accounts and fees from the cache were; the default "
                 "bounds are 1, 2 and 12 at the three commitments, half more while a fresh one is fetched.",
                 "sum by (le) (increase(slotfront_cache_served_lag_slots_bucket{@}[~]))"),
            lines("Age in slots by commitment", "short", "Median, 95th and 99th percentile of the slots that answers from "
                  "the cache were behind.", *[(f"{{{{commitment}}}} p{p}", lag(p / 100)) for p in (50, 95, 99)]),
            lines("Found but not fresh", "cps", "Entries found that could not serve: past their time (ttl), too many slots "
                  "behind (lag), below what the caller must get (floor).",
                  ("{{cause}}", "sum by (cause) (rate(slotfront_cache_stale_total{@}[~]))")),
            lines("Floors and frontiers given up", "short", "Times in the last hour that a slot once seen was given up "
                  "because no node reaches it: after a restart of the whole cluster, or a node that lied.",
                  ("floors", "sum(increase(slotfront_cache_floor_resets_total{@}[1h]))"),
                  ("frontiers", "sum(increase(slotfront_frontier_resets_total{@}[1h]))"))),
        row("What is kept",
            lines("Size", "bytes", "Bytes that the cache holds, keys and overhead included, and may hold.",
                  ("held", "sum(slotfront_cache_bytes{@})"), ("capacity", "sum(slotfront_cache_capacity_bytes{@})"), width=8),
            lines("Entries", "short", "Entries that the cache holds, by instance.",
                  ("{{instance}}", "slotfront_cache_entries{@}"), width=8),
            lines("Evictions", "cps", "Entries dropped: for want of room (size), long not asked for (idle), or on purpose "
                  "(purged).", ("{{cause}}", "sum by (cause) (rate(slotfront_cache_evictions_total{@}[~]))"), width=8),
            stack("Not kept", "cps", "Answers of nodes that were not kept, by reason.",
                  ("{{reason}}", f"sum by (reason) (rate({of('slotfront_uncacheable_total', METHOD)}[~]))")),
            stack("Hits compared with a node", "cps", "What a node said afterwards of sampled hits: equal, moved on, or a "
                  "mismatch that cannot be true of both.",
                  ("{{result}}", f"sum by (result) (rate({of('slotfront_verify_total', METHOD)}[~]))"))),
        row("Shared store",
            stack("Shared store", "ops", "Operations on the store that several gateways share, by what became of them; nothing "
                  "without one.",
                  ("{{operation}} {{result}}",
                   "sum by (operation, result) (rate(slotfront_shared_requests_total{@}[~]))")),
            lines("Shared store, time", "s", "Median and 99th percentile of the time from asking the shared store to its whole "
                  "answer.",
                  *[(f"{{{{operation}}}} p{p}", "histogram_quantile(" + str(p / 100) + ", sum by (le, operation) "
                     "(rate(slotfront_shared_request_duration_seconds_bucket{@}[~])))") for p in (50, 99)])),
    ],
    choice("method", "Method", 'label_values(slotfront_requests_total{instance=~"$instance"}, method)'))

UP = 'upstream=~"$upstream"'


def worst(metric, *labels):
    """A gauge of each chosen upstream, as the instance sees it that thinks worst of it."""
    return f"max by (upstream) ({of(metric, UP, *labels)})"


def attempts(by, *labels):
    """Attempts a second on the chosen upstreams, probes left out."""
    return f"sum by ({by}) (rate({of('slotfront_upstream_requests_total', UP, CALL, *labels)}[~]))"


def behind(commitment):
    """Slots behind the frontier at a commitment, of each upstream."""
    at = f'commitment="{commitment}"'
    frontier, slot = of("slotfront_frontier_slot", at), of("slotfront_upstream_slot", UP, at)
    return f"clamp_min(max by (upstream) ({frontier} - on (job, instance) group_right {slot}), 0)"


def upstream_latency(quantile, by="upstream"):
    """A quantile of attempts' durations, probes left out."""
    series = of("slotfront_upstream_request_duration_seconds_bucket", UP, CALL)
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate({series}[~])))"


STANDING = f"min by (upstream) ({of('slotfront_upstream_up', UP)})"
NEWEST, OLDEST = of("slotfront_upstream_slot", UP, 'commitment="finalized"'), of("slotfront_upstream_first_available_block", UP)
HELD = f"min by (upstream) ({NEWEST} - on (job, instance, upstream) {OLDEST})"

UPSTREAMS = dashboard(
    "upstreams", "Upstreams", "How each upstream stands, how far it is, how it answers, and what is done about it.",
    [
        row("Standing",
            table("Upstreams now", "short", "Each upstream's standing, as the instance says that thinks worst of it.",
                  ("standing", USABLE, STANDING),
                  ("breaker", BREAKER, worst("slotfront_upstream_breaker_state")),
                  ("slot", "locale", worst("slotfront_upstream_slot", 'commitment="processed"')),
                  ("slots behind", "short", worst("slotfront_upstream_slot_lag")),
                  ("history, slots", "locale", HELD),
                  ("in flight", "short", worst("slotfront_upstream_requests_in_flight")),
                  ("calls a second", "reqps", attempts("upstream")),
                  ("p95", "s", upstream_latency(0.95))),
            states("Usable", "When each upstream took calls: healthy, near enough to the frontier, its breaker closed.",
                   ("{{upstream}}", STANDING), USABLE),
            states("Circuit breaker", "State of each upstream's circuit breaker; open rejects calls, half-open lets one "
                   "trial through.", ("{{upstream}}", worst("slotfront_upstream_breaker_state")), BREAKER)),
        row("Slots",
            *[lines(f"Behind at {commitment}", "short", f"Slots that each upstream is behind the frontier at {commitment}.",
                    ("{{upstream}}", behind(commitment)), width=8)
              for commitment in ("processed", "confirmed", "finalized")],
            lines("Slot", "locale", "Newest slot that each upstream reports, by commitment.",
                  ("{{upstream}} {{commitment}}",
                   f"max by (upstream, commitment) ({of('slotfront_upstream_slot', UP)})")),
            lines("History held", "locale", "Slots from the oldest block that an upstream holds to its newest final one.",
                  ("{{upstream}}", HELD))),
        row("Answers",
            lines("Latency, p95", "s", "95th percentile of attempts on each upstream, probes left out, on a logarithmic "
                  "scale.", ("{{upstream}}", upstream_latency(0.95)), log=True),
            lines("Latency by method, p95", "s", "95th percentile of attempts by method, on a logarithmic scale.",
                  ("{{method}}", upstream_latency(0.95, "method")), log=True),
            stack("Attempts by upstream", "reqps", "Attempts on each upstream, probes left out.",
                  ("{{upstream}}", attempts("upstream"))),
            stack("Attempts by result", "reqps", "Attempts by how they ended, probes left out.",
                  ("{{result}}", attempts("result"))),
            stack("Failed attempts", "reqps", "Attempts that brought no answer, by upstream and result, probes left out.",
                  ("{{upstream}}: {{result}}", attempts("upstream, result", 'result!~"ok|node_error|cancelled"'))),
            lines("In flight", "short", "Attempts under way on each upstream, all instances together.",
                  ("{{upstream}}", f"sum by (upstream) ({of('slotfront_upstream_requests_in_flight', UP)})"))),
        row("What is done about faults",
            stack("Retries", "reqps", "Further attempts, by what went wrong with the one before.",
                  ("{{reason}}", "sum by (reason) (rate(slotfront_upstream_retries_total{@}[~]))"), width=8),
            stack("Hedges", "reqps", "Second calls beside a slow first one, by what became of them; `pool.hedge` is off by "
                  "default.", ("{{result}}", "sum by (result) (rate(slotfront_upstream_hedges_total{@}[~]))"), width=8),
            lines("Attempts per asked call", "short", "Attempts for each call that asked a node; above one is what faults, "
                  "hedges and refreshes add.",
                  ("attempts", f"{ASKED} / " + calls('outcome=~"miss|bypass"')), width=8)),
    ],
    choice("upstream", "Upstream", 'label_values(slotfront_upstream_up{instance=~"$instance"}, upstream)'))

KEY = 'key=~"$key"'


def of_keys(metric, *labels, by=""):
    """A rate of the chosen keys."""
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({of(metric, KEY, *labels)}[~]))"


def ten(rate):
    """The ten largest of many."""
    return f"topk(10, {rate})"


def of_plans(metric, by="plan"):
    """A rate of the chosen keys by their plan, which the program says of each key."""
    plan = f"on (job, instance, key) group_left (plan) {of('slotfront_key_info')}"
    return f"sum by ({by}) (rate({of(metric, KEY)}[~]) * {plan})"


CALLED, COST, LIMITED = "slotfront_key_requests_total", "slotfront_key_units_total", "slotfront_key_limited_total"

KEYS = dashboard(
    "keys", "Keys", "Who calls how much, what it costs, and who meets a limit. The first 200 key ids seen have series of "
    "their own, the rest share `other`.",
    [
        row("At a glance",
            stat("Keys in use", "short", "Keys that called within the last hour; those after the first 200 count as one.",
                 "count(sum by (key) (increase(slotfront_key_requests_total{@}[1h])) > 0)", width=6),
            stat("Calls", "reqps", "Calls a second of the chosen keys.",
                 of_keys(CALLED), width=6),
            stat("Units", "short", "Units a second that the chosen keys' calls cost.",
                 of_keys(COST), width=6),
            share("Limited", "Share of the chosen keys' calls that were over a rate or a quota.",
                  share_of(of_keys(CALLED, 'outcome="limited"'), of_keys(CALLED)), width=6)),
        row("By key",
            table("Keys now", "short", "The chosen keys' plans, calls, units and limits.",
                  ("calls a second", "reqps", of_plans(CALLED, "key, plan")),
                  ("units a second", "short", of_plans(COST, "key, plan")),
                  ("limited a second", "reqps", of_plans(LIMITED, "key, plan")),
                  sort="calls a second"),
            stack("Calls by key", "reqps", "Calls of the ten busiest keys.",
                  ("{{key}}", ten(of_keys(CALLED, by="key")))),
            stack("Units by key", "short", "Units a second of the ten keys that cost most.",
                  ("{{key}}", ten(of_keys(COST, by="key")))),
            stack("Calls by outcome", "reqps", "How the chosen keys' calls ended.",
                  ("{{outcome}}", of_keys(CALLED, by="outcome"))),
            shares("Hit ratio by key", "Share of answers that came straight from the cache, of the ten keys where it is highest.",
                   ("{{key}}", ten(share_of(of_keys(CALLED, HIT, by="key"), of_keys(CALLED, ANSWER, by="key")))))),
        row("Limits",
            stack("Limited by key", "reqps", "Calls over a limit of the key's plan, of the ten keys that meet it most, by "
                  "reason: rate, day or month.",
                  ("{{key}}: {{reason}}", ten(of_keys(LIMITED, by="key, reason")))),
            stack("Limited by plan", "reqps", "Calls over a limit, by plan and reason.",
                  ("{{plan}}: {{reason}}", of_plans(LIMITED, "plan, reason"))),
            stack("Calls by plan", "reqps", "Calls of the chosen keys, by plan.",
                  ("{{plan}}", of_plans(CALLED))),
            stack("Units by plan", "short", "Units a second of the chosen keys, by plan.",
                  ("{{plan}}", of_plans(COST))),
            stack("Keys not accepted", "reqps", "Requests refused at the door, by reason; they belong to no key.",
                  ("{{reason}}", "sum by (reason) (rate(slotfront_auth_failures_total{@}[~]))"))),
    ],
    choice("key", "Key", 'label_values(slotfront_key_requests_total{instance=~"$instance"}, key)'))

DASHBOARDS = [OVERVIEW, CACHE, UPSTREAMS, KEYS]
