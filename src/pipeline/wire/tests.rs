//! Golden bytes of every message, round trips, and decoders that are given anything.

use super::*;
use crate::pipeline;
use crate::pipeline::plan::{Device, Plan, PlannedStage, Room};
use proptest::prelude::*;

fn hello_of(capacity: f64) -> Hello {
    Hello { capacity, probe: [0xab; 32], backend: "cpu-avx2".into() }
}

fn about_of(memory: u64) -> About {
    About { memory, addresses: vec!["127.0.0.1:7001".into()], signature: [0xcd; 64] }
}

fn plan() -> Plan {
    let device = |name, capacity| Device { key: [name; 32], capacity, memory: 1 << 30 };
    Plan {
        room: Room { ctx: 64, step_rows: 16, sequences: 2 },
        layers: 8,
        devices: vec![device(9, 2.0), device(1, 1.0)],
        stages: vec![PlannedStage { device: 0, layers: 0..5 }, PlannedStage { device: 1, layers: 5..8 }],
    }
}

fn assign() -> Assign {
    Assign {
        epoch: 1,
        first_sequence: 4,
        repo: "wordline/demo".into(),
        revision: "main".into(),
        index: [0x11; 32],
        spec: "{}".into(),
        numerics: "{\"lanes\":8}".into(),
        plan: plan(),
        stage: 1,
        layers: 5..8,
    }
}

fn hop(form: Form) -> Hop {
    let hidden = vec![1.0, -0.0, f32::from_bits(0x7fc0_dead), f32::MIN_POSITIVE];
    Hop { sequence: 3, lap: 7, next: Next::Stage(2), model: 0x0123_4567, form, hidden }
}

/// One of each, with a name.
fn samples() -> Vec<(&'static str, Message)> {
    vec![
        ("hello", Message::Hello(hello_of(123.5))),
        ("assign", Message::Assign(Box::new(assign()))),
        (
            "ready",
            Message::Ready(Ready {
                epoch: 1,
                stage: 1,
                program: [0x22; 32],
                image: [0x33; 32],
                bytes: 4096,
                requests: 2,
            }),
        ),
        ("activation", Message::Hop(hop(Form::Anew))),
        ("activation return", Message::Hop(Hop { next: Next::Return, ..hop(Form::Anew) })),
        ("token", Message::Token { sequence: 3, index: 5, token: 70_000 }),
        ("finished", Message::Finished { sequence: Some(3) }),
        ("finished all", Message::Finished { sequence: None }),
        ("join", Message::Join(Join { version: VERSION, purpose: Purpose::Member, proof: [0x44; 32] })),
        ("join hops", Message::Join(Join { version: 1, purpose: Purpose::Hops { epoch: 2 }, proof: [0; 32] })),
        ("about", Message::About(about_of(1 << 30))),
        ("roster", Message::Roster(vec![Member { key: [9; 32], hello: hello_of(2.0), about: about_of(5) }])),
        ("cached rows", Message::Hop(hop(Form::Cached { position: 12, keep: 1 }))),
        (
            "trace",
            Message::Trace(Trace {
                sequence: 3,
                lap: 7,
                stage: 1,
                position: 12,
                compute_us: 900,
                queue_us: 4,
                came_us: 1_000_000,
                heard: Some((6, 999_000)),
                rows: vec![(1, 2), (3, 4)],
            }),
        ),
        ("error", Message::Error(Fault { epoch: 1, sequence: None, code: "disk".into(), text: "no room".into() })),
        ("cancel", Message::Cancel { sequence: 3 }),
        ("audit", Message::Audit { sequence: 3 }),
        ("replay", Message::Replay { epoch: 2, stage: 3 }),
        ("beat", Message::Beat { epoch: 1, laps: 260, busy_ms: 12, onward: None }),
        (
            "beat onward",
            Message::Beat { epoch: 1, laps: 260, busy_ms: 0, onward: Some(Onward { rtt_us: 340, relayed: true }) },
        ),
    ]
}

