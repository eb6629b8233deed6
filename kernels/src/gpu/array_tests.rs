//! The array unit on the software adapter: its gate passes, and a gate judged by shaders with one fault each.

use super::device::Patch;
use super::gate::{DeviceArray, DeviceArrayError};
use super::tests::software;
use super::*;
use crate::format::Lanes;
use crate::gate::Verdict;
use crate::probe;
use crate::tables;

fn lanes(count: u8) -> Lanes {
    Lanes::new(count).unwrap()
}

#[test]
fn both_methods_pass_the_gate_with_one_thread_group_two_and_none() {
    let Some(gpu) = software(None) else { return };
    for count in [8, 4, 16] {
        let array = DeviceArray::new(&gpu, Method::Dp4a, lanes(count)).unwrap();
        let report = array.report();
        assert_eq!(report.active, Some(Method::Dp4a));
        assert_eq!(report.methods.len(), 2);
        for method in report.methods {
            assert_eq!(method.verdict, Verdict::Passed(probe::ARRAY), "{}", method.method);
        }
    }
}

/// Faults that spoil every method, and faults of one: what the gate makes of them.
#[test]
fn a_shader_with_one_fault_fails_the_gate_and_the_next_method_computes() {
    let dp4a: [(&str, Patch); 4] = [
        ("one product of four", |s| s.replace("+ dot4I8Packed(a.w, c.w)", "+ (dot4I8Packed(a.w, c.w) ^ 1)")),
        ("the tree's last step", |s| {
            s.replace("subgroupShuffleXor(a0_0, 1u)", "subgroupShuffleXor(a0_0, 1u) * select(1.0, 1.0000001, dp)")
                .replace("let live = begin();", "let live = begin(); let dp = true;")
        }),
        ("the last block of a ragged row", |s| s.replace("< BLOCKS;", "< BLOCKS - 1u;")),
        ("it does not compile", |s| s.replace("dot4I8Packed(a.x", "dot5I8Packed(a.x")),
    ];
    for (name, patch) in dp4a {
        let Some(gpu) = software(Some(patch)) else { return };
        let array = DeviceArray::new(&gpu, Method::Dp4a, Lanes::default()).unwrap();
        let report = array.report();
        assert_eq!(report.active, Some(Method::Lut), "{name}");
        assert!(
            matches!(&report.methods[0].verdict, Verdict::Failed(test) if test.contains("matvec")),
            "{name}: {report:?}"
        );
        assert_eq!(report.methods[1].verdict, Verdict::Passed(probe::ARRAY), "{name}");
    }
}

#[test]
fn a_fault_that_every_method_shares_leaves_the_device_without_a_unit() {
    let shared: [(&str, &str, Patch); 6] = [
        ("the quantiser's ties", "quantise", |s| s.replace("((m >> k) & 1u)", "1u")),
        ("the largest exponent", "quantise", |s| s.replace("e > 40", "e > 90")),
        ("the high limb's place", "matvec", |s| s.replace("* 256.0", "* 128.0")),
        ("the last matrix row", "matvec", |s| s.replace("row >= ROWS ||", "row + 1u >= ROWS ||")),
        ("the rows' exponent base", "matvec", |s| s.replace("+ 130)", "+ 131)")),
        ("the last bit of a sum", "matvec", |s| {
            s.replace("v = r(v + met.x);", "v = bitcast<f32>(bitcast<u32>(r(v + met.x)) ^ select(0u, 1u, row == 16u));")
        }),
    ];
    for (name, fails, patch) in shared {
        let Some(gpu) = software(Some(patch)) else { return };
        let error = DeviceArray::new(&gpu, Method::Dp4a, Lanes::default()).unwrap_err();
        let DeviceArrayError::NoMethod { method: Method::Lut, test } = &error else { panic!("{name}: {error}") };
        assert!(test.starts_with(fails) && !test.contains("Error"), "{name}: {test}");
    }
}

#[test]
fn a_table_that_is_not_whole_means_no_unit_at_all() {
    let Some(gpu) = software(None) else { return };
    let mut table = tables::make();
    table[12_345] ^= 1;
    for bytes in [&table[..], &table[..100], &[]] {
        let error = DeviceArray::over(&gpu, bytes, Method::Dp4a, Lanes::default()).unwrap_err();
        assert!(matches!(error, DeviceArrayError::Table(_)), "{error}");
    }
}

#[test]
fn a_method_found_wrong_in_a_run_makes_way_for_the_next() {
    let Some(gpu) = software(None) else { return };
    let array = DeviceArray::new(&gpu, Method::Dp4a, Lanes::default()).unwrap();
    assert_eq!(array.demote(Method::Dp4a, "a test").unwrap(), Method::Lut);
    assert_eq!(array.active(), Method::Lut);
    assert_eq!(array.report().methods[0].verdict, Verdict::Failed("a test".into()));
    assert!(matches!(array.demote(Method::Lut, "another"), Err(DeviceArrayError::NoMethod { .. })));
}

#[test]
fn both_methods_pass_the_gates_of_four_bits_and_a_fault_in_them_is_named() {
    use super::gates::gated;
    use crate::format::Weights;
    let products = tables::MulTable::check(tables::EMBEDDED).unwrap();
    let gate = |gpu: &Gpu, method, weights| gated(gpu, method, Lanes::default(), weights, products);
    let Some(gpu) = software(None) else { return };
    for method in Method::ALL {
        for weights in [Weights::Code4, Weights::E2m1] {
            assert_eq!(gate(&gpu, method, weights).unwrap().probe, probe::pinned(weights), "{method}, {weights:?}");
        }
    }
    let faults: [(&str, Weights, Patch); 4] = [
        ("the second half's scale", Weights::Code4, |s| {
            if s.contains("half_of(") { s.replace("+ 1u]", "+ 0u]") } else { s.to_owned() }
        }),
        ("the sign of a scale", Weights::Code4, |s| s.replace("((byte & 1u) << 31u)", "0u")),
        ("the highest code", Weights::E2m1, |s| s.replace("codes[word >> 24u]", "codes[(word >> 24u) & 127u]")),
        ("the order of the halves", Weights::E2m1, |s| {
            if s.contains("half_of(") { s.replace(".zw)", ".xy)") } else { s.to_owned() }
        }),
    ];
    for (name, weights, patch) in faults {
        let Some(gpu) = software(Some(patch)) else { return };
        let error = gate(&gpu, Method::Dp4a, weights).unwrap_err().to_string();
        assert!(error.contains(&format!("{weights:?}")) || error.contains("probe"), "{name}: {error}");
        assert!(gate(&gpu, Method::Dp4a, Weights::Int8).is_ok(), "{name}");
    }
}
