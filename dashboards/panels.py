"""The content of the dashboards: the title, unit, description and queries of each panel. `grafana.py` explains the calls.

The groups of outcomes are those of slotfront: three are answers from the cache, six are answers.
"""

from grafana import choice, dashboard, heat, lines, row, share, shares, stack, stat, states, steps, table, words

HIT = 'outcome=~"hit|carried|stale|derived"'
TIP = 'method=~"getSlot|getBlockHeight|getLatestBlockhash|getEpochInfo|isBlockhashValid|getSignatureStatuses"'
ANSWER = 'outcome=~"hit|carried|stale|derived|collapsed|miss|bypass"'

USABLE = words(("not usable", "red"), ("usable", "green"))
FOLLOWING = words(("off", "gray"), ("starting", "blue"), ("following", "green"), ("parked", "gray"), ("paused", "red"))
BREAKER = words(("closed", "green"), ("half-open", "orange"), ("open", "red"))


def of(metric, *labels):
    """Returns the series of a metric at the chosen instances that have these labels."""
    return f"{metric}{{{','.join(['@', *labels])}}}"


def calls(*labels, by=""):
    """Returns the calls a second with these labels."""
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({of('slotfront_requests_total', *labels)}[~]))"


def ratio(part, whole, *labels, by=""):
    """Returns the share of `part` in `whole` among the calls with these labels. `None` as `whole` means all calls."""
    return share_of(calls(*labels, part, by=by), calls(*labels, *([whole] if whole else []), by=by))


def share_of(part, whole):
    """Returns `part / whole`. It is 0 if there is a whole and no series of the part."""
    return f"({part} or {whole} * 0) / {whole}"


def latency(quantile, *labels):
    """Returns a quantile of the durations of calls."""
    series = of("slotfront_request_duration_seconds_bucket", *labels)
    return f"histogram_quantile({quantile}, sum by (le) (rate({series}[~])))"


def lag(quantile, by="commitment"):
    """Returns a quantile of the slots by which answers from the cache were behind the frontier."""
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate(slotfront_cache_served_lag_slots_bucket{{@}}[~])))"


ASKED = f"sum(rate({of('slotfront_upstream_requests_total')}[~]))"
SAVED = f"clamp_min(1 - {ASKED} / {calls(ANSWER)}, 0)"

