//! `slotfront keys`: creates, lists, changes, rotates and revokes API keys.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use jiff::Timestamp;

use super::check::Finding;
use super::table::TextTable;
use super::{Failure, World};
use crate::config::{Config, KEYS_FILE, STANDARD_PLAN, io_fault, is_name};
use crate::gateway::create_private;
use crate::gateway::keys::change::{Given, KeyChange};
use crate::gateway::keys::file::{ChangeError, IssuedKey, KeyFile, NewKey};
use crate::gateway::keys::scope::{self, Scope};
use crate::gateway::keys::view::KeyView;
use crate::gateway::keys::{self, ApiKey, KeyHash, NAME_RULE};
use crate::methods::AnyMethod;

/// Create, list, change, rotate and revoke API keys
#[derive(Debug, Parser)]
#[command(
    long_about = "Create, list, change, rotate and revoke API keys. The file holds hashes only; a secret is shown once, when it is issued.\n\
                  A running gateway reads a changed file within two seconds, without a restart.",
    after_help = "Examples:\n    slotfront keys create --config slotfront.toml --name alice --expires 90d --output alice.key\n    \
                  slotfront keys list --config slotfront.toml\n    \
                  slotfront keys set alice --config slotfront.toml --plan pro\n    \
                  slotfront keys rotate --file keys.toml --name alice --grace 24h --output alice.new.key\n    \
                  slotfront keys revoke --file keys.toml --name alice"
)]
pub(super) struct Args {
    /// The key file [default: `auth.keys_file` of the configuration; without one, keys.toml]
    #[arg(long, global = true, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The configuration, which names the key file and has the plans [default: the file that `SLOTFRONT_CONFIG` names]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Create a key; the secret is shown once, in the file --output or alone on standard output
    #[command(
        after_help = "Examples:\n    slotfront keys create --config slotfront.toml --name alice --output alice.key\n    \
                      slotfront keys create --config slotfront.toml --name shop --origin https://shop.example \\\n      \
                      --address 10.0.0.0/8 --method getBlock --method getAccountInfo --output shop.key"
    )]
    Create {
        /// The owner of the key
        #[arg(long)]
        name: String,
        /// The plan of the key: a [plans.NAME] of the configuration
        #[arg(long, default_value = STANDARD_PLAN)]
        plan: String,
        /// The time at which the key expires: a duration from now such as 90d, or a date such as 2027-01-31 (00:00 UTC)
        /// [default: never]
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        #[command(flatten)]
        restrictions: Restrictions,
        /// Write the secret into this new file, which only its owner can read, so that it is in no terminal and no log
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List all keys, without their secrets
    #[command(after_help = "Example:\n    slotfront keys list --file keys.toml")]
    List {
        /// Print the keys as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all that is known of a key, without its secret
    #[command(after_help = "Example:\n    slotfront keys show alice --file keys.toml")]
    Show {
        /// The key's id, or its name if the name is unique
        #[arg(value_name = "ID|NAME")]
        key: String,
        /// Print the key as JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a key; what no option names stays as it is, and a running gateway follows within two seconds
    #[command(
        after_help = "Examples:\n    slotfront keys set alice --config slotfront.toml --plan pro --expires never\n    \
                      slotfront keys set key-5Kd3NBUA --file keys.toml --suspend\n    \
                      slotfront keys set shop --file keys.toml --origin https://shop.example --address any"
    )]
    Set {
        /// The key's id, or its name if the name is unique
        #[arg(value_name = "ID|NAME")]
        key: String,
        /// The new name of the owner
        #[arg(long)]
        name: Option<String>,
        /// The new plan: a [plans.NAME] of the configuration
        #[arg(long)]
        plan: Option<String>,
        /// The new end: a duration from now, a date, or never
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// A web origin from which the key may be used, instead of those before; repeat for more; any lifts the restriction
        #[arg(long = "origin", value_name = "ORIGIN")]
        origins: Vec<String>,
        /// An address or network, as --origin
        #[arg(long = "address", value_name = "CIDR")]
        addresses: Vec<String>,
        /// A method, as --origin
        #[arg(long = "method", value_name = "METHOD")]
        methods: Vec<String>,
        /// Refuse the key until it is resumed
        #[arg(long, conflicts_with = "resume")]
        suspend: bool,
        /// Accept a suspended key again
        #[arg(long)]
        resume: bool,
        /// Print the key as it is now, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key for good; a running gateway refuses it within two seconds
    #[command(after_help = "Example:\n    slotfront keys revoke --file keys.toml --name key-5Kd3NBUA")]
    Revoke {
        /// The key's id, or its name if the name is unique
        #[arg(long, value_name = "NAME|ID")]
        name: String,
    },
    /// Replace the secret of a key; the old secret stays valid for a while, or ends at once with --grace 0s
    #[command(
        after_help = "Examples:\n    slotfront keys rotate --file keys.toml --name alice --grace 24h\n    \
                      slotfront keys rotate --file keys.toml --name alice --grace 0s    (the secret leaked)"
    )]
    Rotate {
        /// The key's id, or its name if the name is unique
        #[arg(long, value_name = "NAME|ID")]
        name: String,
        /// The longest time for which any earlier secret stays valid; 0s ends all of them at once
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = humantime::parse_duration)]
        grace: Duration,
        /// Write the secret into this new file, which only its owner can read, so that it is in no terminal and no log
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// The options that restrict the use of a new key. Each may be repeated. A missing option restricts nothing.
#[derive(Debug, clap::Args)]
struct Restrictions {
    /// A web origin from which the key may be used, as browsers send it; repeat for more [default: any]
    #[arg(long = "origin", value_name = "ORIGIN", value_parser = scope::origin)]
    origins: Vec<String>,
    /// A client address or network from which the key may be used; repeat for more [default: any]
    #[arg(long = "address", value_name = "CIDR", value_parser = scope::address)]
    addresses: Vec<IpNet>,
    /// A method that the key may call if its plan allows it; repeat for more [default: all]
    #[arg(long = "method", value_name = "METHOD", value_parser = scope::method)]
    methods: Vec<AnyMethod>,
}

