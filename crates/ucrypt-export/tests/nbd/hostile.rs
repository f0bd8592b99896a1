//! Clients that send rubbish. The server must neither crash nor neglect its other clients.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ucrypt_testkit::Random;

use crate::client::Client;
use crate::harness::{Harness, SMALL, aes};

/// Sends `bytes` while reading whatever arrives, then waits for the end of the connection.
fn rubbish(mut stream: UnixStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut reader = stream.try_clone().expect("a clone");
    let reading = std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        // Ends with the connection; a timeout here means that the server hangs.
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    });
    // This may fail: the server may have closed the connection.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    assert!(reading.join().expect("a reader"), "the server did not end the connection");
}

#[test]
fn random_bytes_in_the_handshake_do_no_harm() {
    let harness = Harness::start(aes(SMALL, 512));
    let mut random = Random::new(0x5eed_0001);
    for round in 0..200 {
        let mut bytes = Vec::new();
        if round % 4 != 0 {
            bytes.extend([0, 0, 0, random.below(4) as u8]);
        }
        for _ in 0..random.below(8) {
            bytes.extend(b"IHAVEOPT");
            bytes.extend((random.below(12) as u32).to_be_bytes());
            let length = random.below(64) as u32;
            bytes.extend(length.to_be_bytes());
            let lie = random.below(8) == 0;
            bytes.extend(random.bytes(if lie { 3 } else { length as usize }));
        }
        let count = random.below(300) as usize;
        bytes.extend(random.bytes(count));
        rubbish(UnixStream::connect(harness.socket()).expect("connected"), &bytes);
    }
    assert_eq!(Client::simple(&harness).read(0, 512).len(), 512);
}

#[test]
fn random_requests_do_no_harm() {
    let harness = Harness::start(aes(SMALL, 512));
    let mut random = Random::new(0x5eed_0002);
    let mut witness = Client::simple(&harness);
    for round in 0..100 {
        let client =
            if round % 2 == 0 { Client::simple(&harness) } else { Client::structured(&harness) };
        let mut bytes = Vec::new();
        for cookie in 0..random.below(40) {
            let command = random.below(9) as u16;
            let flags = if random.below(3) == 0 { random.bits() as u16 } else { 0 };
            let wild = random.below(10) == 0;
            let offset = if wild { random.bits() } else { random.below(SMALL) };
            let length = if wild { random.bits() as u32 } else { random.below(100_000) as u32 };
            bytes.extend(Client::header(command, flags, cookie, offset, length));
            if command == 1 {
                bytes.extend(random.bytes(length.min(100_000) as usize));
            }
        }
        let cut = random.below(bytes.len() as u64 + 1) as usize;
        rubbish(client.stream, &bytes[..cut]);
        assert_eq!(witness.read(SMALL - 512, 512).len(), 512, "round {round}");
    }
}
