//! One test for each way a safetensors header can lie.

use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};
use wordline::checkpoint::Folder;
use wordline::checkpoint::header::{HEADER_CAP, Header, HeaderError, header_length};
use wordline::checkpoint::weights::{Weights, WeightsError};

/// A file with this header text and `data` tensor bytes.
fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

/// How a file of these bytes is refused. The message must name the file, and `named` must all stand in it.
#[track_caller]
fn refusal(bytes: &[u8], named: &[&str]) -> HeaderError {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let error = Weights::open(&Folder::open(folder.path()).unwrap()).map(|_| ()).unwrap_err();
    let message = error.to_string();
    for word in [&["model.safetensors"], named].concat() {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
    match error {
        WeightsError::Header { source, .. } => source,
        other => panic!("not about a header: {other}"),
    }
}

/// The header of a file with this header text and `data` tensor bytes.
fn accepted(json: &str, data: usize) -> Header {
    Header::parse(json.as_bytes(), (8 + json.len() + data) as u64).unwrap()
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
"b":{"dtype":"I8","shape":[4],"data_offsets":[24,28]}}"#;

#[test]
fn offsets_count_from_the_file_start() {
    let header = accepted(TWO, 28);
    let start = 8 + TWO.len() as u64;
    let found: Vec<_> = header.tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.bytes.clone())).collect();
    assert_eq!(found, [("a", Dtype::F32, start..start + 24), ("b", Dtype::I8, start + 24..start + 28)]);
}

#[test]
fn padding_scalars_empty_tensors_and_metadata_are_fine() {
    let json = r#"{"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},
        "s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}        "#;
    let header = accepted(json, 8);
    assert_eq!(header.metadata["format"], "pt");
    assert_eq!(header.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["z", "s"]);
}

#[test]
fn shorter_than_the_length_field() {
    for length in 0..8 {
        assert!(matches!(refusal(&vec![0; length], &[]), HeaderError::TooShort { given } if given == length as u64));
    }
}

#[test]
fn header_length_over_the_cap() {
    let bytes = [(HEADER_CAP + 1).to_le_bytes().as_slice(), &[b' '; 16]].concat();
    assert!(matches!(refusal(&bytes, &["100000001", "100000000"]), HeaderError::OverCap { .. }));
    let bytes = [u64::MAX.to_le_bytes().as_slice(), &[b' '; 16]].concat();
    assert!(matches!(refusal(&bytes, &[]), HeaderError::OverCap { given: u64::MAX, .. }));
}

#[test]
fn header_length_past_the_end() {
    let mut bytes = file(TWO, 0);
    bytes[0] += 1;
    assert!(matches!(refusal(&bytes, &[]), HeaderError::PastEnd { .. }));
    assert!(header_length(&bytes, 1 << 30).is_ok(), "the file's length counts, not the bytes at hand");
}

#[test]
fn not_json() {
    for json in ["{", "", "{\"a\":}", "{} x", "\u{0}"] {
        assert!(matches!(refusal(&file(json, 0), &[]), HeaderError::Json { .. }), "{json}");
    }
    let bytes = [7u64.to_le_bytes().as_slice(), b"{\"\xff\xfe\":1"].concat();
    assert!(matches!(refusal(&bytes, &[]), HeaderError::Json { .. }));
}

#[test]
fn not_an_object() {
    for json in ["[]", "null", "3", "\"x\""] {
        assert!(matches!(refusal(&file(json, 0), &[]), HeaderError::Json { .. }), "{json}");
    }
}

