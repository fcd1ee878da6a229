//! Prints the table of `docs/configuration.md`: `cargo run -p berth-config --example reference`.

fn main() {
    print!("{}", berth_config::reference());
}
