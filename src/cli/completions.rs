//! `slotfront completions`: prints a shell completion script.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Failure, World};

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n    slotfront completions bash > /etc/bash_completion.d/slotfront\n    \
                        slotfront completions zsh > \"${fpath[1]}/_slotfront\"")]
pub(super) struct Args {
    /// The shell that will use the script
    shell: Shell,
}

pub(super) fn run(args: &Args, world: &mut World<'_>) -> Result<(), Failure> {
    // Written to memory first, because the generator panics if standard output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "slotfront", &mut script);
    Ok(world.out.write_all(&script)?)
}
