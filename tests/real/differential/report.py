"""The report: tables of counts, and the saved upstream calls from slotfront's /metrics."""

import re
import urllib.request

from bounds import COMMITMENTS
from request import Request
from state import run


def report(seconds):
    counts = run.counts
    print(f"\n{seconds:.0f} s, a slot took {run.slots['processed'].step_s():.2f} s")
    asked = sum(counts["front"].values())
    print(f"requests through slotfront: {asked}, to the node: {sum(counts['direct'].values())}")
    columns = ["hit", "carried", "derived", "stale", "stale derived", "collapsed", "fetched", "fetched, had expired", "none"]
    short = ["hit", "carried", "derived", "stale", "st.der.", "joined", "miss", "expired", "none"]
    print(f"{'':30}{'asked':>8}" + "".join(f"{c:>9}" for c in short))
    rows = sorted({method for method, _ in counts["outcomes"]})
    for method in rows:
        own = {c: n for (m, c), n in counts["outcomes"].items() if m == method}
        print(f"{method:30}{sum(own.values()):8}" + "".join(f"{own.get(c, 0):9}" for c in columns))
        for other in set(own) - set(columns):
            print(f"{'':30}{other}: {own[other]}")
    print("\ncompared:")
    for row, n in counts["compared"].most_common():
        print(f"  {n:8} {row}")
    print("\nlag behind the node at the time of the call (by commitment and outcome: slots x answers):")
    for commitment in COMMITMENTS:
        for outcome in ("hit", "carried", "derived", "stale", "stale derived", "collapsed", "fetched"):
            lags = {lag: n for (c, o, lag), n in counts["lag"].items() if (c, o) == (commitment, outcome)}
            if lags:
                print(f"  {commitment:10}{outcome:14}" + "  ".join(f"{lag}x{lags[lag]}" for lag in sorted(lags)))
    for commitment in COMMITMENTS:
        lags = {lag: n for (c, lag), n in counts["votes lag"].items() if c == commitment}
        if lags:
            print(f"  votes, {commitment:17}" + "  ".join(f"{lag}x{lags[lag]}" for lag in sorted(lags)))
    for table in ("clock", "went back", "node", "other", "scenarios"):
        print(f"\n{table}: " + (", ".join(f"{row}: {n}" for row, n in sorted(counts[table].items())) or "none"))


def read_metrics(url):
    """Returns the samples of a Prometheus text: (name, labels) -> value."""
    out = {}
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if m := re.match(r"(slotfront_\w+|process_\w+)(?:\{(.*)\})? ([-+.\deEinfNa]+)$", line):
                out[m[1], tuple(sorted(re.findall(r'(\w+)="([^"]*)"', m[2] or "")))] = float(m[3])
    return out


def report_savings(before, after):
    def grown(name, **labels):
        return sum(
            value - before.get(key, 0)
            for key, value in after.items()
            if key[0] == f"slotfront_{name}" and all(dict(key[1]).get(k) == v for k, v in labels.items())
        )

    methods = sorted({dict(k[1])["method"] for k in after if k[0] == "slotfront_requests_total"})
    print(f"\n{'calls, by slotfront':34}{'callers':>9}{'upstream':>9}{'saved':>8}")
    for method in methods:
        calls, up = grown("requests_total", method=method), grown("upstream_requests_total", method=method)
        if calls:
            print(f"{method:34}{calls:9.0f}{up:9.0f}{1 - up / calls:8.1%}")
    names = {name: grown(name) for name in ("requests_total", "upstream_requests_total")}
    print(f"{'all':34}{names['requests_total']:9.0f}{names['upstream_requests_total']:9.0f}{1 - names['upstream_requests_total'] / max(1, names['requests_total']):8.1%}")
    outcomes = sorted({dict(k[1]).get("outcome", "") for k in after if k[0] == "slotfront_requests_total"})
    print("outcomes: " + ", ".join(f"{o} {grown('requests_total', outcome=o):.0f}" for o in outcomes if grown("requests_total", outcome=o)))
    for name in ("verify_total", "cache_floor_resets_total", "frontier_resets_total", "upstream_retries_total", "cache_evictions_total", "uncacheable_total", "node_errors_total"):
        rows = [(dict(k[1]), v - before.get(k, 0)) for k, v in after.items() if k[0] == f"slotfront_{name}"]
        print(f"{name}: " + (", ".join(f"{' '.join(labels.values())} {v:.0f}" for labels, v in rows if v) or "0"))
    for name in ("cache_bytes", "cache_entries"):
        print(f"{name}: {before.get((f'slotfront_{name}', ()), 0):.0f} -> {after.get((f'slotfront_{name}', ()), 0):.0f}")
    wrong = grown("verify_total", result="mismatch")
    if wrong:
        run.found("verify_total", Request("-", []), f"slotfront counts {wrong:.0f} mismatches")
