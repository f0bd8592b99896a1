//! Requests and replies: what is served, what is refused, and that a refusal keeps the connection.
//! That what was written is read is left to the random client of the test kit.

use std::sync::Arc;

use ucrypt_engine::VolumeOptions;
use ucrypt_testkit::{FaultBackend, Faults, Random};

use crate::client::{
    BLOCK_STATUS, Client, EINVAL, ENOSPC, ENOTSUP, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES,
};
use crate::harness::{Harness, SMALL, aes, over, plain, with_options};

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

#[test]
fn requests_of_32_mib_are_served_and_larger_ones_refused() {
    let max = 32 << 20;
    let harness = Harness::start(aes(80 << 20, 512));
    let mut client = Client::structured(&harness);
    let data = Random::new(2).bytes(max as usize);
    for at in [0, 4096, 513] {
        assert_eq!(client.write(0, at, &data), 0);
        assert!(client.read(at, max) == data, "at {at}");
    }
    assert_eq!(client.ask(READ, DF, 0, max + 1).error, EINVAL);
    assert_eq!(client.write(0, 0, &vec![1; max as usize + 1]), EINVAL);
    assert_eq!(client.read(513, 100), data[..100], "and the connection is alive");
}

/// A request of 32 MiB that begins within a block of more than 4096 bytes was refused.
#[test]
fn requests_of_32_mib_are_served_over_large_blocks_too() {
    let (max, unit) = (32 << 20, 64 << 10);
    let memory = Arc::new(ucrypt_backend::memory(80 << 20).expect("memory"));
    let backend = FaultBackend::new(memory, Faults::new(1)).without_map().with_write_unit(unit);
    let harness = Harness::start(over(Arc::new(backend), VolumeOptions::default()));
    let mut client = Client::structured(&harness);
    let data = Random::new(2).bytes(max as usize);
    for at in [4096, 513] {
        assert_eq!(client.write(0, at, &data), 0);
        assert!(client.read(at, max) == data, "at {at}");
    }
}

#[test]
fn refusals_have_the_right_error_and_keep_the_connection() {
    let harness = Harness::start(plain(SMALL));
    for mut client in [Client::simple(&harness), Client::structured(&harness)] {
        assert_eq!(client.ask(READ, 0, SMALL - 1, 2).error, EINVAL);
        assert_eq!(client.ask(READ, 0, u64::MAX, u32::MAX).error, EINVAL);
        assert_eq!(client.write(0, SMALL - 1, b"xx"), ENOSPC);
        assert_eq!(client.write(0, u64::MAX, b"xx"), ENOSPC);
        assert_eq!(client.ask(WRITE_ZEROES, 0, SMALL, 1).error, ENOSPC);
        assert_eq!(client.ask(TRIM, 0, 0, 4096).error, EINVAL, "discards are off");
        assert_eq!(client.write(NO_HOLE, 0, b"xx"), EINVAL, "a flag of another command");
        assert_eq!(client.ask(READ, 1 << 15, 0, 1).error, EINVAL);
        assert_eq!(client.ask(FLUSH, 0, 4096, 0).error, EINVAL);
        assert_eq!(client.ask(99, 0, 0, 0).error, EINVAL);
        assert_eq!(client.ask(5, 0, 0, 4096).error, EINVAL, "no cache to fill");
        assert_eq!(client.read(0, 8), [0; 8], "nothing was changed");
    }
}

#[test]
fn requests_of_no_bytes_succeed_without_effect() {
    let harness = Harness::start(plain(SMALL));
    for mut client in [Client::simple(&harness), Client::structured(&harness)] {
        assert!(client.read(0, 0).is_empty());
        assert_eq!(client.write(0, SMALL, b""), 0);
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 0).error, 0);
        assert_eq!(client.ask(FLUSH, 0, 0, 0).error, 0);
    }
    assert_eq!(Client::structured(&harness).ask(BLOCK_STATUS, 0, 0, 0).error, EINVAL);
}

#[test]
fn fast_zero_is_refused_quickly_where_zeroes_must_be_encrypted() {
    let harness = Harness::start(aes(SMALL, 512));
    let mut client = Client::structured(&harness);
    assert_eq!(client.write(0, 0, &[7; 4096]), 0);
    assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO, 0, 4096).error, ENOTSUP);
    assert_eq!(client.read(0, 4096), [7; 4096], "and the data is as it was");
    assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 4096).error, 0);
    let harness = Harness::start(plain(SMALL));
    let mut client = Client::structured(&harness);
    assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO, 0, 4096).error, 0);
    assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 0, 4096).error, ENOTSUP);
}

