//! seeds DIRECTORY: writes inputs from sound headers, with which a corpus begins.

fn main() {
    let directory = std::path::PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    for (name, input) in ucrypt_fuzz::seeds() {
        std::fs::write(directory.join(name), input).expect("written");
    }
}
