//! Writes the tables that the crate embeds. The crate must build first: where the file is lost, put an empty one there.

fn main() -> std::io::Result<()> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tables/mul.bin");
    std::fs::write(&path, wordline_kernels::tables::make())?;
    println!("wrote {}", path.display());
    Ok(())
}