OVERVIEW = dashboard(
    "overview", "Overview", "Traffic, calls saved by the cache, latency and freshness of answers.",
    [
        row("At a glance",
            stat("Calls", "reqps", "Calls a second with all outcomes. Each element of a batch is a call.", calls()),
            share("Hit ratio", "Share of answers from the cache: hit, carried, stale or derived.",
                  ratio(HIT, ANSWER)),
            share("Upstream calls saved", "Share of answers that cost no upstream call. Retries, refreshes and "
                  "subscriptions lower it, probes do not.", SAVED),
            stat("Hit latency, p99", "s", "One hit in a hundred takes longer, from the arrival of its request "
                 "until the answer is ready.",
                 latency(0.99, 'outcome="hit"')),
            share("Failing calls", "Share of calls with an error of slotfront: overloaded, no upstream, or timed out.",
                  ratio('outcome="error"', None), max=None, decimals=2,
                  thresholds=steps("green", ("orange", 0.001), ("red", 0.01))),
            stat("Usable upstreams", "short", "Upstreams that can take calls, at the instance that has the fewest.",
                 "min(sum by (instance) (slotfront_upstream_up{@}))",
                 thresholds=steps("red", ("orange", 1), ("green", 2)))),
        row("Traffic",
            stack("Calls by outcome", "reqps", "Calls by outcome: answered from the cache or by a node, refused, or failed.",
                  ("{{outcome}}", calls(by="outcome"))),
            stack("Calls by method", "reqps", "Calls by method. Method `other` stands for names that no node knows, "
                  "and for requests without one.",
                  ("{{method}}", calls(by="method"))),
            shares("Hit ratio by method", "Share of each method's answers from the cache: hit, carried, stale or derived.",
                   ("{{method}}", ratio(HIT, ANSWER, by="method"))),
            lines("Upstream calls saved", "reqps", "Answers, and the upstream calls that they cost. The difference "
                  "is saved by "
                  "the cache.", ("answers", calls(ANSWER)), ("upstream calls", ASKED)),
            lines("In flight and connections", "short", "HTTP requests in progress and open connections on the public "
                  "listener.", ("requests in flight", "sum(slotfront_requests_in_flight{@})"),
                  ("connections", "sum(slotfront_connections{@})")),
            lines("Answers in bytes", "Bps", "Bytes of answers before compression, by method.",
                  ("{{method}}", "sum by (method) (rate(slotfront_response_bytes_total{@}[~]))"))),
        row("Subscriptions",
            lines("WebSockets and subscriptions", "short", "Open WebSockets, and subscriptions by method.",
                  ("WebSockets", "sum(slotfront_ws_connections{@})"),
                  ("{{method}}", "sum by (method) (slotfront_ws_subscriptions{@})"), width=6),
            lines("Age of the newest notified slot", "s", "Time since subscribers were told of a new slot, or would have been. "
                  "More than a few seconds: notifications are behind the chain.",
                  ("{{instance}}", "max by (instance) (slotfront_ws_slot_age_seconds{@})"), width=6),
            stack("Notifications", "short", "Notifications handed to clients each second, by method.",
                  ("{{method}}", "sum by (method) (rate(slotfront_ws_notifications_total{@}[~]))"), width=6),
            stack("Closed WebSockets", "short", "WebSockets closed each minute, by reason. `restart`: a node was lost or "
                  "the chain has restarted, `lagged`: the client reads too slowly.",
                  ("{{reason}}", "60 * sum by (reason) (rate(slotfront_ws_closes_total{@}[~]))"), width=6),
            ),
        row("Payments",
            stack("Reads of the tip", "reqps", "Calls of getSlot, getLatestBlockhash and the others whose answers never go back.",
                  ("{{method}}", calls(TIP, by="method")), width=8),
            stack("Answers of the tip", "reqps", "The same calls, by what answered them.",
                  ("{{outcome}}", calls(TIP, by="outcome")), width=8),
            stack("Sent transactions", "reqps", "Calls of sendTransaction, by what became of them.",
                  ("{{outcome}}", calls('method="sendTransaction"', by="outcome")), width=8)),
        row("Latency",
            lines("Latency by outcome", "s", "Median and 99th percentile of hits and misses, on a logarithmic scale.",
                  *[(f"{outcome} p{percent}", latency(percent / 100, f'outcome="{outcome}"'))
                    for outcome in ("hit", "miss") for percent in (50, 99)], log=True),
            lines("Latency of all calls", "s", "Percentiles over all outcomes, on a logarithmic scale.",
                  *[(f"p{percent}", latency(percent / 100)) for percent in (50, 90, 95, 99)], log=True),
            lines("p99 by method", "s", "99th percentile of the calls of each method, on a logarithmic scale.",
                  ("{{method}}", "histogram_quantile(0.99, sum by (le, method) "
                   "(rate(slotfront_request_duration_seconds_bucket{@}[~])))"), log=True),
            stack("Calls over the chosen time", "short", "Calls by method in each step of the picture; the legend's sum is that of the chosen time.",
                  ("{{method}}", "sum by (method) (increase(slotfront_requests_total{@}[~]))"))),
        row("Errors",
            shares("Failing calls by method", "Share of each method's calls with an error of slotfront.",
                   ("{{method}}", ratio('outcome="error"', None, by="method")), width=8),
            stack("Errors of nodes passed on", "reqps", "Errors returned by nodes and passed on to callers, by "
                  "JSON-RPC error code.", ("{{code}}", "sum by (code) (rate(slotfront_node_errors_total{@}[~]))"), width=8),
            stack("Refused for limits and keys", "reqps", "Calls refused by a rate or quota, and requests refused "
                  "because of their "
                  "key, by reason.", ("limit: {{reason}}", "sum by (reason) (rate(slotfront_key_limited_total{@}[~]))"),
                  ("key: {{reason}}", "sum by (reason) (rate(slotfront_auth_failures_total{@}[~]))"), width=8)),
        row("Freshness",
            lines("Slots served behind", "short", "Slots by which accounts and fees from the cache were behind the "
                  "frontier: median "
                  "and 99th percentile, by commitment.", ("{{commitment}} p50", lag(0.5)), ("{{commitment}} p99", lag(0.99)),
                  width=8),
            lines("Frontier", "short", "Slots a second by which the frontier advances, 4 to 5 on mainnet today. At zero the "
                  "chain has stopped, or no usable node reports new slots.",
                  ("{{commitment}}", "max by (commitment) (deriv(slotfront_frontier_slot{@}[2m]))"), width=8),
            lines("Age of the frontier", "s", "Time since the frontier last advanced, at the instance where it is longest.",
                  ("{{commitment}}", "max by (commitment) (slotfront_frontier_age_seconds{@})"), width=8)),
        row("Process",
            lines("Memory", "bytes", "Resident memory of each instance.",
                  ("{{instance}}", "process_resident_memory_bytes{@} and on (job, instance) slotfront_build_info"), width=8),
            lines("Processor", "short", "Processor cores that each instance uses.",
                  ("{{instance}}", "rate(process_cpu_seconds_total{@}[~]) and on (job, instance) slotfront_build_info"),
                  width=8),
            lines("Reloads of the configuration", "short", "Reloads of the configuration since the start: applied, or "
                  "rejected as a whole.", ("{{result}}", "sum by (result) (slotfront_config_reloads_total{@})"), width=8)),
    ])

