//! The log on a simulated disk and on a real one.

mod basics;
mod crash;
mod damage;
mod files;
mod space;
mod world;