/// Bytes as the golden file has them: 32 a line.
fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<String>();
    bytes.chunks(32).map(|chunk| format!("  {}\n", line(chunk))).collect()
}

#[test]
fn every_message_has_its_golden_bytes() {
    let text: String = samples().iter().map(|(name, m)| format!("{name}\n{}", hex(&m.encode()))).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/pipeline/wire/golden.txt");
    if std::env::var_os("WORDLINE_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(
        text,
        include_str!("golden.txt"),
        "run with WORDLINE_BLESS=1 to accept; the wire's version changes then"
    );
}

#[test]
fn every_message_comes_back() {
    for (name, message) in samples() {
        let bytes = message.encode();
        let back = Message::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        // By bytes: a NaN is not equal to itself.
        assert_eq!(back.encode(), bytes, "{name}");
        fuzzed::bytes(&bytes);
    }
}

#[test]
fn an_activation_has_24_bytes_of_header() {
    let bytes = Message::Hop(hop(Form::Anew)).encode();
    let word = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap();
    assert_eq!(bytes.len(), 24 + 4 * 4);
    assert_eq!(i32::from_le_bytes(word(0)), -23);
    assert_eq!(i32::from_le_bytes(word(4)), 3, "seq");
    assert_eq!(i32::from_le_bytes(word(8)), 7, "tokenIdx");
    assert_eq!(i32::from_le_bytes(word(12)), 2, "nextIndex");
    assert_eq!(u32::from_le_bytes(word(16)), act_hash(&bytes[24..]), "actHash");
    assert_eq!(u32::from_le_bytes(word(20)), 0x0123_4567, "modelHash");
    assert_eq!(f32::from_le_bytes(word(24)), 1.0, "hidden");
    let back = Message::Hop(Hop { next: Next::Return, ..hop(Form::Anew) }).encode();
    assert_eq!(i32::from_le_bytes(<[u8; 4]>::try_from(&back[12..16]).unwrap()), -1, "RETURN is no stage");
}

#[test]
fn the_sentinels_of_another_program_are_unknown() {
    for given in [-2, -3, -4, -6, -7, -8, 0, 1, -19, -36, i32::MIN] {
        let bytes = [given.to_le_bytes().as_slice(), &[0; 64]].concat();
        assert_eq!(Message::decode(&bytes), Err(WireError::Unknown { given }));
    }
    let ours = [-5, -20, -21, -22, -23, -24, -25];
    assert_eq!([FRAGMENT, HELLO, ASSIGN, READY, ACT, TOKEN, FINISHED], ours);
    assert_eq!(Message::decode(&[0xff; 3]), Err(WireError::NoSentinel { given: 3 }));
    assert_eq!(Message::decode(&[&(-5_i32).to_le_bytes()[..], &[0; 20]].concat()), Err(WireError::Nested));
}

#[test]
fn the_hashes_are_the_ones_that_they_are_named_after() {
    // The check value of CRC-32, as every catalogue of CRCs has it.
    assert_eq!(act_hash(b"123456789"), 0xcbf4_3926);
    assert_eq!(act_hash(b""), 0);
    let model = model_hash("owner/name", "main", &[7; 32]);
    assert_eq!(model, 0xb1b8_98cf);
    assert_ne!(model, model_hash("owner/nam", "emain", &[7; 32]));
    assert_ne!(model, model_hash("owner/name", "dev", &[7; 32]));
    assert_ne!(model, model_hash("owner/name", "main", &[8; 32]));
    assert_ne!(row_digest(&[0.0]), row_digest(&[-0.0]));
}

#[test]
fn a_flipped_bit_of_the_payload_is_refused() {
    for form in [Form::Anew, Form::Cached { position: 0, keep: 1 }] {
        let bytes = Message::Hop(hop(form)).encode();
        let header = if form == Form::Anew { ACT_HEADER } else { ROWS_HEADER };
        for bit in 8 * header..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = Message::decode(&bytes).unwrap_err();
            assert!(matches!(error, WireError::Corrupt { sequence: 3, lap: 7, .. }), "bit {bit}: {error}");
        }
    }
}

