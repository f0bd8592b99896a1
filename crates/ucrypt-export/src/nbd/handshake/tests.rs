//! The handshake without a socket: every option, every refusal, and random clients.

use proptest::prelude::*;

use super::*;
use crate::nbd::protocol::{BASE_ALLOCATION_ID, info};

fn export() -> Export {
    Export {
        name: "disk".into(),
        description: "a test volume".into(),
        size: 1 << 20,
        flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
        block_min: 1,
        block_preferred: 4096,
        block_max: 32 << 20,
    }
}

/// Feeds bytes in pieces of at most `piece` until they end or the handshake does.
fn feed(handshake: &mut Handshake<'_>, mut bytes: &[u8], piece: usize) -> Step {
    let mut step = Step::Continue;
    while !bytes.is_empty() && step == Step::Continue {
        let wanted = handshake.wanted();
        assert!((1..=OPTION_DATA_BYTES_MAX as usize).contains(&wanted), "wants {wanted} bytes");
        let (now, later) = bytes.split_at(wanted.min(piece).min(bytes.len()));
        step = handshake.take_input(now);
        bytes = later;
    }
    step
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn info_data(name: &str, facts: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((facts.len() as u16).to_be_bytes());
    data.extend(facts.iter().flat_map(|fact| fact.to_be_bytes()));
    data
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

/// A handshake with the greeting taken and the client flags given.
fn greeted(export: &Export, flags: u32) -> Handshake<'_> {
    let mut handshake = Handshake::new(export);
    assert_eq!(handshake.take_output().len(), 18);
    assert_eq!(feed(&mut handshake, &flags.to_be_bytes(), 4), Step::Continue);
    handshake
}

/// Sends an option and takes the replies apart: type and data of each.
fn ask(handshake: &mut Handshake<'_>, option: u32, data: &[u8]) -> (Step, Vec<(u32, Vec<u8>)>) {
    let step = feed(handshake, &option_bytes(option, data), usize::MAX);
    let output = handshake.take_output();
    let mut rest = output.as_slice();
    let mut replies = Vec::new();
    while !rest.is_empty() {
        assert_eq!(get_u64(rest, 0), Some(OPTION_REPLY_MAGIC));
        assert_eq!(get_u32(rest, 8), Some(option));
        let length = get_u32(rest, 16).expect("a length") as usize;
        replies.push((get_u32(rest, 12).expect("a type"), rest[20..20 + length].to_vec()));
        rest = &rest[20 + length..];
    }
    (step, replies)
}

/// Asks for something that must be refused without ending the handshake.
fn refused(handshake: &mut Handshake<'_>, option: u32, data: &[u8]) -> u32 {
    let (step, replies) = ask(handshake, option, data);
    assert_eq!(step, Step::Continue);
    assert_eq!(replies.len(), 1, "one final reply");
    assert!(!replies[0].1.is_empty(), "a refusal says why");
    replies[0].0
}

const FIXED: u32 = client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES;

#[test]
fn the_greeting_is_fixed_newstyle() {
    let export = export();
    let greeting = Handshake::new(&export).take_output();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(&greeting[16..], [0, 3]);
}

#[test]
fn unknown_client_flags_end_the_session() {
    let export = export();
    let mut handshake = Handshake::new(&export);
    assert!(matches!(feed(&mut handshake, &[0, 0, 0, 4], 4), Step::Violation(_)));
}

#[test]
fn a_client_without_fixed_newstyle_has_only_export_name() {
    let export = export();
    let mut old = greeted(&export, 0);
    assert!(matches!(ask(&mut old, option::LIST, &[]).0, Step::Violation(_)));
    let mut old = greeted(&export, 0);
    let step = feed(&mut old, &option_bytes(option::EXPORT_NAME, b"disk"), usize::MAX);
    assert_eq!(step, Step::Transmission(Negotiated::default()));
    let output = old.take_output();
    assert_eq!(output.len(), 8 + 2 + ZEROES);
    assert_eq!(get_u64(&output, 0), Some(export.size));
    assert!(output[10..].iter().all(|byte| *byte == 0));
}

#[test]
fn export_name_leaves_the_zeroes_out_when_asked_and_closes_on_an_unknown_name() {
    let export = export();
    let mut handshake = greeted(&export, FIXED);
    feed(&mut handshake, &option_bytes(option::EXPORT_NAME, b""), usize::MAX);
    assert_eq!(handshake.take_output().len(), 10);
    let mut handshake = greeted(&export, FIXED);
    let step = feed(&mut handshake, &option_bytes(option::EXPORT_NAME, b"tape"), usize::MAX);
    assert!(matches!(step, Step::Violation(_)));
}

#[test]
fn go_describes_the_export_and_starts_transmission() {
    let export = export();
    for name in ["", "disk"] {
        let mut handshake = greeted(&export, FIXED);
        ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
        let data = info_data(name, &[info::BLOCK_SIZE, info::NAME, info::DESCRIPTION, 999]);
        let (step, replies) = ask(&mut handshake, option::GO, &data);
        let negotiated = Negotiated { structured: true, block_status: false };
        assert_eq!(step, Step::Transmission(negotiated));
        let (last, facts) = replies.split_last().expect("replies");
        assert_eq!(*last, (option_reply::ACK, vec![]));
        let fact = |kind: u16| {
            let found = facts.iter().find(|(_, data)| data.starts_with(&kind.to_be_bytes()));
            found.expect("the fact is there").1[2..].to_vec()
        };
        let about = fact(info::EXPORT);
        assert_eq!(get_u64(&about, 0), Some(1 << 20));
        assert_eq!(&about[8..], (export.flags | transmission_flag::SEND_DF).to_be_bytes());
        let sizes = fact(info::BLOCK_SIZE);
        assert_eq!([0, 4, 8].map(|at| get_u32(&sizes, at)), [Some(1), Some(4096), Some(32 << 20)]);
        assert_eq!(fact(info::NAME), b"disk");
        assert_eq!(fact(info::DESCRIPTION), b"a test volume");
        assert_eq!(facts.len(), 4);
    }
}

#[test]
fn info_does_not_start_transmission_and_df_needs_structured_replies() {
    let export = export();
    let mut handshake = greeted(&export, FIXED);
    let (step, replies) = ask(&mut handshake, option::INFO, &info_data("disk", &[]));
    assert_eq!(step, Step::Continue);
    assert_eq!(replies.iter().map(|r| r.0).collect::<Vec<_>>(), [3, 3, 1]);
    assert_eq!(&replies[0].1[10..], export.flags.to_be_bytes());
}

#[test]
fn refusals_keep_the_session() {
    let export = export();
    let mut h = greeted(&export, FIXED);
    assert_eq!(refused(&mut h, 99, b"data"), option_reply::ERR_UNSUP);
    assert_eq!(refused(&mut h, option::STARTTLS, &[]), option_reply::ERR_UNSUP);
    assert_eq!(refused(&mut h, option::LIST, b"x"), option_reply::ERR_INVALID);
    assert_eq!(refused(&mut h, option::STRUCTURED_REPLY, b"x"), option_reply::ERR_INVALID);
    assert_eq!(refused(&mut h, option::GO, &info_data("tape", &[])), option_reply::ERR_UNKNOWN);
    assert_eq!(refused(&mut h, option::INFO, &info_data("tape", &[])), option_reply::ERR_UNKNOWN);
    assert_eq!(refused(&mut h, option::GO, &[]), option_reply::ERR_INVALID);
    assert_eq!(refused(&mut h, option::GO, &[0xff; 32]), option_reply::ERR_INVALID);
    let mut long = info_data("disk", &[1, 2]);
    long.push(0);
    assert_eq!(refused(&mut h, option::GO, &long), option_reply::ERR_INVALID);
    let big = vec![0; OPTION_DATA_BYTES_MAX as usize + 1];
    assert_eq!(refused(&mut h, option::INFO, &big), option_reply::ERR_TOO_BIG);
    let name = "n".repeat(STRING_BYTES_MAX + 1);
    assert_eq!(refused(&mut h, option::GO, &info_data(&name, &[])), option_reply::ERR_INVALID);
    let (_, replies) = ask(&mut h, option::LIST, &[]);
    assert_eq!(
        replies[0],
        (option_reply::SERVER, [string("disk"), b"a test volume".to_vec()].concat())
    );
    assert_eq!(replies[1], (option_reply::ACK, vec![]));
    assert!(matches!(ask(&mut h, option::GO, &info_data("", &[])).0, Step::Transmission(_)));
}

#[test]
fn abort_is_acknowledged_whatever_comes_with_it() {
    let export = export();
    let mut handshake = greeted(&export, FIXED);
    let (step, replies) = ask(&mut handshake, option::ABORT, b"bye");
    assert_eq!((step, replies), (Step::Close, vec![(option_reply::ACK, vec![])]));
}

#[test]
fn meta_contexts_need_structured_replies_and_the_right_export() {
    let export = export();
    let mut h = greeted(&export, FIXED);
    let allocation = meta_data("", &["base:allocation"]);
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        assert_eq!(refused(&mut h, option, &allocation), option_reply::ERR_INVALID);
    }
    ask(&mut h, option::STRUCTURED_REPLY, &[]);
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let data = meta_data("tape", &["base:allocation"]);
        assert_eq!(refused(&mut h, option, &data), option_reply::ERR_UNKNOWN);
        assert_eq!(refused(&mut h, option, &meta_data("", &["base"])), option_reply::ERR_INVALID);
        let mut cut = allocation.clone();
        cut.pop();
        assert_eq!(refused(&mut h, option, &cut), option_reply::ERR_INVALID);
        let many = [string(""), u32::MAX.to_be_bytes().to_vec()].concat();
        assert_eq!(refused(&mut h, option, &many), option_reply::ERR_INVALID);
    }
}

