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

#[cfg(test)]
mod tests {
    use super::parse;

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
