// What somebody with the admin token can do. Every action asks once. The token stays in this tab, until it is closed.

let token = "";
try { token = sessionStorage.getItem("token") ?? ""; } catch { /* private windows may refuse */ }

function useToken(text) {
  token = text;
  try { sessionStorage.setItem("token", text); } catch { /* as above */ }
  $("hands").hidden = !token;
  $("token-form").hidden = !!token;
  if (token) listKeys();
}

/** Sends a request with the token, and returns the answer. Throws the reason of a refusal. */
async function ask(method, path, body) {
  const answer = await fetch(path, {
    method, headers: { authorization: "Bearer " + token }, body: body && JSON.stringify(body), signal: AbortSignal.timeout(10000),
  });
  const said = await answer.json().catch(() => ({}));
  if ([401, 403].includes(answer.status)) useToken("");
  if (!answer.ok) throw new Error(said.error ?? `HTTP ${answer.status}`);
  return said;
}

/** Asks the operator, and then does `work`, which returns what to say of it. */
function act(question, verb, work) {
  const dialog = $("sure");
  setText("sure-text", question);
  setText("sure-yes", verb);
  $("sure-yes").onclick = async () => {
    dialog.close();
    try { setText("done", await work()); } catch (error) { setText("done", "Not done: " + error.message); }
    if (token) listKeys();
  };
  $("sure-no").onclick = () => dialog.close();
  dialog.showModal();
}

const button = (text, label, work) => {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.addEventListener("click", work);
  return made;
};

/** Shows the nodes with what can be done with them. */
function nodeActions(upstreams) {
  if (!token) return;
  const key = upstreams.map((node) => node.name + node.drained).join();
  if ($("hand-nodes").dataset.key === key) return; // a button in use keeps its focus
  $("hand-nodes").dataset.key = key;
  $("hand-nodes").tBodies[0].replaceChildren(...upstreams.map(({ name, drained }) => {
    const path = `/api/upstreams/${encodeURIComponent(name)}/`;
    const restore = () => act(`Send calls to ${name} again?`, "Restore", async () => (await ask("POST", path + "restore"), `${name} gets calls again.`));
    const drain = () => act(`Send no more calls to ${name}? A restart of slotfront would restore it; upstream.drained = true in the configuration stays.`, "Drain", async () => {
      await ask("POST", path + "drain");
      return `${name} gets no more calls, until it is restored or slotfront restarts.`;
    });
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, drained ? "drained" : "gets calls"),
      element("td.n", {}, drained ? button("Restore", `Restore ${name}`, restore) : button("Drain", `Drain ${name}`, drain)));
  }));
}

async function listKeys() {
  let keys, plans;
  try { ({ keys, plans } = await ask("GET", "/api/keys")); } catch (error) { return setText("done", error.message); }
  const choice = (label, chosen) => {
    const select = element("select", { "aria-label": label }, ...plans.map((plan) => element("option", plan === chosen ? { selected: "" } : {}, plan)));
    return select;
  };
  $("new-plan").replaceChildren(...plans.map((plan) => element("option", plan === "standard" ? { selected: "" } : {}, plan)));
  $("hand-keys").tBodies[0].replaceChildren(...keys.filter((key) => key.state !== "revoked").map((key) => {
    const path = `/api/keys/${encodeURIComponent(key.id)}`;
    const plan = choice(`Plan of ${key.name}`, key.plan);
    plan.addEventListener("change", () => act(`Move ${key.name} from plan ${key.plan} to ${plan.value}?`, "Change", async () => {
      await ask("PATCH", path, { plan: plan.value });
      return `${key.name} is on plan ${plan.value} now.`;
    }));
    const suspended = key.state === "suspended";
    const suspend = () => act(`${suspended ? "Accept" : "Refuse"} ${key.name} ${suspended ? "again" : "until it is resumed"}?`, suspended ? "Resume" : "Suspend", async () => {
      await ask("PATCH", path, { suspended: !suspended });
      return `${key.name} is ${suspended ? "accepted again" : "suspended"}.`;
    });
    const revoke = () => act(`Revoke ${key.name} (${key.id}) for good? This cannot be undone.`, "Revoke", async () => (await ask("POST", path + "/revoke"), `${key.name} is revoked.`));
    return element("tr", {}, element("th", { scope: "row" }, element("b", {}, key.name), element("small", {}, key.id)), element("td", {}, key.state), element("td", {}, plan),
      element("td.n", {}, button(suspended ? "Resume" : "Suspend", `${suspended ? "Resume" : "Suspend"} ${key.name}`, suspend), " ", button("Revoke", `Revoke ${key.name}`, revoke)));
  }));
}

$("token-form").addEventListener("submit", (event) => { event.preventDefault(); useToken($("token").value.trim()); $("token").value = ""; });
$("forget").addEventListener("click", () => useToken(""));
$("purge").addEventListener("click", () => act("Purge the whole cache? Nodes get more calls until it is full again.", "Purge", async () => {
  const { entries } = await ask("POST", "/api/cache/purge");
  return `Purged: ${plural(entries, "entry", "entries")}.`;
}));
$("new-key").addEventListener("submit", (event) => {
  event.preventDefault();
  const [name, plan] = [$("new-name").value, $("new-plan").value];
  act(`Create a key for ${name} on plan ${plan}?`, "Create", async () => {
    const { id, key } = await ask("POST", "/api/keys", { name, plan });
    $("new-name").value = "";
    return `${name} (${id}) has the key ${key}. It is shown only now.`;
  });
});
