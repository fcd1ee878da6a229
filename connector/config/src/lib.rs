//! The configuration of a connector: the types of `config.yaml` and `dynamic.yaml`, and how they become
//! [`Settings`].
//!
//! Two layers. [`Config`] is the file: every key is optional, so that whoever writes one (a person, the
//! operator) writes only what was set. [`Settings`] is what the connector runs on: every default filled in,
//! every range checked. [`load`] goes from one to the other: `config.yaml`, over it `dynamic.yaml`, over both
//! the environment.
//!
//! ```
//! let file = berth_config::Document { name: "config.yaml", text: "stomp: { port: 61700 }" };
//! let loaded = berth_config::load(Some(file), None, [], "my-host").unwrap();
//! assert_eq!(loaded.settings.stomp.unwrap().listen.port(), 61700);
//! ```
//!
//! This crate reads no file, no environment and no clock: it is given texts. It does not know which listener
//! can be opened; it only says which keys this version serves. [`KEYS`] is the one table of them: checks,
//! environment names and `docs/configuration.md` come from it.
//!
//! Invariants: any input ends in settings or in one [`Error`] of one line that names the key; nothing is
//! clamped silently; a key that is known but not served by this version is refused by name.

mod check;
mod document;
mod error;
mod file;
mod keys;
mod load;
mod settings;

pub use document::{DOCUMENT_BYTES_MAX, Document, hash};
pub use error::Error;
pub use file::{
    Admin, Broker, Config, DefaultPattern, Dynamic, Embedded, Fsync, Limits, LogFormat, LogLevel, Logging,
    Size, Stomp,
};
pub use keys::{KEYS, Key, Kind, NOT_SERVED, reference};
pub use load::{Loaded, load};
pub use settings::{LoggingSettings, Settings, StompSettings};
