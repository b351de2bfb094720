//! Tests of whole configurations: valid ones, and the problems of invalid ones.

mod caching_page;
mod generated;
mod in_force;
mod plans;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::reader::Findings;
use super::*;
use crate::methods::{AnyMethod, Method};

const EXAMPLE: &str = include_str!("../../config/example.toml");
const ONE: &str = "[[upstream]]\nurl = \"http://node.example\"\n";

fn vars(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn parse(text: &str, env: &[(&str, &str)]) -> Result<(Config, Findings), Vec<Problem>> {
    load::parse(text, &vars(env), Path::new("/etc/slotfront"))
}

#[track_caller]
fn valid(text: &str, env: &[(&str, &str)]) -> Config {
    match parse(text, env) {
        Ok((config, _)) => config,
        Err(list) => panic!("{}", Problems::new(None, list)),
    }
}

/// Returns the report on the problems of an invalid configuration.
#[track_caller]
fn report(text: &str, env: &[(&str, &str)]) -> String {
    Problems::new(Some(Path::new("slotfront.toml")), parse(text, env).err().expect("it is wrong")).to_string()
}

/// Returns `path: rule` for every problem. The list is empty if the configuration is valid.
fn faults(text: &str, env: &[(&str, &str)]) -> Vec<String> {
    let list = parse(text, env).err().unwrap_or_default();
    list.into_iter().map(|p| format!("{}: {}", p.path, p.rule)).collect()
}

#[test]
fn one_upstream_suffices() {
    let config = valid(ONE, &[]);
    assert_eq!(config.upstreams, [Upstream::plain("upstream-1", Secret::new("http://node.example"))]);
    assert_eq!((config.plans["standard"].rps, config.plans["standard"].burst), (100, 200));
    assert_eq!(config.auth.keys_file.as_deref(), Some(Path::new("/etc/slotfront/keys.toml")));
    assert_eq!(config, valid("", &[("SLOTFRONT_UPSTREAMS", "http://node.example")]));
}

#[test]
fn example_equals_the_defaults() {
    let mut example = valid(EXAMPLE, &[]);
    let minimal = valid("[[upstream]]\nname = \"validator-1\"\nurl = \"http://127.0.0.1:8899\"\n", &[]);
    assert_eq!(example, minimal);
    // The comparison covers plans, too: without its plans, the example differs.
    example.plans.clear();
    assert_ne!(example, minimal);
}

#[test]
fn example_is_valid_with_every_setting() {
    let on: String = EXAMPLE.lines().map(|line| commented(line).unwrap_or(line).to_owned() + "\n").collect();
    let on = on.replace("env:", "").replace("ca_file = \"ca.pem\"", "");
    let problems = parse(&on, &[]).err().unwrap_or_default();
    assert!(problems.is_empty(), "{problems:?}");
}

/// Returns the setting in a line `# name = value`. `None` for any other line.
fn commented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("# ")?;
    if rest.starts_with("[methods.") {
        return Some(rest);
    }
    let (name, _) = rest.split_once(" = ")?;
    name.bytes().all(|b| b.is_ascii_lowercase() || b"_.".contains(&b)).then_some(rest)
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = r#"
[server]
listen = "8080"
max_bdy = "64KiB"

[[upstream]]
url = "ftp://user:hunter2@node.example"
"#;
    insta::assert_snapshot!(report(text, &[("SLOTFRONT_CACHE__CAPACITY", "lots")]), @r#"
    slotfront.toml: 4 problems

      server.listen = "8080" (line 3)
        expected an IP address and a port
        fix: write it like "127.0.0.1:8080" or "[::1]:8080"

      server.max_bdy (line 4)
        is not a setting
        fix: did you mean server.max_body?

      upstream[0].url = *** (line 7)
        expected a URL with http or https and a host
        fix: write it like "http://127.0.0.1:8899"

      cache.capacity = "lots" (from SLOTFRONT_CACHE__CAPACITY)
        expected a size with a unit
        fix: write it like "50KiB", "512MiB" or "2GiB"
    "#);
}

#[test]
fn syntax_errors_show_no_text() {
    insta::assert_snapshot!(report("[auth]\nadmin_token = hunter2\n[[upstream]\n", &[]), @r"
    slotfront.toml: 2 problems

      the file (line 2)
        is not valid TOML: string values must be quoted, expected literal string
        fix: correct the syntax; strings need quotes, tables are [name], lists of tables [[name]]

      the file (line 3)
        is not valid TOML: unclosed array table, expected `]`
        fix: correct the syntax; strings need quotes, tables are [name], lists of tables [[name]]
    ");
}

#[test]
fn short_secrets_are_found() {
    let rule = "auth.admin_token: is shorter than 16 characters, so it can be guessed";
    let with = |token: &str, admin: &str| {
        format!("{ONE}[server]\nadmin_listen = \"{admin}\"\n[auth]\nadmin_token = \"{token}\"\n")
    };
    for (token, admin, warns, is_refused) in [
        ("admin", "127.0.0.1:9899", true, false),
        ("admin", "[::1]:9899", true, false),
        ("fifteen letters", "0.0.0.0:9899", false, true),
        ("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", "10.0.0.1:9899", false, true),
        ("sixteen letters.", "0.0.0.0:9899", false, false),
        ("sixteen letters.", "127.0.0.1:9899", false, false),
    ] {
        let text = with(token, admin);
        assert_eq!(faults(&text, &[]) == [rule], is_refused, "{token} at {admin}");
        let warnings = parse(&text, &[]).map(|(config, _)| config.warnings).unwrap_or_default();
        let warnings: Vec<_> =
            warnings.iter().map(|found| format!("{}: {}", found.path, found.rule)).collect();
        assert_eq!(warnings == [rule], warns, "{token} at {admin}: {warnings:?}");
    }
    let store = format!("{ONE}[shared]\nurl = \"redis://127.0.0.1\"\nsecret = \"hunter2\"\n");
    assert_eq!(valid(&store, &[]).warnings[0].path, "shared.secret");
}

#[test]
fn environment_overrides_the_file() {
    let text = &(ONE.to_owned()
        + "[server]\nmax_batch = 7\n[plans.Big-One]\nrps = 5\n[pool]\nattempt_timeout.getBlock = \"2s\"");
    let config = valid(
        text,
        &[
            ("SLOTFRONT_SERVER__MAX_BATCH", "8"),
            ("SLOTFRONT_SERVER__TRUSTED_PROXIES", "10.0.0.0/8, ::1"),
            ("SLOTFRONT_CACHE__TTL__ACCOUNT__FINALIZED", "7s"),
            ("SLOTFRONT_POOL__ATTEMPT_TIMEOUT__GETBLOCK", "3s"),
            ("SLOTFRONT_PLANS__BIG_ONE__RPS", "6"),
            ("SLOTFRONT_PLANS__FREE__BURST", "5"),
            ("SLOTFRONT_UPSTREAMS", "a=http://a.example?x=1, env:SLOTFRONT_B"),
            ("SLOTFRONT_B", "https://b.example/key"),
            // The variables of a Kubernetes service named slotfront.
            ("SLOTFRONT_SERVICE_HOST", "10.0.0.1"),
            ("SLOTFRONT_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ],
    );
    assert_eq!(config.server.max_batch, 8);
    assert_eq!(config.server.trusted_proxies.len(), 2);
    assert_eq!(config.cache.ttl.account.finalized, Duration::from_secs(7));
    assert_eq!(config.pool.attempt_timeout[Method::GetBlock.index()], Duration::from_secs(3));
    assert_eq!((config.plans["Big-One"].rps, config.plans["Big-One"].burst), (6, 12));
    assert_eq!(config.plans["free"].burst, 5);
    let upstreams: Vec<_> = config.upstreams.iter().map(|u| (u.name.as_str(), u.url.expose())).collect();
    assert_eq!(upstreams, [("a", "http://a.example?x=1"), ("upstream-2", "https://b.example/key")]);
}

#[test]
fn misspelt_names_get_a_suggestion() {
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
    let rows: [Row<'_>; 8] = [
        ("[server]\nlissten = \"x\"", &[], "did you mean server.listen?"),
        ("[sever]\nlisten = \"x\"", &[], "did you mean server?"),
        ("[[upstreams]]\nurl = \"x\"", &[], "did you mean upstream?"),
        ("[server]\nkeys_file = \"x\"", &[], "did you mean auth.keys_file?"),
        ("[cache]\ncolour = 1", &[], "remove it"),
        ("", &[("SLOTFRONT_SERVER__LISTENS", "x")], "did you mean SLOTFRONT_SERVER__LISTEN?"),
        ("", &[("SLOTFRONT_SERVER_MAX_BODY", "x")], "did you mean SLOTFRONT_SERVER__MAX_BODY?"),
        (
            "",
            &[("SLOTFRONT_X__Y", "x")],
            "unset it, or correct its name: cache.capacity, for example, is SLOTFRONT_CACHE__CAPACITY",
        ),
    ];
    for (text, env, fix) in rows {
        let list = parse(&(ONE.to_owned() + text), env).err().unwrap_or_default();
        assert_eq!(list.iter().map(|p| p.fix.as_str()).collect::<Vec<_>>(), [fix], "{text} {env:?}");
    }
}

#[test]
fn repeated_urls_give_warnings() {
    let upstream = |name: &str, url: &str, more: &str| {
        format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n{more}")
    };
    let warned = |second: &str, more: &str| {
        let text = upstream("a", "http://node.example/key", "") + &upstream("b", second, more);
        valid(&text, &[]).warnings.into_iter().map(|warning| (warning.path, warning.rule)).collect::<Vec<_>>()
    };
    let rule = "is also the URL of upstream a, so a second opinion may come from the same node";
    let expected = [("upstream[1].url".to_owned(), rule.to_owned())];
    for url in ["http://node.example/key", "http://NODE.example:80/key"] {
        assert_eq!(warned(url, ""), expected, "{url}");
    }
    for (url, more) in [
        ("http://node.example/other", ""),
        ("https://node.example/key", ""),
        ("http://node.example:8899/key", ""),
        ("http://node.example/key", "headers = { x-node = \"2\" }\n"),
    ] {
        assert_eq!(warned(url, more), [], "{url} {more}");
    }
}

#[test]
fn listed_methods_are_what_slotfront_does_not_know() {
    let with = |text: &str| ONE.to_owned() + text;
    let refused_name =
        format!("methods.{}: expected letters, digits and '_', at most 64 of them", "a".repeat(200));
    let rows: Vec<(String, &str)> = vec![
        (with("[passthrough]\nmethods = [\"getAsset\"]"), "passthrough: is not a setting"),
        (
            with(
                "[methods.getAsset]\n[units]\ngetAsset = 0\n[plans.a]\nmethods = [\"getAsset\", \"provider\"]",
            ),
            "",
        ),
        (with("[methods.getOther]\ngroup = \"scans\"\n[pool]\nattempt_timeout.getOther = \"1m\""), ""),
        // A method that an earlier configuration of the process has listed.
        (with("[units]\ngetOther = 1"), "units.getOther: is not a setting"),
        (
            with("[plans.a]\nmethods = [\"getOther\"]"),
            "plans.a.methods: names a method that [methods] does not list",
        ),
        (with("[methods.getBalance]"), "methods.getBalance: is a method that slotfront answers itself"),
        (
            with("[methods.accountUnsubscribe]"),
            "methods.accountUnsubscribe: is a method that slotfront answers itself",
        ),
        (with("[methods.sendBundle]"), "methods.sendBundle: writes, and only reads are forwarded"),
        (with(&format!("[methods.{}]", "a".repeat(200))), &refused_name),
        (
            with("[methods.getAsset]\ngroup = \"das\""),
            "methods.getAsset.group: expected \"core\", \"history\", \"owners\", \"scans\" or \"provider\"",
        ),
        (
            with("[methods.getAsset]\nupstreams = [\"nobody\"]"),
            "methods.getAsset.upstreams: is not the name of an upstream",
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(faults(&text, &[]).join("\n"), expected, "{text}");
    }
}

#[test]
fn rules_between_settings() {
    let url = |url: &str| format!("[[upstream]]\nurl = \"{url}\"\n");
    let with = |text: &str| ONE.to_owned() + text;
    let ours = "upstream[0].url: is slotfront's own server.listen, so calls would loop";
    let rows: Vec<(String, &str)> = vec![
        (url("http://127.0.0.1:8080"), ours),
        (url("http://localhost:8080/x"), ours),
        (url("http://[::1]:8080"), ""),
        (url("http://[::1]:8080") + "[server]\nlisten = \"[::]:8080\"", ours),
        (url("http://127.0.0.1:8080") + "[server]\nlisten = \"[::]:8080\"", ours),
        (url("http://0.0.0.0:8080"), ours),
        (url("http://10.0.0.1:8080"), ""),
        (url("http://0.0.0.0:8080") + "[server]\nlisten = \"10.0.0.1:8080\"", ""),
        (url("http://[::]:8080") + "[server]\nlisten = \"[::1]:8080\"", ours),
        (url("http://127.0.0.1:8899"), ""),
        (url("http://user:pass@node.example/key?x=y"), ""),
        (url("node.example"), "upstream[0].url: expected a URL with http or https and a host"),
        (url("env:NODE"), "upstream[0].url: names the variable NODE, which is not set"),
        (url(""), "upstream[0].url: is empty"),
        ("[[upstream]]\nname = \"a\"".to_owned(), "upstream[0].url: is missing"),
        (String::new(), "upstream: is missing: slotfront needs at least one node"),
        ("[upstream]\nurl = \"http://a\"".to_owned(), "upstream: expected a list of tables"),
        (
            ONE.to_owned() + "name = \"upstream-2\"\n" + ONE,
            "upstream[1].name: is also the name of another upstream",
        ),
        (
            with("[server]\nadmin_listen = \"127.0.0.1:8080\""),
            "server.admin_listen: is also the address of server.listen (\"0.0.0.0:8080\")",
        ),
        (with("[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\""), ""),
        (with("[cache]\nmax_entry = \"1GiB\""), "cache.max_entry: exceeds cache.capacity (\"512MiB\")"),
        (
            with("[server]\nmax_outgoing = \"2GiB\"\n[pool]\nmax_response_of.scans = \"1GiB\""),
            "pool.max_response_of.scans: exceeds pool.max_buffered (\"512MiB\")",
        ),
        (with("[server]\nrequest_timeout = \"5s\""), ""),
        (
            with("[pool]\nattempt_timeout = { getBlock = \"40s\" }"),
            "pool.attempt_timeout.getBlock: exceeds server.request_timeout (30s)",
        ),
        (with("[pool]\nattempt_timeout = { getSupply = \"5m\" }"), ""),
        (
            with("[pool]\nattempt_timeout = { getTokenAccountsByOwner = \"40s\" }"),
            "pool.attempt_timeout.getTokenAccountsByOwner: exceeds server.request_timeout (30s)",
        ),
        (with("[auth]\nopen_plan = \"gold\""), "auth.open_plan: is not the name of a plan"),
        (with("[follow]\nupstreams = [\"a\"]"), "follow.upstreams: is not the name of an upstream"),
        (with("[follow]\nmode = \"on\"\nupstreams = [\"upstream-1\"]"), ""),
        (with("[follow]\nmode = \"yes\""), "follow.mode: expected \"off\", \"shadow\" or \"on\""),
        (with("[follow]\npoll = \"1ms\""), "follow.poll: expected a value from \"20ms\" to \"2s\""),
        (with("[follow]\nmax_gap = 1000"), "follow.max_gap: expected a value from 4 to 512"),
        (with("[follow]\nmax_carry = \"2d\""), "follow.max_carry: expected a value from \"1s\" to \"24h\""),
        (with("[plans.a]\nburst = 0"), "plans.a.burst: expected a value from 1 to 1000000"),
        (
            with("[plans.a]\ndaily_units = 9"),
            "plans.a.daily_units: is less than the price of one getBlock (10 units)",
        ),
        (with("[plans.a]\ndaily_units = 9\nmethods = [\"getAccountInfo\"]"), ""),
        (
            with("[plans.a]\nmethods = [\"getblock\"]"),
            "plans.a.methods: element 0: expected a group (core, tip, history, owners, scans, subscriptions, simulation, provider), or the exact name of a method that slotfront answers itself or of one of [methods]",
        ),
        (with("[plans.a]\nmethods = [\"getSlot\", \"getBlock\", \"accountSubscribe\", \"history\"]"), ""),
        (with("[plans.a]\ndaily_units = 10"), ""),
        (
            with("[plans.a]\ndaily_units = 10\nmethods = [\"scans\"]"),
            "plans.a.daily_units: is less than the price of one getProgramAccounts (100 units)",
        ),
        (with("ws_url = \"wss://node.example/path?key=1\""), ""),
        (
            with("ws_url = \"https://node.example\""),
            "upstream[0].ws_url: expected a URL with ws or wss and a host",
        ),
        (with("[server]\nws_listen = \"0.0.0.0:8081\""), ""),
        (
            with("[server]\nws_listen = \"8081\""),
            "server.ws_listen: expected \"next\", \"off\", or an IP address and a port",
        ),
        (
            with("[server]\nws_listen = \"127.0.0.1:8080\""),
            "server.ws_listen: is also the address of server.listen (\"0.0.0.0:8080\")",
        ),
        (with("[plans.a]\nmax_batch = 201"), "plans.a.max_batch: exceeds server.max_batch (200)"),
        (with("[plans.a]\nmonotonic = true"), ""),
        (with("[cache]\nassemble = \"within-bound\""), "cache.assemble: expected \"same-slot\" or \"off\""),
        (with("[verify]\nsample = 1.0"), ""),
        (with("[verify]\nsample = 1.5"), "verify.sample: expected a value from 0.0 to 1.0"),
    ];
    for (text, expected) in rows {
        assert_eq!(faults(&text, &[]).join("\n"), expected, "{text}");
    }
}

#[test]
fn the_next_port_is_left_to_whoever_has_it() {
    let url = |url: &str| format!("[[upstream]]\nurl = \"{url}\"\n");
    let socket = |url: &str| format!("{ONE}ws_url = \"{url}\"\n");
    let server = |text: &str| format!("{ONE}[server]\n{text}\n");
    for (text, owner) in [
        (url("http://127.0.0.1:8081"), Some("upstream[0].url")),
        (url("http://localhost:8081/x"), Some("upstream[0].url")),
        (socket("ws://127.0.0.1:8081"), Some("upstream[0].ws_url")),
        (server("admin_listen = \"127.0.0.1:8081\""), Some("server.admin_listen")),
        (ONE.to_owned(), None),
        (url("http://192.0.2.1:8081"), None),
        (url("http://node.example:8081"), None),
        (server("listen = \"127.0.0.1:65535\""), None),
        (server("listen = \"127.0.0.1:0\""), None),
    ] {
        let config = valid(&text, &[]);
        let rules: Vec<_> = config.warnings.iter().map(|warning| &*warning.rule).collect();
        match owner {
            None => assert_eq!((rules.len(), config.server.ws_listen), (0, WsListen::Next), "{text}"),
            Some(owner) => {
                let rule = format!("is off, because the next port (8081) is that of {owner}: ");
                assert!(rules.len() == 1 && rules[0].starts_with(&rule), "{text}: {rules:?}");
                assert_eq!(config.server.ws_listen, WsListen::Off, "{text}");
            }
        }
    }
    for text in ["ws_listen = \"off\"", "ws_listen = \"0.0.0.0:8082\""] {
        let config = valid(&format!("{}[server]\n{text}", url("http://127.0.0.1:8081")), &[]);
        assert_eq!(config.warnings, [], "{text}");
    }
}

#[test]
fn defaults_adapt_to_settings() {
    let config = valid(&(ONE.to_owned() + "[server]\nrequest_timeout = \"5s\""), &[]);
    let seconds = Method::ALL.map(|method| config.pool.attempt_timeout[method.index()].as_secs());
    assert_eq!(seconds, Method::ALL.map(|method| if method.rules().walks { 60 } else { 5 }));
    let short = "[server]\nrequest_timeout = \"5s\"\n[pool]\nattempt_timeout = { default = \"2s\" }";
    let config = valid(&(ONE.to_owned() + short), &[]);
    let by_method = |method: Method| config.pool.attempt_timeout[method.index()].as_secs();
    assert_eq!((by_method(Method::GetBlock), by_method(Method::GetAccountInfo)), (5, 2));
    let config = valid(&(ONE.to_owned() + "[pool]\nattempt_timeout = { default = \"3s\" }"), &[]);
    let seconds = Method::ALL.map(|method| config.pool.attempt_timeout[method.index()].as_secs());
    let expected = |method: Method| match method {
        Method::GetBlock => 25,
        method if method.rules().walks => 60,
        _ => 3,
    };
    assert_eq!(seconds, Method::ALL.map(expected));
    let config = valid(&(ONE.to_owned() + "[units]\ndefault = 2\ngetSlot = 7\nsendTransaction = 9"), &[]);
    let price = |method: Method| config.units.by_method[AnyMethod::Own(method).index()];
    let (own, scan) = (price(Method::GetAccountInfo), price(Method::GetSupply));
    let owners = [Method::GetTokenAccountsByOwner, Method::GetTokenAccountsByDelegate].map(price);
    assert_eq!((price(Method::GetBlock), own, scan, owners), (10, 2, 100, [10, 10]));
    let simulation = AnyMethod::from_name("simulateTransaction").unwrap();
    assert_eq!(config.units.by_method[simulation.index()], 5);
    let named =
        ["getSlot", "sendTransaction"].map(|name| AnyMethod::from_name(name).expect("a method").index());
    assert_eq!(named.map(|index| config.units.by_method[index]), [7, 9]);
    let config = valid(&(ONE.to_owned() + "[cache]\ncapacity = \"8MiB\""), &[]);
    assert_eq!(config.cache.max_entry, 8 << 20);
    let config = valid(&(ONE.to_owned() + "[cache.ttl]\ncluster_nodes = \"off\""), &[]);
    assert_eq!(config.cache.ttl.cluster_nodes, Duration::ZERO);
}

#[test]
fn no_secret_is_shown() {
    let secret = "hunter2";
    let text = format!(
        "[auth]\nadmin_token = \"{secret}\"\n[[upstream]]\nurl = \"https://{secret}@a.example/{secret}\"\n\
         headers = {{ authorization = \"{secret}\" }}\n\
         [shared]\nurl = \"redis://u:{secret}@a\"\nsecret = \"{secret}\""
    );
    let config = valid(&text, &[]);
    assert!(!format!("{config:?} {config:#?}").contains(secret));

    // A secret may be put into each of these wrong places.
    for text in [
        format!("[[upstream]]\nurl = \"ftp://{secret}\""),
        format!("[[upstream]]\nulr = \"https://{secret}\""),
        format!("[[upstream]]\nurl = [\"https://{secret}\"]"),
        format!("[[upstream]]\nname = \"https://{secret}\"\nurl = \"http://a\""),
        format!("[[upstream]]\nurl = \"http://a\"\nheaders = {{ authorization = \"{secret}\\n\" }}"),
        format!("[shared]\nurl = \"redis://:{secret}@a,http://{secret}@b\""),
        format!("[shared]\nsecret = [\"{secret}\"]"),
        format!("shared = \"redis://:{secret}@a\""),
        format!("[[upstream]]\nurl = \"http://a\"\nheaders = \"authorization: {secret}\""),
        format!("[[upstream]]\nurl = \"http://a\"\n[follow]\nupstreams = [\"https://{secret}\"]"),
        format!("[[upstream]]\nurl = \"http://a\"\n[send]\nupstreams = \"https://{secret}\""),
        format!("[telemetry]\notlp = \"http://{secret}@a\""),
        format!("[auth]\ntoken = \"{secret}\""),
        format!("[auth]\nadmin_token = \"{secret}"),
        format!("[auth]\nadmin_token = [\"{secret}\"]"),
    ] {
        let shown = report(&text, &[("SLOTFRONT_UPSTREAMZ__X", secret)]);
        assert!(!shown.contains(secret), "{shown}");
    }
    let shown = report("", &[("SLOTFRONT_UPSTREAMS", "a=ftp://hunter2,b=hunter2")]);
    assert!(!shown.contains(secret), "{shown}");
}

#[test]
fn traces_need_a_url() {
    let url = "hunter2.example:4318";
    let upstream = "[[upstream]]\nurl = \"http://a\"\n[telemetry]\n";
    let text = format!("{upstream}otlp = \"http://{url}\"\ntrace_sample = 0.5\n");
    let telemetry = valid(&text, &[]).telemetry;
    assert_eq!(telemetry.otlp, Some(Secret::new(format!("http://{url}"))));
    assert!((telemetry.trace_sample - 0.5).abs() < f64::EPSILON);
    let shown = report(&format!("{upstream}otlp = \"{url}\""), &[]);
    assert!(shown.contains("telemetry.otlp") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn dev_is_valid() {
    let any = "127.0.0.1:0".parse().unwrap();
    let config = Config::dev(any, any, vec![Upstream::plain("sim-1", Secret::new("http://127.0.0.1:1"))]);
    assert_eq!(config.auth.dev_key.as_deref(), Some("dev"));
    assert!(config.plans["dev"].bypass_cache);
    assert_eq!(config.upstreams[0].name, "sim-1");
}

#[test]
fn missing_file_is_named() {
    let problems = load(Some(Path::new("/nowhere/slotfront.toml")), &vars(&[])).unwrap_err();
    insta::assert_snapshot!(problems, @r"
    /nowhere/slotfront.toml: 1 problem

      the file
        cannot be read: it does not exist, nor does its folder
        fix: name a readable file, such as a copy of config/example.toml; a container needs it mounted, readable to its user
    ");
}

#[test]
fn a_wrong_group_is_told_all_groups() {
    use super::value::{MethodOrGroup, Setting as _};
    let expected = MethodOrGroup::EXPECTED;
    for group in crate::methods::Group::ALL {
        assert!(expected.contains(group.as_str()), "{group:?} is missing: {expected}");
    }
}
