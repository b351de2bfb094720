// Asks /api/status for snapshots and shows them. Loaded last, because it calls the other files.

const POLL_MS = 500; // a failed node shows soon
const STALE_MS = 4000; // the page reports lost contact after this time without an answer

let latest = null; // the newest snapshot
let heard = 0; // the time at which `latest` came
let fresh = false; // true while a new point is drawn

/** Shows the newest snapshot. Without a new point the charts over time stay, so that they glide to their end. */
function show(all = true) {
  if (!latest || document.hidden) return;
  const { status, readiness } = latest;
  const now = traffic(latest);
  const out = status.upstreams.filter((node) => !node.usable).length;
  const tone = { ready: "good", degraded: "warn", unready: "bad" }[readiness.state];
  $("state").className = "pill " + tone;
  setText("state", { ready: "Ready", degraded: "Degraded", unready: "Not ready" }[readiness.state]);
  reasons(readiness, tone, out === status.upstreams.length);
  const sockets = status.sockets ? ` · ${plural(status.sockets, "WebSocket", "WebSockets")}` : "";
  setText("build", `version ${status.version} · up ${ago(status.uptime_s)}${sockets}`);
  document.title = (readiness.state === "ready" ? (out ? `${plural(out, "node", "nodes")} out · ` : "") : $("state").textContent + " · ") +
    `${rate(now.calls_per_s)}/s · slotfront`;

  setText("slot-time", String(Math.round(status.slot_time_ms)));
  figures(status, now);
  drawFlow(status.upstreams);
  followLine(status.follow, now.carried_ratio);
  if (all) {
    drawChain();
    drawTraffic();
  }
  drawTimes(now.outcomes);
  $("nodes").classList.toggle("dense", status.upstreams.length > 8);
  fill("nodes", status.upstreams.map((node) => nodeRow(node, status.frontier.processed)), "No node is configured.");
  const busiest = (rows) => Math.max(...rows.map((row) => row.calls_per_s), 1e-9);
  fill("methods", now.methods.map((m) => barRow(m.method, m.calls_per_s, busiest(now.methods), percent(m.hit_ratio))),
    "No calls in the last minute. Send calls to POST /v3/<API_KEY> on the public listener.");
  nodeActions(status.upstreams);
  fill("keys", now.keys.map((k) => barRow(k.name && k.name !== k.key ? `${clip(k.name, 40)} (${k.key})` : k.key, k.calls_per_s, busiest(now.keys), rate(k.limited_per_s))),
    "No calls with a key in the last minute.");
}

function take(snapshot) {
  fresh = record(snapshot);
  nodeRates(snapshot);
  latest = snapshot;
  heard = Date.now();
  showLost(false);
  show(fresh);
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

// ---- updates

const KINDS = { start: "start", node_down: "node down", node_up: "node up", reload: "reload", keys: "keys", quota: "quota", action: "action" };

/** Shows the newest events. */
function showEvents(events) {
  const time = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" });
  fill("events", events.slice(-30).reverse().map(({ at_ms, kind, text }) =>
    element("tr", {}, element("td", {}, element("b", {}, KINDS[kind] ?? kind), " ", text), element("td.n", {}, time(at_ms)))), "Nothing has happened yet.");
}

/** Asks for what a snapshot does not hold. */
async function lookBack(path, take) {
  try {
    const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(STALE_MS) });
    if (answer.ok) take(await answer.json());
  } catch { /* the page reports lost contact */ }
}
const lookAtEvents = () => { if (!document.hidden) lookBack("/api/events", showEvents); };

let asking = false;
async function poll() {
  if (asking) return; // a slow answer delays the next question
  asking = true;
  try {
    const answer = await fetch("/api/status", { cache: "no-store", signal: AbortSignal.timeout(STALE_MS) });
    if (answer.ok) take(await answer.json());
  } catch { /* the page reports lost contact */ }
  asking = false;
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
  if (Date.now() - (heard || opened) > STALE_MS) {
    if (heard) showLost(true);
    else setText("state", "No answer yet");
  }
  poll();
}, POLL_MS);
const opened = Date.now();
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => show());
document.addEventListener("visibilitychange", () => show());
addEventListener("resize", () => show());
lookBack("/api/history", (seconds) => { remember(seconds); show(); });
lookAtEvents();
setInterval(lookAtEvents, 5000);
useToken(token);
poll();
