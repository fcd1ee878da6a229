//! Who may come in and who may do what: asked by every front-end, answered by the server.

use std::fmt;
use std::sync::Arc;

use berth_types::Destination;

/// Who a client was found to be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Wraps a name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a client shows to be let in. Has no `Debug` output of the secret.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The name it gives, if any.
    pub login: Option<&'a str>,
    /// A password or a token.
    pub secret: Option<&'a str>,
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("login", &self.login).finish_non_exhaustive()
    }
}

/// The answer to a login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Login {
    /// Come in; without a name when nobody asked for one.
    Accepted(Option<Principal>),
    /// Stay out. The client is not told why.
    Refused,
}

/// What a client wants to do with a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Right {
    /// Consume from it.
    Read,
    /// Send to it.
    Write,
}

/// Decides. Called on the connection's own path, so an answer may not take long.
pub trait Access: Send + Sync {
    /// Whether a client may come in.
    fn login(&self, credentials: &Credentials<'_>) -> Login;
    /// Whether `principal` may do this.
    fn is_allowed(&self, principal: Option<&Principal>, right: Right, destination: &Destination) -> bool;
}

/// Lets everybody in and forbids nothing: authentication is switched off. A login that is given names the
/// client.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAccess;

impl Access for OpenAccess {
    fn login(&self, credentials: &Credentials<'_>) -> Login {
        Login::Accepted(credentials.login.filter(|login| !login.is_empty()).map(Principal::new))
    }

    fn is_allowed(&self, _: Option<&Principal>, _: Right, _: &Destination) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let credentials = Credentials { login: Some("guest"), secret: Some("hunter2") };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
