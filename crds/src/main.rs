//! Writes the definitions of the custom resources to `crds/yaml/` and into the chart.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for definition in berth_crds::definitions() {
        for folder in ["yaml", "../charts/berth/files/crds"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
            let path = folder.join(&definition.file_name);
            fs::write(&path, definition.yaml()).with_context(|| format!("writing {}", path.display()))?;
            println!("{}", definition.file_name);
        }
    }
    Ok(())
}
