// Shows what /api/events says, once a second. Comes last, in one script with the files that it calls.

const STALE_MS = 4000; // without news for so long, the page says that it is old
const RATE_MS = 10000; // a node's calls a second are taken over this long

let latest = null; // newest snapshot
let heard = 0; // when it came
let fresh = false; // whether what is drawn has just come
let counted = []; // [time, calls of each node since start], oldest first

/** Gives each node its calls a second; at first it is the mean since start. */
function nodeRates(snapshot) {
  const { at_ms, status } = snapshot;
  const now = new Map(status.upstreams.map((node) => [node.name, node.requests]));
  // After a restart the counters begin anew.
  if (counted.length && [...now].some(([name, calls]) => calls < (counted.at(-1)[1].get(name) ?? 0))) counted = [];
  counted.push([at_ms, now]);
  while (counted.length > 2 && counted[1][0] <= at_ms - RATE_MS) counted.shift();
  const [then, before] = counted[0];
  const known = at_ms - then >= 1000; // less is no rate
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
  tell("state", { ready: "Ready", degraded: "Degraded", unready: "Not ready" }[readiness.state]);
  reasons(readiness, tone);
  tell("build", `version ${status.version} · up ${ago(status.uptime_s)}`);
  document.title = (readiness.state === "ready" ? (out ? `${plural(out, "node", "nodes")} out · ` : "") : $("state").textContent + " · ") +
    `${rate(traffic.calls_per_s)}/s · slotfront`;

  tell("slot-time", String(Math.round(status.slot_time_ms)));
  figures(status, traffic);
  drawFlow(status.upstreams);
  drawChain();
  drawTraffic();
  drawTimes(traffic.outcomes);
  $("nodes").classList.toggle("dense", status.upstreams.length > 8);
  fill("nodes", status.upstreams.map((node) => nodeRow(node, status.frontier.processed)), "No node is configured.");
  const busiest = (rows) => Math.max(...rows.map((row) => row.calls_per_s), 1e-9);
  fill("methods", traffic.methods.map((m) => barRow(m.method, m.calls_per_s, busiest(traffic.methods), percent(m.hit_ratio))),
    "No calls in the last minute. They come to POST /v3/<API_KEY> on the public listener.");
  fill("keys", traffic.keys.map((k) => barRow(k.key, k.calls_per_s, busiest(traffic.keys), rate(k.limited_per_s))),
    "No calls with a key in the last minute.");
}

function take(snapshot, all) {
  nodeRates(snapshot);
  latest = snapshot;
  heard = Date.now();
  const newest = all ? 0 : (points.at(-1)?.at_ms ?? 0); // a tick may repeat what a page opened with
  const added = snapshot.points.filter((p) => p.at_ms > newest);
  points = (all ? [] : points).concat(added).slice(-POINTS);
  lost(false);
  fresh = !all && added.length > 0;
  show();
  fresh = false;
}

// ---- cross hairs, by pointer and by arrow keys; the keys' are also said

for (const [id, seconds, draw] of [["chain", CHAIN_SECONDS, drawChain], ["traffic", POINTS, drawTraffic]]) {
  const svg = $(id);
  const look = (ms, say) => {
    looking[id] = ms;
    const words = draw();
    if (say) tell("spoken", (ms != null && words) || "Now.");
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
    const next = Math.max(0, Math.min(shown.length - 1, shown.indexOf(looked(id, shown)) + by));
    look(shown[next].at_ms, true);
  });
}

// ---- theme: the system's, or one that stays

const themes = ["system", "light", "dark"];
function theme(name) {
  const known = themes.includes(name) ? name : "system";
  if (known === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = known;
  tell("theme", "Theme: " + known);
  try { localStorage.setItem("theme", known); } catch { /* private windows may refuse */ }
}
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  theme(themes[(themes.indexOf(now) + 1) % themes.length]);
});
let kept = null;
try { kept = localStorage.getItem("theme"); } catch { /* as above */ }
theme(new URLSearchParams(location.search).get("theme") ?? kept);

// ---- news: events, or polling where they do not come through

let source = null;
let tried = 0; // when events were last asked for
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
  } catch { /* the page says that it is old */ }
}

/** Says that news have stopped, or that they are back. Said once, for a screen reader reads it out. */
function lost(whether) {
  const was = !$("lost").hidden;
  $("live").className = whether ? "quiet live" : "quiet live on";
  $("live").lastElementChild.textContent = whether ? "not live" : "live";
  document.querySelector("main").classList.toggle("old", whether);
  if (whether === was) return;
  $("lost").hidden = !whether;
  tell("lost", whether ? `No news from slotfront since ${clock(heard)}: it has stopped, or the way to it is cut. The numbers below are from then. Trying again.` : "");
}

setInterval(() => {
  const silent = Date.now() - heard;
  if (heard ? silent > STALE_MS : Date.now() - opened > STALE_MS) {
    if (heard) lost(true);
    else tell("state", "No answer yet");
  }
  if (silent < 1500) return; // events come each second
  poll();
  if (source.readyState === EventSource.CLOSED && Date.now() - tried > 5000) listen();
}, 2000);
const opened = Date.now();
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", show);
document.addEventListener("visibilitychange", show);
addEventListener("resize", show);
listen();
