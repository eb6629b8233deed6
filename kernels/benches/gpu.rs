//! The array unit on a graphics device against a plain read of its memory.
//!
//! Weights rotate through more memory than any cache holds. `apart`: products that do not depend on one another; `chained`:
//! each waits for the one before, as in a step. Arguments: `--sweep` tries other plans than the device's own, `--lut` takes
//! the table of products, `--small` small matrices for software adapters, `--adapter NAME` another adapter.

use std::time::Duration;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gpu::clock::{Clock, Rates, plain_read};
use wordline_kernels::gpu::gate::DeviceArray;
use wordline_kernels::gpu::matvec::{Array, MatvecRun};
use wordline_kernels::gpu::matvec_text::Plan;
use wordline_kernels::gpu::quantise::DeviceActs;
use wordline_kernels::gpu::weights::DeviceMatrix;
use wordline_kernels::gpu::wgsl::{StepRowWords, step_words};
use wordline_kernels::gpu::{Choice, Dispatch, Gpu, Method, Region};
use wordline_kernels::matvec::MatrixLayout;

/// Time that the device works before it is timed.
const WARM: Duration = Duration::from_millis(60);
const ROTATED: u64 = 400 << 20;
const SHAPES: [(usize, usize); 8] = [
    (4096, 4096),
    (14_336, 4096),
    (28_672, 4096),
    (4096, 14_336),
    (151_936, 1024),
    (1024, 4096),
    (6144, 4096),
    (128_256, 4096),
];
const SMALL: [(usize, usize); 3] = [(576, 576), (1536, 576), (4096, 1024)];

const FILL: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  for (var i = id.x; i < arrayLength(&x); i += n.x * 256u) {
    var h = i * 0x9e3779b9u + 0x85ebca6bu;
    h = (h ^ (h >> 15u)) * 0x2c1b3c6du;
    x[i] = h ^ (h >> 13u);
  }
}
";

fn now() -> u64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_nanos() as u64
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let has = |name: &str| args.iter().any(|a| a == name);
    let choice = match args.iter().position(|a| a == "--adapter").and_then(|i| args.get(i + 1)) {
        Some(name) => Choice::Named(name.clone()),
        None => Choice::Best,
    };
    let gpu = match Gpu::open(&choice) {
        Ok(gpu) => gpu,
        Err(error) => return println!("skipped: {error}"),
    };
    println!("{:?}", gpu.facts());
    let best = if has("--lut") { Method::Lut } else { Method::Dp4a };
    let start = std::time::Instant::now();
    let unit = DeviceArray::new(&gpu, best, Lanes::default()).expect("no method of the array unit passes");
    println!("{:?}\ngate: {:.2} s", unit.report().methods, start.elapsed().as_secs_f64());
    println!("{:.0} probe GEMMs/s", unit.gemms_per_second(now).expect("the probe runs"));
    let clock = Clock::new(&gpu, now).expect("a clock");
    let small = has("--small");
    let rates = Rates::measure(&gpu, &clock, if small { 64 << 20 } else { 2 << 30 }, 8).expect("rates");
    println!("read {:.0} GB/s, copy {:.0} GB/s", rates.read / 1e9, rates.copy / 1e9);
    let shapes: &[(usize, usize)] = if small { &SMALL } else { &SHAPES };
    for &(rows, cols) in &shapes[..if has("--sweep") { shapes.len().min(6) } else { shapes.len() }] {
        let counts: &[usize] = if small { &[1, 4] } else { &[1, 4, 16] };
        for tokens in counts {
            bench(&gpu, &unit, &clock, rates.read, (rows, cols, *tokens), has("--sweep"));
        }
    }
}

fn plans(sweep: bool, own: Plan, tokens: usize) -> Vec<Plan> {
    let mut plans = vec![own];
    if let (true, Some(_)) = (sweep, own.subgroup) {
        let rows = own.rows;
        for rows in if tokens == 1 { vec![rows, 2 * rows] } else { vec![rows] } {
            for unroll in [1, 2, 4] {
                for subgroups in [1, 2, 4] {
                    let too_many = rows * unroll > 16 || (tokens > 1 && rows * unroll > 8);
                    let plan = Plan { rows, unroll, subgroups, ..own };
                    if plan != own && !too_many {
                        plans.push(plan);
                    }
                }
            }
        }
        if tokens > 4 {
            plans.extend([4, 8].map(|tokens| Plan { tokens, ..own }));
        }
    }
    plans
}