#[test]
fn stage_0_is_no_address() {
    let mut bytes = Message::Hop(hop(Form::Anew)).encode();
    for given in [0, -3, i32::MIN] {
        bytes[12..16].copy_from_slice(&given.to_le_bytes());
        assert_eq!(Message::decode(&bytes), Err(WireError::Address { message: "activation", given }));
    }
}

#[test]
fn names_that_could_lead_elsewhere_are_refused() {
    for repo in ["a/b", "Owner-1/na_me.v2"] {
        assert_eq!(check_repo(repo), Ok(()), "{repo}");
    }
    let long = format!("a/{}", "b".repeat(97));
    for repo in [
        "",
        "a",
        "a/",
        "/b",
        "a/b/c",
        "../b",
        "a/..",
        "a/b..c",
        "./b",
        "a/.b",
        "a/b.",
        "a//b",
        "https://a/b",
        "a/b?c",
        "a/b#c",
        "a/b%2e",
        "a/b\n",
        "a/b\0",
        "a/b c",
        "a\\b",
        "a/é",
        &long,
    ] {
        assert!(matches!(check_repo(repo), Err(WireError::Repo { .. })), "{repo}");
    }
    for revision in ["main", "v1.0", "0123456789abcdef0123456789abcdef01234567"] {
        assert_eq!(check_revision(revision), Ok(()), "{revision}");
    }
    let long = "r".repeat(129);
    for revision in ["", "..", "a/b", "a..b", "-/..", "main?x", "main#x", "%6d", "ma in", "\u{1b}", &long] {
        assert!(matches!(check_revision(revision), Err(WireError::Revision { .. })), "{revision}");
    }
}

#[test]
fn an_assignment_that_lies_is_refused() {
    let with = |change: &dyn Fn(&mut Assign)| {
        let mut assign = assign();
        change(&mut assign);
        Message::decode(&Message::Assign(Box::new(assign)).encode()).unwrap_err().to_string()
    };
    for (change, says) in [
        (&(|a: &mut Assign| a.repo = "../../etc".into()) as &dyn Fn(&mut Assign), "repository '../../etc'"),
        (&|a| a.revision = "..".into(), "revision '..'"),
        (&|a| a.layers = 5..7, "stage 1 is told layers 5..7, the plan says Some(5..8)"),
        (&|a| a.stage = 2, "stage 2 is told layers 5..8, the plan says None"),
        (&|a| a.plan.stages[1].layers = 6..8, "layers 5..6 are on no stage"),
        (&|a| a.plan.stages.swap(0, 1), "stage 0 is on device 0101010101, not on the head 0909090909"),
    ] {
        let error = with(change);
        assert!(error.contains(says), "{error}: {says}");
    }
}

#[test]
fn fragments_of_a_large_hop() {
    let hidden: Vec<f32> = (0..64 * 576).map(|i| f32::from_bits(0x7f80_0001 + i)).collect();
    let message = Message::Hop(Hop { hidden, ..hop(Form::Anew) }).encode();
    assert_eq!(message.len(), 147_480);
    let parts = fragments(9, message.clone());
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|part| part.len() <= FRAGMENT_BYTES));
    assert_eq!(&parts[0][..8], [(-5_i32).to_le_bytes(), 9_u32.to_le_bytes()].concat());
    let mut reassembly = Reassembly::new();
    let whole: Vec<_> = parts.into_iter().rev().map(|part| reassembly.take(part).unwrap()).collect();
    assert_eq!(whole, [None, None, None, Some(message)]);
    assert_eq!(reassembly.held(), 0);
    // What fits goes as it is.
    assert_eq!(fragments(1, vec![1; FRAGMENT_BYTES]).len(), 1);
    assert_eq!(fragments(1, vec![1; FRAGMENT_BYTES + 1]).len(), 2);
}

