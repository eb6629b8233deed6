//! Any bytes: each decoder refuses them, or gives a message that encodes to the same bytes.
#![no_main]

mod pipeline;

use libfuzzer_sys::fuzz_target;
use pipeline::wire::Message;

/// The sentinels of all messages, so that every decoder is reached at once.
const SENTINELS: [i32; 15] = [-20, -21, -22, -23, -24, -25, -26, -27, -28, -29, -30, -31, -32, -33, -34];

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
    let Some((which, rest)) = bytes.split_first() else { return };
    let sentinel = SENTINELS[usize::from(*which) % SENTINELS.len()];
    let mut bytes = [&sentinel.to_le_bytes()[..], rest].concat();
    // A hop whose hash is right reaches what stands behind the hash.
    let header = if sentinel == -23 { 24 } else { 32 };
    if matches!(sentinel, -23 | -29) && bytes.len() >= header {
        let hash = pipeline::wire::act_hash(&bytes[header..]);
        bytes[16..20].copy_from_slice(&hash.to_le_bytes());
    }
    if let Ok(message) = Message::decode(&bytes) {
        assert_eq!(message.encode(), bytes);
    }
});
