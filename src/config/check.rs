//! The rules that several settings must fulfil together.
//!
//! At this point, each faulty setting has its default value. A rule about a faulty setting is skipped, so
//! that one mistake is reported once.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::methods::{AnyMethod, Part};

use super::problem::Problem;
use super::reader::Findings;
use super::sections::pool::has_default_timeout;
use super::value::ByteSize;
use super::{AuthMode, Config, KEYS_FILE, Plan, Secret, Server, Upstream, WsListen, is_name, next_address};

/// Checks the rules that several settings must fulfil together. If a default conflicts with a setting, the
/// default is adjusted, and nothing is reported.
pub(super) fn check(config: &mut Config, found: &mut Findings) {
    let mut warnings = [repeated_urls(config, found), short_secrets(config, found)].concat();
    warnings.extend(next_port(config, found));
    warnings.extend(config.plans.iter().flat_map(|(name, plan)| idle_settings(name, plan, found)));
    config.warnings.extend(warnings);
    let mut rules = CrossChecks { found, problems: Vec::new() };
    listeners(config, &mut rules);
    proxy_protocol(config, &mut rules);
    upstreams(config, &mut rules);
    timeouts(config, &mut rules);
    sizes(config, &mut rules);
    auth(config, &mut rules);
    names_of_upstreams(config, &mut rules);
    for (name, plan) in &config.plans {
        self::plan(name, plan, config, &mut rules);
    }
    let problems = rules.problems;
    found.problems.extend(problems);
}

struct CrossChecks<'a> {
    found: &'a Findings,
    problems: Vec<Problem>,
}

impl CrossChecks<'_> {
    /// Records that the setting `path` breaks a rule about `path` and `other`. Does nothing if one of these
    /// two settings is already known to be faulty.
    fn report(
        &mut self,
        path: &str,
        other: &str,
        value: impl Into<String>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        if !self.found.is_wrong(path) && !self.found.is_wrong(other) {
            let problem = Problem::new(path, self.found.origin(path), rule, fix);
            self.problems.push(Problem { value: Some(value.into()), ..problem });
        }
    }

    /// Records that the setting `path` of `size` bytes exceeds the setting `other` of `bound` bytes, which is its
    /// limit.
    fn report_excess(&mut self, path: &str, size: u64, other: &str, bound: u64) {
        let rule = format!("exceeds {other} ({})", ByteSize(bound).show());
        self.report(path, other, ByteSize(size).show(), rule, format!("lower it, or raise {other}"));
    }

    fn is_set(&self, path: &str) -> bool {
        self.found.origins.contains_key(path)
    }
}

/// Warns about each upstream that has the same URL and headers as an earlier one.
fn repeated_urls(config: &Config, found: &Findings) -> Vec<Problem> {
    let url = |upstream: &Upstream| url::Url::parse(upstream.url.expose()).ok();
    let repeats = |(i, upstream): (usize, &Upstream)| {
        let own = url(upstream)?;
        let is_same =
            |other: &&Upstream| url(other).is_some_and(|url| url == own) && other.headers == upstream.headers;
        let first = config.upstreams[..i].iter().find(is_same)?;
        let path = format!("upstream[{i}].url");
        let name = &first.name;
        let rule =
            format!("is also the URL of upstream {name}, so a second opinion may come from the same node");
        let fix = "remove one of the two upstreams, or set the URL of another node";
        Some(Problem::new(&path, found.origin(&path), rule, fix))
    };
    config.upstreams.iter().enumerate().filter_map(repeats).collect()
}

