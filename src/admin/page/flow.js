// The chart "Where calls go": bands from the callers to the cache and to the nodes. The width of a band shows its rate.

const FLOW_SECONDS = 10; // averaged, so that the bands change smoothly
const FLOW_NODES = 6; // further nodes are drawn as one

/** Returns the calls a second of each series and of the upstreams, averaged over the last seconds. */
function flowRates() {
  const some = points.slice(-FLOW_SECONDS);
  const mean = (name) => some.reduce((sum, p) => sum + p[name], 0) / Math.max(1, some.length);
  return Object.fromEntries([...Object.keys(SERIES), "upstream"].map((name) => [name, mean(name)]));
}

/** Returns the nodes to draw: unusable ones and the busiest since the start, in configured order, and the rest as one. */
function flowNodes(nodes) {
  const busiest = [...nodes].sort((a, b) => a.usable - b.usable || b.requests - a.requests);
  const chosen = new Set(nodes.length > FLOW_NODES ? busiest.slice(0, FLOW_NODES - 1) : nodes);
  const rest = nodes.filter((node) => !chosen.has(node));
  const shown = nodes.filter((node) => chosen.has(node));
  if (rest.length) shown.push({ name: plural(rest.length, "other node", "other nodes"), usable: rest.some((n) => n.usable), per_s: rest.reduce((s, n) => s + n.per_s, 0) });
  return shown;
}

/** Returns the path of a band between two vertical edges, `thick` pixels wide. */
function band(x0, y0, x1, y1, thick) {
  const m = (x0 + x1) / 2;
  return `M${x0} ${y0}C${m} ${y0} ${m} ${y1} ${x1} ${y1}v${thick}C${m} ${y1 + thick} ${m} ${y0 + thick} ${x0} ${y0 + thick}Z`;
}

function drawFlow(upstreams) {
  const nodes = flowNodes(upstreams);
  const height = Math.max(250, 90 + 34 * nodes.length), top = 30, bottom = height - 8;
  const [svg, width] = resetChart("flow", height);
  const rates = flowRates();
  const total = Object.keys(SERIES).reduce((sum, name) => sum + rates[name], 0);
  const narrow = width < 560;
  const labels = narrow ? 92 : 150;
  const [start, middle, end] = [0, Math.round(width * (narrow ? 0.24 : 0.3)), width - labels];
  const post = 8, gap = 10;
  // Calls to nodes are drawn lowest, beside the nodes, so that no band crosses a label.
  const ends = ["refused", "failed", "kept", "asked"].filter((name) => rates[name] > 0);
  const room = bottom - top - gap * Math.max(0, ends.length - 1);
  // A low rate stays visible: it gets at least two pixels, taken from the wide bands.
  const wide = (n) => Math.max(2, total ? (n / total) * (room - 2 * ends.length) : 0);

  const callers = svgElement("text", { class: "label", x: start, y: 16 }, "Callers ");
  if (!narrow) callers.append(svgElement("tspan", { class: "plain" }, `${rate(total)}/s`));
  svg.append(callers);
  svg.append(svgElement("text", { class: "label", x: middle, y: 16 }, "slotfront"));
  svg.append(svgElement("text", { class: "label", x: end, y: 16 }, "Nodes"));
  svg.append(svgElement("rect", { class: "post", x: start, y: top, width: post, height: bottom - top, rx: 3 }));

  let [from, to, asked, said] = [top, top, null, 0];
  from += (bottom - top - ends.reduce((sum, name) => sum + wide(rates[name]), 0)) / 2;
  for (const name of ends) {
    const thick = wide(rates[name]);
    svg.append(svgElement("path", { class: `band c-${name}`, d: band(start + post, from, middle, to, thick) }));
    svg.append(svgElement("rect", { class: `c-${name}`, x: middle, y: to, width: post, height: thick, rx: 2 }));
    if (name === "asked") asked = { y: to, thick };
    else {
      const share = `${rate(rates[name])}/s`;
      const at = Math.max(to + 10, said + 18, Math.min(to + thick / 2 + 4, to + 44));
      said = at;
      const words = svgElement("text", { class: "halo", x: middle + post + 8, y: at }, "");
      const tag = { kept: narrow ? "cached " : "answered from the cache ", refused: "refused ", failed: "failed " }[name];
      words.append(svgElement("tspan", { class: "strong" }, share + " "), svgElement("tspan", {}, tag));
      svg.append(words);
    }
    from += thick;
    to += thick + gap;
  }
  if (!total) svg.append(svgElement("text", { class: "halo", x: middle + post + 8, y: top + 24 }, "no calls now"));

  // Each node has a line of its own, the last at the lower edge.
  const toNodes = sum(nodes.map((node) => node.per_s));
  let out = asked?.y;
  nodes.forEach((node, i) => {
    const y = bottom - 12 - 34 * (nodes.length - 1 - i);
    if (asked && node.per_s > 0) {
      const thick = Math.max(1.5, (node.per_s / toNodes) * asked.thick);
      svg.append(svgElement("path", { class: "band c-asked", d: band(middle + post, out, end, Math.min(y - thick / 2, bottom - thick), thick) }));
      out += (node.per_s / toNodes) * asked.thick;
    }
    svg.append(svgElement("circle", { class: node.usable ? "lamp good" : "lamp bad", cx: end + 6, cy: y, r: 5 }));
    const name = svgElement("text", { class: "strong", x: end + 17, y: y - 1 }, clip(node.name, narrow ? 10 : 18));
    name.append(svgElement("title", {}, node.name));
    svg.append(name, svgElement("text", { x: end + 17, y: y + 13 }, node.usable || node.per_s ? `${rate(node.per_s)}/s` : "not used"));
  });
  const says = Object.entries(SERIES).map(([name, { means }]) => `${rate(rates[name])} ${means}`).join("; ");
  const each = upstreams.map((node) => `${node.name} ${rate(node.per_s)}${node.usable ? "" : ", not used"}`).join("; ");
  svg.setAttribute("aria-label", `Calls a second, averaged over ten seconds: ${rate(total)} in; ${says}. Calls to nodes: ${each || "no node"}.`);
}

/** Draws a node's slots as marks on a line that ends at the frontier. */
function track(node, frontier) {
  const width = 190, behind = 40, right = width - 8;
  const svg = svgElement("svg", { class: "track", viewBox: `0 0 ${width} 22`, width, height: 22, role: "img" });
  const x = (slots) => right - (Math.min(slots, behind) / behind) * (right - 8);
  svg.append(svgElement("line", { class: "grid", x1: 8, x2: right, y1: 11, y2: 11 }));
  svg.append(svgElement("line", { class: "front", x1: width - 1, x2: width - 1, y1: 1, y2: 21 }));
  const lags = COMMITMENTS.map((name) => (node.slots[name] == null || frontier == null ? null : Math.max(0, frontier - node.slots[name])));
  // Finalized is drawn first, so that the newest slot is on top.
  [...COMMITMENTS].reverse().forEach((name) => {
    const lag = lags[COMMITMENTS.indexOf(name)];
    if (lag == null) return;
    const far = lag > behind;
    if (far) svg.append(svgElement("path", { class: `far c-${name}`, d: "M9 5L2 11L9 17Z" }));
    else svg.append(svgElement("circle", { class: `dot c-${name}`, cx: x(lag), cy: 11, r: 5 }));
  });
  const says = COMMITMENTS.map((name, i) => `${name} ${lags[i] == null ? "not known" : plural(lags[i], "slot", "slots") + " behind"}`).join(", ");
  svg.setAttribute("aria-label", says);
  svg.append(svgElement("title", {}, says));
  return svg;
}
