//! A selector as it was written: what the parser makes, and the compiler ([`crate::program`]) reads.

use crate::value::{Arithmetic, Comparison, Number};

/// Something that is true, false or unknown.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Condition {
    Literal(bool),
    /// A boolean property.
    Name(Name),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Compare {
        comparison: Comparison,
        left: Operand,
        right: Operand,
    },
    Between {
        value: Operand,
        low: Operand,
        high: Operand,
        negated: bool,
    },
    Like {
        name: Name,
        pattern: Box<str>,
        escape: Option<char>,
        negated: bool,
    },
    In {
        name: Name,
        values: Vec<Box<str>>,
        negated: bool,
    },
    IsNull {
        name: Name,
        negated: bool,
    },
}

/// Something that is compared.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Operand {
    Text(Box<str>),
    Boolean(bool),
    Number(Number),
    Name(Name),
    /// With its sign; never a literal, whose sign is part of it.
    Signed {
        minus: bool,
        operand: Box<Self>,
    },
    Arithmetic {
        operator: Arithmetic,
        left: Box<Self>,
        right: Box<Self>,
    },
}

/// What a name stands for. Properties order before headers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Name {
    Property(Box<str>),
    Header(Header),
}

/// A header of a message that has a name of its own in selectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Header {
    Priority,
    CorrelationId,
    MessageId,
    Type,
    Timestamp,
    Expiration,
    DeliveryMode,
}

impl Header {
    /// Every header.
    pub(crate) const ALL: [Self; 7] = [
        Self::Priority,
        Self::CorrelationId,
        Self::MessageId,
        Self::Type,
        Self::Timestamp,
        Self::Expiration,
        Self::DeliveryMode,
    ];

    /// How a selector calls it (Jakarta Messaging 3.1, "Message header field references").
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Priority => "JMSPriority",
            Self::CorrelationId => "JMSCorrelationID",
            Self::MessageId => "JMSMessageID",
            Self::Type => "JMSType",
            Self::Timestamp => "JMSTimestamp",
            Self::Expiration => "JMSExpiration",
            Self::DeliveryMode => "JMSDeliveryMode",
        }
    }
}
