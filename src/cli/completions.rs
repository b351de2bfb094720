//! `slotfront completions`: what a shell needs to complete our arguments.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Failure, World};

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n    slotfront completions bash > /etc/bash_completion.d/slotfront\n    \
                        slotfront completions zsh > \"${fpath[1]}/_slotfront\"")]
pub(super) struct Args {
    /// Which shell
    shell: Shell,
}

pub(super) fn run(args: &Args, world: &mut World<'_>) -> Result<(), Failure> {
    // Into memory first: the generator does not expect a pipe to close.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "slotfront", &mut script);
    Ok(world.out.write_all(&script)?)
}