/// Gives up the port after that of `server.listen` if another setting names it, and warns of that. The port may be free only
/// because whoever owns it starts later.
fn next_port(config: &mut Config, found: &Findings) -> Option<Problem> {
    let Server { listen, ws_listen, .. } = &config.server;
    let next = next_address(*listen).filter(|_| *ws_listen == WsListen::Next && listen.port() != 0)?;
    let is_next = |url: &Secret| {
        let Ok(url) = url::Url::parse(url.expose()) else { return false };
        let is_here = reaches(&url, next) || is_of_this_machine(&url);
        url.port_or_known_default() == Some(next.port()) && is_here
    };
    let owner = |(i, upstream): (usize, &Upstream)| {
        let is_socket = upstream.ws_url.as_ref().is_some_and(is_next);
        let key = if is_next(&upstream.url) { "url" } else { "ws_url" };
        (is_socket || key == "url").then(|| format!("upstream[{i}].{key}"))
    };
    let of_admin = share_port(config.server.admin_listen, next).then(|| "server.admin_listen".to_owned());
    let owner = of_admin.or_else(|| config.upstreams.iter().enumerate().find_map(owner))?;
    config.server.ws_listen = WsListen::Off;
    let rule = format!(
        "is off, because the next port ({}) is that of {owner}: web3.js and Solana's command line look for the WebSocket there",
        next.port()
    );
    let fix = "set server.listen so that the next port is free, or server.ws_listen = \"off\"";
    Some(Problem::new("server.ws_listen", found.origin("server.listen"), rule, fix))
}

/// Warns about each price and rate of a plan for a method that the plan does not open.
fn idle_settings(name: &str, plan: &Plan, found: &Findings) -> Vec<Problem> {
    let priced = plan.units.keys().map(|method| ("units", *method));
    let limited = plan.rate.keys().map(|method| ("rate", *method));
    let idle = priced.chain(limited).filter(|(_, method)| !plan.allowed().any(|allowed| allowed == *method));
    let warn = |(table, method): (&str, AnyMethod)| {
        let path = format!("plans.{name}.{table}.{}", method.as_str());
        let fix = format!("add the method to plans.{name}.methods, or remove {path}");
        Problem::new(&path, found.origin(&path), "means nothing: the plan does not open this method", fix)
    };
    idle.map(warn).collect()
}

/// The shortest length of a secret that nobody can guess, in characters.
const SECRET_LENGTH: usize = 16;
const GUESSABLE: &str = "is shorter than 16 characters, so it can be guessed";
const LONGER: &str = "set a longer one, such as the output of `openssl rand -hex 32`";

fn is_short(secret: &Secret) -> bool {
    secret.expose().chars().count() < SECRET_LENGTH
}

/// Warns about each secret that could be guessed.
fn short_secrets(config: &Config, found: &Findings) -> Vec<Problem> {
    let of_store = config.shared.as_ref().and_then(|shared| shared.secret.as_ref());
    let secrets = [("auth.admin_token", config.auth.admin_token.as_ref()), ("shared.secret", of_store)];
    let short = secrets.into_iter().filter(|(_, secret)| secret.is_some_and(is_short));
    short.map(|(path, _)| Problem::new(path, found.origin(path), GUESSABLE, LONGER)).collect()
}

/// Returns the listeners with their settings, in the order in which they are bound.
fn listen_addresses(config: &Config) -> impl Iterator<Item = (&'static str, SocketAddr)> + Clone {
    let server = &config.server;
    let socket = if let WsListen::At(address) = server.ws_listen { Some(address) } else { None };
    [
        ("server.listen", Some(server.listen)),
        ("server.ws_listen", socket),
        ("server.admin_listen", Some(server.admin_listen)),
    ]
    .into_iter()
    .filter_map(|(setting, address)| Some((setting, address?)))
}

/// Returns true if two listeners cannot have both addresses.
fn share_port(one: SocketAddr, other: SocketAddr) -> bool {
    let any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (any || one.ip() == other.ip())
}

fn listeners(config: &Config, rules: &mut CrossChecks<'_>) {
    let all = listen_addresses(config);
    for (at, (path, later)) in all.clone().enumerate() {
        for (other, first) in all.clone().take(at) {
            if share_port(first, later) {
                rules.report(
                    path,
                    other,
                    format!("\"{later}\""),
                    format!("is also the address of {other} (\"{first}\")"),
                    "choose another port for one of them",
                );
            }
        }
    }
}

fn proxy_protocol(config: &Config, rules: &mut CrossChecks<'_>) {
    if config.server.proxy_protocol && config.server.trusted_proxies.is_empty() {
        rules.report(
            "server.proxy_protocol",
            "server.trusted_proxies",
            "true",
            "needs server.trusted_proxies: only these peers may send PROXY protocol headers",
            "list the balancer's addresses in server.trusted_proxies",
        );
    }
}