#[test]
fn queries_choose_the_contexts_that_they_name() {
    let export = export();
    let found = |option: u32, queries: &[&str]| {
        let mut h = greeted(&export, FIXED);
        ask(&mut h, option::STRUCTURED_REPLY, &[]);
        let (_, replies) = ask(&mut h, option, &meta_data("disk", queries));
        assert_eq!(replies.last(), Some(&(option_reply::ACK, vec![])));
        replies.len() == 2
    };
    assert!(found(option::LIST_META_CONTEXT, &[]));
    assert!(found(option::LIST_META_CONTEXT, &["base:"]));
    assert!(found(option::LIST_META_CONTEXT, &["qemu:dirty-bitmap:", "base:allocation"]));
    assert!(!found(option::LIST_META_CONTEXT, &["base:other", "x-y:z"]));
    assert!(!found(option::SET_META_CONTEXT, &[]));
    assert!(!found(option::SET_META_CONTEXT, &["base:"]));
    assert!(found(option::SET_META_CONTEXT, &["x-y:z", "base:allocation", "base:allocation"]));
}

#[test]
fn the_last_selection_counts_even_when_it_was_refused() {
    let export = export();
    let mut h = greeted(&export, FIXED);
    ask(&mut h, option::STRUCTURED_REPLY, &[]);
    let (_, replies) = ask(&mut h, option::SET_META_CONTEXT, &meta_data("", &["base:allocation"]));
    assert_eq!(get_u32(&replies[0].1, 0), Some(BASE_ALLOCATION_ID));
    assert!(h.negotiated.block_status);
    refused(&mut h, option::SET_META_CONTEXT, &[]);
    assert!(!h.negotiated.block_status);
}