impl Restrictions {
    fn scope(self) -> Scope {
        fn given<T>(list: Vec<T>) -> Option<Vec<T>> {
            (!list.is_empty()).then_some(list)
        }
        Scope { origins: given(self.origins), addresses: given(self.addresses), methods: given(self.methods) }
    }
}

pub(super) fn run(args: Args, world: &mut World<'_>, now: Timestamp) -> Result<(), Failure> {
    // A configuration that is not needed is not read, so that a faulty one does not keep a key from being revoked.
    let is_needed = args.file.is_none()
        || matches!(args.command, KeysCommand::Create { .. } | KeysCommand::Set { plan: Some(_), .. });
    let config = world.config_file(args.config).filter(|_| is_needed);
    let config = config.map(|file| world.config(Some(file))).transpose()?;
    let file = KeyFile::new(args.file.map_or_else(|| keys_file(config.as_ref(), world), Ok)?);
    match args.command {
        KeysCommand::Create { name, plan, expires, restrictions, output } => {
            if !keys::is_name(&name) {
                return Err(Failure::Usage(format!("--name {name:?}: {NAME_RULE}")));
            }
            plan_exists(&plan, config.as_ref(), world)?;
            let expires = expires.map(|text| parse_end(&text, now)).transpose()?;
            let new = NewKey { name, plan, expires, scope: restrictions.scope() };
            let done = |issued: &IssuedKey| format!("created {}", issued.id);
            issue(output.as_deref(), || file.create(&new, now), done, world)
        }
        KeysCommand::Show { key, json } => show(file.get(&key).map_err(failure)?, json, now, world),
        KeysCommand::Set { key, name, plan, expires, origins, addresses, methods, suspend, resume, json } => {
            if let Some(plan) = &plan {
                plan_exists(plan, config.as_ref(), world)?;
            }
            let expires = match expires.as_deref() {
                None => Given::Stays,
                Some("never") => Given::Lifted,
                Some(text) => Given::Set(date(parse_end(text, now)?)),
            };
            let suspended = (suspend || resume).then_some(suspend);
            let [origins, addresses, methods] = [origins, addresses, methods].map(restriction);
            let change = KeyChange { name, plan, expires, origins, addresses, methods, suspended };
            change.check(now, None).map_err(|why| Failure::Usage(format!("keys set: {why}")))?;
            let changed = file.set(&key, change, now).map_err(failure)?;
            writeln!(world.err, "changed {}; a running gateway follows within two seconds", changed.id)?;
            show(changed, json, now, world)
        }
        KeysCommand::List { json } => {
            if !file.path().exists() {
                let file = file.path().display();
                writeln!(world.err, "{file} does not exist yet: no key has been created in it")?;
            }
            let keys = file.list().map_err(failure)?;
            if json {
                let keys: Vec<_> = keys.into_iter().map(|key| KeyView::of(key, now)).collect();
                return Ok(writeln!(world.out, "{:#}", serde_json::json!({ "keys": keys }))?);
            }
            Ok(writeln!(world.out, "{}", key_table(&keys, now))?)
        }
        KeysCommand::Revoke { name } => {
            let id = file.revoke(&name, now).map_err(failure)?;
            writeln!(world.err, "revoked {id}; a running gateway refuses it within two seconds")?;
            Ok(())
        }
        KeysCommand::Rotate { name, grace, output } => {
            let until = now
                .checked_add(grace)
                .map_err(|_| Failure::usage("--grace: the end is after the last supported date"))?;
            let done =
                |issued: &IssuedKey| format!("rotated {}; {}", issued.id, earlier_secrets(&issued.earlier));
            issue(output.as_deref(), || file.rotate(&name, until, now), done, world)
        }
    }
}

