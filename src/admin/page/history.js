// The history of the counters, and the rates, ratios and quantiles computed from it. slotfront sends totals since its start,
// and once what was before the page was opened.

const POINTS = 900; // fifteen minutes, one point per second
const WINDOW_MS = 60000; // the period of rates, ratios and quantiles
const RATE_MS = 10000; // the period of a node's calls a second
const MIN_SECONDS = 0.95; // less than about a second is too short for a rate
const BUSIEST = 8; // the number of keys that are listed
const HITS = ["hit", "carried", "stale", "derived"];
const ANSWERS = [...HITS, "collapsed", "miss", "bypass"];

let points = []; // one a second, oldest first
let readings = []; // { at_ms, totals, nodes } of the last minute, oldest first

/** Returns the slots as they can be: nodes are not asked at one moment, so a confirmed slot may be heard of first. */
function ordered({ processed, confirmed, finalized }) {
  const least = (a, b) => (a == null || b == null ? b : Math.min(a, b));
  return { processed, confirmed: least(processed, confirmed), finalized: least(least(processed, confirmed), finalized) };
}

/** Returns a point of the charts. `outcomes` has the calls of `seconds` by outcome. */
function pointOf(at_ms, slots, outcomes, upstream_calls, seconds) {
  const point = { at_ms, slots: ordered(slots), hits: countOf(outcomes, HITS) / seconds, upstream: upstream_calls / seconds };
  for (const [name, { outcomes: of }] of Object.entries(SERIES)) point[name] = countOf(outcomes, of) / seconds;
  return point;
}

/** Puts what slotfront remembers before what this page has seen. */
function remember(seconds) {
  const first = points[0]?.at_ms ?? Infinity;
  const before = seconds.filter((s) => s.at_ms < first).map((s) => pointOf(s.at_ms, s.slots, s.outcomes, s.upstream_calls, 1));
  points = [...before, ...points].slice(-POINTS);
}

/** Returns the change of counters, which may be nested. A counter that fell, as of a removed node, counts as unchanged. */
function change(now, then) {
  if (typeof now === "number") return Math.max(0, now - (then ?? 0));
  if (Array.isArray(now)) return now.map((n, i) => change(n, then?.[i]));
  return Object.fromEntries(Object.entries(now).map(([name, n]) => [name, change(n, then?.[name])]));
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const countOf = (outcomes, names) => sum(names.map((name) => outcomes[name] ?? 0));
const callsOf = (totals, names) => sum(Object.values(totals.calls).map((outcomes) => countOf(outcomes, names)));
const share = (part, whole) => (whole > 0 ? part / whole : null);

/** Estimates the quantile `q` in milliseconds, by interpolation in a bucket. Above all bounds it is the highest bound. */
function quantile(counts, bounds_s, q) {
  const rank = q * sum(counts);
  let below = 0;
  for (const [i, n] of counts.entries()) {
    if (n > 0 && below + n >= rank) {
      const low = i ? bounds_s[i - 1] : 0;
      return 1000 * (low + ((bounds_s[i] ?? low) - low) * ((rank - below) / n));
    }
    below += n;
  }
  return null;
}

/** Returns the change of `now` since the reading `then`, and the seconds it took. Without an earlier reading it is the change since
 * slotfront has started, so that a page has numbers at once. */
function since(then, snapshot, now, value) {
  const seconds = then ? (snapshot.at_ms - then.at_ms) / 1000 : 0;
  return seconds < MIN_SECONDS ? [now, Math.max(1, snapshot.status.uptime_s)] : [change(now, value(then)), seconds];
}

/** Returns the newest reading that is at least `ms` old, or else the oldest. */
const reading = (at_ms, ms) => readings.findLast((r) => r.at_ms <= at_ms - ms) ?? readings[0];

/** Adds a snapshot to the history. Returns true if that changed the points. */
function record(snapshot) {
  const { at_ms, status, totals } = snapshot;
  // After a restart of slotfront the counters begin at zero.
  const started = at_ms - 1000 * (status.uptime_s + 1);
  if (readings.length && readings[0].at_ms < started) readings = [];
  const last = readings.at(-1);
  if (last && at_ms - last.at_ms < 1000 * MIN_SECONDS) return false;
  const [grown, seconds] = since(last, snapshot, totals, (then) => then.totals);
  const all = Object.fromEntries(Object.keys(MEANINGS).map((outcome) => [outcome, callsOf(grown, [outcome])]));
  const point = pointOf(at_ms, status.frontier, all, grown.upstream_calls, seconds);
  // The first point has the means since the start, until a rate is measured.
  if (readings.length === 1) points = [...points.slice(0, -1), { ...point, at_ms: points.at(-1).at_ms, slots: points.at(-1).slots }];
  points = [...points, point].slice(-POINTS);
  readings.push({ at_ms, totals, nodes: Object.fromEntries(status.upstreams.map((node) => [node.name, node.requests])) });
  while (readings.length > 2 && readings[1].at_ms <= at_ms - WINDOW_MS) readings.shift();
  return true;
}

/** Sets the calls a second of each node. */
function nodeRates(snapshot) {
  for (const node of snapshot.status.upstreams) {
    // A node that has just joined the pool is in no earlier reading.
    const [calls, seconds] = since(reading(snapshot.at_ms, RATE_MS), snapshot, node.requests, (then) => then.nodes[node.name] ?? node.requests);
    node.per_s = calls / seconds;
  }
}

/** Returns the traffic of the last minute, or of the time since the page was opened, and totals since the start. */
function traffic(snapshot) {
  const [{ calls, durations, upstream_calls, carried, keys }, seconds] = since(reading(snapshot.at_ms, WINDOW_MS), snapshot, snapshot.totals, (then) => then.totals);
  const { bounds_s } = snapshot.totals.durations;
  const [all, answers] = [Object.keys(MEANINGS), callsOf({ calls }, ANSWERS)];
  const busiest = (rows) => rows.filter((row) => row.calls_per_s > 0).sort((a, b) => b.calls_per_s - a.calls_per_s);
  return {
    window_s: seconds,
    calls_per_s: callsOf({ calls }, all) / seconds,
    hit_ratio: share(callsOf({ calls }, HITS), answers),
    carried_ratio: share(carried, answers),
    answers_total: callsOf(snapshot.totals, ANSWERS),
    upstream_calls_total: snapshot.totals.upstream_calls,
    outcomes: all.filter((outcome) => sum(durations.counts[outcome] ?? []) > 0).map((outcome) => {
      const at = (q) => quantile(durations.counts[outcome], bounds_s, q);
      return { outcome, calls_per_s: callsOf({ calls }, [outcome]) / seconds, p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) };
    }),
    methods: busiest(Object.entries(calls).map(([method, outcomes]) => ({
      method, calls_per_s: countOf(outcomes, all) / seconds, hit_ratio: share(countOf(outcomes, HITS), countOf(outcomes, ANSWERS)),
    }))),
    keys: busiest(Object.entries(keys).map(([key, n]) => ({ key, name: snapshot.totals.keys[key]?.name, calls_per_s: n.calls / seconds, limited_per_s: n.limited / seconds }))).slice(0, BUSIEST),
  };
}
