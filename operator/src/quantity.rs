//! Kubernetes quantities, as far as sizes and resource requests need them: reading, comparing.

/// A quantity in thousandths of its unit, so that `500m` and `0.5` are the same number.
///
/// Fractions finer than a thousandth are rounded up, as the API server does. `None`: no quantity.
#[must_use]
pub fn milli(text: &str) -> Option<i128> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (factor, exponent): (i128, i32) = match suffix {
        "" => (1, 0),
        "m" => (1, -3),
        "u" => (1, -6),
        "n" => (1, -9),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        scientific => (1, scientific.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || digits.len() > 18 {
        return None;
    }
    let joined = format!("{whole}{fraction}");
    let mantissa: i128 = joined.parse().ok().filter(|_| joined.bytes().all(|b| b.is_ascii_digit()))?;
    let power = exponent + 3 - i32::try_from(fraction.len()).ok()?;
    let scaled = mantissa.checked_mul(factor)?;
    let value = match u32::try_from(power) {
        Ok(up) if up <= 24 => scaled.checked_mul(10_i128.pow(up))?,
        Ok(_) => return None,
        Err(_) if power < -30 => i128::from(scaled > 0),
        Err(_) => {
            let divisor = 10_i128.pow(power.unsigned_abs());
            scaled / divisor + i128::from(scaled % divisor != 0)
        }
    };
    Some(if negative { -value } else { value })
}

/// Whether two texts are the same quantity; texts that are none are compared as texts.
#[must_use]
pub fn same(a: &str, b: &str) -> bool {
    a == b || matches!((milli(a), milli(b)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_that_are_the_same() {
        for (a, b) in [
            ("1Gi", "1024Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1k", "1e3"),
            ("100M", "100e6"),
            ("1", "1.0"),
            ("-5", "-5000m"),
        ] {
            assert!(same(a, b), "{a} {b} {:?} {:?}", milli(a), milli(b));
        }
    }

    #[test]
    fn order_is_that_of_the_numbers() {
        assert!(milli("2Gi") > milli("2G"));
        assert!(milli("1Gi") < milli("1.1Gi"));
        assert_eq!(milli("1n"), Some(1));
        assert_eq!(milli("1Ki"), Some(1_024_000));
    }

    #[test]
    fn what_is_none() {
        for text in ["", "Gi", "1GiB", "1 Gi", "--1", "1.2.3", "x", "1e", "1e99", "9999999999999999999"] {
            assert_eq!(milli(text), None, "{text:?}");
        }
    }
}