METHOD = 'method=~"$method"'
CACHE = dashboard(
    "cache", "Cache", "The content of the cache, the answers from it, their age, and the reasons for misses.",
    [
        row("At a glance",
            share("Hit ratio", "Share of answers from the cache: hit, carried, stale or derived.",
                  ratio(HIT, ANSWER, METHOD)),
            share("Derived", "Share of answers derived from an entry of another form, such as another encoding.",
                  ratio('outcome="derived"', ANSWER, METHOD)),
            share("Collapsed", "Share of answers that shared the upstream call of another caller.",
                  ratio('outcome="collapsed"', ANSWER, METHOD)),
            share("Fill", "Share of the capacity in use, at the fullest instance. A full cache is normal.",
                  "max(slotfront_cache_bytes{@} / slotfront_cache_capacity_bytes{@})"),
            stat("Entries", "short", "Entries in the caches of all instances together.", "sum(slotfront_cache_entries{@})"),
            stat("Mismatches", "short", "Cached answers of the last day that contradict a later answer of a node. "
                 "Investigate each one. Needs `verify.sample` or following.", 'sum(increase(slotfront_verify_total{@,result="mismatch"}[1d]))',
                 thresholds=steps("green", ("red", 1)))),
        row("Outcomes",
            stack("Answers by outcome", "reqps", "Answers of the chosen methods, by outcome.",
                  ("{{outcome}}", calls(METHOD, ANSWER, by="outcome"))),
            shares("Hit ratio by commitment", "Share of answers from the cache (hit, carried, stale or derived), by commitment.",
                   ("{{commitment}}", ratio(HIT, ANSWER, METHOD, by="commitment"))),
            shares("Hit ratio by method", "Share of each method's answers from the cache: hit, carried, stale or derived.",
                   ("{{method}}", ratio(HIT, ANSWER, METHOD, by="method"))),
            table("Outcomes by method and commitment", "reqps", "Answers a second now, by method, commitment and outcome.",
                  *[(outcome, "reqps", calls(METHOD, f'outcome="{outcome}"', by="method, commitment"))
                    for outcome in ("hit", "carried", "stale", "derived", "collapsed", "miss", "bypass")], width=12, sort="hit"),
            stack("Derived answers by method", "reqps", "Answers derived from an entry of another form, such as "
                  "another encoding.",
                  ("{{method}}", calls(METHOD, 'outcome="derived"', by="method"))),
            stack("Collapsed answers by method", "reqps", "Answers that shared the upstream call of another caller.",
                  ("{{method}}", calls(METHOD, 'outcome="collapsed"', by="method")))),
        row("Freshness",
            heat("Age in slots", "short", "Slots by which accounts and fees from the cache were behind the frontier. "
                 "The default "
                 "bounds are 1, 2 and 12 slots at the three commitments, and half more while a refresh runs.",
                 "sum by (le) (increase(slotfront_cache_served_lag_slots_bucket{@}[~]))"),
            lines("Age in slots by commitment", "short", "Median, 95th and 99th percentile of the slots by which answers "
                  "from the cache were behind the "
                  "frontier.", *[(f"{{{{commitment}}}} p{p}", lag(p / 100)) for p in (50, 95, 99)]),
            lines("Found but not fresh", "cps", "Cached entries not served as fresh: older than their time to live "
                  "(ttl), too far "
                  "behind the frontier (lag), or below the caller's minimum slot (floor).",
                  ("{{cause}}", "sum by (cause) (rate(slotfront_cache_stale_total{@}[~]))")),
            lines("Floors and frontiers given up", "short", "Times in the last hour that a floor or the frontier was "
                  "lowered, "
                  "because no node reached it. Causes are a restart of the cluster, or a node with wrong slots.",
                  ("floors", "sum(increase(slotfront_cache_floor_resets_total{@}[1h]))"),
                  ("frontiers", "sum(increase(slotfront_frontier_resets_total{@}[1h]))"))),
        row("Content of the cache",
            lines("Size", "bytes", "Bytes held by the cache, including keys and overhead, and its capacity.",
                  ("held", "sum(slotfront_cache_bytes{@})"), ("capacity", "sum(slotfront_cache_capacity_bytes{@})"), width=8),
            lines("Entries", "short", "Entries held by the cache, by instance.",
                  ("{{instance}}", "slotfront_cache_entries{@}"), width=8),
            lines("Evictions", "cps", "Entries removed: the cache was full (size), the entry was not read for long "
                  "(idle), or "
                  "it was purged (purged).", ("{{cause}}", "sum by (cause) (rate(slotfront_cache_evictions_total{@}[~]))"), width=8),
            stack("Not kept", "cps", "Answers of nodes that were not cached, by reason.",
                  ("{{reason}}", f"sum by (reason) (rate({of('slotfront_uncacheable_total', METHOD)}[~]))")),
            stack("Answers compared with a node", "cps", "Cached answers compared with a later answer of a node: equal, "
                  "moved (differs "
                  "as a later answer may), or mismatch (contradiction).",
                  ("{{result}}", f"sum by (result) (rate({of('slotfront_verify_total', METHOD)}[~]))"))),
        row("Following the chain",
            states("State of following", "What following does; paused means that nothing can be followed.",
                   ("{{instance}}", "slotfront_follow_state{@}"), FOLLOWING),
            lines("Slots behind", "short", "Slots by which the followed chain is behind the newest confirmed slot.",
                  ("{{instance}}", "slotfront_follow_lag_slots{@}")),
            shares("Carried answers", "Share of each method's answers that were served at a newer slot than they were "
                   "fetched at, because no block changed their accounts.",
                   ("{{method}}", share_of(
                       f"sum by (method) (rate({of('slotfront_follow_carried_total', METHOD)}[~]))",
                       calls(METHOD, ANSWER, by="method")))),
            stack("Blocks asked for", "cps", "Blocks asked of nodes, by what became of them.",
                  ("{{result}}", "sum by (result) (rate(slotfront_follow_blocks_total{@}[~]))")),
            lines("Bandwidth of blocks", "Bps", "Bytes a second of the blocks that were read, after decompression.",
                  ("{{instance}}", "rate(slotfront_follow_block_bytes_total{@}[~])")),
            lines("Fresh starts", "cps", "Fresh starts of following, by reason; after each every account is fetched once more.",
                  ("{{reason}}", "sum by (reason) (rate(slotfront_follow_restarts_total{@}[~]))"))),
        row("Shared store",
            stack("Shared store", "ops", "Operations on the shared store, by operation and result. Empty if no store is "
                  "configured.",
                  ("{{operation}} {{result}}",
                   "sum by (operation, result) (rate(slotfront_shared_requests_total{@}[~]))")),
            lines("Shared store, time", "s", "Median and 99th percentile of the time from a request to the shared "
                  "store until its "
                  "answer is complete.",
                  *[(f"{{{{operation}}}} p{p}", "histogram_quantile(" + str(p / 100) + ", sum by (le, operation) "
                     "(rate(slotfront_shared_request_duration_seconds_bucket{@}[~])))") for p in (50, 99)])),
    ],
    choice("method", "Method", 'label_values(slotfront_requests_total{instance=~"$instance"}, method)'))