fn bench(gpu: &Gpu, unit: &DeviceArray, clock: &Clock, read: f64, shape: (usize, usize, usize), sweep: bool) {
    let (rows, cols, tokens) = shape;
    let layout = MatrixLayout::new(rows, cols).expect("a layout");
    let step = upload(gpu, &step_words(&[StepRowWords::default()]));
    let first = DeviceMatrix::blank(gpu, "weights", layout).expect("memory");
    let copies = (ROTATED / first.bytes()).clamp(1, 24) as usize;
    let mut matrices = vec![first];
    matrices.extend((1..copies).map(|_| DeviceMatrix::blank(gpu, "weights", layout).expect("memory")));
    let acts = DeviceActs::new(gpu, tokens, cols, Limbs::Two).expect("memory");
    let regions = matrices.iter().flat_map(DeviceMatrix::regions).chain([acts.limbs()]);
    let fill = gpu.pipeline("fill", FILL).expect("a shader");
    let fills: Vec<_> =
        regions.map(|r| Dispatch::new(gpu, "fill", &fill, [4096, 1, 1], &[r]).expect("bound")).collect();
    clock.time(gpu, &fills).expect("filled");
    let outs: Vec<Region> =
        matrices.iter().map(|_| gpu.region("y", (tokens * rows * 4) as u64).expect("memory")).collect();
    let bytes = matrices[0].bytes();
    let own = unit.array().plan(gpu, &layout, tokens);
    let mut lines = Vec::new();
    let plans = plans(sweep, own, tokens);
    let run = MatvecRun {
        command: 0,
        matrix: &matrices[0],
        acts: &acts,
        y: &outs[0],
        offset: 0,
        stride: rows,
        bias: None,
        residual: None,
    };
    let sources = plans.iter().flat_map(|plan| {
        let array = Array { plan: Some(*plan), ..unit.array() };
        array.matvec(gpu, &run).expect("a product").into_iter().map(|job| job.source)
    });
    gpu.prepare("plans", &sources.collect::<Vec<_>>());
    for plan in plans {
        let array = Array { plan: Some(plan), ..unit.array() };
        let pass = |chained: bool| -> Vec<Dispatch> {
            let one = |(i, matrix): (usize, &DeviceMatrix)| -> Vec<Dispatch> {
                let y = &outs[if chained { 0 } else { i }];
                let jobs = array.matvec(gpu, &MatvecRun { matrix, y, ..run }).expect("a product");
                jobs.iter().map(|job| job.dispatch(gpu, &step).expect("bound")).collect()
            };
            let all: Vec<_> = matrices.iter().enumerate().flat_map(one).collect();
            let times = 48_usize.div_ceil(matrices.len());
            (0..times).flat_map(|_| all.clone()).collect()
        };
        let time = |chained: bool| {
            let pass = pass(chained);
            let count = pass.len() * 2 / matrices[0].regions().count();
            // A device that was idle has slow clocks at first.
            let start = std::time::Instant::now();
            while start.elapsed() < WARM {
                clock.time(gpu, &pass).expect("a pass");
            }
            let best = (0..8).map(|_| clock.time(gpu, &pass).expect("a pass")).min().unwrap_or(Duration::MAX);
            best.as_secs_f64() / count as f64
        };
        let (apart, chained) = (time(false), time(true));
        lines.push((apart, chained, plan));
    }
    // The same bytes, read in the same way by a kernel that does nothing else: what a dispatch of this size can reach.
    let floor = |chained: bool| {
        let one = |(i, matrix): (usize, &DeviceMatrix)| -> Vec<Dispatch> {
            let out = &outs[if chained { 0 } else { i }];
            matrix.regions().step_by(2).map(|r| plain_read(gpu, r, out).expect("bound")).collect()
        };
        let pass: Vec<_> = matrices.iter().enumerate().flat_map(one).collect();
        let times = 48_usize.div_ceil(pass.len());
        let pass: Vec<_> = (0..times).flat_map(|_| pass.clone()).collect();
        let count = pass.len() * 2 / matrices[0].regions().count();
        let best = (0..8).map(|_| clock.time(gpu, &pass).expect("a pass")).min().unwrap_or(Duration::MAX);
        best.as_secs_f64() / count as f64
    };
    let (floor_apart, floor_chained) = (floor(false), floor(true));
    let share = |time: f64| bytes as f64 / time / read;
    println!(
        "{rows}x{cols}, {tokens} rows, {:.1} MB, {copies} copies; plain read apart {:.2} us {:.3}, chained {:.2} us {:.3}",
        bytes as f64 / 1e6,
        floor_apart * 1e6,
        share(floor_apart),
        floor_chained * 1e6,
        share(floor_chained)
    );
    if sweep {
        lines[1..].sort_by(|a, b| a.0.total_cmp(&b.0));
        let chained = lines.iter().min_by(|a, b| a.1.total_cmp(&b.1)).copied();
        lines.truncate(6);
        lines.extend(chained);
    }
    for (apart, chained, plan) in lines {
        println!(
            "  apart {:8.2} us {:.3}, chained {:8.2} us {:.3}  {plan:?}",
            apart * 1e6,
            share(apart),
            chained * 1e6,
            share(chained)
        );
    }
}

fn upload(gpu: &Gpu, words: &[u32]) -> Region {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    gpu.upload("words", &bytes).expect("memory")
}
