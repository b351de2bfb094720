// Shows the events of /api/events. Loaded last, because it calls the other files.

const STALE_MS = 4000; // the page reports lost contact after this time without an event
const RATE_MS = 10000; // the window of a node's calls a second

let latest = null; // the newest snapshot
let heard = 0; // the time at which `latest` came
let fresh = false; // true while a new point is drawn
let counted = []; // readings [time, calls of each node since start], oldest first

/** Sets the calls a second of each node. At first they are the mean since the start. */
function nodeRates(snapshot) {
  const { at_ms, status } = snapshot;
  const now = new Map(status.upstreams.map((node) => [node.name, node.requests]));
  // After a restart of slotfront the counters begin at zero.
  if (counted.length && [...now].some(([name, calls]) => calls < (counted.at(-1)[1].get(name) ?? 0))) counted = [];
  counted.push([at_ms, now]);
  while (counted.length > 2 && counted[1][0] <= at_ms - RATE_MS) counted.shift();
  const [then, before] = counted[0];
  const known = at_ms - then >= 1000; // less than a second is too short for a rate
  for (const node of status.upstreams) {
    const calls = known ? node.requests - (before.get(node.name) ?? node.requests) : node.requests;
    node.per_s = calls / Math.max(1, known ? (at_ms - then) / 1000 : status.uptime_s);
  }
}

function show() {
  if (!latest || document.hidden) return;
  const { status, traffic, readiness } = latest;
  const out = status.upstreams.filter((node) => !node.usable).length;
  const tone = { ready: "good", degraded: "warn", unready: "bad" }[readiness.state];
  $("state").className = "pill " + tone;
  setText("state", { ready: "Ready", degraded: "Degraded", unready: "Not ready" }[readiness.state]);
  reasons(readiness, tone);
  setText("build", `version ${status.version} · up ${ago(status.uptime_s)}`);
  document.title = (readiness.state === "ready" ? (out ? `${plural(out, "node", "nodes")} out · ` : "") : $("state").textContent + " · ") +
    `${rate(traffic.calls_per_s)}/s · slotfront`;

  setText("slot-time", String(Math.round(status.slot_time_ms)));
  figures(status, traffic);
  drawFlow(status.upstreams);
  drawChain();
  followLine(status.follow, traffic.carried_ratio);
  drawTraffic();
  drawTimes(traffic.outcomes);
  $("nodes").classList.toggle("dense", status.upstreams.length > 8);
  fill("nodes", status.upstreams.map((node) => nodeRow(node, status.frontier.processed)), "No node is configured.");
  const busiest = (rows) => Math.max(...rows.map((row) => row.calls_per_s), 1e-9);
  fill("methods", traffic.methods.map((m) => barRow(m.method, m.calls_per_s, busiest(traffic.methods), percent(m.hit_ratio))),
    "No calls in the last minute. Send calls to POST /v3/<API_KEY> on the public listener.");
  fill("keys", traffic.keys.map((k) => barRow(k.key, k.calls_per_s, busiest(traffic.keys), rate(k.limited_per_s))),
    "No calls with a key in the last minute.");
}

function take(snapshot, all) {
  nodeRates(snapshot);
  latest = snapshot;
  heard = Date.now();
  const newest = all ? 0 : (points.at(-1)?.at_ms ?? 0); // a tick may repeat a point of the first event
  const added = snapshot.points.filter((p) => p.at_ms > newest);
  points = (all ? [] : points).concat(added).slice(-POINTS);
  showLost(false);
  fresh = !all && added.length > 0;
  show();
  fresh = false;
}

// ---- cross hairs, moved by the pointer or by arrow keys; arrow keys also read the values aloud

for (const [id, seconds, draw] of [["chain", CHAIN_SECONDS, drawChain], ["traffic", POINTS, drawTraffic]]) {
  const svg = $(id);
  const look = (ms, say) => {
    cursorTimes[id] = ms;
    const words = draw();
    if (say) setText("spoken", (ms != null && words) || "Now.");
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [from, to] = timeSpan(seconds);
    const gutter = id === "traffic" ? GUTTER : CHAIN_GUTTER;
    look(from + ((event.clientX - box.left - gutter) / (box.width - gutter)) * (to - from));
  });
  svg.addEventListener("pointerleave", () => look(null));
  svg.addEventListener("blur", () => look(null));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") look(null, true);
    const shown = points.filter((p) => p.at_ms >= timeSpan(seconds)[0]);
    if (by === undefined || !shown.length) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(shown.length - 1, shown.indexOf(pointAtCursor(id, shown)) + by));
    look(shown[next].at_ms, true);
  });
}

// ---- theme: the system's, or one that the page remembers

const themes = ["system", "light", "dark"];
function theme(name) {
  const known = themes.includes(name) ? name : "system";
  if (known === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = known;
  setText("theme", "Theme: " + known);
  try { localStorage.setItem("theme", known); } catch { /* private windows may refuse */ }
}
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  theme(themes[(themes.indexOf(now) + 1) % themes.length]);
});
let kept = null;
try { kept = localStorage.getItem("theme"); } catch { /* as above */ }
theme(new URLSearchParams(location.search).get("theme") ?? kept);

// ---- updates: events, or polling if events do not arrive

let source = null;
let tried = 0; // the time of the last attempt to open the event stream
function listen() {
  tried = Date.now();
  source = new EventSource("/api/events");
  source.addEventListener("all", (event) => take(JSON.parse(event.data), true));
  source.addEventListener("tick", (event) => take(JSON.parse(event.data), false));
}

async function poll() {
  try {
    const answer = await fetch("/api/status", { cache: "no-store" });
    if (answer.ok) take(await answer.json(), true);
  } catch { /* the page reports lost contact */ }
}

/** Shows that updates have stopped or resumed. The text changes only then, because a screen reader reads it aloud. */
function showLost(whether) {
  const was = !$("lost").hidden;
  $("live").className = whether ? "quiet live" : "quiet live on";
  $("live").lastElementChild.textContent = whether ? "not live" : "live";
  document.querySelector("main").classList.toggle("old", whether);
  if (whether === was) return;
  $("lost").hidden = !whether;
  setText("lost", whether ? `No update from slotfront since ${clock(heard)}: it has stopped or cannot be reached. The numbers below are from then. Retrying.` : "");
}

setInterval(() => {
  const silent = Date.now() - heard;
  if (heard ? silent > STALE_MS : Date.now() - opened > STALE_MS) {
    if (heard) showLost(true);
    else setText("state", "No answer yet");
  }
  if (silent < 1500) return; // events arrive each second
  poll();
  if (source.readyState === EventSource.CLOSED && Date.now() - tried > 5000) listen();
}, 2000);
const opened = Date.now();
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", show);
document.addEventListener("visibilitychange", show);
addEventListener("resize", show);
listen();