UP = 'upstream=~"$upstream"'


def worst(metric, *labels):
    """Returns a gauge of each chosen upstream: its highest value over the instances."""
    return f"max by (upstream) ({of(metric, UP, *labels)})"


def attempts(by, *labels):
    """Returns the attempts a second on the chosen upstreams, without probes."""
    return f"sum by ({by}) (rate({of('slotfront_upstream_requests_total', UP, *labels)}[~]))"


def behind(commitment):
    """Returns the slots by which each upstream is behind the frontier at a commitment."""
    at = f'commitment="{commitment}"'
    frontier, slot = of("slotfront_frontier_slot", at), of("slotfront_upstream_slot", UP, at)
    return f"clamp_min(max by (upstream) ({frontier} - on (job, instance) group_right {slot}), 0)"


def upstream_latency(quantile, by="upstream"):
    """Returns a quantile of the durations of attempts, without probes."""
    series = of("slotfront_upstream_request_duration_seconds_bucket", UP)
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate({series}[~])))"


STANDING = f"min by (upstream) ({of('slotfront_upstream_up', UP)})"
NEWEST, OLDEST = of("slotfront_upstream_slot", UP, 'commitment="finalized"'), of("slotfront_upstream_first_available_block", UP)
HELD = f"min by (upstream) ({NEWEST} - on (job, instance, upstream) {OLDEST})"

