//! Rules between settings: what each alone may say, but not together.
//!
//! A setting that is wrong by itself has its default here, so a rule that touches one says nothing.

use std::net::{IpAddr, SocketAddr};

use crate::methods::{AnyMethod, Method};

use super::problem::{Origin, Problem};
use super::reader::Found;
use super::value::{Setting, Size};
use super::{AuthMode, Config, Plan, defaults};

/// Judges every rule between settings, and fits defaults to what was set: a default never breaks a rule.
pub(super) fn check(config: &mut Config, found: &mut Found) {
    config.warnings = client_ip_header(config, found).into_iter().collect();
    let mut rules = Rules { found, problems: Vec::new() };
    listeners(config, &mut rules);
    upstreams(config, &mut rules);
    timeouts(config, &mut rules);
    sizes(config, &mut rules);
    auth(config, &mut rules);
    for (name, plan) in &config.plans {
        self::plan(name, plan, config, &mut rules);
    }
    let problems = rules.problems;
    found.problems.extend(problems);
}

struct Rules<'a> {
    found: &'a Found,
    problems: Vec<Problem>,
}

impl Rules<'_> {
    /// Notes a problem with `path`, unless it or `other` is already one.
    fn broken(&mut self, path: &str, other: &str, value: Option<String>, rule: String, fix: String) {
        if !self.found.is_wrong(path) && !self.found.is_wrong(other) {
            let origin = self.found.origin(path);
            self.problems.push(Problem { path: path.to_owned(), value, origin, rule, fix });
        }
    }

    /// Notes that one size is over another that bounds it.
    fn over(&mut self, path: &str, size: u64, other: &str, bound: u64) {
        let rule = format!("is more than {other} ({}), so it could never be used", Size(bound).show());
        self.broken(path, other, Some(Size(size).show()), rule, format!("lower it, or raise {other}"));
    }

    fn is_set(&self, path: &str) -> bool {
        self.found.origins.contains_key(path)
    }
}

/// Warns where it is left to a default which header of trusted proxies is believed.
fn client_ip_header(config: &Config, found: &Found) -> Option<Problem> {
    const PATH: &str = "server.client_ip_header";
    let server = &config.server;
    // A balancer that speaks the PROXY protocol writes neither.
    if server.trusted_proxies.is_empty() || server.proxy_protocol || found.origins.contains_key(PATH) {
        return None;
    }
    Some(Problem {
        path: PATH.to_owned(),
        value: None,
        origin: Origin::Default,
        rule: "is not set, so X-Forwarded-For of server.trusted_proxies is believed and Forwarded is never read"
            .to_owned(),
        fix: "write \"x-forwarded-for\" or \"forwarded\", whichever your proxies write; they must replace or append to \
              what a client sends of it"
            .to_owned(),
    })
}

fn listeners(config: &Config, rules: &mut Rules<'_>) {
    let (public, admin) = (config.server.listen, config.server.admin_listen);
    if public.port() != 0
        && public.port() == admin.port()
        && (same_host(public, admin.ip()) || same_host(admin, public.ip()))
    {
        rules.broken(
            "server.admin_listen",
            "server.listen",
            Some(format!("\"{admin}\"")),
            format!("is the address of server.listen (\"{public}\"), too"),
            "give one of the two another port".to_owned(),
        );
    }
}

/// Whether a connection to `ip`, on the right port, reaches this listener.
fn same_host(listener: SocketAddr, ip: IpAddr) -> bool {
    let ip = if ip.is_unspecified() { loopback(listener) } else { ip };
    listener.ip() == ip || (listener.ip().is_unspecified() && ip.is_loopback())
}

/// Where a connection to "any address" ends.
fn loopback(listener: SocketAddr) -> IpAddr {
    if listener.ip().is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { listener.ip() }
}

fn upstreams(config: &Config, rules: &mut Rules<'_>) {
    let listeners =
        [("server.listen", config.server.listen), ("server.admin_listen", config.server.admin_listen)];
    for (i, upstream) in config.upstreams.iter().enumerate() {
        let Ok(url) = url::Url::parse(upstream.url.expose()) else { continue };
        for (path, listener) in listeners {
            let same_port = listener.port() != 0 && url.port_or_known_default() == Some(listener.port());
            if same_port && reaches(&url, listener) {
                rules.broken(
                    &format!("upstream[{i}].url"),
                    path,
                    Some("***".to_owned()),
                    format!("is our own {path}: every call would come back to us"),
                    "name the node's address, or move the listener".to_owned(),
                );
            }
        }
    }
}

fn reaches(url: &url::Url, listener: SocketAddr) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => same_host(listener, ip.into()),
        Some(url::Host::Ipv6(ip)) => same_host(listener, ip.to_canonical()),
        Some(url::Host::Domain(name)) => {
            name == "localhost" && (listener.ip().is_unspecified() || listener.ip().is_loopback())
        }
        None => false,
    }
}

