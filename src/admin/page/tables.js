// The tables, and the figures at the top. Cells are changed in place, so that a reader's selection and place stay.

/** Puts rows into a table's body, or one row that says why there are none; what is the same is left alone. */
function fill(id, rows, none) {
  const empty = made("tr.none", {}, made("td", { colspan: 12 }, none));
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
  const bar = made("span");
  bar.style.width = ((100 * value) / most).toFixed(1) + "%";
  return made("tr", {}, made("td", {}, name, made("div.bar", { "aria-hidden": "true" }, bar)), made("td.n", {}, rate(value)), made("td.n", {}, last));
}

function nodeRow(node, frontier) {
  const [tone, word] = node.usable ? ["good", "usable"] : node.up ? ["warn", "not used"] : ["bad", "down"];
  const about = [node.version && "v" + node.version, node.tier ? `tier ${node.tier}` : ""].filter(Boolean).join(" · ");
  const breaker = { closed: "td", "half-open": "td.warn", open: "td.bad" }[node.breaker];
  const failed = node.requests ? node.failures / node.requests : 0;
  const cells = [
    made("th", { scope: "row" }, made("b", {}, node.name), made("small", {}, about)),
    made("td", {}, made(`span.pill.${tone}`, {}, word), made("small", {}, node.reason ?? "")),
    made("td.n", {}, slot(node.slots.processed)),
    made(node.lag_slots > 5 ? "td.n.warn" : "td.n", {}, slot(node.lag_slots)),
    made("td", {}, track(node, frontier)),
    made("td.n", {}, millis(node.latency_ms)),
    made("td.n", {}, rate(node.per_s)),
    made("td.n", {}, whole.format(node.in_flight)),
    made(breaker, {}, node.breaker),
    made("td.n", {}, node.slots.processed == null ? "–" : slot(node.first_available_block)),
    made("td.n", {}, count(node.requests)),
    made(failed > 0.05 ? "td.n.warn" : "td.n", {}, count(node.failures)),
  ];
  const heads = $("nodes").tHead.rows[0].cells;
  cells.forEach((cell, i) => cell.setAttribute("data-name", heads[i].textContent));
  return made("tr", {}, ...cells);
}

function figures(status, traffic) {
  tell("calls", rate(traffic.calls_per_s));
  tell("calls-note", `over the last ${traffic.window_s > 55 ? "minute" : plural(Math.round(traffic.window_s), "second", "seconds")}`);
  tell("hits", percent(traffic.hit_ratio));
  tell("saved", count(Math.max(0, traffic.answers_total - traffic.upstream_calls_total)));
  tell("saved-note", traffic.answers_total
    ? `${count(traffic.answers_total)} answers, ${count(traffic.upstream_calls_total)} upstream calls since start` : "since start");
  const out = status.upstreams.filter((node) => !node.usable).map((node) => clip(node.name, 24));
  tell("usable", `${status.upstreams.length - out.length} of ${status.upstreams.length}`);
  const named = out.slice(0, 3).join(", ") + (out.length > 3 ? ` and ${out.length - 3} more` : "");
  tell("usable-note", !status.upstreams.length ? "none is configured" : out.length ? `not used: ${named}` : "all of them");
  $("usable").className = out.length ? (out.length === status.upstreams.length ? "bad" : "warn") : "";

  const { cache } = status;
  const full = cache.capacity_bytes ? Math.min(100, (100 * cache.bytes) / cache.capacity_bytes) : 0;
  $("fill").firstElementChild.style.width = full + "%";
  $("fill").setAttribute("aria-valuenow", full.toFixed(1));
  $("fill").setAttribute("aria-valuetext", `${bytes(cache.bytes)} of ${bytes(cache.capacity_bytes)}`);
  tell("cache", bytes(cache.bytes));
  tell("cache-note", `${plural(cache.entries, "entry", "entries")}, ${full.toFixed(full < 10 ? 1 : 0)} % of ${bytes(cache.capacity_bytes)}`);
}

/** Why all is not well: the first few reasons, and how many more there are. */
function reasons(readiness, tone) {
  const all = readiness.reasons ?? [];
  const lines = all.length > 5 ? [...all.slice(0, 4), `and ${all.length - 4} more, each with its reason below`] : all;
  const head = { degraded: "No node is usable. Callers get what is still in the cache, or the answer of a doubtful node.", unready: "Not taking calls." }[readiness.state];
  const text = all.length ? [head, ...lines].join("\n") : "";
  // An alert is read out when it changes, so it is only touched when it does.
  if ($("reasons").dataset.text === text) return;
  $("reasons").dataset.text = text;
  $("reasons").hidden = !text;
  $("reasons").className = "banner " + tone;
  $("reasons").replaceChildren(...(text ? [made("b", {}, head), made("ul", {}, ...lines.map((line) => made("li", {}, line)))] : []));
}
