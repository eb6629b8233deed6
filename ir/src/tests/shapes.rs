//! State layouts, accesses and work.

use super::samples;
use crate::state::{CacheShape, LayerState, MemoryShape, RingShape};
use crate::work::Work;
use crate::{Command, state_layout};

#[test]
fn the_state_of_each_kind_of_layer() {
    let cache = CacheShape { kv_heads: 2, head_dim: 16, v_dim: 16, window: None };
    assert_eq!(cache.row(), 64);
    let attention = LayerState { cache: Some(cache), ..LayerState::default() };
    assert_eq!(state_layout(&samples::dense()), [attention; 2]);
    let windowed = LayerState { cache: Some(CacheShape { window: Some(32), ..cache }), ..LayerState::default() };
    assert_eq!(state_layout(&samples::windowed()), [windowed, attention]);
    let delta = LayerState {
        cache: None,
        ring: Some(RingShape { channels: 96, taps: 4 }),
        memory: Some(MemoryShape { heads: 4, key_dim: 8, value_dim: 16 }),
    };
    assert_eq!(state_layout(&samples::hybrid()), [delta, attention]);
}

#[test]
fn of_two_attends_the_farther_one_decides() {
    let mut program = samples::windowed();
    let at = program.commands.iter().position(|c| matches!(c, Command::Attend { .. })).unwrap();
    let with = |window: u16| {
        let mut second = program.commands[at];
        if let Command::Attend { window: w, .. } = &mut second {
            *w = window;
        }
        let mut program = program.clone();
        program.commands.insert(at + 1, second);
        state_layout(&program)[0].cache.unwrap().window
    };
    assert_eq!([with(8), with(40), with(0)], [Some(32), Some(40), None]);
    program.commands.remove(at);
    assert_eq!(state_layout(&program)[0].cache.unwrap().window, Some(0));
}

fn total(program: &crate::Program) -> Work {
    program.commands.iter().fold(Work::default(), |mut sum, command| {
        sum += command.work(program);
        sum
    })
}

#[test]
fn work_counts_matrices_once_and_experts_by_pick() {
    // Two layers: qkv 128 x 64, o 64 x 64, gate | up 192 x 64, down 64 x 96; the head 320 x 64.
    let work = total(&samples::dense());
    assert_eq!(work.matrix, 2 * (128 * 64 + 64 * 64 + 192 * 64 + 64 * 96) + 320 * 64);
    assert_eq!((work.macs, work.routed), (work.matrix, 0));
    // Two norms a layer and the final one, 64 each.
    assert_eq!(work.plain, 5 * 64);
    assert_eq!(work.looked_up, 64);
    // A layer: 4 query heads of 16 with keys and with values; 2 key heads' keys and values, read once.
    assert_eq!((work.macs_a_position, work.cached_a_position, work.appended), (2 * 128, 2 * 64, 2 * 64));

    // qkv, o, router 8 x 64, shared 48 x 64, 64 x 24, 1 x 64, head; and 2 of 8 experts, 32 x 64 and 64 x 16.
    let work = total(&samples::moe());
    let dense = 128 * 64 + 64 * 64 + 8 * 64 + 48 * 64 + 64 * 24 + 64 + 320 * 64;
    assert_eq!((work.matrix, work.routed), (dense, 2 * (32 * 64 + 64 * 16)));
    assert_eq!(work.macs, dense + work.routed);

    let hybrid = samples::hybrid();
    let of = |want: fn(&Command) -> bool| hybrid.commands.iter().find(|c| want(c)).unwrap().work(&hybrid);
    let conv = of(|c| matches!(c, Command::Conv { .. }));
    assert_eq!((conv.macs, conv.state, conv.plain, conv.reads, conv.writes), (96 * 4, 96 * 3, 96 * 4, 96, 96));
    let delta = of(|c| matches!(c, Command::Delta { .. }));
    assert_eq!((delta.macs, delta.state, delta.reads, delta.writes), (3 * 4 * 8 * 16, 4 * 8 * 16, 96 + 8, 64));
    let append = of(|c| matches!(c, Command::CacheAppend { .. }));
    assert_eq!((append.reads, append.writes, append.appended), (64, 0, 64));
    let classic = samples::classic();
    assert_eq!(classic.commands[0].work(&classic), Work { looked_up: 128, writes: 64, ..Work::default() });
}
