//! Rows of views: any tiling gives the same values, in every type, transposed or not.

use super::support::{Draft, Stored, names, repository, values};
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::Dtype;
use wordline::checkpoint::Checkpoint;
use wordline_engine::source::WeightSource;
use wordline_ir::spec::{Part, RowRange, View};
use wordline_ir::{Tensor, TensorKind};

/// A small model with more tensors beside it than its Spec uses: views may name any tensor of the file.
fn checkpoint() -> Checkpoint {
    let mut checkpoint = Draft::given("gpt2").open().unwrap();
    let bytes = |n: usize, size: usize| (0..n * size).map(|i| (i * 37 + 11) as u8 & 0x3f).collect::<Vec<u8>>();
    let mut draft = Draft { config: checkpoint.config.clone(), tensors: std::collections::BTreeMap::new() };
    for (name, dtype, size) in TYPES {
        draft = draft.tensor(name, Stored { dtype, shape: vec![6, 5], bytes: bytes(30, size) });
    }
    draft = draft.tensor("stack", Stored { dtype: Dtype::BF16, shape: vec![3, 2, 5], bytes: bytes(30, 2) });
    draft = draft.tensor("vector", Stored { dtype: Dtype::F32, shape: vec![9], bytes: bytes(9, 4) });
    draft = draft.tensor("ids", Stored { dtype: Dtype::I64, shape: vec![6, 5], bytes: bytes(30, 8) });
    let folder = draft.write();
    checkpoint.weights =
        wordline::checkpoint::Weights::open(&wordline::checkpoint::Folder::open(folder.path()).unwrap()).unwrap();
    checkpoint
}

const TYPES: [(&str, Dtype, usize); 8] = [
    ("f64", Dtype::F64, 8),
    ("f32", Dtype::F32, 4),
    ("f16", Dtype::F16, 2),
    ("bf16", Dtype::BF16, 2),
    ("e4m3", Dtype::F8_E4M3, 1),
    ("e5m2", Dtype::F8_E5M2, 1),
    ("i8", Dtype::I8, 1),
    ("u8", Dtype::U8, 1),
];

/// One value of a stored [6, 5] matrix, the slow way.
fn stored(checkpoint: &Checkpoint, name: &str, row: usize, col: usize) -> f32 {
    let tensor = checkpoint.weights.tensor(name).unwrap();
    let size = tensor.bytes().unwrap().len() / 30;
    let bytes = &tensor.bytes().unwrap()[(row * 5 + col) * size..][..size];
    match tensor.dtype {
        Dtype::F64 => f64::from_le_bytes(bytes.try_into().unwrap()) as f32,
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        Dtype::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        Dtype::F8_E5M2 => f16::from_bits(u16::from(bytes[0]) << 8).to_f32(),
        Dtype::F8_E4M3 => {
            let (e, m) = (i32::from(bytes[0] >> 3), f32::from(bytes[0] & 7));
            if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) }
        }
        Dtype::I8 => f32::from(bytes[0] as i8),
        _ => f32::from(bytes[0]),
    }
}

fn part(tensor: &str, transpose: bool, rows: &[(usize, usize)]) -> Part {
    let rows = rows.iter().map(|&(start, end)| RowRange { start, end }).collect();
    Part { tensor: tensor.to_owned(), shape: vec![6, 5], rows, transpose }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_tile_of_any_view_equals_the_slow_way(
        transpose in any::<bool>(),
        add_one in any::<bool>(),
        picks in proptest::collection::vec((0usize..8, 0usize..7, 0usize..7), 1..6),
        tile in 1usize..9,
    ) {
        let checkpoint = checkpoint();
        let limit = if transpose { 5 } else { 6 };
        let mut expected = Vec::new();
        let mut parts = Vec::new();
        for (kind, a, b) in picks {
            let (start, end) = (a.min(b).min(limit), a.max(b).min(limit));
            let name = TYPES[kind].0;
            parts.push(part(name, transpose, &[(start, end), (0, end)]));
            for row in (start..end).chain(0..end) {
                let one = if add_one { 1.0 } else { 0.0 };
                let cols = 11 - limit;
                expected.extend((0..cols).map(|col| {
                    let (r, c) = if transpose { (col, row) } else { (row, col) };
                    stored(&checkpoint, name, r, c) + one
                }));
            }
        }
        let view = View { parts, add_one };
        let (rows, cols) = (view.rows(), view.cols());
        let mut tiled = Vec::new();
        for start in (0..rows).step_by(tile) {
            let end = rows.min(start + tile);
            let mut out = vec![f32::NAN; (end - start) * cols];
            checkpoint.weights.read_view_rows(&view, start..end, &mut out).unwrap();
            tiled.extend(out);
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&tiled), bits(&expected));
    }
}