#[test]
fn fragments_that_cannot_be_are_refused_and_their_message_given_up() {
    let parts = fragments(1, vec![7; 3 * FRAGMENT_BYTES]);
    let part = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut part = parts[1].clone();
        change(&mut part);
        part
    };
    let put = |at: usize, value: u32| move |p: &mut Vec<u8>| p[at..at + 4].copy_from_slice(&value.to_le_bytes());
    for (bad, says) in [
        (part(&put(8, 4)), "an index past the total"),
        (part(&put(8, u32::MAX)), "an index past the total"),
        (part(&put(12, 1)), "a total that no message has"),
        (part(&put(12, u32::MAX)), "a total that no message has"),
        (part(&put(12, 9)), "another total than its message's"),
        (part(&|p| p.truncate(100)), "a length that its place does not have"),
        (part(&|p| p.truncate(16)), "a length that its place does not have"),
        (part(&|p| p.truncate(9)), "ends inside"),
        (parts[0].clone(), "an index that was there already"),
    ] {
        let mut reassembly = Reassembly::new();
        assert_eq!(reassembly.take(parts[0].clone()), Ok(None));
        let error = reassembly.take(bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}: {says}");
        assert!(reassembly.held() == 0 || says == "ends inside", "{says}");
    }
    // Neither many messages nor long ones take more than the bound.
    let mut reassembly = Reassembly::new();
    let refused = (0..2000).filter(|id| reassembly.take(fragments(*id, vec![0; 200_000])[0].clone()).is_err()).count();
    assert_eq!(refused, 2000 - MAX_UNFINISHED);
    assert!(reassembly.held() <= MAX_MESSAGE);
}

fn any_message() -> impl Strategy<Value = Message> {
    let sequence = 0..=i32::MAX as u32;
    let form =
        prop_oneof![Just(Form::Anew), any::<(u32, u32)>().prop_map(|(position, keep)| Form::Cached { position, keep })];
    let next = prop_oneof![Just(Next::Return), Just(Next::Copy), (1..=i32::MAX as u32).prop_map(Next::Stage)];
    let hidden = prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..40);
    let hops = (sequence.clone(), sequence.clone(), next, any::<u32>(), form, hidden).prop_map(
        |(sequence, lap, next, model, form, hidden)| Message::Hop(Hop { sequence, lap, next, model, form, hidden }),
    );
    let hello = (any::<f64>(), any::<[u8; 32]>(), ".{0,16}").prop_map(|(capacity, probe, backend)| Hello {
        capacity,
        probe,
        backend,
    });
    let about = (any::<u64>(), prop::collection::vec("[0-9a-f:.]{0,30}", 0..4), any::<u8>())
        .prop_map(|(memory, addresses, byte)| About { memory, addresses, signature: [byte; 64] });
    let member =
        (any::<[u8; 32]>(), hello.clone(), about.clone()).prop_map(|(key, hello, about)| Member { key, hello, about });
    let rows = prop::collection::vec(any::<(u64, u64)>(), 0..9);
    prop_oneof![
        hops,
        hello.prop_map(Message::Hello),
        about.prop_map(Message::About),
        prop::collection::vec(member, 0..4).prop_map(Message::Roster),
        (
            sequence.clone(),
            any::<(u32, u32, u32, u32, u32, u64)>(),
            prop::option::of((0..u32::MAX, any::<u64>())),
            rows
        )
            .prop_map(|(sequence, figures, heard, rows)| {
                let (lap, stage, position, compute_us, queue_us, came_us) = figures;
                Message::Trace(Trace { sequence, lap, stage, position, compute_us, queue_us, came_us, heard, rows })
            }),
        (any::<(u32, u64, u32)>(), prop::option::of(any::<(u32, bool)>())).prop_map(
            |((epoch, laps, busy_ms), onward)| {
                let onward = onward.map(|(rtt_us, relayed)| Onward { rtt_us, relayed });
                Message::Beat { epoch, laps, busy_ms, onward }
            }
        ),
        (any::<u32>(), prop::option::of(sequence.clone()), ".{0,12}", ".{0,80}")
            .prop_map(|(epoch, sequence, code, text)| Message::Error(Fault { epoch, sequence, code, text })),
        prop::option::of(sequence).prop_map(|sequence| Message::Finished { sequence }),
    ]
}

