//! A decode step in steady state allocates nothing: every allocation of the process is counted, on all threads.
//!
//! The one test of this binary, so that nothing else runs beside it.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wordline_engine::image::build_into;
use wordline_engine::team::Team;
use wordline_engine::{Capacity, EngineModel, Image, ImageLayout, Kernels, MemorySource, Row, Sequencer};
use wordline_ir::Program;

#[path = "../src/tests/programs.rs"]
#[expect(dead_code, reason = "shared with the unit tests, which use more of it")]
mod programs;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Steps before counting begins: buffers reach their size, and the audit has seen each shape for the first time.
const WARM: usize = 3;
/// Steps that are counted: they cross a page of the cache, and end before the audit samples a shape again, which the
/// scalar mirror does with memory of its own.
const COUNTED: usize = 40;

/// Allocations of `COUNTED` steps of `batch` sequences.
fn allocations(program: &Program, kernels: Kernels, threads: usize, batch: usize) -> usize {
    let source: MemorySource = programs::weights(program, 3);
    let layout = ImageLayout::of(program).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    build_into(program, &layout, &source, [7; 32], &mut bytes, &mut Team::new(1), &|_, _| true).unwrap();
    let image = Arc::new(Image::open(program, bytes, None).unwrap());
    let capacity = Capacity { ctx: 200, step_rows: 16 };
    let mut engine = EngineModel::int8(Sequencer::new(program).unwrap(), capacity, image, kernels, threads).unwrap();
    let rows: Vec<Row> = (0..batch).map(|i| Row { seq: engine.open(), token: 3 + i as u32, logits: true }).collect();
    for row in &rows {
        engine.prefill(row.seq, &[1, 2, 3, 4, 5]).unwrap();
    }
    for _ in 0..WARM {
        engine.step(&rows).unwrap();
    }
    let mut counts: Vec<usize> = (0..COUNTED)
        .map(|_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            engine.step(&rows).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        })
        .collect();
    // A busy system may start a thread of the team as late as now, and starting allocates, once. So the steps of one
    // thread are all clean, of several all but as many as there are members beside the caller.
    counts.sort_unstable();
    counts[..=COUNTED - threads].iter().sum()
}

#[test]
fn a_decode_step_allocates_nothing() {
    for (name, program) in programs::all() {
        for (threads, batch) in [(1, 1), (2, 1), (1, 3), (2, 3)] {
            let found = allocations(&program, Kernels::new().unwrap(), threads, batch);
            assert_eq!(found, 0, "{name}: allocations in {COUNTED} steps, {threads} threads, {batch} sequences");
        }
        // The mirror of the vector unit allocates by design: allocations inside a step are seen.
        let found = allocations(&program, Kernels::mirror().unwrap(), 1, 1);
        assert!(found >= COUNTED, "{name}: the mirror's allocations went unseen: {found}");
    }
}
