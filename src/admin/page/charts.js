"use strict";
// The words and charts of the status page. All text from the server goes in as text, never as markup.

const POINTS = 300; // five minutes, as the server keeps
const CHAIN_SECONDS = 120;
const GUTTER = 46; // pixels for the numbers of a vertical axis
const COMMITMENTS = ["processed", "confirmed", "finalized"];
const SERIES = {
  kept: "from the cache, or shared with a call under way",
  asked: "a node was asked",
  refused: "refused: not valid, not allowed, over a limit",
  failed: "failed",
};
const OUTCOMES = {
  hit: "kept", stale: "kept", derived: "kept", collapsed: "kept", miss: "asked", bypass: "asked",
  invalid: "refused", denied: "refused", limited: "refused", error: "failed",
};

const $ = (id) => document.getElementById(id);
const tell = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

/** An element with attributes and children; `made("td.n", {}, "7")`. */
function made(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** An SVG element. */
function drawn(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- numbers as people read them

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const slot = (n) => (n == null ? "–" : whole.format(n));
const rate = (n) => (n === 0 ? "0" : n < 0.1 ? "< 0.1" : n < 10 ? n.toFixed(1) : n < 10000 ? whole.format(Math.round(n)) : short.format(n));
const percent = (r) => (r == null ? "–" : r === 1 ? "100 %" : (Math.floor(r * 1000) / 10).toFixed(1) + " %");

function millis(ms) {
  if (ms == null) return "–";
  if (ms < 1) return Math.max(1, Math.round(ms * 1000)) + " µs";
  return ms < 10 ? ms.toFixed(1) + " ms" : ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s";
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (n < 10 && unit ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}

function ago(seconds) {
  const [d, h, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min` : `${seconds} s`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** Round steps that cut `span` into at most `most` parts. */
function step(span, most) {
  const rough = Math.max(span / most, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((m) => m * power >= rough) * power;
}

// ---- tables under charts

function table(id, head, rows) {
  if (!$(id).closest("details").open) return;
  const cell = (tag) => (text, i) => made(i ? `${tag}.n` : tag, {}, text);
  $(id).replaceChildren(made("thead", {}, made("tr", {}, ...head.map(cell("th")))),
    made("tbody", {}, ...rows.map((row) => made("tr", {}, ...row.map(cell("td"))))));
}

// ---- state

let points = [];
const looking = {}; // chart id → index of the point under the pointer or the arrow keys

/** Width and height of a chart, and its viewBox set to them: one unit is one pixel, so text keeps its size. */
function stage(id, height) {
  const svg = $(id);
  const width = Math.max(280, svg.clientWidth || 600);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  return [svg, width];
}

/** The point that a chart's cross hair is on, or the newest. */
function looked(id, shown) {
  const at = looking[id];
  return at == null ? shown.length - 1 : Math.max(0, Math.min(shown.length - 1, at));
}

function crosshair(svg, id, shown, x, top, bottom) {
  if (looking[id] == null || !shown.length) return;
  const at = x(shown[looked(id, shown)].at_ms);
  svg.append(drawn("line", { class: "cross", x1: at, x2: at, y1: top, y2: bottom }));
}

/** The time under the cross hair, for the legend. */
function when(id, at) {
  return looking[id] != null && at ? made("span", {}, "at ", made("b", {}, clock(at.at_ms))) : "";
}

/** The time that a chart spans: `seconds`, or what there is of them after a start, but at least half a minute. */
function timeSpan(seconds) {
  const to = points.length ? points.at(-1).at_ms : Date.now();
  const first = points.length ? points[0].at_ms : to;
  return [Math.max(to - seconds * 1000, Math.min(first, to - 30000)), to];
}

function timeAxis(svg, from, to, x, y) {
  const by = [10, 30, 60].find((s) => (to - from) / 1000 / s <= 5) ?? 60;
  for (let back = 0; back * 1000 <= to - from; back += by) {
    const at = x(to - back * 1000);
    const anchor = back === 0 ? "end" : at - x(from) < 24 ? "start" : "middle";
    const text = back === 0 ? "now" : back % 60 ? `−${back} s` : `−${back / 60} min`;
    svg.append(drawn("text", { x: at, y, "text-anchor": anchor }, text));
  }
}

/** The points that the chain's chart shows. */
function chainPoints() {
  const [from] = timeSpan(CHAIN_SECONDS);
  return points.filter((p) => p.at_ms >= from && p.slots.processed != null);
}

// ---- the chain

function drawChain() {
  const height = 236, bottom = height - 22, top = 8;
  const [svg, width] = stage("chain", height);
  const [from, to] = timeSpan(CHAIN_SECONDS);
  const shown = chainPoints();
  const x = (ms) => ((ms - from) / (to - from)) * (width - 6);
  const low = Math.min(...shown.map((p) => p.slots.finalized ?? p.slots.processed));
  const high = Math.max(...shown.map((p) => p.slots.processed));
  if (shown.length) {
    const span = Math.max(high - low, 40);
    const y = (s) => bottom - ((s - low) / span) * (bottom - top);
    const by = step(span, 5);
    const labels = [];
    for (let s = Math.ceil(low / by) * by; s <= low + span; s += by) {
      svg.append(drawn("line", { class: "grid", x1: 0, x2: width, y1: y(s), y2: y(s) }));
      if (y(s) > top + 8) labels.push(drawn("text", { class: "halo", x: 0, y: y(s) - 4 }, slot(s)));
    }
    for (const name of [...COMMITMENTS].reverse()) {
      const some = shown.filter((p) => p.slots[name] != null);
      if (!some.length) continue;
      const path = some.map((p, i) => `${i ? "L" : "M"}${x(p.at_ms).toFixed(1)} ${y(p.slots[name]).toFixed(1)}`).join("");
      svg.append(drawn("path", { class: `line c-${name}`, d: path }));
      const last = some.at(-1);
      svg.append(drawn("circle", { class: `dot c-${name}`, cx: x(last.at_ms), cy: y(last.slots[name]), r: 5 }));
    }
    svg.append(...labels);
    crosshair(svg, "chain", shown, x, top, bottom);
  }
  timeAxis(svg, from, to, x, height - 4);

  const at = shown[looked("chain", shown)];
  $("chain-legend").replaceChildren(...COMMITMENTS.map((name) => {
    const behind = at && at.slots[name] != null ? at.slots.processed - at.slots[name] : 0;
    const words = behind ? `${name}, ${behind} behind` : name;
    return made("span", {}, made("i.c-" + name), words, made("b", {}, slot(at?.slots[name])));
  }), when("chain", at));
  const pace = shown.length > 5 ? (high - shown[0].slots.processed) / ((shown.at(-1).at_ms - shown[0].at_ms) / 1000) : null;
  const says = at
    ? `Newest slots: ${COMMITMENTS.map((name) => `${name} ${slot(at.slots[name])}`).join(", ")}.` +
      (pace == null ? "" : ` ${pace.toFixed(1)} slots a second.`)
    : "No slot is known yet.";
  svg.setAttribute("aria-label", says + (looking.chain != null && at ? ` At ${clock(at.at_ms)}.` : ""));
  const every = shown.filter((_, i) => (shown.length - 1 - i) % 15 === 0).reverse();
  table("chain-table", ["Time", ...COMMITMENTS], every.map((p) => [clock(p.at_ms), ...COMMITMENTS.map((n) => slot(p.slots[n]))]));
}

// ---- traffic

function drawTraffic() {
  const height = 236, bottom = height - 22, top = 8;
  const [svg, width] = stage("traffic", height);
  const [from, to] = timeSpan(POINTS);
  const left = GUTTER;
  const x = (ms) => left + ((ms - from) / (to - from)) * (width - left);
  const sum = (p) => p.kept + p.asked + p.refused + p.failed;
  const most = Math.max(1, ...points.map(sum)) * 1.08;
  const y = (n) => bottom - (n / most) * (bottom - top);
  let under = points.map(() => 0);
  for (const name of Object.keys(SERIES)) {
    const over = points.map((p, i) => under[i] + p[name]);
    if (points.length > 1 && points.some((p) => p[name] > 0)) {
      const edge = points.map((p, i) => `${x(p.at_ms).toFixed(1)} ${y(over[i]).toFixed(1)}`);
      const base = points.map((p, i) => `${x(p.at_ms).toFixed(1)} ${y(under[i]).toFixed(1)}`).reverse();
      svg.append(drawn("path", { class: `area c-${name}`, d: `M${edge.join("L")}L${base.join("L")}Z` }));
    }
    under = over;
  }
  const by = step(most, 4);
  for (let n = 0; n <= most; n += by) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width, y1: y(n), y2: y(n) }));
    svg.append(drawn("text", { x: left - 8, y: y(n) + 4, "text-anchor": "end" }, rate(n)));
  }
  crosshair(svg, "traffic", points, x, top, bottom);
  timeAxis(svg, from, to, x, height - 4);

  const at = points[looked("traffic", points)];
  $("traffic-legend").replaceChildren(...Object.entries(SERIES).map(([name, means]) =>
    made("span", { title: means }, made("i.c-" + name), means.split(/[,:]/)[0], made("b", {}, at ? rate(at[name]) : "–"))),
    when("traffic", at));
  svg.setAttribute("aria-label", at
    ? `Calls a second: ${Object.entries(SERIES).map(([name, means]) => `${rate(at[name])} ${means}`).join("; ")}.`
    : "No calls yet.");
  const every = points.filter((_, i) => (points.length - 1 - i) % 30 === 0).reverse();
  table("traffic-table", ["Time", "cache", "node", "refused", "failed"],
    every.map((p) => [clock(p.at_ms), ...Object.keys(SERIES).map((name) => rate(p[name]))]));
}

// ---- answer times

function drawTimes(outcomes) {
  const row = 34, top = 22, height = top + row * Math.max(1, outcomes.length) + 4;
  const [svg, width] = stage("times", height);
  const left = 84, right = width - 40;
  const fast = Math.min(0.1, ...outcomes.map((o) => o.p50_ms)), slow = Math.max(100, ...outcomes.map((o) => o.p99_ms));
  const [low, high] = [Math.floor(Math.log10(fast)), Math.ceil(Math.log10(slow))];
  const x = (ms) => left + ((Math.log10(Math.max(ms, 10 ** low)) - low) / (high - low)) * (right - left);
  const every = (right - left) / (high - low) < 50 ? 2 : 1;
  for (let power = low; power <= high; power += 1) {
    svg.append(drawn("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: top - 6, y2: height }));
    const text = power < 0 ? 10 ** (power + 3) + " µs" : power < 3 ? 10 ** power + " ms" : 10 ** (power - 3) + " s";
    if ((power - low) % every === 0) svg.append(drawn("text", { x: x(10 ** power), y: 10, "text-anchor": "middle" }, text));
  }
  outcomes.forEach((o, i) => {
    const y = top + row * i + row / 2, tone = "c-" + OUTCOMES[o.outcome];
    svg.append(drawn("text", { class: "label", x: 0, y: y + 4 }, o.outcome));
    svg.append(drawn("line", { class: `span ${tone}`, x1: x(o.p50_ms), x2: x(o.p99_ms), y1: y, y2: y }));
    svg.append(drawn("circle", { class: `dot ${tone}`, cx: x(o.p50_ms), cy: y, r: 6.5 }));
    svg.append(drawn("circle", { class: `dot ${tone}`, cx: x(o.p99_ms), cy: y, r: 5 }));
    svg.append(drawn("text", { x: x(o.p50_ms) - 10, y: y + 4, "text-anchor": "end" }, millis(o.p50_ms)));
    svg.append(drawn("text", { x: x(o.p99_ms) + 9, y: y + 4 }, millis(o.p99_ms)));
  });
  if (!outcomes.length) svg.append(drawn("text", { class: "halo", x: 0, y: top + 22 }, "No calls in the last minute."));
  const words = outcomes.map((o) => `${o.outcome}: half within ${millis(o.p50_ms)}, 99 % within ${millis(o.p99_ms)}`);
  svg.setAttribute("aria-label", words.join("; ") || "No calls in the last minute.");
  table("times-table", ["Outcome", "p50", "p99", "a second"],
    outcomes.map((o) => [o.outcome, millis(o.p50_ms), millis(o.p99_ms), rate(o.calls_per_s)]));
}