#[test]
fn absurd_lengths_and_endless_options_end_the_session() {
    let export = export();
    let mut h = greeted(&export, FIXED);
    let mut header = option_bytes(option::INFO, &[]);
    header[12..].copy_from_slice(&(OPTION_SKIP_BYTES_MAX + 1).to_be_bytes());
    assert!(matches!(feed(&mut h, &header, 16), Step::Violation(_)));
    let mut h = greeted(&export, FIXED);
    for _ in 0..OPTIONS_MAX {
        refused(&mut h, 99, &[]);
    }
    assert!(matches!(feed(&mut h, &option_bytes(99, &[]), 16), Step::Violation(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn random_options_never_panic_and_never_hold_much_memory(
        options in prop::collection::vec(
            (0u32..12, prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 1..40),
        piece in 1usize..64,
    ) {
        let export = export();
        let mut h = greeted(&export, FIXED);
        for (option, data, lie) in options {
            let mut bytes = option_bytes(option, &data);
            if lie {
                bytes[14] = 1;
            }
            let step = feed(&mut h, &bytes, piece);
            prop_assert!(h.input.len() <= OPTION_DATA_BYTES_MAX as usize);
            prop_assert!(h.take_output().len() < 64 << 10);
            if step != Step::Continue {
                break;
            }
        }
    }
}