#[test]
fn trim_makes_holes_that_block_status_shows() {
    let discards = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(SMALL, discards));
    let mut client = Client::structured(&harness);
    assert_eq!(client.write(0, 0, &vec![1; SMALL as usize]), 0);
    assert_eq!(client.ask(TRIM, FUA, 1 << 20, 1 << 20).error, 0);
    let extents = |client: &mut Client, flags, length| {
        let reply = client.ask(BLOCK_STATUS, flags, 0, length);
        assert_eq!(reply.data[..4], [0, 0, 0, 1], "the identifier of base:allocation");
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        reply.data[4..].chunks(8).map(|e| (word(&e[..4]), word(&e[4..]))).collect::<Vec<_>>()
    };
    let (mib, hole) = (1 << 20, 3);
    assert_eq!(extents(&mut client, 0, SMALL as u32), [(mib, 0), (mib, hole), (2 * mib, 0)]);
    assert_eq!(extents(&mut client, REQ_ONE, SMALL as u32), [(mib, 0)]);
    assert_eq!(extents(&mut client, 0, 4096), [(4096, 0)], "no longer than asked for");
    assert_eq!(client.ask(BLOCK_STATUS, 0, SMALL - 1, 2).error, EINVAL);
}

#[test]
fn a_block_status_reply_has_at_most_128_extents() {
    let discards = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(SMALL, discards));
    let mut client = Client::structured(&harness);
    assert_eq!(client.write(0, 0, &vec![1; SMALL as usize]), 0);
    for at in (0..SMALL).step_by(16384) {
        assert_eq!(client.ask(TRIM, 0, at, 8192).error, 0);
    }
    let reply = client.ask(BLOCK_STATUS, 0, 0, SMALL as u32);
    assert_eq!(reply.data.len(), 4 + 128 * 8);
    let covered: u64 = reply.data[4..]
        .chunks(8)
        .map(|e| u64::from(u32::from_be_bytes(e[..4].try_into().expect("four bytes"))))
        .sum();
    assert_eq!(covered, 128 * 8192, "the client asks again from here");
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let harness = Harness::start(aes(SMALL, 512));
    let mut client = Client::simple(&harness);
    let block = 4096;
    let mut cookies = Vec::new();
    for at in (0..SMALL).step_by(block) {
        cookies.push(client.request_write(0, at, &[(at / 4096) as u8; 4096]));
    }
    let mut answered: Vec<_> = cookies.iter().map(|_| client.reply()).collect();
    assert!(answered.iter().all(|reply| reply.error == 0));
    answered.sort_by_key(|reply| reply.cookie);
    assert!(answered.iter().map(|reply| reply.cookie).eq(cookies));
    for at in (0..SMALL).step_by(block) {
        assert_eq!(client.read(at, 4096), [(at / 4096) as u8; 4096]);
    }
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    let harness = Harness::start(plain(SMALL));
    let mut client = Client::structured(&harness);
    let data = Random::new(3).bytes(SMALL as usize);
    assert_eq!(client.write(0, 0, &data), 0);
    // Ask for 2 GiB of replies, 32 times the connection's memory, before reading the first. At once:
    // the server takes no more requests while replies wait, and many small messages fill a socket.
    client.request_reads(512, SMALL as u32);
    for _ in 0..512 {
        assert!(client.reply().data == data);
    }
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let harness = Harness::start(plain(SMALL));
    let mut client = Client::simple(&harness);
    let mut bytes = Client::header(WRITE, 0, 7, 3, 40);
    bytes.extend([5; 40]);
    for byte in bytes {
        client.send(&[byte]);
    }
    assert_eq!((client.reply().cookie, client.read(3, 40)), (7, vec![5; 40]));
}

#[test]
fn what_a_smaller_volume_no_longer_has_is_beyond_the_export() {
    let volume = aes(SMALL, 512);
    let harness = Harness::start(volume.clone());
    let mut client = Client::structured(&harness);
    volume.resize(SMALL / 2).expect("smaller");
    for (command, error) in [(READ, EINVAL), (BLOCK_STATUS, EINVAL), (WRITE_ZEROES, ENOSPC)] {
        for offset in [SMALL / 2, SMALL / 2 - 512] {
            let reply = client.ask(command, 0, offset, 4096);
            assert_eq!(reply.error, error, "command {command}");
            assert_eq!(reply.data, b"the range ends beyond the export", "command {command}");
        }
    }
    assert_eq!(client.write(0, SMALL / 2, &[1; 512]), ENOSPC);
    assert_eq!(client.write(0, SMALL / 2 - 512, &[1; 512]), 0);
    volume.resize(SMALL).expect("as large as before");
    assert_eq!(client.read(SMALL / 2 - 512, 512), [1; 512]);
    assert_eq!(client.write(0, SMALL / 2, &[2; 512]), 0);
}