/// Returns the restriction that a repeated option gives. `any` alone lifts it.
fn restriction(list: Vec<String>) -> Given<Vec<String>> {
    match &list[..] {
        [] => Given::Stays,
        [only] if only == "any" => Given::Lifted,
        _ => Given::Set(list),
    }
}

fn show(key: ApiKey, json: bool, now: Timestamp, world: &mut World<'_>) -> Result<(), Failure> {
    let table = key_table(std::slice::from_ref(&key), now);
    let text = if json { format!("{:#}", serde_json::json!(KeyView::of(key, now))) } else { table };
    Ok(writeln!(world.out, "{text}")?)
}

/// Returns the key file of the gateway that `config` or, without it, the environment describes.
fn keys_file(config: Option<&Config>, world: &World<'_>) -> Result<PathBuf, Failure> {
    let file = match config {
        Some(config) => config.auth.keys_file.clone(),
        None => match world.env.get("SLOTFRONT_AUTH__KEYS_FILE").map(String::as_str) {
            Some("off") => None,
            file => Some(file.unwrap_or(KEYS_FILE).into()),
        },
    };
    file.ok_or_else(|| Failure::usage("auth.keys_file is \"off\"; name the key file with --file FILE"))
}

/// Makes a secret with `make`, and hands it out, only here and only once: the key file holds its hash. `done` says what
/// was done.
fn issue(
    output: Option<&Path>,
    make: impl FnOnce() -> Result<IssuedKey, ChangeError>,
    done: impl FnOnce(&IssuedKey) -> String,
    world: &mut World<'_>,
) -> Result<(), Failure> {
    let Some(path) = output else {
        let issued = make().map_err(failure)?;
        writeln!(world.err, "{}. The secret is shown only now:", done(&issued))?;
        return Ok(writeln!(world.out, "{}", issued.key.expose())?);
    };
    let refused = |error: io::Error| {
        let why = match error.kind() {
            ErrorKind::AlreadyExists => {
                "exists already; nothing is overwritten, and no link followed".to_owned()
            }
            _ => io_fault(path, &error),
        };
        Failure::Usage(format!("--output {}: {why}", path.display()))
    };
    // The file comes first, so that no secret is made that would be lost.
    let mut file = create_private(path).map_err(refused)?;
    let issued = make().map_err(failure).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    writeln!(file, "{}", issued.key.expose()).and_then(|()| file.sync_all()).map_err(refused)?;
    Ok(writeln!(world.err, "{}. The secret is in {}", done(&issued), path.display())?)
}