fn upstreams(config: &Config, rules: &mut CrossChecks<'_>) {
    for (i, upstream) in config.upstreams.iter().enumerate() {
        let Ok(url) = url::Url::parse(upstream.url.expose()) else { continue };
        for (path, listener) in listen_addresses(config) {
            let same_port = listener.port() != 0 && url.port_or_known_default() == Some(listener.port());
            if same_port && reaches(&url, listener) {
                rules.report(
                    &format!("upstream[{i}].url"),
                    path,
                    "***",
                    format!("is slotfront's own {path}, so calls would loop"),
                    "set the node's address, or move the listener",
                );
            }
        }
    }
}

/// Returns true if the host of `url` is an IP address of this machine, because no other can be bound.
fn is_of_this_machine(url: &url::Url) -> bool {
    let ip = url.host_str().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
    ip.is_some_and(|ip| UdpSocket::bind((ip, 0)).is_ok())
}

/// Returns true if a connection to the host of `url` and the listener's port reaches `listener`.
fn reaches(url: &url::Url, listener: SocketAddr) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => ip_reaches(ip.into(), listener),
        Some(url::Host::Ipv6(ip)) => ip_reaches(ip.to_canonical(), listener),
        Some(url::Host::Domain(name)) => {
            name == "localhost" && (listener.ip().is_unspecified() || listener.ip().is_loopback())
        }
        None => false,
    }
}

/// Returns true if a connection to the address `ip` and the listener's port reaches `listener`. A connection to
/// 0.0.0.0 or `::` goes to the loopback address. A listener at 0.0.0.0 gets no connections over IPv6.
fn ip_reaches(ip: IpAddr, listener: SocketAddr) -> bool {
    let ip = match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let takes_version = listener.is_ipv6() || ip.is_ipv4();
    listener.ip() == ip || (listener.ip().is_unspecified() && takes_version && ip.is_loopback())
}

fn timeouts(config: &mut Config, rules: &mut CrossChecks<'_>) {
    let request = config.server.request_timeout;
    let show = |d| humantime::format_duration(d).to_string();
    // A scan has the time of its attempt beside that of other calls.
    let has_own = |method: &AnyMethod| matches!(method, AnyMethod::Own(_) | AnyMethod::Listed(_));
    for method in AnyMethod::all().filter(|method| has_own(method) && !method.rules().walks) {
        let attempt = &mut config.pool.attempt_timeout[method.index()];
        let own = format!("pool.attempt_timeout.{}", method.as_str());
        let shared = "pool.attempt_timeout.default".to_owned();
        // `attempt_timeout.default` does not apply to a method that has a default of its own.
        let shared = has_default_timeout(method).then_some(shared);
        let set_by = std::iter::once(own).chain(shared).find(|path| rules.is_set(path));
        if *attempt <= request {
            continue;
        }
        match set_by {
            None => *attempt = request,
            Some(path) if rules.problems.iter().any(|p| p.path == path) => {}
            Some(path) => rules.report(
                &path,
                "server.request_timeout",
                format!("\"{}\"", show(*attempt)),
                format!("exceeds server.request_timeout ({})", show(request)),
                format!("set at most \"{}\", or raise server.request_timeout", show(request)),
            ),
        }
    }
}

fn sizes(config: &mut Config, rules: &mut CrossChecks<'_>) {
    let (cache, pool) = (&mut config.cache, &mut config.pool);
    if cache.max_entry > cache.capacity {
        if rules.is_set("cache.max_entry") {
            rules.report_excess("cache.max_entry", cache.max_entry, "cache.capacity", cache.capacity);
        } else {
            cache.max_entry = cache.capacity;
        }
    }
    let (outgoing, buffered) = (config.server.max_outgoing, pool.max_buffered);
    let server = &config.server;
    if server.max_body > server.max_incoming {
        let (body, incoming) = (server.max_body as u64, server.max_incoming as u64);
        rules.report_excess("server.max_body", body, "server.max_incoming", incoming);
    }
    for (name, most) in [("pool.max_buffered", buffered), ("server.max_outgoing", outgoing)] {
        for part in Part::ALL {
            if let Some(bytes) = pool.max_response_of[part.index()].filter(|bytes| *bytes > most) {
                let path = format!("pool.max_response_of.{}", part.as_str());
                rules.report_excess(&path, bytes as u64, name, most as u64);
            }
        }
        if pool.max_response > most {
            if rules.is_set("pool.max_response") {
                rules.report_excess("pool.max_response", pool.max_response as u64, name, most as u64);
            } else {
                pool.max_response = most;
            }
        }
    }
}