#[test]
fn a_stack_is_the_matrix_that_its_bytes_are() {
    let checkpoint = checkpoint();
    let flat = View::whole("stack", &[6, 5]);
    let as_stored = View::whole("stack", &[3, 2, 5]);
    assert_eq!((as_stored.rows(), as_stored.cols()), (3, 10));
    assert_eq!(values(&checkpoint, &flat), values(&checkpoint, &as_stored));
    assert_eq!(values(&checkpoint, &View::whole("vector", &[9])).len(), 9);
}

#[test]
fn a_square_matrix_stored_in_out_is_read_by_columns() {
    let path = repository("tests/fixtures/given/gpt2");
    let checkpoint = Checkpoint::open(path).unwrap();
    let wordline_ir::spec::Mixer::Attention(attention) = &checkpoint.spec.layers[1].mixer else {
        panic!("no attention")
    };
    let tensor = checkpoint.weights.tensor("h.1.attn.c_proj.weight").unwrap();
    assert_eq!(tensor.shape, [64, 64]);
    let read = values(&checkpoint, &attention.o.weight);
    for (i, bytes) in tensor.bytes().unwrap().chunks_exact(4).enumerate() {
        let value = f32::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(read[(i % 64) * 64 + i / 64], value);
    }
}

#[test]
fn views_that_do_not_fit_the_file_are_refused() {
    let checkpoint = checkpoint();
    let read = |view: &View, rows: std::ops::Range<usize>, out: usize| {
        checkpoint.weights.read_view_rows(view, rows, &mut vec![0.0; out]).unwrap_err().to_string()
    };
    let one = |part: Part| View { parts: vec![part], add_one: false };
    names(&read(&one(part("absent", false, &[(0, 1)])), 0..1, 5), &["'absent'"]);
    names(&read(&one(Part { shape: vec![5, 6], ..part("f32", false, &[(0, 1)]) }), 0..1, 6), &["'f32'", "[6, 5]"]);
    names(&read(&one(part("ids", false, &[(0, 1)])), 0..1, 5), &["'ids'", "I64"]);
    names(&read(&one(part("f32", false, &[(0, 7)])), 0..7, 35), &["'f32'", "0..7"]);
    names(&read(&one(part("f32", true, &[(0, 6)])), 0..6, 36), &["'f32'", "0..6"]);
    names(&read(&one(part("f32", false, &[(0, 2)])), 1..3, 10), &["1..3"]);
    names(&read(&one(part("f32", false, &[(0, 2)])), 0..2, 9), &["the output", "9"]);
    let mixed = View { parts: vec![part("f32", false, &[(0, 1)]), part("f32", true, &[(0, 1)])], add_one: false };
    names(&read(&mixed, 0..2, 10), &["'f32'"]);
    let empty = View { parts: Vec::new(), add_one: false };
    names(&read(&empty, 0..1, 0), &["0..1"]);
    let huge = usize::MAX;
    names(&read(&one(Part { shape: vec![6, huge, huge], ..part("f32", false, &[(0, 1)]) }), 0..1, 5), &["the output"]);
    names(&read(&one(part("f32", false, &[(0, huge), (1, huge)])), huge - 1..huge, 5), &["'f32'"]);
    let backwards = one(part("f32", false, &[(5, 2)]));
    assert_eq!(backwards.rows(), 0);
    assert!(checkpoint.weights.read_view_rows(&backwards, 0..0, &mut []).is_ok());
}

#[test]
fn the_engine_reads_through_the_same_door() {
    let checkpoint = checkpoint();
    let view = View { parts: vec![part("f16", true, &[(1, 4)])], add_one: false };
    let (name, kind) = ("layer.x".to_owned(), TensorKind::Matrix);
    let mut tensor = Tensor { name, kind, rows: 3, cols: 6, view: view.clone() };
    let mut out = vec![0.0; 12];
    checkpoint.weights.read_rows(&tensor, 1..3, &mut out).unwrap();
    assert_eq!(out, values(&checkpoint, &view)[6..]);
    tensor.view.parts[0].tensor = "gone".to_owned();
    let message = checkpoint.weights.read_rows(&tensor, 1..3, &mut out).unwrap_err().to_string();
    names(&message, &["'layer.x'", "'gone'"]);
}
