//! The program `slotfront`. [`slotfront::cli`] has its commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    slotfront::cli::main()
}
