//! Numbers, truth values, and what text without a type stands for.
//!
//! Arithmetic is that of Java's `long` and `double` (Jakarta Messaging 3.1, "Message selector syntax"),
//! except that it has no accidents: a `long` that overflows becomes approximate, and a division by zero or a
//! result that is no number is unknown.

use std::cmp::Ordering;

use berth_types::limits::SELECTOR_NUMBER_BYTES_MAX;

/// True, false, or unknown (none).
pub(crate) type Truth = Option<bool>;

/// A number of either kind.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Number {
    /// Whole, of Java's `long`.
    Exact(i64),
    /// Of Java's `double`.
    Approximate(f64),
}

/// `+ - * /`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// `= <> < <= > >=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// Whether it holds for two things in this order.
    pub(crate) const fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

impl Number {
    /// The number that a text is, if it is nothing else: a sign, digits, a fraction and an exponent of ten,
    /// without blanks. Always decimal.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if !digits.starts_with(|c: char| c == '.' || c.is_ascii_digit())
            || text.len() > SELECTOR_NUMBER_BYTES_MAX
        {
            return None;
        }
        if let Ok(exact) = text.parse() {
            return Some(Self::Exact(exact));
        }
        // What starts like a number and is not "inf" or "nan" is judged by the standard library alone.
        text.parse().ok().filter(|number: &f64| number.is_finite()).map(Self::Approximate)
    }

    /// The number with the other sign.
    pub(crate) fn negate(self) -> Self {
        match self {
            Self::Exact(n) => n.checked_neg().map_or(Self::Approximate(-(n as f64)), Self::Exact),
            Self::Approximate(n) => Self::Approximate(-n),
        }
    }

    /// `left operator right`.
    pub(crate) fn calculate(operator: Arithmetic, left: Self, right: Self) -> Option<Self> {
        if let (Self::Exact(l), Self::Exact(r)) = (left, right) {
            let exact = match operator {
                Arithmetic::Add => l.checked_add(r),
                Arithmetic::Subtract => l.checked_sub(r),
                Arithmetic::Multiply => l.checked_mul(r),
                Arithmetic::Divide => l.checked_div(r),
            };
            if exact.is_some() {
                return exact.map(Self::Exact);
            }
        }
        let (l, r) = (left.to_f64(), right.to_f64());
        let result = match operator {
            Arithmetic::Add => l + r,
            Arithmetic::Subtract => l - r,
            Arithmetic::Multiply => l * r,
            Arithmetic::Divide if r == 0.0 => return None,
            Arithmetic::Divide => l / r,
        };
        (!result.is_nan()).then_some(Self::Approximate(result))
    }

    /// Whether `left comparison right`; unknown when one of them is not a number.
    pub(crate) fn compare(comparison: Comparison, left: Self, right: Self) -> Truth {
        let ordering = match (left, right) {
            (Self::Exact(l), Self::Exact(r)) => Some(l.cmp(&r)),
            _ => left.to_f64().partial_cmp(&right.to_f64()),
        };
        ordering.map(|ordering| comparison.holds(ordering))
    }

    const fn to_f64(self) -> f64 {
        match self {
            Self::Exact(n) => n as f64,
            Self::Approximate(n) => n,
        }
    }
}

/// The boolean that a text is, if it is nothing else: `true` or `false` in any case, as in a selector.
pub(crate) fn boolean_from_text(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_number_only_when_it_is_nothing_else() {
        for (text, number) in [
            ("11", Number::Exact(11)),
            ("+11", Number::Exact(11)),
            ("-0", Number::Exact(0)),
            ("010", Number::Exact(10)),
            ("9223372036854775807", Number::Exact(i64::MAX)),
            ("9223372036854775808", Number::Approximate(9_223_372_036_854_775_808.0)),
            ("1.5", Number::Approximate(1.5)),
            ("-.5", Number::Approximate(-0.5)),
            ("5.", Number::Approximate(5.0)),
            ("7E3", Number::Approximate(7000.0)),
        ] {
            assert_eq!(Number::from_text(text), Some(number), "{text}");
        }
        for text in
            ["", " 1", "1 ", "1L", "0x10", "1_0", "inf", "-nan", "Infinity", ".", "-", "1e", "1e999", "--1"]
        {
            assert_eq!(Number::from_text(text), None, "{text}");
        }
        assert_eq!(Number::from_text(&"1".repeat(SELECTOR_NUMBER_BYTES_MAX + 1)), None);
        let tiniest = format!("{}", f64::from_bits(1));
        assert_eq!(Number::from_text(&tiniest), Some(Number::Approximate(f64::from_bits(1))));
    }

    #[test]
    fn arithmetic_has_no_accidents() {
        let exact = |operator, l, r| Number::calculate(operator, Number::Exact(l), Number::Exact(r));
        assert_eq!(exact(Arithmetic::Divide, 7, -2), Some(Number::Exact(-3)));
        assert_eq!(exact(Arithmetic::Divide, 7, 0), None);
        assert_eq!(exact(Arithmetic::Add, i64::MAX, 1), Some(Number::Approximate(9.223_372_036_854_776e18)));
        assert_eq!(
            exact(Arithmetic::Divide, i64::MIN, -1),
            Some(Number::Approximate(9.223_372_036_854_776e18))
        );
        assert_eq!(Number::Exact(i64::MIN).negate(), Number::Approximate(9.223_372_036_854_776e18));
        let infinite = Number::Approximate(f64::INFINITY);
        assert_eq!(Number::calculate(Arithmetic::Subtract, infinite, infinite), None);
        let nan = Number::Approximate(f64::NAN);
        assert_eq!(Number::compare(Comparison::NotEqual, nan, nan), None);
    }
}
