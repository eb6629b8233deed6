//! The weight image: laid out in order, checked, and refused when it lies.

use super::programs::{self, weights};
use super::{SEED, image_bytes, kernels};
use crate::image::{BuildError, Form, Image, ImageError, ImageLayout, build_into};
use crate::team::Team;
use crate::{EngineModel, MemorySource, Row, Sequencer, StepError, WeightSource};
use wordline_ir::{Program, TensorId};
use wordline_kernels::matvec::{Matrix, Stack};

fn build(program: &Program, source: &MemorySource, members: usize, out: &mut [u8]) -> Result<(), BuildError> {
    let layout = ImageLayout::of(program).unwrap();
    build_into(program, &layout, source, [7; 32], out, &mut Team::eager(members), &|_, _| true)
}

#[test]
fn tensors_lie_in_the_order_of_the_program_and_hold_its_weights() {
    for (name, program) in programs::all() {
        let source = weights(&program, SEED);
        let bytes = image_bytes(&program, &source);
        let layout = ImageLayout::of(&program).unwrap();
        let mut end = layout.header_bytes();
        for (tensor, place) in program.tensors.iter().zip(layout.places()) {
            assert!(place.offset >= end && place.offset < end + 64, "{name}: {}", tensor.name);
            assert!(place.offset.is_multiple_of(64), "{name}: {}", tensor.name);
            end = place.offset + place.len;
            let held = &bytes[place.range()];
            let values = source.get(&tensor.name).unwrap();
            for (row, values) in values.chunks(tensor.cols).enumerate() {
                let mut found = vec![0.0; tensor.cols];
                match place.form {
                    Form::Matrix(form) => Matrix::new(form, held).unwrap().unpack_row(row, &mut found).unwrap(),
                    Form::Stack(form) => {
                        let stack = Stack::new(form, held).unwrap();
                        let rows = form.matrix().rows();
                        stack.expert(row / rows).unwrap().unpack_row(row % rows, &mut found).unwrap();
                    }
                    Form::Plain => {
                        for (i, found) in found.iter_mut().enumerate() {
                            let at = (row * tensor.cols + i) * 4;
                            *found = f32::from_le_bytes(held[at..at + 4].try_into().unwrap());
                        }
                        assert_eq!(found, values, "{name}: {}", tensor.name);
                    }
                }
                // Half a step of the block's scale, which is at most max / 127 * 9 / 8.
                for (found, values) in found.chunks(32).zip(values.chunks(32)) {
                    let max = values.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                    let near = found.iter().zip(values).all(|(a, b)| (a - b).abs() <= max / 127.0 * 0.5626);
                    assert!(near, "{name}: {} row {row}", tensor.name);
                }
            }
        }
        assert_eq!(end.next_multiple_of(64), layout.bytes(), "{name}");
    }
}

#[test]
fn an_image_does_not_depend_on_how_many_built_it() {
    let program = programs::moe();
    let source = weights(&program, SEED);
    let one = image_bytes(&program, &source);
    for members in [1, 3] {
        // What stood in the bytes before does not show either.
        let mut bytes = vec![0xa5; one.len()];
        build(&program, &source, members, &mut bytes).unwrap();
        assert!(bytes == one);
    }
}

#[test]
fn every_altered_byte_is_refused() {
    let program = programs::hybrid();
    let bytes = image_bytes(&program, &weights(&program, SEED));
    let layout = ImageLayout::of(&program).unwrap();
    let tensor_at = |at: usize| layout.places().iter().position(|place| place.range().contains(&at));
    for at in (0..layout.header_bytes()).chain((layout.header_bytes()..bytes.len()).step_by(97)) {
        let mut altered = bytes.clone();
        altered[at] ^= 0x10;
        match (Image::open(&program, altered, Some([7; 32])), tensor_at(at)) {
            (Err(ImageError::Damaged { tensor }), Some(index)) => assert_eq!(tensor, program.tensors[index].name),
            (Err(ImageError::Magic), None) if at < 8 => {}
            (Err(ImageError::Version { .. }), None) if (8..12).contains(&at) => {}
            (Err(ImageError::Program), None) if (24..56).contains(&at) => {}
            (Err(ImageError::Header), None) if at < layout.header_bytes() => {}
            // Padding between tensors is not read.
            (Ok(_), None) if at >= layout.header_bytes() => {}
            (result, tensor) => panic!("byte {at} of {tensor:?}: {:?}", result.err()),
        }
    }
    assert!(Image::open(&program, bytes, Some([7; 32])).is_ok());
}