#[test]
fn an_entry_that_is_none_is_named() {
    for entry in [
        r#"{"dtype":"F32","shape":[1]}"#,
        r#"{"dtype":"F32","data_offsets":[0,4]}"#,
        r#"{"shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4],"offset":0}"#,
        r#"{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":1,"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#,
        r#"{"dtype":7,"shape":[1],"data_offsets":[0,4]}"#,
        "[]",
    ] {
        let json = format!(r#"{{"fine":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},"bad one":{entry}}}"#);
        assert!(matches!(refusal(&file(&json, 4), &["'bad one'"]), HeaderError::Json { .. }), "{entry}");
    }
}

#[test]
fn metadata_twice_or_not_text() {
    for json in [r#"{"__metadata__":{},"__metadata__":{}}"#, r#"{"__metadata__":{"a":1}}"#, r#"{"__metadata__":3}"#] {
        assert!(matches!(refusal(&file(json, 0), &["__metadata__"]), HeaderError::Json { .. }), "{json}");
    }
}

#[test]
fn one_name_twice() {
    let json = TWO.replace("\"b\"", "\"a\"");
    assert!(matches!(refusal(&file(&json, 28), &["'a'"]), HeaderError::Duplicate { .. }));
}

#[test]
fn unknown_dtype() {
    let json = TWO.replace("I8", "I9");
    assert!(matches!(refusal(&file(&json, 28), &["'b'", "'I9'"]), HeaderError::Dtype { .. }));
}

#[test]
fn too_many_dimensions() {
    let json = r#"{"deep":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#;
    assert!(matches!(refusal(&file(json, 1), &["'deep'"]), HeaderError::Rank { given: 9, limit: 8, .. }));
}

#[test]
fn a_shape_whose_size_overflows() {
    for shape in ["[4294967296,4294967296]", "[18446744073709551615]", "[18446744073709551615,2,3]"] {
        let json = format!(r#"{{"huge":{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}}}"#);
        assert!(matches!(refusal(&file(&json, 4), &["'huge'"]), HeaderError::Shape { .. }), "{shape}");
    }
}

#[test]
fn a_part_of_a_byte() {
    let json = r#"{"half":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#;
    assert!(matches!(refusal(&file(json, 2), &["'half'"]), HeaderError::Shape { .. }));
}

#[test]
fn bytes_that_end_before_they_start() {
    let json = TWO.replace("[24,28]", "[28,24]");
    let error = refusal(&file(&json, 28), &["'b'"]);
    assert!(matches!(error, HeaderError::Backwards { start: 28, end: 24, .. }));
}

#[test]
fn bytes_out_of_the_file() {
    assert!(matches!(refusal(&file(TWO, 27), &["'b'"]), HeaderError::OutOfFile { given: 28, limit: 27, .. }));
    let json = TWO.replace("[24,28]", "[18446744073709551600,18446744073709551604]");
    assert!(matches!(refusal(&file(&json, 28), &["'b'"]), HeaderError::OutOfFile { .. }));
}

#[test]
fn size_that_is_not_shape_times_dtype() {
    for (from, to) in
        [("[2,3]", "[2,4]"), ("[2,3]", "[2,2]"), ("F32", "BF16"), ("[0,24]", "[0,20]"), ("[2,3]", "[0,3]")]
    {
        let json = TWO.replace(from, to);
        assert!(matches!(refusal(&file(&json, 28), &["'a'"]), HeaderError::Size { .. }), "{to}");
    }
}

#[test]
fn overlapping_tensors() {
    let json = TWO.replace("[24,28]", "[20,24]");
    assert!(matches!(refusal(&file(&json, 24), &["'a'", "'b'"]), HeaderError::Overlap { at: 20, .. }));
    let same =
        r#"{"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}"#;
    assert!(matches!(refusal(&file(same, 4), &["'a'", "'b'"]), HeaderError::Overlap { at: 0, .. }));
}

#[test]
fn bytes_of_no_tensor() {
    let before = r#"{"a":{"dtype":"I8","shape":[4],"data_offsets":[2,6]}}"#;
    assert!(matches!(refusal(&file(before, 6), &["'a'"]), HeaderError::Gap { start: 0, end: 2, .. }));
    let between = TWO.replace("[24,28]", "[25,29]");
    assert!(matches!(refusal(&file(&between, 29), &["'b'"]), HeaderError::Gap { start: 24, end: 25, .. }));
    assert!(matches!(refusal(&file(TWO, 30), &["end"]), HeaderError::Gap { start: 28, end: 30, .. }));
}

proptest! {
    /// A header with a few bytes changed is refused or read as the format's reference reader reads it; neither panics.
    #[test]
    fn altered_headers_are_refused_or_agree_with_the_reference_reader(
        edits in proptest::collection::vec((0usize..TWO.len() + 8, any::<u8>()), 1..4),
        digits in any::<bool>(),
    ) {
        let mut bytes = file(TWO, 28);
        for (at, byte) in edits {
            // Changed digits keep the JSON well-formed, and so reach the checks behind it.
            let digit = bytes[at].is_ascii_digit();
            bytes[at] = if digits && digit { b'0' + byte % 10 } else if digits { bytes[at] } else { byte };
        }
        let ours = header_length(&bytes, bytes.len() as u64)
            .and_then(|length| Header::parse(&bytes[8..8 + length], bytes.len() as u64));
        if let Ok(header) = ours {
            let theirs = SafeTensors::deserialize(&bytes).expect("refused by the reference reader only");
            prop_assert_eq!(theirs.len(), header.tensors.len());
            for entry in &header.tensors {
                let view = theirs.tensor(&entry.name).unwrap();
                prop_assert_eq!(view.shape(), entry.shape.as_slice());
                prop_assert_eq!(view.data(), &bytes[entry.bytes.start as usize..entry.bytes.end as usize]);
            }
        }
    }
}
