//! MXFP4: two tensors of bytes are one matrix, read to the bit, in the model and in its weight image.

use super::support::{Draft, Stored, names, values};
use safetensors::Dtype;
use serde_json::json;
use wordline::checkpoint::{Checkpoint, Folder, Weights};
use wordline_ir::spec::{Part, RowRange, View};
use wordline_ir::{Numerics, WeightFormat};
use wordline_kernels::format::Weights as Format;
use wordline_kernels::matvec::{Matrix, MatrixLayout};
use wordline_lowering::lower;

/// Magnitudes of E2M1 by code.
const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A matrix as the two stored tensors, and the same as f32.
struct Split {
    blocks: Stored,
    scales: Stored,
    values: Stored,
}

/// The nearest MXFP4 of a stored bf16 matrix, by search over all codes in f64.
fn split(stored: &Stored) -> Split {
    assert_eq!(stored.dtype, Dtype::BF16);
    let element = |b: &[u8]| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16));
    let all: Vec<f64> = stored.bytes.chunks_exact(2).map(element).collect();
    let (mut blocks, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for block in all.chunks_exact(32) {
        let most = block.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
        let exponent = if most == 0.0 { -20 } else { most.log2().floor() as i32 - 2 };
        let scale = 2f64.powi(exponent);
        scales.push((exponent + 127) as u8);
        let code = |v: &f64| {
            let distance = |i: &usize| (MAGNITUDES[*i] * scale - v.abs()).abs();
            let nearest = (0..8).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
            nearest as u8 | if *v < 0.0 { 8 } else { 0 }
        };
        let codes: Vec<u8> = block.iter().map(code).collect();
        blocks.extend(codes.chunks_exact(2).map(|two| two[0] | two[1] << 4));
        let value = |c: &u8| if c & 8 == 0 { 1.0 } else { -1.0 } * MAGNITUDES[usize::from(c & 7)] * scale;
        values.extend(codes.iter().flat_map(|c| (value(c) as f32).to_le_bytes()));
    }
    let (last, outer) = stored.shape.split_last().unwrap();
    let shape = |more: &[usize]| [outer, more].concat();
    let u8s = |shape, bytes| Stored { dtype: Dtype::U8, shape, bytes };
    Split {
        blocks: u8s(shape(&[last / 32, 16]), blocks),
        scales: u8s(shape(&[last / 32]), scales),
        values: Stored { dtype: Dtype::F32, shape: stored.shape.clone(), bytes: values },
    }
}

/// A mixture whose experts are stacked, as published MXFP4 checkpoints have them: in two tensors each, and as f32.
fn mixture() -> [Draft; 2] {
    let mut draft = Draft::given("qwen3_next");
    let mut stacks = Vec::new();
    let layers = draft.config["num_hidden_layers"].as_u64().unwrap();
    let experts = draft.config["num_experts"].as_u64().unwrap();
    for layer in 0..layers {
        let at = format!("model.layers.{layer}.mlp.experts");
        for (stack, projections) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"][..])]
        {
            let one = |expert: u64| projections.iter().map(move |p| (expert, *p));
            let parts: Vec<Stored> =
                (0..experts).flat_map(one).map(|(e, p)| draft.take(&format!("{at}.{e}.{p}.weight"))).collect();
            let whole = Stored::stack(&parts.iter().collect::<Vec<_>>());
            let shape = [experts as usize, whole.shape[0] / experts as usize, whole.shape[1]];
            stacks.push((format!("{at}.{stack}"), split(&whole.reshaped(&shape))));
        }
    }
    let mut plain = draft.clone();
    draft = draft.with("quantization_config", json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}));
    for (name, split) in stacks {
        plain = plain.tensor(&name, split.values);
        draft = draft.tensor(&format!("{name}_blocks"), split.blocks).tensor(&format!("{name}_scales"), split.scales);
    }
    [draft, plain]
}

#[test]
fn a_block_is_what_arithmetic_by_hand_says() {
    // Two rows of one block. Codes by hand, the lower half of a byte first: 0x21 is 0.5, 1.0; 0x43 is 1.5, 2.0; 0x65 is 3.0,
    // 4.0; 0x07 is 6.0, 0; then the same with the sign, 8 more a code; the rest is zero.
    let row = [0x21, 0x43, 0x65, 0x07, 0xa9, 0xcb, 0xed, 0x8f, 0, 0, 0, 0, 0, 0, 0, 0];
    let blocks = Stored { dtype: Dtype::U8, shape: vec![2, 1, 16], bytes: [row, row].concat() };
    // 2^(130 - 127) = 8, and 2^(125 - 127) = 0.25.
    let scales = Stored { dtype: Dtype::U8, shape: vec![2, 1], bytes: vec![130, 125] };
    let draft = Draft { config: json!({}), tensors: Default::default() };
    let folder = draft.tensor("w_blocks", blocks).tensor("w_scales", scales).write();
    let weights = Weights::open(&Folder::open(folder.path()).unwrap()).unwrap();
    let eights = [4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 0.0, -4.0, -8.0, -12.0, -16.0, -24.0, -32.0, -48.0, -0.0];
    let quarters =
        [0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 0.0, -0.125, -0.25, -0.375, -0.5, -0.75, -1.0, -1.5, -0.0_f32];
    let mut out = [7.0_f32; 64];
    weights.read_view_rows(&View::whole("w", &[2, 32]), 0..2, &mut out).unwrap();
    assert_eq!((&out[..16], &out[32..48]), (&eights[..], &quarters[..]));
    assert!(out[16..32].iter().chain(&out[48..]).all(|v| *v == 0.0));
    // The same, stored the other way around.
    let turned = View {
        parts: vec![Part {
            tensor: "w".into(),
            shape: vec![2, 32],
            rows: vec![RowRange { start: 0, end: 32 }],
            transpose: true,
        }],
        add_one: false,
    };
    let mut columns = [7.0_f32; 64];
    weights.read_view_rows(&turned, 0..32, &mut columns).unwrap();
    assert!((0..64).all(|i| columns[i] == out[i % 2 * 32 + i / 2]));
    assert_eq!(weights.parameters(), 64);
    assert_eq!(weights.names().collect::<Vec<_>>(), ["w"]);
    assert_eq!(weights.stored_names("w").collect::<Vec<_>>(), ["w_blocks", "w_scales"]);
}