fn timeouts(config: &mut Config, rules: &mut Rules<'_>) {
    let request = config.server.request_timeout;
    let show = |d| humantime::format_duration(d).to_string();
    for method in Method::ALL {
        let attempt = &mut config.pool.attempt_timeout[method.index()];
        let own = format!("pool.attempt_timeout.{}", method.as_str());
        let shared = "pool.attempt_timeout.default".to_owned();
        // A method whose own default differs is not set by the shared one.
        let shared = (defaults::attempt_timeout(method) == defaults::ATTEMPT_TIMEOUT).then_some(shared);
        let set_by = std::iter::once(own).chain(shared).find(|path| rules.is_set(path));
        if *attempt <= request {
            continue;
        }
        match set_by {
            None => *attempt = request,
            Some(path) if rules.problems.iter().any(|p| p.path == path) => {}
            Some(path) => rules.broken(
                &path,
                "server.request_timeout",
                Some(format!("\"{}\"", show(*attempt))),
                format!(
                    "is longer than server.request_timeout ({}), which ends the call before",
                    show(request)
                ),
                format!("write at most \"{}\", or raise server.request_timeout", show(request)),
            ),
        }
    }
}

fn sizes(config: &mut Config, rules: &mut Rules<'_>) {
    let (cache, pool) = (&mut config.cache, &mut config.pool);
    if cache.max_entry > cache.capacity {
        if rules.is_set("cache.max_entry") {
            rules.over("cache.max_entry", cache.max_entry, "cache.capacity", cache.capacity);
        } else {
            cache.max_entry = cache.capacity;
        }
    }
    let (outgoing, buffered) = (config.server.max_outgoing, pool.max_buffered);
    for (name, most) in [("pool.max_buffered", buffered), ("server.max_outgoing", outgoing)] {
        if pool.max_response > most {
            if rules.is_set("pool.max_response") {
                rules.over("pool.max_response", pool.max_response as u64, name, most as u64);
            } else {
                pool.max_response = most;
            }
        }
    }
}

fn auth(config: &Config, rules: &mut Rules<'_>) {
    let auth = &config.auth;
    if let Some(plan) = &auth.open_plan {
        let names = || config.plans.keys().cloned().collect::<Vec<_>>().join(", ");
        if !config.plans.contains_key(plan) {
            rules.broken(
                "auth.open_plan",
                "plans",
                Some(format!("{plan:?}")),
                "is no plan".to_owned(),
                format!("name one of {}, or add [plans.{plan}]", names()),
            );
        }
    }
    if auth.mode == AuthMode::Keys && auth.keys_file.is_none() {
        rules.broken(
            "auth.keys_file",
            "auth.mode",
            Some("\"off\"".to_owned()),
            "leaves nobody who may call".to_owned(),
            format!("name a file such as \"{}\", or set auth.mode = \"open\"", defaults::KEYS_FILE),
        );
    }
}

fn plan(name: &str, plan: &Plan, config: &Config, rules: &mut Rules<'_>) {
    if let Some(batch) = plan.max_batch.filter(|n| *n > config.server.max_batch) {
        rules.broken(
            &format!("plans.{name}.max_batch"),
            "server.max_batch",
            Some(batch.to_string()),
            format!("is more than server.max_batch ({}), which holds for everybody", config.server.max_batch),
            format!("write at most {}, or raise server.max_batch", config.server.max_batch),
        );
    }
    for (key, empty) in [
        ("methods", plan.methods.as_ref().is_some_and(Vec::is_empty)),
        ("commitments", plan.commitments.as_ref().is_some_and(Vec::is_empty)),
    ] {
        if empty {
            let (path, rule) = (format!("plans.{name}.{key}"), "allows nothing".to_owned());
            rules.broken(
                &path,
                "",
                Some("[]".to_owned()),
                rule,
                format!("list some, or remove {key} for all"),
            );
        }
    }
    for (key, quota) in [("daily_units", plan.daily_units), ("monthly_units", plan.monthly_units)] {
        let allowed =
            |m: &Method| plan.methods.as_ref().is_none_or(|list| list.contains(&AnyMethod::Own(*m)));
        let dearest =
            Method::ALL.into_iter().filter(allowed).max_by_key(|m| config.units.by_method[m.index()]);
        let Some((quota, method)) = quota.zip(dearest) else { continue };
        let cost = config.units.by_method[method.index()];
        if quota < cost {
            rules.broken(
                &format!("plans.{name}.{key}"),
                &format!("units.{}", method.as_str()),
                Some(quota.to_string()),
                format!("is less than one {} costs ({cost} units)", method.as_str()),
                format!("write at least {cost}, or leave the method out of plans.{name}.methods"),
            );
        }
    }
}
