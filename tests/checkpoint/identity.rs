//! The identity changes when, and only when, what it names does.

use super::support::Draft;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use wordline::checkpoint::{Checkpoint, Folder, Weights};

fn open(folder: &Path) -> Checkpoint {
    Checkpoint::open(folder).unwrap()
}

/// Change one byte of the weights in place, and set the modification time back.
fn flip(folder: &Path, at: u64) {
    let path = folder.join("model.safetensors");
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at as usize] ^= 1;
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&bytes[at as usize..=at as usize]).unwrap();
    file.set_modified(before).unwrap();
}

#[test]
fn equal_copies_have_one_identity_and_a_changed_byte_another() {
    let draft = Draft::given("llama");
    let (a, b) = (draft.write(), draft.write());
    let first = open(a.path()).weights.identity().unwrap();
    assert_eq!(first, open(b.path()).weights.identity().unwrap());
    assert_eq!(first.len(), 64);
    for at in [20_000, 100_003, 313_000] {
        let before = open(b.path()).weights.identity().unwrap();
        flip(b.path(), at);
        assert_ne!(before, open(b.path()).weights.identity().unwrap(), "byte {at}");
    }
    assert_eq!(open(a.path()).weights.index_digest(), open(b.path()).weights.index_digest());
}

#[test]
fn files_too_long_to_hash_are_known_by_the_system_record() {
    let draft = Draft::given("llama");
    let (a, b) = (draft.write(), draft.write());
    let long = |folder: &Path| open(folder).weights.identity_within(0).unwrap();
    assert_eq!(long(a.path()), long(a.path()));
    assert_ne!(long(a.path()), long(b.path()), "a copy of a long file is another one");
    let before = long(a.path());
    flip(a.path(), 100_003);
    assert_ne!(before, long(a.path()));
}

#[test]
fn the_index_digest_sees_names_types_shapes_and_places() {
    let draft = Draft::given("gpt2");
    let digest = |draft: &Draft| open(draft.write().path()).weights.index_digest();
    let first = digest(&draft);
    assert_eq!(first, digest(&draft));
    assert_ne!(first, digest(&draft.clone().renamed(|name| format!("transformer.{name}"))));
    let mut other = draft.clone();
    let norm = other.take("ln_f.weight");
    let halved = norm.bytes.chunks_exact(4).flat_map(|bytes| [bytes[2], bytes[3]]).collect();
    let stored = super::support::Stored { dtype: safetensors::Dtype::BF16, bytes: halved, ..norm };
    assert_ne!(first, digest(&other.tensor("ln_f.weight", stored)));
    // The same bytes under the same name in another shape.
    let mut other = draft.clone();
    let matrix = other.take("h.0.attn.c_attn.weight");
    let turned: Vec<usize> = matrix.shape.iter().rev().copied().collect();
    assert_ne!(turned, matrix.shape);
    let stored = matrix.reshaped(&turned);
    let folder = other.tensor("h.0.attn.c_attn.weight", stored).write();
    assert_ne!(first, Weights::open(&Folder::open(folder.path().to_str().unwrap()).unwrap()).unwrap().index_digest());
    // Two tensors of one length that changed places.
    let folder = draft.write();
    swap_places(folder.path(), "h.0.ln_1.weight", "h.0.ln_2.weight");
    assert_ne!(first, open(folder.path()).weights.index_digest());
    swap_places(folder.path(), "h.0.ln_1.weight", "h.0.ln_2.weight");
    assert_eq!(first, open(folder.path()).weights.index_digest());
}

/// Have the header say that two tensors stand in each other's place.
fn swap_places(folder: &Path, a: &str, b: &str) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&rest[..length]).unwrap();
    let place = header[a]["data_offsets"].take();
    header[a]["data_offsets"] = header[b]["data_offsets"].take();
    header[b]["data_offsets"] = place;
    let text = format!("{:length$}", header.to_string());
    assert_eq!(text.len(), length, "the tensors begin where they did");
    std::fs::write(&path, [&bytes[..8], text.as_bytes(), &rest[length..]].concat()).unwrap();
}
