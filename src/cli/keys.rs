//! `slotfront keys`: makes, shows, replaces and takes back API keys.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use jiff::Timestamp;

use super::table::Table;
use super::{Failure, World};
use crate::config::{defaults, is_name};
use crate::gateway::keys::file::{ChangeError, IssuedKey, KeyFile, NewKey};
use crate::gateway::keys::scope::{self, Scope};
use crate::gateway::keys::{self, Key, MAX_NAME};
use crate::methods::AnyMethod;

/// Make, list, revoke and rotate API keys
#[derive(Debug, Parser)]
#[command(
    long_about = "Make, list, revoke and rotate API keys. The file holds hashes only: a key is shown once, when it is issued.\n\
                  A running gateway takes a changed file within two seconds; nothing is restarted.",
    after_help = "Examples:\n    slotfront keys create --file keys.toml --name alice --plan standard --expires 90d\n    \
                  slotfront keys list --file keys.toml\n    \
                  slotfront keys rotate --file keys.toml --name alice --grace 24h\n    \
                  slotfront keys revoke --file keys.toml --name alice"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a key; it is printed once, and alone on standard output
    #[command(
        after_help = "Examples:\n    slotfront keys create --file keys.toml --name alice --expires 2027-01-31\n    \
                      slotfront keys create --file keys.toml --name shop --origin https://shop.example \\\n      \
                      --address 10.0.0.0/8 --method getBlock --method getAccountInfo"
    )]
    Create {
        #[command(flatten)]
        file: File,
        /// Whose key it is
        #[arg(long)]
        name: String,
        /// What it may do: a [plans.NAME] of the configuration
        #[arg(long, default_value = defaults::PLAN)]
        plan: String,
        /// The configuration, to see that the plan is there; else `SLOTFRONT_CONFIG` names it
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// When it ends: after a time such as 90d, or at a date such as 2027-01-31 (its first moment, in UTC)
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        #[command(flatten)]
        narrowed: Narrowed,
    },
    /// Show all keys, without the keys themselves
    #[command(after_help = "Example:\n    slotfront keys list --file keys.toml")]
    List {
        #[command(flatten)]
        file: File,
    },
    /// Take a key back, at once and for good
    #[command(after_help = "Example:\n    slotfront keys revoke --file keys.toml --name key-5Kd3NBUA")]
    Revoke {
        #[command(flatten)]
        file: File,
        /// Its id, or its name where only one key has it
        #[arg(long, value_name = "NAME|ID")]
        name: String,
    },
    /// Replace a key; the old one holds for a while longer, so that its owner can change over
    #[command(after_help = "Example:\n    slotfront keys rotate --file keys.toml --name alice --grace 24h")]
    Rotate {
        #[command(flatten)]
        file: File,
        /// Its id, or its name where only one key has it
        #[arg(long, value_name = "NAME|ID")]
        name: String,
        /// How long the old key still holds; 0s is not at all
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = humantime::parse_duration)]
        grace: Duration,
    },
}

#[derive(Debug, clap::Args)]
struct File {
    /// The key file: `auth.keys_file` of the configuration
    #[arg(long, value_name = "FILE", default_value = defaults::KEYS_FILE)]
    file: PathBuf,
}

/// What a key is narrowed to; each may be given more than once, and left out is any.
#[derive(Debug, clap::Args)]
struct Narrowed {
    /// A web origin that it may be used from, as a browser sends it; repeat for more [default: any]
    #[arg(long = "origin", value_name = "ORIGIN", value_parser = scope::origin)]
    origins: Vec<String>,
    /// A client address or network that it may be used from; repeat for more [default: any]
    #[arg(long = "address", value_name = "CIDR", value_parser = scope::address)]
    addresses: Vec<IpNet>,
    /// A method that it may call, within its plan's; repeat for more [default: all]
    #[arg(long = "method", value_name = "METHOD", value_parser = scope::method)]
    methods: Vec<AnyMethod>,
}

impl Narrowed {
    fn scope(self) -> Scope {
        fn given<T>(list: Vec<T>) -> Option<Vec<T>> {
            (!list.is_empty()).then_some(list)
        }
        Scope { origins: given(self.origins), addresses: given(self.addresses), methods: given(self.methods) }
    }
}

impl File {
    fn open(self) -> KeyFile {
        KeyFile::new(self.file)
    }
}