#[test]
fn a_mixture_stored_as_mxfp4_is_the_one_stored_as_f32() {
    let [packed, plain] = mixture().map(|draft| draft.open().unwrap());
    assert_eq!(packed.spec, plain.spec);
    let read = |checkpoint: &Checkpoint| -> Vec<Vec<u32>> {
        let program = lower(&checkpoint.spec, &Numerics::default(), 64).unwrap().program;
        let bits = |view: &View| values(checkpoint, view).into_iter().map(f32::to_bits).collect();
        program.tensors.iter().map(|tensor| bits(&tensor.view)).collect()
    };
    assert_eq!(read(&packed), read(&plain));
    assert_ne!(packed.weights.identity().unwrap(), plain.weights.identity().unwrap());
}

/// 4-bit floats in, 4-bit floats out: the weight image of the format `e2m1` has the stored values themselves.
#[test]
fn the_weight_image_keeps_every_stored_value() {
    let [packed, _] = mixture().map(|draft| draft.open().unwrap());
    let numerics = Numerics { weights: WeightFormat::E2m1, ..Numerics::default() };
    let program = lower(&packed.spec, &numerics, 64).unwrap().program;
    let mut rows = 0;
    for tensor in program.tensors.iter().filter(|tensor| tensor.view.parts[0].tensor.contains("experts.")) {
        let (stored, cols) = (values(&packed, &tensor.view), tensor.cols);
        // As an image packs it, tile by tile.
        let layout = MatrixLayout::of(Format::E2m1, tensor.rows, cols).unwrap();
        let mut bytes = vec![0; layout.bytes()];
        for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
            let of = layout.tile_rows(tile);
            layout.pack_tile(tile, &stored[of.start * cols..of.end * cols], out).unwrap();
        }
        let (matrix, mut row) = (Matrix::new(layout, &bytes).unwrap(), vec![0.0; cols]);
        for (i, want) in stored.chunks_exact(cols).enumerate() {
            matrix.unpack_row(i, &mut row).unwrap();
            // A zero has no sign in an image.
            assert!(row.iter().zip(want).all(|(a, b)| a == b), "{} row {i}", tensor.name);
            rows += 1;
        }
    }
    assert!(rows > 1000, "{rows} rows");
}

#[test]
fn tensors_that_only_look_alike_are_refused_by_name() {
    let [draft, _] = mixture();
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    let edit = |of: &str, edit: &dyn Fn(&mut Stored)| {
        let mut draft = draft.clone();
        let full = format!("{name}{of}");
        let mut stored = draft.take(&full);
        edit(&mut stored);
        draft.tensor(&full, stored).refusal()
    };
    // No scales for them, and then no expert is there.
    let lone = edit("_scales", &|s| s.shape = vec![s.bytes.len()]);
    names(&lone, &["model.layers.0.mlp.experts.0.gate_proj.weight"]);
    names(&edit("_blocks", &|s| s.dtype = Dtype::I8), &["model.layers.0.mlp.experts.0.gate_proj.weight"]);
    // One too many.
    let mut both = draft.clone();
    let stored = both.take("model.norm.weight");
    let both = both.tensor("model.norm.weight", stored.clone()).tensor("other_blocks", stored).refusal();
    names(&both, &["other_blocks"]);
    // Another method's tensors would be read as what they are not.
    let other = draft.clone().with("quantization_config", json!({"quant_method": "fp8"})).refusal();
    names(&other, &["quantization_config", "mxfp4"]);
    // A scale that is no number is found when the image is built.
    let mut nan = draft.clone();
    let full = format!("{name}_scales");
    let mut scales = nan.take(&full);
    scales.bytes[0] = 255;
    let checkpoint = nan.tensor(&full, scales).open().unwrap();
    let mut out = vec![0.0; 64];
    let view = View::whole(name, &[1, 64]);
    let shape = checkpoint.weights.tensor(name).unwrap().shape.to_vec();
    let view =
        View { parts: vec![Part { shape: vec![shape[0] * shape[1], shape[2]], ..view.parts[0].clone() }], ..view };
    checkpoint.weights.read_view_rows(&view, 0..1, &mut out).unwrap();
    assert!(out[0].is_nan() && out[32].is_finite());
}
