// The tables, and the figures at the top. Cells are updated in place, so that selected text stays selected.

/** Replaces the rows of a table where they differ. Without rows, shows the text `none`. */
function fill(id, rows, none) {
  const empty = element("tr.none", {}, element("td", { colspan: 12 }, none));
  const body = $(id).tBodies[0];
  (rows.length ? rows : [empty]).forEach((row, i) => {
    const old = body.rows[i];
    if (!old) body.append(row);
    else if (old.cells.length !== row.cells.length) old.replaceWith(row);
    else [...row.cells].forEach((cell, j) => { if (old.cells[j].outerHTML !== cell.outerHTML) old.cells[j].replaceWith(cell); });
  });
  while (body.rows.length > Math.max(1, rows.length)) body.rows[body.rows.length - 1].remove();
}

function barRow(name, value, most, last) {
  const bar = element("span");
  bar.style.width = ((100 * value) / most).toFixed(1) + "%";
  return element("tr", {}, element("td", {}, name, element("div.bar", { "aria-hidden": "true" }, bar)), element("td.n", {}, rate(value)), element("td.n", {}, last));
}

function nodeRow(node, frontier) {
  const [tone, word] = node.usable ? ["good", "usable"] : node.up ? ["warn", "not used"] : ["bad", "down"];
  const about = [node.version && "v" + node.version, node.tier ? `tier ${node.tier}` : ""].filter(Boolean).join(" · ");
  const breaker = { closed: "td", "half-open": "td.warn", open: "td.bad" }[node.breaker] ?? "td";
  const failed = node.requests ? node.failures / node.requests : 0;
  const cells = [
    element("th", { scope: "row" }, element("b", {}, node.name), element("small", {}, about)),
    element("td", {}, element(`span.pill.${tone}`, {}, word), element("small", {}, node.reasons[0] ?? "")),
    element("td.n", {}, slot(node.slots.processed)),
    element(node.lag_slots.processed > 5 ? "td.n.warn" : "td.n", {}, slot(node.lag_slots.processed)),
    element("td", {}, track(node, frontier)),
    element("td.n", {}, millis(node.latency_ms)),
    element("td.n", {}, rate(node.per_s)),
    element("td.n", {}, whole.format(node.in_flight)),
    element(breaker, {}, node.breaker ?? "–"),
    element("td.n", {}, node.first_available_block == null ? "–" : slot(node.first_available_block)),
    element("td.n", {}, count(node.requests)),
    element(failed > 0.05 ? "td.n.warn" : "td.n", {}, count(node.failures)),
  ];
  const heads = $("nodes").tHead.rows[0].cells;
  cells.forEach((cell, i) => cell.setAttribute("data-name", heads[i].textContent));
  return element("tr", {}, ...cells);
}

function figures(status, traffic) {
  setText("calls", rate(traffic.calls_per_s));
  setText("calls-note", `over the last ${traffic.window_s > 55 ? "minute" : plural(Math.round(traffic.window_s), "second", "seconds")}`);
  setText("hits", percent(traffic.hit_ratio));
  setText("saved", count(Math.max(0, traffic.answers_total - traffic.upstream_calls_total)));
  setText("saved-note", traffic.answers_total
    ? `${count(traffic.answers_total)} answers, ${count(traffic.upstream_calls_total)} upstream calls since start` : "since start");
  const out = status.upstreams.filter((node) => !node.usable).map((node) => clip(node.name, 24));
  setText("usable", `${status.upstreams.length - out.length} of ${status.upstreams.length}`);
  const named = out.slice(0, 3).join(", ") + (out.length > 3 ? ` and ${out.length - 3} more` : "");
  setText("usable-note", !status.upstreams.length ? "none is configured" : out.length ? `not used: ${named}` : "all of them");
  $("usable").className = out.length ? (out.length === status.upstreams.length ? "bad" : "warn") : "";

  const { cache } = status;
  const full = cache.capacity_bytes ? Math.min(100, (100 * cache.bytes) / cache.capacity_bytes) : 0;
  $("fill").firstElementChild.style.width = full + "%";
  $("fill").setAttribute("aria-valuenow", full.toFixed(1));
  $("fill").setAttribute("aria-valuetext", `${bytes(cache.bytes)} of ${bytes(cache.capacity_bytes)}`);
  setText("cache", bytes(cache.bytes));
  setText("cache-note", `${plural(cache.entries, "entry", "entries")}, ${full.toFixed(full < 10 ? 1 : 0)} % of ${bytes(cache.capacity_bytes)}`);
}

/** Shows the state of following, and the share of answers that it carried. */
function followLine(follow, carried) {
  $("follow").hidden = !follow;
  if (!follow) return;
  const share = carried == null ? "" : `${percent(carried)} of the answers of the last minute ${follow.serves ? "were" : "would have been"} carried: ` +
    "served at a newer slot than they were fetched at, because no block changed their accounts.";
  const state = {
    following: `slotfront follows the chain to slot ${slot(follow.tip)}, ${plural(follow.lag_slots ?? 0, "slot", "slots")} behind confirmed. ${share}`,
    starting: "slotfront begins to follow the chain.",
    parked: "slotfront does not follow the chain until the next call for an account.",
    paused: `slotfront does not follow the chain: ${follow.reason}.`,
  }[follow.state] ?? "";
  const wrong = "A carried answer was found wrong, so none is served until a restart. ";
  setText("follow", (follow.contradicted ? wrong : follow.serves ? "" : "Shadow mode. ") + state);
  $("follow").className = "quiet" + (follow.contradicted ? " bad" : follow.state === "paused" ? " warn" : "");
}

/** Shows the reasons of a state other than ready: the first few, and the number of others. */
function reasons(readiness, tone, noneUsable) {
  const all = readiness.reasons ?? [];
  const lines = all.length > 5 ? [...all.slice(0, 4), `and ${all.length - 4} more; see the nodes below`] : all;
  const none = "No node is usable. Callers get cached answers, or the answer of a node that may be wrong.";
  const head = { degraded: noneUsable ? none : "Callers notice nothing, but a file of slotfront fails.", unready: "Not taking calls." }[readiness.state];
  const text = all.length ? [head, ...lines].join("\n") : "";
  // A screen reader reads an alert aloud on each change, so it is set only when the text differs.
  if ($("reasons").dataset.text === text) return;
  $("reasons").dataset.text = text;
  $("reasons").hidden = !text;
  $("reasons").className = "banner " + tone;
  $("reasons").replaceChildren(...(text ? [element("b", {}, head), element("ul", {}, ...lines.map((line) => element("li", {}, line)))] : []));
}
