//! Sizes as people write them.

/// Reads a number of bytes with an optional suffix: K, M, G, T (powers of 1024, with or without
/// `iB`), or KB, MB, GB, TB (powers of 1000).
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 =
        text[..digits].parse().map_err(|_| format!("'{text}' does not begin with a number"))?;
    let factor: u64 = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other => return Err(format!("'{other}' is no unit of bytes; use K, M, G or T")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("'{text}' is too large"))
}

/// A number of bytes in the largest unit of 1024 that it reaches, as in `1.5G`; at most six characters.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let exponent = bytes.checked_ilog2().map_or(0, |log| log as usize / 10);
    let (unit, name) = (1_u128 << (10 * exponent), UNITS[exponent]);
    let (whole, rest) = (u128::from(bytes) / unit, u128::from(bytes) % unit);
    match rest * 10 / unit {
        tenths if whole < 100 && tenths > 0 => format!("{whole}.{tenths}{name}"),
        _ => format!("{whole}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{human, parse};

    #[test]
    fn sizes_for_people_have_the_largest_unit_and_are_never_rounded_up() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1536 << 20, "1.5G"),
            ((1 << 30) - 1, "1023M"),
            (123 << 40, "123T"),
            (u64::MAX, "15.9E"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("64kib"), Ok(65536));
        assert_eq!(parse("3MB"), Ok(3_000_000));
        for bad in ["", "G", "1X", "-1", "1.5G", "99999999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
