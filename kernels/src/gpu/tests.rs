//! The device: found, refused, filled, computing, told about its failures.

use super::*;

/// The software adapter, which any machine may install; without one a test says that it did not run.
pub(crate) fn software(patch: Option<device::Patch>) -> Option<Gpu> {
    let Some(facts) = Gpu::list().into_iter().find(|facts| facts.kind == Kind::Software) else {
        println!("skipped: no software adapter on this machine");
        return None;
    };
    Some(Gpu::open_patched(&Choice::Named(facts.adapter), patch).unwrap())
}

/// Tests on a device say that they were skipped where there is none. Where a driver in software is installed there is one,
/// so there none of them may be.
#[test]
fn a_driver_in_software_that_is_installed_is_found() {
    if ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].iter().any(|name| std::env::var_os(name).is_some()) {
        return println!("skipped: the environment names the drivers");
    }
    let files = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"].into_iter().flat_map(std::fs::read_dir).flatten();
    let installed = files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("lvp"));
    assert!(!installed || software(None).is_some(), "a driver is installed, and no adapter is found");
}

const DOUBLE: &str = "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(8) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&y)) { y[id.x] = 2u * x[id.x]; }
}";

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn dispatches_run_in_order_and_are_read_back() {
    let Some(gpu) = software(None) else { return };
    let numbers: Vec<u32> = (0..37).collect();
    let x = gpu.upload("x", bytemuck::cast_slice(&numbers)).unwrap();
    let (y, z) = (gpu.region("y", x.size()).unwrap(), gpu.region("z", x.size()).unwrap());
    let double = gpu.pipeline("double", DOUBLE).unwrap();
    let step = [
        Dispatch::new(&gpu, "first", &double, [5, 1, 1], &[&x, &y]).unwrap(),
        Dispatch::new(&gpu, "second", &double, [5, 1, 1], &[&y, &z]).unwrap(),
    ];
    for _ in 0..3 {
        let bytes = record::run(&gpu, &step, &z).unwrap();
        assert_eq!(words(&bytes), numbers.iter().map(|n| 4 * n).collect::<Vec<_>>());
    }
    // New operands, the same recording's objects.
    gpu.write(&x, 4, &[7, 0, 0, 0, 9]).unwrap();
    assert_eq!(words(&record::run(&gpu, &step, &z).unwrap())[..4], [0, 28, 36, 12]);
}

#[test]
fn a_shader_that_does_not_compile_is_an_error() {
    let Some(gpu) = software(None) else { return };
    let error = gpu.pipeline("broken", "fn main() { let x = ; }").unwrap_err();
    assert!(matches!(&error, GpuError::Refused { what, .. } if what == "broken"), "{error}");
    // The device goes on.
    gpu.pipeline("double", DOUBLE).unwrap();
}

#[test]
fn what_is_above_a_limit_is_refused_by_name() {
    let Some(gpu) = software(None) else { return };
    let limit = gpu.facts().binding_limit;
    let error = gpu.region("a head", limit + 1).unwrap_err();
    assert!(matches!(error, GpuError::TooLarge { limit: l, .. } if l == limit), "{error}");
    let double = gpu.pipeline("double", DOUBLE).unwrap();
    let (x, y) = (gpu.region("x", 16).unwrap(), gpu.region("y", 16).unwrap());
    let groups = [gpu.facts().groups_limit + 1, 1, 1];
    assert!(matches!(Dispatch::new(&gpu, "wide", &double, groups, &[&x, &y]), Err(GpuError::TooLarge { .. })));
    assert!(matches!(Dispatch::new(&gpu, "one short", &double, [1, 1, 1], &[&x]), Err(GpuError::Refused { .. })));
    assert!(matches!(x.part(8, 12), Err(GpuError::TooLarge { given: 20, limit: 16, .. })));
    assert!(matches!(gpu.write(&x, 8, &[0; 9]), Err(GpuError::TooLarge { given: 20, limit: 16, .. })));
}

#[test]
fn a_region_that_is_read_and_written_at_once_is_refused() {
    let Some(gpu) = software(None) else { return };
    let x = gpu.region("x", 1024).unwrap();
    let double = gpu.pipeline("double", DOUBLE).unwrap();
    let parts = [x.part(0, 256).unwrap(), x.part(512, 256).unwrap()];
    let dispatch = Dispatch::new(&gpu, "alias", &double, [1, 1, 1], &[&parts[0], &parts[1]]).unwrap();
    let error = record::run(&gpu, &[dispatch], &x).unwrap_err();
    assert!(matches!(error, GpuError::Refused { .. }), "{error}");
    gpu.check().unwrap();
}

#[test]
fn a_lost_device_says_so_from_then_on() {
    let Some(gpu) = software(None) else { return };
    let x = gpu.region("x", 16).unwrap();
    gpu.device().destroy();
    assert!(gpu.upload("y", &[0; 16]).is_err());
    assert!(record::run(&gpu, &[], &x).is_err());
}

#[test]
fn an_adapter_that_does_not_exist_is_refused_with_those_that_do() {
    match Gpu::open(&Choice::Named("no such adapter".into())) {
        Err(GpuError::NoSuch { given, found }) => {
            assert_eq!(given, "no such adapter");
            assert_eq!(found, Gpu::list().into_iter().map(|f| f.adapter).collect::<Vec<_>>());
        }
        Err(GpuError::NoAdapter) => assert!(Gpu::list().is_empty()),
        other => panic!("{other:?}"),
    }
}
