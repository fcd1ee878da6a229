//! The operator: turns connectors into StatefulSets and keeps them so.
//!
//! One pass over one connector ([`reconcile`]) is: read ([`observe`]), validate ([`validate`]), build
//! ([`build`]), plan ([`plan`]), apply ([`cluster`]), report ([`status`]). Validating, building, planning
//! and reporting are pure functions of what was read and of the time, so that they are tested without an
//! API server; what has to be remembered between passes stands in the API, never in this process.
//!
//! Invariants: the second pass over an unchanged connector writes nothing; at most one disruptive step a
//! pass; a write that cannot be undone is preceded by a live read and carries a uid precondition; a
//! connector that is being deleted gets no writes; what belongs to somebody else is never touched.

pub mod args;
pub mod backoff;
pub mod build;
pub mod census;
pub mod cluster;
pub mod context;
pub mod controller;
pub mod cover;
pub mod definitions;
pub mod error;
pub mod events;
pub mod health;
pub mod leader;
pub mod metrics;
pub mod names;
pub mod node;
pub mod observe;
pub mod plan;
pub mod quantity;
pub mod reconcile;
pub mod status;
pub mod target;
pub mod validate;

/// The field manager of every write to a child.
pub const FIELD_MANAGER: &str = "berth-operator";
/// The field manager of status writes.
pub const STATUS_MANAGER: &str = "berth-operator/status";
