// The charts over time, and the answer times. One chart unit is one pixel, so that text keeps its size.

const CHAIN_SECONDS = 60; // short enough to show each slot as a step
const SMOOTH = 10; // seconds over which the hit ratio is averaged
const GUTTER = 46; // pixels for the labels of a vertical axis
const CHAIN_GUTTER = 84; // pixels for slot labels of nine digits

const cursorTimes = {}; // chart id → Unix time in ms that the pointer or the arrow keys select

/** Empties a chart, sets its height, and returns it with its width. */
function resetChart(id, height) {
  const svg = $(id);
  const width = Math.max(240, svg.clientWidth || 600);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  return [svg, width];
}

/** Fills the table under a chart, if it is unfolded. */
function table(id, head, rows) {
  if (!$(id).closest("details").open) return;
  const cell = (text, i) => element(i ? "td.n" : "td", {}, text);
  const heads = head.map((text, i) => element(i ? "th.n" : "th", { scope: "col" }, text));
  $(id).replaceChildren(element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}

/** Returns the time that a chart spans: `seconds`, or less after a start, at least half a minute. */
function timeSpan(seconds) {
  const to = points.length ? points.at(-1).at_ms : Date.now();
  const first = points.length ? points[0].at_ms : to;
  return [Math.max(to - seconds * 1000, Math.min(first, to - 30000)), to];
}

/** Returns the points to draw, and the one before, so that the line starts at the edge. */
function within(from) {
  const first = points.findIndex((p) => p.at_ms >= from);
  return first < 0 ? [] : points.slice(Math.max(0, first - 1));
}

/** Returns the point at the cross hair, or the newest. */
function pointAtCursor(id, shown = points) {
  if (cursorTimes[id] == null) return shown.at(-1);
  return shown.reduce((best, p) => (Math.abs(p.at_ms - cursorTimes[id]) < Math.abs(best.at_ms - cursorTimes[id]) ? p : best), shown[0]);
}

function crosshair(svg, id, at, x, top, bottom) {
  if (cursorTimes[id] == null || !at) return;
  svg.append(svgElement("line", { class: "cross", x1: x(at.at_ms), x2: x(at.at_ms), y1: top, y2: bottom }));
}

/** Returns the time at the cross hair, for the legend. */
const when = (id, at) => (cursorTimes[id] != null && at ? element("span", {}, "at ", element("b", {}, clock(at.at_ms))) : "");

function timeAxis(svg, from, to, x, y) {
  const most = Math.max(1, Math.min(6, Math.floor((x(to) - x(from)) / 62)));
  const by = [10, 20, 30, 60, 180, 300].find((s) => (to - from) / 1000 / s <= most) ?? 450;
  for (let back = 0; back * 1000 <= to - from; back += by) {
    const at = x(to - back * 1000);
    const anchor = back === 0 ? "end" : at - x(from) < 24 ? "start" : "middle";
    const text = back === 0 ? "now" : back % 60 && back < 100 ? `−${back} s` : `−${back / 60} min`;
    svg.append(svgElement("text", { x: at, y, "text-anchor": anchor }, text));
  }
}

const line = (some, x, y) => some.map((p, i) => `${i ? "L" : "M"}${x(p).toFixed(1)} ${y(p).toFixed(1)}`).join("");

/** Adds a group that moves left by one second. Stays still under a cross hair or if reduced motion is preferred. */
function glide(svg, id, pixels, box) {
  const frame = svgElement("svg", { ...box, overflow: "hidden" });
  const group = svgElement("g", cursorTimes[id] == null && fresh ? { class: "glide" } : {});
  group.style.setProperty("--second", pixels.toFixed(2) + "px");
  frame.append(group);
  svg.append(frame);
  return group;
}

// ---- the chain

function drawChain() {
  const height = 250, bottom = height - 24, top = 10;
  const [svg, width] = resetChart("chain", height);
  const [from, to] = timeSpan(CHAIN_SECONDS);
  const shown = within(from).filter((p) => p.slots.processed != null);
  const right = width - 8 - CHAIN_GUTTER;
  const x = (ms) => CHAIN_GUTTER + ((ms - from) / (to - from)) * right;
  const high = Math.max(...shown.map((p) => p.slots.processed));
  const low = Math.min(...shown.map((p) => p.slots.finalized ?? p.slots.confirmed ?? p.slots.processed));
  if (shown.length) {
    const span = Math.max(high - low, 40);
    const y = (s) => bottom - ((s - low) / span) * (bottom - top);
    const by = step(span, 5);
    for (let s = Math.ceil(low / by) * by; s <= low + span; s += by) {
      svg.append(svgElement("line", { class: "grid", x1: CHAIN_GUTTER, x2: width, y1: y(s), y2: y(s) }));
      svg.append(svgElement("text", { x: CHAIN_GUTTER - 8, y: y(s) + 4, "text-anchor": "end" }, slot(s)));
    }
    const second = right / ((to - from) / 1000);
    const moving = glide(svg, "chain", second, { x: CHAIN_GUTTER, y: 0, width: width - CHAIN_GUTTER, height: bottom + 4, viewBox: `${CHAIN_GUTTER} 0 ${width - CHAIN_GUTTER} ${bottom + 4}` });
    const complete = shown.filter((p) => p.slots.finalized != null);
    if (complete.length > 1) {
      const edge = line(complete, (p) => x(p.at_ms), (p) => y(p.slots.processed));
      const base = line([...complete].reverse(), (p) => x(p.at_ms), (p) => y(p.slots.finalized)).replace("M", "L");
      moving.append(svgElement("path", { class: "between", d: edge + base + "Z" }));
    }
    for (const name of COMMITMENTS) {
      const some = shown.filter((p) => p.slots[name] != null);
      if (!some.length) continue;
      moving.append(svgElement("path", { class: `line c-${name}`, d: line(some, (p) => x(p.at_ms), (p) => y(p.slots[name])) }));
      const last = some.at(-1);
      moving.append(svgElement("circle", { class: `dot c-${name}`, cx: x(last.at_ms), cy: y(last.slots[name]), r: 4.5 }));
    }
    crosshair(svg, "chain", pointAtCursor("chain", shown), x, top, bottom);
  }
  timeAxis(svg, from, to, x, height - 5);

  const at = pointAtCursor("chain", shown);
  $("chain-legend").replaceChildren(...COMMITMENTS.map((name) => {
    const behind = at && at.slots[name] != null ? at.slots.processed - at.slots[name] : 0;
    return element("span", {}, element("i.c-" + name), name, element("b", {}, slot(at?.slots[name])), behind ? `−${behind}` : "");
  }), when("chain", at));
  const seconds = shown.length > 5 ? (shown.at(-1).at_ms - shown[0].at_ms) / 1000 : 0;
  const pace = seconds ? (high - shown[0].slots.processed) / seconds : null;
  setText("pace", !at ? "No node has reported a slot yet." : pace == null ? "" : pace < 0.05
    ? "No new slot in the last minute." : `${pace.toFixed(1)} slots a second.`);
  const says = at ? `Newest slots: ${COMMITMENTS.map((name) => `${name} ${slot(at.slots[name])}`).join(", ")}. ${$("pace").textContent}`
    : "No slot is known yet.";
  svg.setAttribute("aria-label", says);
  const every = shown.filter((_, i) => (shown.length - 1 - i) % 5 === 0).reverse();
  table("chain-table", ["Time", ...COMMITMENTS], every.map((p) => [clock(p.at_ms), ...COMMITMENTS.map((n) => slot(p.slots[n]))]));
  return at && `${clock(at.at_ms)}: ${COMMITMENTS.map((name) => `${name} ${slot(at.slots[name])}`).join(", ")}`;
}

// ---- traffic, and the hit ratio under it on the same time axis

/** Returns the hit ratio of the `SMOOTH` seconds up to point `i`; null without answers. */
function hitRatio(i) {
  const some = points.slice(Math.max(0, i - SMOOTH + 1), i + 1);
  return share(sum(some.map((p) => p.hits)), sum(some.map((p) => p.kept + p.asked)));
}

function drawTraffic() {
  const height = 250, bottom = 152, top = 10, ratioTop = 178, ratioBottom = height - 24;
  const [svg, width] = resetChart("traffic", height);
  const [from, to] = timeSpan(POINTS);
  const x = (ms) => GUTTER + ((ms - from) / (to - from)) * (width - GUTTER);
  const most = Math.max(1, ...points.map((p) => p.kept + p.asked + p.refused + p.failed)) * 1.08;
  const y = (n) => bottom - (n / most) * (bottom - top);
  let under = points.map(() => 0);
  for (const name of Object.keys(SERIES)) {
    const over = points.map((p, i) => under[i] + p[name]);
    if (points.length > 1 && points.some((p) => p[name] > 0)) {
      const edge = points.map((p, i) => `${x(p.at_ms).toFixed(1)} ${y(over[i]).toFixed(1)}`);
      const base = points.map((p, i) => `${x(p.at_ms).toFixed(1)} ${y(under[i]).toFixed(1)}`).reverse();
      svg.append(svgElement("path", { class: `area c-${name}`, d: `M${edge.join("L")}L${base.join("L")}Z` }));
    }
    under = over;
  }
  const by = Math.max(step(most, 4), most < 3 ? 0.5 : 1);
  for (let n = 0; n <= most; n += by) {
    svg.append(svgElement("line", { class: "grid over", x1: GUTTER, x2: width, y1: y(n), y2: y(n) }));
    svg.append(svgElement("text", { x: GUTTER - 8, y: y(n) + 4, "text-anchor": "end" }, n && n < 10 && by < 1 ? n.toFixed(1) : rate(n)));
  }

  const up = (r) => ratioBottom - r * (ratioBottom - ratioTop);
  for (const [r, text] of [[0, "0 %"], [1, "100 %"]]) {
    svg.append(svgElement("line", { class: "grid", x1: GUTTER, x2: width, y1: up(r), y2: up(r) }));
    svg.append(svgElement("text", { x: GUTTER - 8, y: up(r) + 4, "text-anchor": "end" }, text));
  }
  const ratios = points.map((p, i) => ({ ms: p.at_ms, r: hitRatio(i) }));
  let run = [];
  for (const p of [...ratios, { r: null }]) {
    if (p.r != null) { run.push(p); continue; }
    if (run.length > 1) svg.append(svgElement("path", { class: "line c-kept", d: line(run, (q) => x(q.ms), (q) => up(q.r)) }));
    run = [];
  }
  const at = pointAtCursor("traffic");
  const ratio = at ? ratios[points.indexOf(at)].r : null;
  svg.append(svgElement("text", { class: "halo label", x: GUTTER + 6, y: ratioTop - 8 }, "Hit ratio " + percent(ratio)));
  crosshair(svg, "traffic", at, x, top, ratioBottom);
  timeAxis(svg, from, to, x, height - 5);

  const entries = Object.entries(SERIES);
  $("traffic-legend").replaceChildren(...entries.map(([name, { name: text, means }]) =>
    element("span", { title: means }, element("i.c-" + name), text, element("b", {}, at ? rate(at[name]) : "–"))),
    when("traffic", at));
  const says = at ? entries.map(([name, { means }]) => `${rate(at[name])} ${means}`).join("; ") + `; hit ratio ${percent(ratio)}` : "";
  svg.setAttribute("aria-label", at ? `Calls a second: ${says}.` : "No calls yet.");
  const every = points.map((p, i) => [p, ratios[i].r]).filter((_, i) => (points.length - 1 - i) % 30 === 0).reverse();
  table("traffic-table", ["Time", "cache", "node", "refused", "failed", "hit ratio"],
    every.map(([p, r]) => [clock(p.at_ms), ...Object.keys(SERIES).map((name) => rate(p[name])), percent(r)]));
  return at && `${clock(at.at_ms)}: ${says}`;
}

// ---- answer times

function drawTimes(outcomes) {
  const row = 38, top = 24, height = top + row * Math.max(1, outcomes.length) + 2;
  const [svg, width] = resetChart("times", height);
  const left = 74, right = width - 50;
  const fast = Math.min(0.1, ...outcomes.map((o) => o.p50_ms)), slow = Math.max(100, ...outcomes.map((o) => o.p99_ms));
  const [low, high] = [Math.floor(Math.log10(fast)), Math.ceil(Math.log10(slow))];
  const x = (ms) => left + ((Math.log10(Math.max(ms, 10 ** low)) - low) / (high - low)) * (right - left);
  const every = (right - left) / (high - low) < 54 ? 2 : 1;
  for (let power = low; power <= high; power += 1) {
    svg.append(svgElement("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: top - 6, y2: height }));
    const text = power < 0 ? 10 ** (power + 3) + " µs" : power < 3 ? 10 ** power + " ms" : 10 ** (power - 3) + " s";
    if ((power - low) % every === 0) svg.append(svgElement("text", { x: x(10 ** power), y: 11, "text-anchor": "middle" }, text));
  }
  outcomes.forEach((o, i) => {
    const y = top + row * i + row / 2;
    const tone = "c-" + Object.keys(SERIES).find((name) => SERIES[name].outcomes.includes(o.outcome));
    const name = svgElement("text", { class: "label", x: 0, y: y + 4 }, o.outcome);
    name.append(svgElement("title", {}, MEANINGS[o.outcome] ?? ""));
    svg.append(name, svgElement("line", { class: `span ${tone}`, x1: x(o.p50_ms), x2: x(o.p99_ms), y1: y, y2: y }));
    for (const [ms, r] of [[o.p99_ms, 3], [o.p95_ms, 4], [o.p50_ms, 6]]) svg.append(svgElement("circle", { class: `dot ${tone}`, cx: x(ms), cy: y, r }));
    const before = x(o.p50_ms) - 10 > left + 44;
    svg.append(svgElement("text", { class: "halo", x: before ? x(o.p50_ms) - 11 : x(o.p50_ms), y: before ? y + 4 : y - 10, "text-anchor": before ? "end" : "middle" }, millis(o.p50_ms)));
    svg.append(svgElement("text", { class: "halo", x: x(o.p99_ms) + 8, y: y + 4 }, millis(o.p99_ms)));
  });
  if (!outcomes.length) svg.append(svgElement("text", { class: "halo", x: 0, y: top + 22 }, "No calls in the last minute."));
  const words = outcomes.map((o) => `${o.outcome}: half within ${millis(o.p50_ms)}, 95 % within ${millis(o.p95_ms)}, 99 % within ${millis(o.p99_ms)}`);
  svg.setAttribute("aria-label", words.length ? `Answer times. ${words.join("; ")}.` : "No calls in the last minute.");
  table("times-table", ["Outcome", "p50", "p95", "p99", "calls/s"],
    outcomes.map((o) => [o.outcome, millis(o.p50_ms), millis(o.p95_ms), millis(o.p99_ms), rate(o.calls_per_s)]));
}
