//! Sizes as people write them.

/// Reads a number of bytes with an optional suffix: K, M, G, T (powers of 1024, with or without
/// `iB`), or KB, MB, GB, TB (powers of 1000). With a suffix it may have decimals, as in `1.5G`, if that is
/// a whole number of bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits);
    let whole: u64 = whole.parse().map_err(|_| format!("'{text}' does not begin with a number"))?;
    let (decimals, unit) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest.split_at(digits)
        }
        None => ("", rest),
    };
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("'{unit}' in '{text}' is no unit of bytes; use K, M, G or T")),
    };
    let broken = || Err(format!("'{text}' is no whole number of bytes"));
    if decimals.len() > DECIMALS_MAX {
        return Err(format!("'{text}' has more than {DECIMALS_MAX} decimals"));
    }
    if decimals.is_empty() && rest.starts_with('.') {
        return broken();
    }
    let of_decimals = decimals.parse::<u128>().unwrap_or(0) * u128::from(factor);
    let ten = 10_u128.pow(decimals.len() as u32);
    if of_decimals % ten != 0 {
        return broken();
    }
    let bytes = u128::from(whole) * u128::from(factor) + of_decimals / ten;
    u64::try_from(bytes).map_err(|_| format!("'{text}' is too large"))
}

/// Nobody writes more, and the numbers above have room for these.
const DECIMALS_MAX: usize = 12;

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

/// A number of bytes for people, and the exact one where that is another.
pub(crate) fn exact(bytes: u64) -> String {
    let human = human(bytes);
    if parse(&human) == Ok(bytes) { human } else { format!("{human} ({bytes} bytes)") }
}

#[cfg(test)]
mod tests {
    use super::{exact, human, parse};

    #[test]
    fn a_size_that_its_unit_cuts_is_told_exactly_too() {
        assert_eq!(exact(1 << 30), "1G");
        assert_eq!(exact((1 << 30) + 512), "1G (1073742336 bytes)");
        assert_eq!(exact(3 << 60), "3E (3458764513820540928 bytes)");
        assert_eq!(exact(0), "0");
    }

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
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("0.25k"), Ok(256));
        assert_eq!(parse("1.000001TB"), Ok(1_000_001_000_000));
        for broken in ["1.5", "0.1K", "1.G", "1.", "1.0000000000000G", "1.5.5G", ".5G"] {
            assert!(parse(broken).is_err(), "{broken}");
        }
        let unit = parse("1.5X").unwrap_err();
        assert!(unit.starts_with("'X' in '1.5X' is no unit of bytes"), "{unit}");
        for bad in ["", "G", "1X", "-1", "1.5X", "99999999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