pub(super) fn run(args: Args, world: &mut World<'_>, now: Timestamp) -> Result<(), Failure> {
    match args.command {
        Command::Create { file, name, plan, config, expires, narrowed } => {
            if !keys::is_name(&name) {
                return Err(Failure::Usage(format!(
                    "--name {name:?}: expected 1 to {MAX_NAME} characters, none of them a control character"
                )));
            }
            plan_exists(&plan, config, world)?;
            let expires = expires.map(|text| when(&text, now)).transpose()?;
            let new = NewKey { name, plan, expires, scope: narrowed.scope() };
            let issued = file.open().create(&new, now).map_err(failure)?;
            writeln!(world.err, "made {}; this is the only time that the key is shown:", issued.id)?;
            show(&issued, world)
        }
        Command::List { file } => {
            if !file.file.exists() {
                writeln!(world.err, "{} is not there: no key has been made in it", file.file.display())?;
            }
            writeln!(world.out, "{}", listed(&file.open().list().map_err(failure)?, now))?;
            Ok(())
        }
        Command::Revoke { file, name } => {
            let id = file.open().revoke(&name, now).map_err(failure)?;
            writeln!(world.err, "revoked {id}; a running gateway knows within two seconds")?;
            Ok(())
        }
        Command::Rotate { file, name, grace } => {
            let until =
                now.checked_add(grace).map_err(|_| Failure::usage("--grace reaches past the calendar"))?;
            let issued = file.open().rotate(&name, until, now).map_err(failure)?;
            let old =
                if grace.is_zero() { "ends now".to_owned() } else { format!("holds until {}", date(until)) };
            writeln!(world.err, "rotated {}; the old key {old}. The new one, shown only now:", issued.id)?;
            show(&issued, world)
        }
    }
}

/// Refuses a plan that the configuration does not have; without one, says what a plan must be.
fn plan_exists(plan: &str, config: Option<PathBuf>, world: &mut World<'_>) -> Result<(), Failure> {
    if let Some(file) = world.config_file(config) {
        let config = world.config(Some(file))?;
        if config.plans.contains_key(plan) {
            return Ok(());
        }
        let known: Vec<_> = config.plans.keys().map(String::as_str).collect();
        return Err(Failure::Usage(format!(
            "--plan {plan:?}: the configuration has no such plan; it has {}",
            known.join(", ")
        )));
    }
    if !is_name(plan) {
        return Err(Failure::Usage(format!(
            "--plan {plan:?}: expected the name of a plan: letters, digits, '-', '_' and '.'"
        )));
    }
    if plan != defaults::PLAN {
        writeln!(
            world.err,
            "the configuration must have [plans.{plan}]: a gateway without it refuses the whole key file \
             (--config FILE looks)"
        )?;
    }
    Ok(())
}

fn show(issued: &IssuedKey, world: &mut World<'_>) -> Result<(), Failure> {
    // Beside the gateway that reads its hash, the one place where a key is let out.
    writeln!(world.out, "{}", issued.key.expose())?;
    Ok(())
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

/// A time such as `90d`, or a date, or a date and time with its zone.
fn when(text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    let after = humantime::parse_duration(text).ok().and_then(|time| now.checked_add(time).ok());
    let date = || format!("{text}T00:00:00Z").parse().ok();
    let when: Option<Timestamp> = after.or_else(|| text.parse().ok()).or_else(date);
    when.filter(|when| *when > now).ok_or_else(|| {
        Failure::Usage(format!(
            "--expires {text}: expected a time such as 90d, or a date to come such as 2027-01-31"
        ))
    })
}

fn date(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn listed(keys: &[Key], now: Timestamp) -> String {
    let mut table = Table::new(["id", "name", "plan", "created", "expires", "state", "only"]);
    for key in keys {
        let overlap = key.previous.iter().map(|(_, until)| *until).filter(|until| *until > now).max();
        let state = match (key.revoked, key.expires, overlap) {
            (Some(when), _, _) => format!("revoked {}", date(when)),
            (None, Some(end), _) if end <= now => "expired".to_owned(),
            (None, _, Some(until)) => format!("active, the old key until {}", date(until)),
            (None, _, None) => "active".to_owned(),
        };
        let expires = key.expires.map_or_else(|| "never".to_owned(), date);
        table.row(vec![
            key.id.clone(),
            key.name.clone(),
            key.plan.clone(),
            date(key.created),
            expires,
            state,
            only(&key.scope),
        ]);
    }
    table.to_string()
}

/// What a key is narrowed to, in one cell.
fn only(scope: &Scope) -> String {
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
