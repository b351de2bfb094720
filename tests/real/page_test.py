"""The status page in a real browser under load: its contents, accessibility and keyboard control as nodes fail and recover.

Every node is a separate process, so that single nodes can be killed. Screenshots of each state are in
`target/page-screenshots`.
"""

import http.client
import json
import signal
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from browser import Browser
from gateway import PATIENCE_S, ROOT, TARGET, Nodes, Serve, free_port, keys

SHOTS = TARGET / "page-screenshots"
WIDTHS = (390, 1400)
THEMES = ("light", "dark")
LONG = "a-validator-whose-name-was-paid-by-the-letter-in-frankfurt-7"

AXE = ROOT / "tests" / "real" / "clients" / "javascript" / "node_modules" / "axe-core" / "axe.min.js"
# Returns what axe-core finds against WCAG 2.2 AA and its own best practices, as [rule, element, why].
RUN_AXE = """
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
return axe.run(document, { runOnly: tags, resultTypes: ["violations"] }).then(({ violations }) =>
  violations.flatMap((v) => v.nodes.map((n) => [v.id, n.target.join(" "), n.failureSummary])));
"""

# Returns the visible texts that are hard to read: whose contrast is below WCAG 2.2 AA, as [ratio, needed, text].
CONTRAST = """
const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
const luminance = ([r, g, b]) => {
  const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
};
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const c = parse(getComputedStyle(node).backgroundColor);
    if (c[3] === 1) return c;
  }
  return [255, 255, 255, 1];
};
const poor = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || node.matches("script, style, title, noscript, .unseen") || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const color = parse(node instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [luminance(color), luminance(behind(node))].sort((p, q) => q - p);
  const ratio = (a + 0.05) / (b + 0.05);
  const size = parseFloat(style.fontSize);
  const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  if (ratio < needed) poor.push([Math.round(ratio * 100) / 100, needed, node.textContent.slice(0, 40)]);
}
return poor;
"""
# Returns the colours of charts whose contrast is below 3 to 1, as WCAG requires for graphics.
GRAPHICS = """
const luminance = (c) => {
  const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
};
const card = luminance(getComputedStyle(document.querySelector(".card")).backgroundColor);
return ["processed", "confirmed", "finalized", "kept", "asked", "refused", "failed"].map((name) => {
  const probe = document.querySelector("main").appendChild(document.createElement("i"));
  probe.className = "c-" + name;
  const [a, b] = [luminance(getComputedStyle(probe).color), card].sort((p, q) => q - p);
  probe.remove();
  return [name, Math.round(((a + 0.05) / (b + 0.05)) * 100) / 100];
}).filter(([, ratio]) => ratio < 3);
"""


