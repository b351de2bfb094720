//! The binary; see [`slotfront::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    slotfront::cli::main()
}