/// What the fuzzer runs, on seeded and pinned inputs here. It looks for `pipeline` beside itself.
#[path = "../../../fuzz/fuzz_targets/properties.rs"]
mod fuzzed;

#[test]
fn the_fuzzed_sentinels_are_all_there_are() {
    let all: Vec<i32> = (-64..0).rev().filter(|sentinel| *sentinel != FRAGMENT && name(*sentinel).is_some()).collect();
    assert_eq!(all, fuzzed::SENTINELS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fuzzed_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzzed::bytes(&bytes);
    }

    /// Whole messages with a few bytes changed reach further than noise does.
    #[test]
    fn fuzzed_messages(
        message in any_message(), which in any::<u8>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = message.encode();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzzed::bytes(&bytes);
        // The fuzzer's first byte picks the sentinel.
        fuzzed::bytes(&[&[which][..], &bytes[4..]].concat());
    }

    #[test]
    fn fuzzed_frames(frames in prop::collection::vec(any::<(bool, u8, u8, u8, u16)>(), 0..12)) {
        fuzzed::frames(&frames);
    }
}

proptest! {
    #[test]
    fn decode_undoes_encode(message in any_message()) {
        let bytes = message.encode();
        let back = Message::decode(&bytes);
        prop_assert!(back.is_ok(), "{:?}", back);
        prop_assert_eq!(back.unwrap().encode(), bytes);
    }

    #[test]
    fn no_message_is_a_part_or_a_longer_one(message in any_message(), cut in any::<prop::sample::Index>()) {
        let mut bytes = message.encode();
        let whole = bytes.len();
        // A hop without its last values is refused by its hash; all others by their fields.
        prop_assert!(Message::decode(&bytes[..cut.index(whole)]).is_err());
        bytes.push(0);
        prop_assert!(Message::decode(&bytes).is_err());
    }

    #[test]
    fn anything_is_decoded_or_refused(sentinel in -40..0_i32, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = [sentinel.to_le_bytes().to_vec(), bytes].concat();
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn a_changed_byte_is_decoded_or_refused(which in 0..samples().len(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = samples()[which].1.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn fragments_come_together_in_any_order(
        lengths in prop::collection::vec(1..300_000_usize, 1..5), seed in any::<u64>(),
    ) {
        let message = |i: usize, len: usize| (0..len).map(|b| (b * 31 + i) as u8).collect::<Vec<u8>>();
        let whole: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(i, len)| message(i, *len)).collect();
        let mut parts: Vec<(usize, Vec<u8>)> = whole.iter().enumerate()
            .flat_map(|(i, m)| fragments(i as u32, m.clone()).into_iter().map(move |part| (i, part))).collect();
        let mut state = seed | 1;
        for i in (1..parts.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            parts.swap(i, (state >> 33) as usize % (i + 1));
        }
        let mut reassembly = Reassembly::new();
        let mut came = vec![None; whole.len()];
        for (i, part) in parts {
            if let Some(message) = reassembly.take(part).unwrap() {
                prop_assert!(came[i].replace(message).is_none());
            }
        }
        prop_assert_eq!(came.into_iter().flatten().collect::<Vec<_>>(), whole);
        prop_assert_eq!(reassembly.held(), 0);
    }

    #[test]
    fn any_fragments_stay_within_the_bound(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..50)) {
        let mut reassembly = Reassembly::new();
        for frame in frames {
            let _ = reassembly.take([&FRAGMENT.to_le_bytes()[..], &frame].concat());
            prop_assert!(reassembly.held() <= MAX_MESSAGE);
        }
    }
}
