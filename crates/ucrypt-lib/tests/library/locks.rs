//! Who may open an image beside others.

use ucrypt_lib::{OpenError, OpenOptions};

use crate::images::{Image, KEY, passes, tool};

#[test]
fn one_may_write_or_many_may_read() {
    let image = Image::new(1 << 20);
    let (writing, reading) = (OpenOptions::new(), OpenOptions::new().read_only(true));
    let writer = writing.open(&image.path, KEY).expect("the first");
    for options in [&writing, &reading] {
        let error = options.open(&image.path, KEY).unwrap_err();
        assert!(matches!(error, OpenError::InUse(_)), "{error:?}");
    }
    let shared = OpenOptions::new().shared(true).open(&image.path, KEY).expect("beside a writer");
    assert!(shared.is_in_use() && shared.facts().read_only);
    drop(shared);
    let mut other = tool("qemu-img", "qemu-utils");
    let output = other.args(["resize", "-f", "raw"]).arg(&image.path).arg("+1M").output();
    assert!(!output.expect("it starts").status.success(), "QEMU took an image in use");
    let clone = writer.clone();
    drop(writer);
    assert!(writing.open(&image.path, KEY).is_err(), "a clone keeps it open");
    let file = clone.file();
    clone.close().expect("flushed");
    assert!(writing.open(&image.path, KEY).is_err(), "a file keeps it open");
    drop(file);
    let readers: Vec<_> =
        (0..3).map(|_| reading.open(&image.path, KEY).expect("a reader")).collect();
    assert!(writing.open(&image.path, KEY).is_err(), "readers keep writers away");
    assert!(readers.iter().all(|reader| !reader.is_in_use()));
    drop(readers);
    passes(tool("qemu-img", "qemu-utils").args(["info", "-f", "raw"]).arg(&image.path));
    writing.open(&image.path, KEY).expect("nobody has it");
}
