//! Writes the seeds and what once crashed to `corpus/`, a file each.

#[path = "seeds.rs"]
mod seeds;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (number, (target, seed)) in seeds::seeds(&here.join("..")).into_iter().enumerate() {
        let folder = here.join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("seed-{number:04}")), seed)?;
    }
    Ok(())
}
