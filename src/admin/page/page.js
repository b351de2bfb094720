
// Shows what /api/events says, once a second. Comes after charts.js, in one script with it.

const STALE_MS = 4000; // without news for so long, the page says that it is old

let latest = null; // newest snapshot
let heard = 0; // when it came

// ---- tables

/** Puts rows into a table's body, or one row that says why there are none. */
function fill(id, rows, none) {
  const empty = made("tr.none", {}, made("td", { colspan: 12 }, none));
  $(id).tBodies[0].replaceChildren(...(rows.length ? rows : [empty]));
}

function barRow(name, value, most, last) {
  const bar = made("span");
  bar.style.width = (100 * value) / most + "%";
  return made("tr", {}, made("td", {}, name, made("div.bar", {}, bar)), made("td.n", {}, rate(value)), made("td.n", {}, last));
}

function nodeRow(node) {
  const [tone, word] = node.usable ? ["good", "usable"] : node.up ? ["warn", "not used"] : ["bad", "down"];
  const about = [node.version && "v" + node.version, node.tier ? `tier ${node.tier}` : ""].filter(Boolean).join(" · ");
  const breaker = { closed: "", "half-open": ".warn", open: ".bad" }[node.breaker];
  const failed = node.requests ? node.failures / node.requests : 0;
  const cells = [
    made("td", {}, made("b", {}, node.name), made("small", {}, about)),
    made("td", {}, made(`span.pill.${tone}`, {}, word), made("small", {}, node.reason ?? "")),
    ...COMMITMENTS.map((name) => made("td.n", {}, slot(node.slots[name]))),
    made(node.lag_slots > 5 ? "td.n.warn" : "td.n", {}, slot(node.lag_slots)),
    made("td.n", {}, millis(node.latency_ms)),
    made("td.n", {}, whole.format(node.in_flight)),
    made("td" + breaker, {}, node.breaker),
    made("td.n", {}, slot(node.first_available_block)),
    made("td.n", {}, short.format(node.requests)),
    made(failed > 0.05 ? "td.n.warn" : "td.n", {}, short.format(node.failures)),
  ];
  const heads = $("nodes").tHead.rows[0].cells;
  cells.forEach((cell, i) => cell.setAttribute("data-name", heads[i].textContent));
  return made("tr", {}, ...cells);
}

// ---- all of it

function show() {
  if (!latest) return;
  const { status, traffic, readiness } = latest;
  const tone = { ready: "good", degraded: "warn", unready: "bad" }[readiness.state];
  $("state").className = "pill " + tone;
  tell("state", { ready: "Ready", degraded: "Degraded", unready: "Not ready" }[readiness.state]);
  $("reasons").hidden = !readiness.reasons?.length;
  $("reasons").className = tone;
  const reasons = (readiness.reasons ?? []).join("\n");
  if ($("reasons").dataset.text !== reasons) {
    $("reasons").dataset.text = reasons;
    $("reasons").replaceChildren(...(readiness.reasons ?? []).map((reason) => made("p", {}, reason)));
  }
  tell("build", `version ${status.version} · up ${ago(status.uptime_s)}`);
  document.title = `${rate(traffic.calls_per_s)}/s · slotfront`;

  tell("calls", rate(traffic.calls_per_s));
  tell("calls-note", `over the last ${traffic.window_s > 55 ? "minute" : Math.round(traffic.window_s) + " seconds"}`);
  tell("hits", percent(traffic.hit_ratio));
  tell("saved", short.format(Math.max(0, traffic.answers_total - traffic.upstream_calls_total)));
  tell("saved-note", "since start" + (traffic.saved_ratio == null ? "" : `; ${percent(traffic.saved_ratio)} in the last minute`));
  const usable = status.upstreams.filter((node) => node.usable).length;
  tell("usable", `${usable} of ${status.upstreams.length}`);
  const out = status.upstreams.filter((node) => !node.usable).map((node) => node.name);
  tell("usable-note", out.length ? `not used: ${out.join(", ")}` : "all take calls");

  drawChain();
  drawTraffic();
  drawTimes(traffic.outcomes);
  fill("nodes", status.upstreams.map(nodeRow), "No node is configured.");
  const busiest = (rows) => Math.max(...rows.map((row) => row.calls_per_s));
  fill("methods", traffic.methods.map((m) => barRow(m.method, m.calls_per_s, busiest(traffic.methods), percent(m.hit_ratio))),
    "No calls in the last minute.");
  fill("keys", traffic.keys.map((k) => barRow(k.key, k.calls_per_s, busiest(traffic.keys), rate(k.limited_per_s))),
    "No calls with a key in the last minute.");
  const { cache } = status;
  const full = cache.capacity_bytes ? Math.min(100, (100 * cache.bytes) / cache.capacity_bytes) : 0;
  $("fill").firstElementChild.style.width = full + "%";
  $("fill").setAttribute("aria-valuenow", full.toFixed(1));
  const size = `${bytes(cache.bytes)} of ${bytes(cache.capacity_bytes)}`;
  $("fill").setAttribute("aria-valuetext", size);
  tell("cache-note", `${size}, ${full.toFixed(full < 10 ? 1 : 0)} % · ${whole.format(cache.entries)} entries`);
}

function take(snapshot, all) {
  latest = snapshot;
  heard = Date.now();
  const newest = all ? 0 : (points.at(-1)?.at_ms ?? 0); // a tick may repeat what a page opened with
  points = (all ? [] : points).concat(snapshot.points.filter((p) => p.at_ms > newest));
  const over = points.length - POINTS;
  if (over > 0) {
    points = points.slice(over);
    for (const id in looking) if (looking[id] != null) looking[id] = Math.max(0, looking[id] - over);
  }
  $("live").className = "quiet live on";
  $("live").lastElementChild.textContent = "live";
  document.querySelector("main").classList.remove("old");
  show();
}

// ---- cross hairs, by pointer and by arrow keys

for (const [id, seconds, draw] of [["chain", CHAIN_SECONDS, drawChain], ["traffic", POINTS, drawTraffic]]) {
  const svg = $(id);
  const shown = () => (id === "chain" ? chainPoints() : points);
  const look = (index) => { looking[id] = index; draw(); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [from, to] = timeSpan(seconds);
    const gutter = id === "traffic" ? GUTTER : 0;
    const back = ((1 - (event.clientX - box.left - gutter) / (box.width - gutter)) * (to - from)) / 1000;
    look(Math.max(0, Math.round(shown().length - 1 - back)));
  });
  svg.addEventListener("pointerleave", () => look(null));
  svg.addEventListener("blur", () => look(null));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") look(null);
    if (by === undefined || !shown().length) return;
    event.preventDefault();
    look(Math.max(0, Math.min(shown().length - 1, looked(id, shown()) + by)));
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

setInterval(() => {
  const silent = Date.now() - heard;
  if (heard && silent > STALE_MS) {
    $("live").className = "quiet live";
    $("live").lastElementChild.textContent = `no news for ${ago(Math.round(silent / 1000))}`;
    document.querySelector("main").classList.add("old");
  }
  if (silent < 1500) return; // events come each second
  poll();
  if (source.readyState === EventSource.CLOSED && Date.now() - tried > 30000) listen();
}, 2000);
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", show);
addEventListener("resize", show);
listen();
