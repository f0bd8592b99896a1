//! Volume keys that the kernel would refuse.

use std::fs;

use ucrypt_luks::Unlocked;

use crate::error::Error;

/// Refuses a weak volume key where the kernel does: in FIPS mode. Elsewhere old volumes open, as
/// they do with dm-crypt.
pub(super) fn check(unlocked: &Unlocked) -> Result<(), Error> {
    let fips = fs::read_to_string("/proc/sys/crypto/fips_enabled");
    check_where(unlocked, fips.is_ok_and(|flag| flag.trim() == "1"))
}

fn check_where(unlocked: &Unlocked, kernel_refuses: bool) -> Result<(), Error> {
    let rule_of =
        |segment: &ucrypt_luks::Segment| segment.cipher.weak_key_rule(&unlocked.volume_key);
    match unlocked.segments.iter().find_map(rule_of) {
        Some(rule) if kernel_refuses => Err(Error::WeakKey(rule)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_luks::Table;

    use super::check_where;

    #[test]
    fn an_xts_key_of_equal_halves_is_refused_where_the_kernel_refuses_it() {
        let unlock = |key: &str| {
            let line = format!("0 8 crypt aes-xts-plain64 {key} 0 /dev/null 0");
            Table::parse(&line).unwrap().unlocked
        };
        let weak = unlock(&"07".repeat(64));
        let message = check_where(&weak, true).unwrap_err().to_string();
        assert!(message.contains("the two halves of an XTS key have to differ"), "{message}");
        assert!(check_where(&weak, false).is_ok());
        assert!(check_where(&unlock(&["07".repeat(32), "08".repeat(32)].concat()), true).is_ok());
    }
}
