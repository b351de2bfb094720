//! A judge of slotfront that is made of the node's own crates: what Agave 4.0 writes and reads is decided by its code.
//!
//! `ORACLE_SEED` chooses the random input, `ORACLE_CASES` is the number of messages and of bodies, and `ORACLE_BLOCKS` a
//! folder of further blocks. A difference is printed with the seed and the number of its case, and ends the program with
//! code 1. Arguments name the parts to run.

mod accounts;
mod blocks;
mod bodies;
mod cluster;
mod draw;
mod gateway;
mod made;
mod messages;
mod newer;
mod recorded;

use std::process::ExitCode;

const PARTS: [&str; 4] = ["messages", "bodies", "cluster", "gateway"];

fn main() -> ExitCode {
    let (seed, cases) = (setting("ORACLE_SEED", 1), setting("ORACLE_CASES", 200_000));
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = asked.iter().find(|part| !PARTS.contains(&part.as_str())) {
        eprintln!("no such part: {unknown} ({})", PARTS.join(" "));
        return ExitCode::from(2);
    }
    let mut failed = false;
    for part in PARTS.into_iter().filter(|part| asked.is_empty() || asked.iter().any(|asked| asked == part)) {
        let judged = match part {
            "messages" => each(seed, cases, messages::judge),
            "bodies" => {
                let server = bodies::Server::new();
                each(seed, cases, |seed, case| server.judge(seed, case))
            }
            "cluster" => cluster::judge(seed).map(|compared| format!("{compared} answers")),
            _ => judge_gateway(seed),
        };
        match judged {
            Ok(counted) => println!("{part}: no difference in {counted}, seed {seed}"),
            Err(difference) => {
                failed = true;
                println!("{part}: a difference, seed {seed}: {difference}");
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

fn judge_gateway(seed: u64) -> Result<String, String> {
    let mut recorded = recorded::read()?;
    if let Ok(folder) = std::env::var("ORACLE_BLOCKS") {
        recorded::add_blocks(&folder, &mut recorded)?;
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let judged = runtime.block_on(gateway::judge(seed, &recorded))?;
    Ok(format!(
        "{} recorded answers, without {} that depend on a clock, and {judged} of the gateway",
        recorded.reproduced, recorded.timed
    ))
}

/// Judges `cases` cases, and stops at the first difference. `judge` tells whether the input was accepted. If nearly none
/// was, or nearly all, the cases would prove little.
fn each(seed: u64, cases: u64, judge: impl Fn(u64, u64) -> Result<bool, String>) -> Result<String, String> {
    let mut accepted = 0;
    for case in 0..cases {
        accepted += u64::from(judge(seed, case).map_err(|difference| format!("case {case}: {difference}"))?);
    }
    let share = accepted * 100 / cases.max(1);
    if cases >= 1_000 && !(10..80).contains(&share) {
        return Err(format!("{share} % of the cases were accepted"));
    }
    Ok(format!("{cases} cases ({share} % accepted)"))
}

/// Reads a number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}