UPSTREAMS = dashboard(
    "upstreams", "Upstreams", "The state, slots, latency and errors of each upstream, and the retries.",
    [
        row("Standing",
            table("Upstreams now", "short", "The state of each upstream, with the worst value over the instances.",
                  ("standing", USABLE, STANDING),
                  ("breaker", BREAKER, worst("slotfront_upstream_breaker_state")),
                  ("slot", "locale", worst("slotfront_upstream_slot", 'commitment="processed"')),
                  ("slots behind", "short", worst("slotfront_upstream_slot_lag")),
                  ("history, slots", "locale", HELD),
                  ("in flight", "short", worst("slotfront_upstream_requests_in_flight")),
                  ("calls a second", "reqps", attempts("upstream")),
                  ("p95", "s", upstream_latency(0.95))),
            states("Usable", "Times at which each upstream could take calls: healthy, near the frontier, and its "
                   "breaker closed.",
                   ("{{upstream}}", STANDING), USABLE),
            states("Circuit breaker", "State of each upstream's circuit breaker. Open stops calls, and half-open lets one "
                   "through as a trial.", ("{{upstream}}", worst("slotfront_upstream_breaker_state")), BREAKER)),
        row("Slots",
            *[lines(f"Behind at {commitment}", "short", f"Slots by which each upstream is behind the frontier, at commitment {commitment}.",
                    ("{{upstream}}", behind(commitment)), width=8)
              for commitment in ("processed", "confirmed", "finalized")],
            lines("Slot", "locale", "Newest slot reported by each upstream, by commitment.",
                  ("{{upstream}} {{commitment}}",
                   f"max by (upstream, commitment) ({of('slotfront_upstream_slot', UP)})")),
            lines("History held", "locale", "Slots from the oldest block that the upstream holds to its newest "
                  "finalized one.",
                  ("{{upstream}}", HELD))),
        row("Answers",
            lines("Latency, p95", "s", "95th percentile of the durations of attempts on each upstream, on a logarithmic "
                  "scale.", ("{{upstream}}", upstream_latency(0.95)), log=True),
            lines("Latency by method, p95", "s", "95th percentile of the durations of attempts by method, on a "
                  "logarithmic scale.",
                  ("{{method}}", upstream_latency(0.95, "method")), log=True),
            stack("Attempts by upstream", "reqps", "Attempts on each upstream, without probes.",
                  ("{{upstream}}", attempts("upstream"))),
            stack("Attempts by result", "reqps", "Attempts by result, without probes.",
                  ("{{result}}", attempts("result"))),
            stack("Failed attempts", "reqps", "Attempts without a usable answer, by upstream and result.",
                  ("{{upstream}}: {{result}}", attempts("upstream, result", 'result!~"ok|node_error|cancelled"'))),
            lines("In flight", "short", "Attempts in progress on each upstream, over all instances.",
                  ("{{upstream}}", f"sum by (upstream) ({of('slotfront_upstream_requests_in_flight', UP)})"))),
        row("Retries",
            stack("Retries", "reqps", "Attempts that repeat a failed attempt, by the result of the failed one.",
                  ("{{reason}}", "sum by (reason) (rate(slotfront_upstream_retries_total{@}[~]))"), width=12),
            lines("Attempts per asked call", "short", "Attempts for each call that asked a node. Retries and refreshes "
                  "raise it above one.",
                  ("attempts", f"{ASKED} / " + calls('outcome=~"miss|bypass"')), width=12)),
    ],
    choice("upstream", "Upstream", 'label_values(slotfront_upstream_up{instance=~"$instance"}, upstream)'))

KEY = 'key=~"$key"'


