//! (under construction)

fn main() {}