#[test]
fn a_truncated_or_longer_image_is_refused() {
    let program = programs::dense();
    let mut bytes = image_bytes(&program, &weights(&program, SEED));
    let whole = bytes.len();
    for len in [0, 7, 8, 119, 120, whole / 2, whole - 1] {
        let error = Image::open(&program, bytes[..len].to_vec(), None).unwrap_err();
        let expected = matches!(error, ImageError::Magic if len < 120)
            || matches!(error, ImageError::Length { given, expected } if given == len && expected == whole);
        assert!(expected, "{len}: {error}");
    }
    bytes.push(0);
    assert!(matches!(Image::open(&program, bytes, None), Err(ImageError::Length { .. })));
}

#[test]
fn the_image_of_another_program_or_checkpoint_is_refused() {
    let program = programs::dense();
    let bytes = image_bytes(&program, &weights(&program, SEED));
    let mut renamed = program.clone();
    renamed.tensors[0].name.push('x');
    let mut viewed = program.clone();
    viewed.tensors[1].view.add_one = true;
    for other in [renamed, viewed, programs::hybrid()] {
        assert_eq!(Image::open(&other, bytes.clone(), None).unwrap_err(), ImageError::Program);
    }
    assert_eq!(Image::open(&program, bytes.clone(), Some([8; 32])).unwrap_err(), ImageError::Content);
    // Commands are no part of it: an edited program runs on the same image.
    let mut edited = program.clone();
    edited.commands.pop();
    let image = Image::open(&edited, bytes, Some([7; 32])).unwrap();
    assert_eq!(image.content(), [7; 32]);
}

#[test]
fn a_build_that_was_stopped_leaves_no_image() {
    let program = programs::dense();
    let source = weights(&program, SEED);
    let layout = ImageLayout::of(&program).unwrap();
    // A former image in the same place must not survive either.
    let mut bytes = image_bytes(&program, &source);
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let progress = |done: usize, total: usize| {
        assert!(done <= total);
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 4
    };
    let stopped = build_into(&program, &layout, &source, [7; 32], &mut bytes, &mut Team::new(1), &progress);
    assert!(matches!(stopped, Err(BuildError::Stopped)));
    assert_eq!(Image::open(&program, bytes, None).unwrap_err(), ImageError::Magic);
    assert!(matches!(build(&program, &source, 1, &mut [0; 64]), Err(BuildError::Size { .. })));
}

#[test]
fn a_weight_without_int8_form_is_refused_by_name() {
    let program = programs::moe();
    for (name, row, col, value) in [
        ("l0.experts.down", 41, 3, f32::NAN),
        ("embed", 70, 39, f32::INFINITY),
        ("l1.q", 5, 0, 3e38),
        ("l0.pre_mixer.norm", 7, 0, f32::NEG_INFINITY),
    ] {
        let mut source = weights(&program, SEED);
        let tensor = program.tensors.iter().find(|t| t.name == name).unwrap();
        let mut values = source.get(name).unwrap().to_vec();
        values[row * tensor.cols + col] = value;
        source.insert(name, values);
        let mut bytes = vec![0; ImageLayout::of(&program).unwrap().bytes()];
        let error = build(&program, &source, 2, &mut bytes).unwrap_err().to_string();
        assert!(error.contains(&format!("'{name}'")) && error.contains(&format!("row {row}")), "{error}");
    }
    let mut source = MemorySource::new();
    source.insert("embed", vec![0.0; 3]);
    let mut bytes = vec![0; ImageLayout::of(&program).unwrap().bytes()];
    assert!(matches!(build(&program, &source, 1, &mut bytes), Err(BuildError::Source(_))));
}