class Load(threading.Thread):
    """Up to a hundred calls per second, of several methods, until it is stopped."""

    def __init__(self, case, address):
        super().__init__(daemon=True)
        self.address, self.ended = address, threading.Event()
        self.start()
        case.addCleanup(self.join, PATIENCE_S)
        case.addCleanup(self.ended.set)

    def run(self):
        client = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        turn = 0
        while not self.ended.wait(0.01):
            turn += 1
            account = f"{'1' * 31}{'23456789'[turn % 8]}"
            method, params = [
                ("getAccountInfo", [account, {"encoding": "base64", "commitment": "processed"}]),
                ("getAccountInfo", [account, {"encoding": "base64"}]),
                ("getVoteAccounts", []),
                ("getClusterNodes", []),
                ("getAccountInfo", ["no address"]),
            ][0 if turn % 2 else turn // 2 % 5]
            body = json.dumps({"jsonrpc": "2.0", "id": turn, "method": method, "params": params})
            try:
                client.request("POST", "/v3/any", body, {"Content-Type": "application/json"})
                client.getresponse().read()
            except (OSError, http.client.HTTPException):
                client.close()  # The gateway has stopped. The next turn connects again.
        client.close()


class Page(unittest.TestCase):
    def nodes(self, *names):
        """Starts a simulated node for each name. Returns [[process, port, name]]."""
        started = [(self.enterContext(Nodes()), name) for name in names]
        return [[process, process.port, name] for process, name in started]

    def serve(self, upstreams, admin=0, auth='mode = "open"'):
        """Starts a gateway in front of nodes, given as (port, name). Returns its process, public address and page."""
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        config = self.folder / "slotfront.toml"
        config.write_text(
            f'[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:{admin}"\n[auth]\n{auth}\n'
            # A simulated node that restarts begins a new chain. The large limit keeps it usable.
            '[pool]\nmax_slot_lag = 432000\n' +
            "".join(f'[[upstream]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\n' for port, name in upstreams))
        serve = self.enterContext(Serve(config))
        return serve, serve.public, f"http://{serve.admin}/"

    def updated(self, browser, times):
        """Waits until the page has got so many more answers, and has drawn what they say."""
        for _ in range(times):
            browser.until("return heard > arguments[0]", browser.run("return heard"), within=PATIENCE_S, what="an update")

    def browser(self, url):
        browser = Browser()
        self.addCleanup(browser.close)
        browser.width(1400)
        browser.open(url)
        browser.until("return document.querySelector('#live').classList.contains('on')", within=PATIENCE_S, what="live")
        return browser

    def text(self, browser, selector):
        return browser.run("return document.querySelector(arguments[0]).textContent", selector)

    def check_layout(self, browser, name):
        """Checks the layout and the contrast at all widths and in both themes."""
        for theme in THEMES:
            browser.prefers(color_scheme=theme)
            for width in WIDTHS:
                with self.subTest(name, theme=theme, width=width):
                    browser.width(width)
                    drawn = "return document.querySelector('#flow').viewBox.baseVal.width <= arguments[0]"
                    browser.until(drawn, width, within=PATIENCE_S, what="drawn anew")
                    browser.screenshot(SHOTS / f"{name}-{width}-{theme}.png")
                    self.assertEqual(browser.run("return document.documentElement.scrollWidth"), width)
                    out = ("return [...document.querySelectorAll('.card')].flatMap((c) => [...c.querySelectorAll('td, th, dd, dt, small, p')]"
                           ".filter((n) => n.getClientRects().length && n.getBoundingClientRect().right > c.getBoundingClientRect().right + 1)"
                           ".map((n) => n.textContent))")
                    self.assertEqual(browser.run(out), [], "wider than its card")
                    self.assertEqual(browser.run(CONTRAST), [])
                    self.assertEqual(browser.run(GRAPHICS), [])
                    self.check_axe(browser)
        browser.prefers(color_scheme="light")
        browser.width(1400)

    def check_axe(self, browser):
        if not browser.run("return 'axe' in window"):
            browser.run(AXE.read_text())
        self.assertEqual(browser.run(RUN_AXE), [])

    def test_page_is_accessible_while_somebody_acts(self):
        [(_, port, name)] = self.nodes("only")
        token = "a-token-for-the-page-of-32-chars"
        _, _, url = self.serve([(port, name)], auth=f'admin_token = "{token}"\nkeys_file = "keys.toml"')
        browser = self.browser(url)
        browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        self.check_layout(browser, "numbers")
        browser.run("$('token').focus(); $('token').value = arguments[0]", "a-wrong-token-of-thirty-two-char")
        browser.press("Enter")
        browser.until("return $('done').textContent && $('hands').hidden", within=PATIENCE_S, what="a wrong token is refused")
        self.check_layout(browser, "refused")
        keys(self.folder / "keys.toml", "create", "--name", LONG[:60])
        browser.run("$('token').focus(); $('token').value = arguments[0]", token)
        browser.press("Enter")
        browser.until("return document.querySelectorAll('#hand-nodes tbody tr').length === 1", within=PATIENCE_S, what="actions")
        # Until the plans are known, the form asks for one and nothing else happens.
        browser.until("return $('new-plan').value === 'standard'", within=PATIENCE_S, what="the plans")
        browser.run("$('new-plan').value = ''; $('new-name').focus(); $('new-name').value = 'a wallet'")
        browser.press("Enter")
        self.assertFalse(browser.run("return $('sure').open || $('new-key').checkValidity()"))
        browser.run("$('new-plan').value = 'standard'; $('new-name').focus()")
        browser.press("Enter")
        browser.until("return $('sure').open", within=PATIENCE_S, what="the question")
        self.assertEqual(browser.run("return document.activeElement.id"), "sure-no")
        self.check_layout(browser, "question")
        browser.run("$('sure-yes').focus()")
        browser.press("Enter")
        browser.until("return /has the key sf_/.test($('done').textContent)", within=PATIENCE_S, what="the new key")
        browser.until("return document.querySelectorAll('#hand-keys tbody tr').length === 2", within=PATIENCE_S, what="both keys")
        self.check_layout(browser, "acted")
        self.assertEqual([line for line in browser.logged_problems() if "401" not in line and "403" not in line], [])

    def test_page_without_javascript_says_where_to_look(self):
        [(_, port, name)] = self.nodes("only")
        _, _, url = self.serve([(port, name)])
        browser = Browser()
        self.addCleanup(browser.close)
        browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(url)
        self.assertEqual(browser.run("return typeof heard"), "undefined")
        said = browser.run("const n = document.querySelector('noscript'); return [n.textContent, n.getBoundingClientRect().height]")
        self.assertRegex(said[0], "needs JavaScript.*/metrics and /api/status")
        self.assertGreater(said[1], 20)
        looks = [(theme, width) for theme in THEMES for width in WIDTHS]
        for theme, width in looks:
            browser.prefers(color_scheme=theme)
            browser.width(width)
            browser.screenshot(SHOTS / f"no-script-{width}-{theme}.png")
            self.assertEqual(browser.run("return document.documentElement.scrollWidth"), width)
            self.assertEqual(browser.run(CONTRAST), [])
        # axe-core needs what the page had not. The browser then hides the note, so that its text has to move.
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
        browser.run("const n = document.querySelector('noscript'), d = document.createElement('div');"
                    "d.className = n.className; d.append(...n.childNodes); n.replaceWith(d)")
        for theme, width in looks:
            with self.subTest(theme=theme, width=width):
                browser.prefers(color_scheme=theme)
                browser.width(width)
                self.check_axe(browser)

    def test_page_shows_live_values_and_lost_nodes_quickly(self):
        cluster = self.nodes("north", "south", "west")
        serve, public, url = self.serve([(port, name) for _, port, name in cluster])
        Load(self, public)
        browser = self.browser(url)
        browser.until("return parseFloat($('calls').textContent) > 5", within=PATIENCE_S, what="traffic")
        browser.until("return $('saved').textContent !== '0' && /%/.test($('hits').textContent)", within=PATIENCE_S, what="hits")

        moving = ["#chain-legend b", "#saved", "#nodes tbody tr td.n", "#traffic-legend"]
        before = [self.text(browser, selector) for selector in moving]
        for selector, then in zip(moving, before):
            browser.until("return document.querySelector(arguments[0]).textContent !== arguments[1]", selector, then,
                          within=PATIENCE_S, what=f"{selector} moves")
        path = "return document.querySelector('#chain path.line').getAttribute('d')"
        line = browser.run(path)
        browser.until(f"{path} !== arguments[0]", line, within=PATIENCE_S, what="the frontier's line moves")
        for name in ("getAccountInfo", "getVoteAccounts", "getClusterNodes"):
            self.assertIn(name, self.text(browser, "#methods"))
        for outcome in ("hit", "miss", "invalid"):
            self.assertRegex(browser.run("return $('times').getAttribute('aria-label')"), rf"{outcome}: half within .* 95 % within .* 99 % within")
        self.assertRegex(browser.run("return $('fill').getAttribute('aria-valuetext')"), r"of 512 MiB")
        self.check_layout(browser, "load")

        out = ("return [...document.querySelectorAll('#nodes tbody tr')].some((r) => r.cells[0].textContent.includes(arguments[0])"
               " && r.querySelector('.pill').textContent !== 'usable')")
        self.assertFalse(any(browser.run(out, name) for _, _, name in cluster))
        process, port, name = cluster[1]
        process.end()
        _, seconds = browser.until(out, name, within=PATIENCE_S, what="the cut shows")
        print(f"\na node that was cut showed after {seconds:.2f} s")
        self.assertEqual(self.text(browser, "#usable"), "2 of 3")
        self.assertIn(name, self.text(browser, "#usable-note"))
        self.assertIn("1 node out", browser.run("return document.title"))
        self.check_layout(browser, "cut")

        # A node that hangs is detected by the timeout of a probe.
        hung, _, third = cluster[2]
        hung.send(signal.SIGSTOP)
        browser.until(out, third, within=PATIENCE_S, what="the hang shows")
        hung.send(signal.SIGCONT)
        cluster[1][0] = self.enterContext(Nodes(port=port))
        back = "return $('usable').textContent === '3 of 3'"
        browser.until(back, within=PATIENCE_S, what="both are back")
        self.assertEqual(browser.logged_problems(), [])

        # Without a usable node, the page has an alert that screen readers announce.
        for process, _, _ in cluster:
            process.end()
        browser.until("return !$('reasons').hidden && $('state').textContent === 'Degraded'", within=PATIENCE_S, what="none is usable")
        self.assertEqual(browser.run("return $('reasons').getAttribute('role')"), "alert")
        for _, _, name in cluster:
            self.assertIn(name, self.text(browser, "#reasons"))
        self.check_layout(browser, "none-usable")
        self.assertEqual(browser.logged_problems(), [])

    def test_page_computes_rates_and_quantiles_from_totals(self):
        [(_, port, name)] = self.nodes("only")
        _, _, url = self.serve([(port, name)])
        browser = self.browser(url)
        # A steady load of 8 hits and 1 miss a second, each of 50 to 100 µs, and 1 refusal, in the words of /api/status.
        found = browser.run("""
            const bounds_s = [0.00005, 0.0001, 0.00015];
            const snapshot = (s) => ({ at_ms: s * 1000, status: { uptime_s: 100 + s, frontier: {}, upstreams: [{ name: "n", requests: 2 * s }] }, totals: {
                calls: { getBlock: { hit: 8 * s, miss: s, limited: s } }, upstream_calls: s, carried: 3 * s,
                durations: { bounds_s, counts: { hit: [0, 100 * s, s, 0] } }, keys: { k1: { calls: 10 * s, limited: s }, idle: { calls: 0, limited: 0 } } } });
            [points, readings] = [[], []];
            const all = [];
            for (let s = 1000; s <= 2000; s += 1) {
                const now = snapshot(s);
                record(now);
                nodeRates(now);
                if ([1001, 2000].includes(s)) all.push([traffic(now), points.at(-1), now.status.upstreams[0].per_s]);
            }
            const after = { ...snapshot(5), at_ms: 2001000, status: { ...snapshot(5).status, uptime_s: 1 } };
            record(after);
            return [all, points.length, readings.length, traffic(after).calls_per_s, quantile([0, 0, 0, 1], bounds_s, 0.5), quantile([], bounds_s, 0.5)];
        """)
        measured, points, readings, restarted, above, nothing = found
        self.assertEqual((points, readings, restarted, nothing), (900, 1, 50, None))
        self.assertAlmostEqual(above, 0.15)
        for (shown, point, per_s), window_s in zip(measured, (1, 60)):
            self.assertEqual((shown["window_s"], shown["calls_per_s"], per_s), (window_s, 10, 2))
            self.assertEqual([point[k] for k in ("kept", "hits", "asked", "refused", "failed", "upstream")], [8, 8, 1, 1, 0, 1])
            self.assertAlmostEqual(shown["hit_ratio"], 8 / 9)
            self.assertAlmostEqual(shown["carried_ratio"], 3 / 9)
            self.assertEqual([(row["method"], row["calls_per_s"]) for row in shown["methods"]], [("getBlock", 10)])
            self.assertEqual([(row["key"], row["calls_per_s"], row["limited_per_s"]) for row in shown["keys"]], [("k1", 10, 1)])
            [hit] = shown["outcomes"]
            self.assertAlmostEqual(hit["p50_ms"], 0.05 + 0.05 * 0.505)

    def test_page_reports_lost_connection_and_reconnects(self):
        [(_, port, name)] = self.nodes("only")
        admin = free_port()
        serve, _, url = self.serve([(port, name)], admin)
        browser = self.browser(url)
        browser.until("return $('usable').textContent === '1 of 1'", within=PATIENCE_S, what="the node")
        # Before the first call, the page has placeholders for the numbers.
        self.assertIn("POST /v3/", self.text(browser, "#methods"))
        self.assertEqual((self.text(browser, "#calls"), self.text(browser, "#hits")), ("0", "–"))
        self.check_layout(browser, "no-calls")
        self.assertEqual(browser.logged_problems(), [])

        serve.end()
        browser.until("return !$('lost').hidden", within=PATIENCE_S, what="the loss is said")
        self.assertEqual(browser.run("return [$('lost').getAttribute('role'), $('live').textContent.trim()]"), ["status", "not live"])
        self.check_layout(browser, "lost")
        self.serve([(port, name)], admin)
        browser.until("return $('lost').hidden && $('live').classList.contains('on')", within=PATIENCE_S, what="live again")
        browser.logged_problems()  # Drops the browser's messages about the address that did not answer.
        self.updated(browser, times=3)
        self.assertEqual(browser.logged_problems(), [])

    def test_page_fits_twenty_nodes_and_long_names(self):
        sim = self.enterContext(Nodes(19))
        names = [LONG] + [f"validator-{i}" for i in range(2, 20)]
        upstreams = list(zip(sim.ports, names)) + [(free_port(), LONG.replace("frankfurt-7", "oslo-gone"))]
        _, public, url = self.serve(upstreams)
        Load(self, public)
        browser = self.browser(url)
        browser.until("return $('usable').textContent === '19 of 20'", within=PATIENCE_S, what="nineteen")
        self.assertEqual(browser.run("return document.querySelectorAll('#nodes tbody tr').length"), 20)
        self.assertIn("other nodes", self.text(browser, "#flow"))
        browser.until("return parseFloat($('calls').textContent) > 5", within=PATIENCE_S, what="traffic")
        self.check_layout(browser, "twenty")
        self.assertEqual(browser.logged_problems(), [])

    def test_page_meets_accessibility_rules(self):
        [(_, port, name)] = self.nodes("only")
        _, public, url = self.serve([(port, name)])
        Load(self, public)
        browser = self.browser(url)
        browser.until("return document.querySelectorAll('#chain path.line').length === 3", within=PATIENCE_S, what="lines")

        # Every picture has a text, every table has headers, every region has a name, and ids are unique.
        nameless = ("return [...document.querySelectorAll('svg')].filter((s) => !s.closest('[role=img] svg') && s.getAttribute('aria-hidden') !== 'true'"
                    " && !(s.getAttribute('role') === 'img' && s.getAttribute('aria-label'))).map((s) => s.outerHTML.slice(0, 80))")
        self.assertEqual(browser.run(nameless), [])
        self.assertEqual(browser.run("return [...document.querySelectorAll('thead th')].filter((h) => !h.scope || !h.textContent).length"), 0)
        self.assertEqual(browser.run("return [...document.querySelectorAll('[aria-labelledby]')].filter((n) => !document.getElementById(n.getAttribute('aria-labelledby'))).length"), 0)
        self.assertEqual(browser.run("const ids = [...document.querySelectorAll('[id]')].map((n) => n.id); return ids.length - new Set(ids).size"), 0)
        self.assertEqual(browser.run("return [document.documentElement.lang, document.querySelectorAll('h1').length, document.querySelectorAll('main').length]"), ["en", 1, 1])
        levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName)")
        self.assertEqual((levels[0], set(levels[1:])), ("H1", {"H2"}))
        # The accessibility tree of the browser, which screen readers use.
        browser.devtools("Accessibility.enable")
        tree = browser.devtools("Accessibility.getFullAXTree")["nodes"]
        said = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if not n["ignored"]}
        for role, name in [("button", "Theme: system"), ("meter", "Cache fill"), ("table", "Nodes"), ("region", "Where calls go")]:
            self.assertIn((role, name), said)
        self.assertTrue(any(role in ("image", "img") and name.startswith("Newest slots: processed") for role, name in said))

        # Tab reaches all controls in the order of the page, and the focused one has an outline.
        reached = []
        for _ in range(12):
            browser.press("Tab")
            reached.append(browser.run("const a = document.activeElement; return [a.id || a.textContent, getComputedStyle(a).outlineStyle]"))
        self.assertEqual([what for what, _ in reached][:7], ["theme", "chain", "The chain as numbers", "traffic", "Traffic as numbers", "Answer times as numbers", "token"])
        self.assertTrue(all(outline != "none" for what, outline in reached[:10]), reached)

        browser.run("$('theme').focus()")
        for wanted in ("light", "dark", "system"):
            browser.press("Enter")
            self.assertEqual(self.text(browser, "#theme"), f"Theme: {wanted}")
        browser.run("$('chain').focus()")
        browser.press("ArrowLeft", "ArrowLeft")
        browser.until("return /^\\d\\d:\\d\\d:\\d\\d: processed [\\d,]+, confirmed/.test($('spoken').textContent)", within=PATIENCE_S, what="a second is read")
        self.assertIn("at ", self.text(browser, "#chain-legend"))
        browser.press("Escape")
        self.assertNotIn("at ", self.text(browser, "#chain-legend"))
        browser.run("document.querySelector('details summary').focus()")
        browser.press("Enter")
        browser.until("return document.querySelectorAll('#chain-table tbody tr').length > 0", within=PATIENCE_S, what="the numbers")

        motion = "return document.getAnimations().filter((a) => a.playState === 'running').length"
        browser.until(motion, within=PATIENCE_S, what="it moves")
        browser.prefers(reduced_motion="reduce")
        browser.until(motion.replace("return ", "return !"), within=PATIENCE_S, what="it stands still")
        self.updated(browser, times=3)
        self.assertEqual(browser.run(motion), 0)

        # The page requests resources only from its own origin.
        asked = browser.run("return performance.getEntriesByType('resource').map((r) => new URL(r.name).origin)")
        self.assertLessEqual(set(asked), {url.rstrip("/")})
        self.assertEqual(browser.logged_problems(), [])

    def test_health_is_reported_on_both_listeners(self):
        [(_, port, name)] = self.nodes("only")
        _, public, url = self.serve([(port, name)])

        def get(address):
            try:
                response = urllib.request.urlopen(address, timeout=PATIENCE_S)
            except urllib.error.HTTPError as refused:
                response = refused
            with response:
                return response.status, response.headers.get_content_type(), response.read().decode()

        deadline = time.monotonic() + PATIENCE_S
        while (ready := get(url + "readyz"))[0] == 503 and time.monotonic() < deadline:
            self.assertEqual(json.loads(ready[2])["state"], "unready")
            self.assertIn(name, json.loads(ready[2])["reasons"][0])
            time.sleep(0.05)
        self.assertEqual(get(url + "livez"), (200, "application/json", '{"state":"alive"}'))
        self.assertEqual(ready, (200, "application/json", '{"state":"ready"}'))
        self.assertEqual(get(f"http://{public}/health"), (200, "text/plain", "ok"))
        self.assertEqual(get(f"http://127.0.0.1:{port}/health")[2], "ok", "the node has the same text")

        # The node does not exist.
        _, public, url = self.serve([(free_port(), "nobody")])
        status, _, body = get(url + "readyz")
        self.assertEqual((status, json.loads(body)["state"]), (503, "unready"))
        self.assertIn("nobody", json.loads(body)["reasons"][0])
        self.assertEqual(get(f"http://{public}/health"), (503, "text/plain", "unknown"))
        self.assertEqual(get(url + "livez")[0], 200, "liveness does not depend on nodes")


if __name__ == "__main__":
    unittest.main()