/// Checks that the configuration has the plan with the name `plan`. Without a configuration file, checks only the
/// form of the name, and warns if the plan is not the default plan.
fn plan_exists(plan: &str, config: Option<&Config>, world: &mut World<'_>) -> Result<(), Failure> {
    if let Some(config) = config {
        if config.plans.contains_key(plan) {
            return Ok(());
        }
        let known: Vec<_> = config.plans.keys().map(String::as_str).collect();
        return Err(Failure::Usage(format!(
            "--plan {plan:?}: the configuration has no plan of this name, only {}",
            known.join(", ")
        )));
    }
    if !is_name(plan) {
        return Err(Failure::Usage(format!(
            "--plan {plan:?}: expected a plan name of letters, digits, '-', '_' and '.'"
        )));
    }
    if plan != STANDARD_PLAN {
        writeln!(
            world.err,
            "{}",
            Finding::warning(
                format!(
                    "the configuration must have [plans.{plan}]; a gateway without it refuses the whole key file"
                ),
                "add --config FILE, so that the plan is checked",
            )
        )?;
    }
    Ok(())
}

/// Says which of the replaced secrets are still valid, and until when. The start of its SHA-256 tells the owner of a
/// secret which one it is.
fn earlier_secrets(earlier: &[(KeyHash, Timestamp)]) -> String {
    let text = |(i, (hash, until)): (usize, &(KeyHash, Timestamp))| {
        let which = if i + 1 == earlier.len() { "the secret before this one" } else { "an earlier secret" };
        format!("{which} (sha256 {:.8}...) until {}", hash.to_string(), date(*until))
    };
    let list: Vec<_> = earlier.iter().enumerate().map(text).collect();
    match &list[..] {
        [] => "no earlier secret is valid any more".to_owned(),
        _ => format!("still valid: {}; --grace 0s ends every earlier secret at once", list.join(", ")),
    }
}

fn failure(error: ChangeError) -> Failure {
    match error {
        ChangeError::Io { .. } | ChangeError::Random(_) => Failure::runtime(error),
        ChangeError::File(_)
        | ChangeError::Unknown { .. }
        | ChangeError::Ambiguous { .. }
        | ChangeError::Revoked { .. } => Failure::usage(error),
    }
}

/// Parses a duration from now such as `90d`, a date, or a date and time with a zone. The result must be after `now`.
fn parse_end(text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    let after = humantime::parse_duration(text).ok().and_then(|time| now.checked_add(time).ok());
    let date = || format!("{text}T00:00:00Z").parse().ok();
    let when: Option<Timestamp> = after.or_else(|| text.parse().ok()).or_else(date);
    when.filter(|when| *when > now).ok_or_else(|| {
        Failure::Usage(format!(
            "--expires {text}: expected a duration such as 90d, or a future date such as 2027-01-31"
        ))
    })
}

fn date(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// Returns the name of a key for the terminal. A file that was written by hand may have any name.
fn shown(name: &str) -> String {
    let escaped = |c: char| if keys::is_hidden(c) { c.escape_unicode().to_string() } else { c.to_string() };
    name.chars().map(escaped).collect()
}

fn key_table(keys: &[ApiKey], now: Timestamp) -> String {
    let mut table = TextTable::new(["id", "name", "plan", "created", "expires", "state", "restrictions"]);
    for key in keys {
        let overlap = key.previous.iter().map(|(_, until)| *until).filter(|until| *until > now).max();
        let state = match (key.state(now), key.revoked.or(key.suspended), overlap) {
            (state @ ("revoked" | "suspended"), Some(when), _) => format!("{state} {}", date(when)),
            ("active", _, Some(until)) => format!("active, the old secret until {}", date(until)),
            (state, ..) => state.to_owned(),
        };
        let expires = key.expires.map_or_else(|| "never".to_owned(), date);
        table.row(vec![
            key.id.clone(),
            shown(&key.name),
            key.plan.clone(),
            date(key.created),
            expires,
            state,
            restrictions(&key.scope),
        ]);
    }
    table.to_string()
}

/// Formats the restrictions of a key for one cell of a table.
fn restrictions(scope: &Scope) -> String {
    fn part<T>(name: &str, list: Option<&[T]>, text: impl Fn(&T) -> String) -> Option<String> {
        let list: Vec<_> = list?.iter().map(text).collect();
        Some(format!("{name} {}", if list.is_empty() { "none".to_owned() } else { list.join(", ") }))
    }
    let parts = [
        part("origin", scope.origins.as_deref(), Clone::clone),
        part("address", scope.addresses.as_deref(), ToString::to_string),
        part("method", scope.methods.as_deref(), |method| method.as_str().to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join("; ") }
}