#[test]
fn a_large_image_is_checked_where_it_is_read() {
    let program = programs::dense();
    let bytes = image_bytes(&program, &weights(&program, SEED));
    let layout = ImageLayout::of(&program).unwrap();
    let damage = |name: &str| {
        let index = program.tensors.iter().position(|t| t.name == name).unwrap();
        let mut bytes = bytes.clone();
        bytes[layout.places()[index].range().end - 100] ^= 1;
        Image::open_large(&program, bytes)
    };
    for name in ["l0.q", "l1.down", "embed"] {
        let image = damage(name).unwrap();
        assert!(matches!(image.check_all(), Err(ImageError::Damaged { .. })));
        let sequencer = Sequencer::new(&program).unwrap();
        let mut model = EngineModel::int8(sequencer, super::capacity(8), image, kernels(), 2).unwrap();
        let seq = model.open();
        let rows = [Row { seq, token: 74, logits: true }];
        let Err(StepError::Command { source, .. }) = model.step(&rows) else { panic!("{name}: ran") };
        assert!(source.to_string().contains(name), "{source}");
    }
    // Plain tensors are read, and so checked, at once.
    assert!(matches!(damage("l0.pre_ffn.norm"), Err(ImageError::Damaged { .. })));
    assert!(Image::open_large(&program, bytes).unwrap().check_all().is_ok());
}

#[test]
fn the_image_of_a_part_holds_the_part() {
    let program = programs::dense();
    let source = weights(&program, SEED);
    let mut part = program.clone();
    part.commands.retain(|c| c.layer().0 == 1);
    let layout = ImageLayout::of_used(&part).unwrap();
    let whole = ImageLayout::of(&part).unwrap();
    assert!(layout.bytes() < whole.bytes() && layout.identity() != whole.identity());
    let mut bytes = vec![0; layout.bytes()];
    build_into(&part, &layout, &source, [1; 32], &mut bytes, &mut Team::new(1), &|_, _| true).unwrap();
    assert_eq!(Image::open(&part, bytes.clone(), None).unwrap_err(), ImageError::Program);
    let image = Image::open_used(&part, bytes, None).unwrap();
    assert!(image.serves(&part).is_ok());
    let whole = Image::open(&program, image_bytes(&program, &source), None).unwrap();
    for (index, tensor) in program.tensors.iter().enumerate() {
        // Tensor numbers are the whole program's; what is held is the same, byte for byte.
        let id = TensorId::new(index).unwrap();
        let expected = tensor.name.starts_with("l1.").then(|| whole.digest(id).unwrap());
        assert_eq!(image.digest(id), expected, "{}", tensor.name);
    }
    assert!(matches!(image.serves(&program), Err(ImageError::Missing { tensor }) if tensor == "embed"));
    let refused = EngineModel::int8(Sequencer::new(&program).unwrap(), super::capacity(8), image, kernels(), 1);
    assert!(refused.is_err());
}

#[test]
fn small_parameters_are_flushed() {
    let program = programs::dense();
    let mut source = weights(&program, SEED);
    let name = "l0.pre_mixer.norm";
    source.insert(name, vec![1e-37; 40]);
    let bytes = image_bytes(&program, &source);
    let layout = ImageLayout::of(&program).unwrap();
    let at = program.tensors.iter().position(|t| t.name == name).unwrap();
    assert!(bytes[layout.places()[at].range()].iter().all(|b| *b == 0));
    let mut read = vec![1.0; 40];
    source.read_rows(&program.tensors[at], 0..40, &mut read).unwrap();
    assert_eq!(read, [1e-37; 40]);
}
