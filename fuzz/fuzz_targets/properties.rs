//! What holds for whatever bytes come: run by the fuzzer on its own inputs, and by the wire's tests on seeded and pinned ones.

use super::pipeline::wire::{MAX_MESSAGE, Message, Reassembly, act_hash};

/// The sentinels of all messages, so that every decoder is reached at once.
pub(crate) const SENTINELS: [i32; 16] =
    [-20, -21, -22, -23, -24, -25, -26, -27, -28, -29, -30, -31, -32, -33, -34, -35];

/// Any bytes: each decoder refuses them, or gives a message that encodes to the same bytes.
pub(crate) fn bytes(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
    let Some((which, rest)) = bytes.split_first() else { return };
    let sentinel = SENTINELS[usize::from(*which) % SENTINELS.len()];
    let mut bytes = [&sentinel.to_le_bytes()[..], rest].concat();
    // A hop whose hash is right reaches what stands behind the hash.
    let header = if sentinel == -23 { 24 } else { 32 };
    if matches!(sentinel, -23 | -29) && bytes.len() >= header {
        let hash = act_hash(&bytes[header..]);
        bytes[16..20].copy_from_slice(&hash.to_le_bytes());
    }
    if let Ok(message) = Message::decode(&bytes) {
        assert_eq!(message.encode(), bytes);
    }
}

/// Any frames: reassembly stays within its bound, whatever comes.
pub(crate) fn frames(frames: &[(bool, u8, u8, u8, u16)]) {
    let mut reassembly = Reassembly::new();
    for (full, id, index, total, length) in frames.iter().copied() {
        let length = if full { 49_136 } else { usize::from(length) };
        let figures = [-5, i32::from(id % 4), i32::from(index), i32::from(total)];
        let mut frame: Vec<u8> = figures.iter().flat_map(|f| f.to_le_bytes()).collect();
        frame.resize(16 + length, id);
        let _ = reassembly.take(frame);
        assert!(reassembly.held() <= MAX_MESSAGE);
    }
}