fn auth(config: &Config, rules: &mut CrossChecks<'_>) {
    let auth = &config.auth;
    if let Some(plan) = &auth.open_plan {
        let names = || config.plans.keys().cloned().collect::<Vec<_>>().join(", ");
        if !config.plans.contains_key(plan) {
            rules.report(
                "auth.open_plan",
                "plans",
                format!("{plan:?}"),
                "is not the name of a plan",
                format!("use one of {}, or add [plans.{plan}]", names()),
            );
        }
    }
    let is_private = config.server.admin_listen.ip().to_canonical().is_loopback();
    if !is_private && auth.admin_token.as_ref().is_some_and(is_short) {
        rules.report("auth.admin_token", "server.admin_listen", "***", GUESSABLE, LONGER);
    }
    if auth.mode == AuthMode::Keys && auth.keys_file.is_none() {
        rules.report(
            "auth.keys_file",
            "auth.mode",
            "\"off\"",
            "means that every request is refused",
            format!("set a file such as \"{KEYS_FILE}\", or set auth.mode = \"open\""),
        );
    }
}

/// Checks the lists of upstreams' names.
fn names_of_upstreams(config: &Config, rules: &mut CrossChecks<'_>) {
    let names: Vec<_> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    let of_methods = config
        .methods
        .iter()
        .map(|(method, listed)| (format!("methods.{}.upstreams", method.as_str()), &listed.upstreams));
    let lists = [("follow.upstreams", &config.follow.upstreams), ("send.upstreams", &config.send.upstreams)];
    let lists = lists.into_iter().map(|(path, list)| (path.to_owned(), list)).chain(of_methods);
    let listed = lists.flat_map(|(path, list)| list.iter().map(move |name| (path.clone(), name)));
    for (path, name) in listed.filter(|(_, name)| !names.contains(&name.as_str())) {
        rules.report(
            &path,
            "upstream",
            // What is no name may be a URL.
            if is_name(name) { format!("{name:?}") } else { "***".to_owned() },
            "is not the name of an upstream",
            format!("name some of {}, or remove {path} to allow all", names.join(", ")),
        );
    }
}

fn plan(name: &str, plan: &Plan, config: &Config, rules: &mut CrossChecks<'_>) {
    if let Some(batch) = plan.max_batch.filter(|n| *n > config.server.max_batch) {
        rules.report(
            &format!("plans.{name}.max_batch"),
            "server.max_batch",
            batch.to_string(),
            format!("exceeds server.max_batch ({})", config.server.max_batch),
            format!("set at most {}, or raise server.max_batch", config.server.max_batch),
        );
    }
    for (key, empty) in [
        ("methods", plan.methods.as_ref().is_some_and(Vec::is_empty)),
        ("commitments", plan.commitments.as_ref().is_some_and(Vec::is_empty)),
    ] {
        if empty {
            let (path, rule) = (format!("plans.{name}.{key}"), "allows nothing");
            rules.report(&path, "", "[]", rule, format!("list at least one, or remove {key} to allow all"));
        }
    }
    let prices = plan.prices(&config.units).by_method;
    for (key, quota) in [("daily_units", plan.daily_units), ("monthly_units", plan.monthly_units)] {
        let allowed = plan.allowed().filter(|m| plan.send || *m != AnyMethod::Send);
        let most_expensive = allowed.max_by_key(|m| (prices[m.index()], Reverse(m.index())));
        let Some((quota, method)) = quota.zip(most_expensive) else { continue };
        let cost = prices[method.index()];
        let own = if plan.units.contains_key(&method) { format!("plans.{name}.") } else { String::new() };
        if quota < cost {
            rules.report(
                &format!("plans.{name}.{key}"),
                &format!("{own}units.{}", method.as_str()),
                quota.to_string(),
                format!("is less than the price of one {} ({cost} units)", method.as_str()),
                format!("set at least {cost}, or leave the method out of plans.{name}.methods"),
            );
        }
    }
}
