//! The program `slotfront`. [`slotfront::cli`] has its commands.
//!
//! The allocator is the system's: jemalloc and mimalloc used 6 to 8 % less memory, but were not faster.

use std::process::ExitCode;

fn main() -> ExitCode {
    slotfront::cli::main()
}