def of_keys(metric, *labels, by=""):
    """Returns a rate of the chosen keys."""
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({of(metric, KEY, *labels)}[~]))"


def ten(rate):
    """Returns the ten largest series."""
    return f"topk(10, {rate})"


def of_plans(metric, by="plan"):
    """Returns a rate of the chosen keys by plan. The metric key_info has the plan and the owner's name of each key."""
    plan = f"on (job, instance, key) group_left (name, plan) {of('slotfront_key_info')}"
    return f"sum by ({by}) (rate({of(metric, KEY)}[~]) * {plan})"


CALLED, COST, LIMITED = "slotfront_key_requests_total", "slotfront_key_units_total", "slotfront_key_limited_total"

KEYS = dashboard(
    "keys", "Keys", "Calls, units, quotas and limits by key and plan. As many keys as telemetry.key_series says have "
    "series of their own, and all others share `other`.",
    [
        row("At a glance",
            stat("Keys in use", "short", "Keys with calls in the last hour. Keys without series of their own count as one.",
                 "count(sum by (key) (increase(slotfront_key_requests_total{@}[1h])) > 0)", width=6),
            stat("Calls", "reqps", "Calls a second of the chosen keys.",
                 of_keys(CALLED), width=6),
            stat("Units", "short", "Units a second charged to the chosen keys.",
                 of_keys(COST), width=6),
            share("Limited", "Share of the chosen keys' calls refused by a rate or quota.",
                  share_of(of_keys(CALLED, 'outcome="limited"'), of_keys(CALLED)), width=6)),
        row("By key",
            table("Keys now", "short", "The chosen keys' plans, calls, units and limits.",
                  ("calls a second", "reqps", of_plans(CALLED, "key, name, plan")),
                  ("units a second", "short", of_plans(COST, "key, name, plan")),
                  ("limited a second", "reqps", of_plans(LIMITED, "key, name, plan")),
                  ("units today", "short", f"sum by (key, name, plan) (increase({of(COST, KEY)}[1d]) * on (job, instance, key) "
                   f"group_left (name, plan) {of('slotfront_key_info')})"),
                  sort="calls a second"),
            stack("Calls by key", "reqps", "Calls of the ten busiest keys.",
                  ("{{name}} ({{key}})", ten(of_plans(CALLED, "key, name")))),
            stack("Units by key", "short", "Units a second of the ten keys that use the most.",
                  ("{{name}} ({{key}})", ten(of_plans(COST, "key, name")))),
            shares("Quota used", "Share of the quota of the day or the month, of the ten keys that have used the most. At 100 % "
                   "calls get 429.",
                   ("{{name}} ({{key}}), {{period}}", ten(
                       f"max by (key, name, period) ({of('slotfront_key_quota_used_ratio', KEY)} * on (job, instance, key) "
                       f"group_left (name) {of('slotfront_key_info')})"))),
            stack("Calls by outcome", "reqps", "Calls of the chosen keys, by outcome.",
                  ("{{outcome}}", of_keys(CALLED, by="outcome"))),
            shares("Hit ratio by key", "Share of answers from the cache, of the ten keys with the highest share.",
                   ("{{key}}", ten(share_of(of_keys(CALLED, HIT, by="key"), of_keys(CALLED, ANSWER, by="key")))))),
        row("Limits",
            stack("Limited by key", "reqps", "Calls refused by a limit of the key's plan, of the ten keys with the most, by "
                  "reason: rate, day or month.",
                  ("{{key}}: {{reason}}", ten(of_keys(LIMITED, by="key, reason")))),
            stack("Limited by plan", "reqps", "Calls refused by a limit, by plan and reason.",
                  ("{{plan}}: {{reason}}", of_plans(LIMITED, "plan, reason"))),
            stack("Calls by plan", "reqps", "Calls of the chosen keys, by plan.",
                  ("{{plan}}", of_plans(CALLED))),
            stack("Units by plan", "short", "Units a second of the chosen keys, by plan.",
                  ("{{plan}}", of_plans(COST))),
            stack("Keys not accepted", "reqps", "Requests refused because of their key, by reason. They are not "
                  "counted under any key.",
                  ("{{reason}}", "sum by (reason) (rate(slotfront_auth_failures_total{@}[~]))"))),
    ],
    choice("key", "Key", 'label_values(slotfront_key_requests_total{instance=~"$instance"}, key)'))

DASHBOARDS = [OVERVIEW, CACHE, UPSTREAMS, KEYS]
