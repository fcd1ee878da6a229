//! What is mounted below a folder, and how it is taken away again.

use super::shell;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Unmounts everything at or below `folder`, the newest first.
pub(crate) fn unmount_below(folder: &Path) -> Result<()> {
    let mut before = usize::MAX;
    loop {
        let found = below(folder)?;
        if found.is_empty() {
            return Ok(());
        }
        ensure!(found.len() < before, "{} stays mounted", found[0].display());
        before = found.len();
        for path in found.iter().rev() {
            let path = path.display().to_string();
            // Lazily when it is busy: nobody of ours is left to use it, and its folder must go.
            if !shell::succeeds("umount", &[&path]) {
                shell::run("umount", &["--lazy", &path])?;
            }
        }
    }
}

fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("reading the mount table")?;
    Ok(parse(&table).into_iter().filter(|path| path.starts_with(folder)).collect())
}

/// proc(5), /proc/PID/mountinfo: field 5 is the mount point, with octal escapes for blanks.
fn parse(table: &str) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| PathBuf::from(point.replace("\\040", " ").replace("\\134", "\\"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_in_order() {
        let table =
            "36 35 98:0 / /a rw - ext4 /dev/x rw\n37 36 98:0 /r /a/with\\040blank rw - ext4 /dev/x rw\n";
        assert_eq!(parse(table), [Path::new("/a"), Path::new("/a/with blank")]);
    }
}
