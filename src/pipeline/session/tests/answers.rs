//! What a ring writes: what one machine writes, whatever is lost on the way.

use super::*;

#[test]
fn a_ring_writes_what_one_machine_writes() {
    for name in MODELS {
        let model = model(name);
        let prompts = prompts(&model, 3);
        let expected = alone(&model, &prompts, 7);
        let layers = model.checkpoint.spec.layers.len();
        for stages in 0..=4.min(layers - 1) {
            let asks = prompts.iter().map(|p| ask(p, 7)).collect();
            let mut ring = Ring::new(&model, &Setup { stages, ..Setup::default() }, asks);
            assert_eq!(ring.run().unwrap(), expected, "{name}, {stages} stages behind the head");
            assert_eq!(ring.head.plan().unwrap().stages.len(), stages + 1, "{name}");
            assert!(ring.stages.values_mut().all(|s| s.worker.as_mut().unwrap().held() == 0), "{name}: all is freed");
            assert!(ring.stages.values().all(|s| s.session.ended() == Some(&Ok(()))), "{name}");
        }
        println!("{name}: rings of 1..={} stages write what one machine writes", 5.min(layers));
    }
}

/// By a clock in which a step takes each device a round, whatever is in it: rounds, and how many devices compute in one.
#[test]
fn many_sequences_keep_all_stages_busy() {
    const TOKENS: usize = 20;
    let model = model("demo");
    let run = |count: usize| {
        let asks = vec![ask(&[1, 2, 3], TOKENS); count];
        let mut ring = Ring::new(&model, &Setup { stages: 3, ..Setup::default() }, asks);
        let (mut rounds, mut computing) = (0_u32, 0);
        for round in 1.. {
            assert!(round < 10_000, "{:#?}", ring.said);
            let before = ring.wire.len();
            ring.round(round);
            if ring.head.ended().is_some() {
                break;
            }
            let hops = ring.wire[before..].iter().filter(|(.., bytes)| bytes[..4] == (-29_i32).to_le_bytes());
            let devices = hops.map(|(from, ..)| *from).collect::<std::collections::BTreeSet<Key>>().len();
            // Joining and telling are no laps.
            rounds += u32::from(devices > 0);
            computing += devices;
        }
        let written: Vec<Vec<u32>> = ring.head.outcomes().into_iter().map(|outcome| outcome.ids).collect();
        assert!(written.len() == count && written.iter().all(|ids| *ids == written[0] && ids.len() == TOKENS));
        (f64::from(rounds), computing as f64 / f64::from(rounds))
    };
    let (one, eight) = (run(1), run(8));
    println!(
        "{TOKENS} tokens of a sequence: {} rounds, {} of 4 devices compute; of eight: {}, {}",
        one.0, one.1, eight.0, eight.1
    );
    assert!(one.0 >= 4.0 * TOKENS as f64 && one.1 == 1.0, "{one:?}");
    assert!(8.0 * one.0 > 1.7 * eight.0 && eight.1 > 3.5, "{eight:?}");
}

#[test]
fn laps_of_the_last_tokens_write_the_same_until_the_window_slides() {
    for name in ["given/qwen3", "demo"] {
        let model = model(name);
        let prompts = prompts(&model, 2);
        let room = Room { step_rows: 24, ..ROOM };
        let asks = prompts.iter().map(|p| ask(p, 5)).collect();
        let mut ring = Ring::new(&model, &Setup { stateless: true, room, ..Setup::default() }, asks);
        assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 5), "{name}");
        let acts = ring.wire.iter().filter(|(_, _, bytes)| bytes[..4] == (-23_i32).to_le_bytes()).count();
        // Two answers of five tokens, each lap three hops.
        assert_eq!(acts, 2 * 5 * 3, "{name}");
        // A window that slides goes on without end: every lap begins anew.
        let room = Room { step_rows: 4, ..ROOM };
        let asks = vec![ask(&prompts[1], 6)];
        let mut ring = Ring::new(&model, &Setup { stateless: true, room, ..Setup::default() }, asks);
        assert_eq!(ring.run().unwrap(), [of_last_tokens(&model, &prompts[1], 6, 4)], "{name}");
    }
}

#[test]
fn a_lost_stage_is_named_and_the_answer_goes_on_with_the_same_bits() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let expected = alone(&model, &prompts, 8);
    for (fault, named) in [
        ("kill@stage2:tok4", "stage 2 (0202020202), computing: the link is lost: closed"),
        ("stall@stage1:tok4", "stage 1 (0101010101), computing: stalled: it holds lap 4"),
        ("corrupt@stage1:tok4", "stage 1 (0101010101), computing: corrupt: stage 2 refuses what 0101010101 sent"),
        ("corrupt@stage2:tok4", "stage 2 (0202020202), computing: corrupted hop"),
    ] {
        // With a spare, and with nobody but those that are left.
        for spares in [0, 1] {
            let asks = prompts.iter().map(|p| ask(p, 8)).collect();
            let mut ring = Ring::new(&model, &Setup { spares, ..Setup::default() }, asks);
            let who = if fault.contains("stage1") { 1 } else { 2 };
            ring.inject(who, fault);
            assert_eq!(ring.run().unwrap(), expected, "{fault}: {:#?}", ring.said);
            let losses = ring.head.losses();
            assert_eq!(losses.len(), 1, "{fault}: {losses:?}");
            assert!(losses[0].starts_with(named), "{fault}: {losses:?}");
            assert!(ring.now < Duration::from_secs(9), "{fault}: {:?}", ring.now);
            let plans = ring.records.iter().filter(|e| matches!(e, Entry::Plan { .. })).count();
            assert_eq!(plans, 2, "{fault}");
        }
    }
    // A slow hop is no loss.
    let asks = prompts.iter().map(|p| ask(p, 8)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    ring.inject(1, "slow@tok2");
    assert_eq!((ring.run().unwrap(), ring.head.losses().len()), (expected, 0));
}

#[test]
fn without_memory_elsewhere_the_loss_ends_the_run_by_name() {
    let model = model("demo");
    let need = demand(&program(&model), ROOM).unwrap();
    let memory = need.ends + need.layers[0] + need.layers[1];
    let asks = vec![ask(&prompts(&model, 1)[0], 8)];
    let mut ring = Ring::new(&model, &Setup { stages: 1, memory, ..Setup::default() }, asks);
    ring.inject(1, "kill@tok3");
    let error = ring.run().unwrap_err();
    assert!(
        error.starts_with("stage 1 (0101010101), computing: the link is lost: closed; nobody can take its layers"),
        "{error}"
    );
    assert!(error.contains("cannot hold the model's"), "{error}");
}

#[test]
fn a_frozen_stage_is_lost_by_its_silence() {
    let model = model("demo");
    let prompts = prompts(&model, 1);
    let asks = vec![ask(&prompts[0], 30)];
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    for round in 0..14 {
        ring.round(round);
    }
    assert!(ring.head.ended().is_none());
    ring.stages.get_mut(&[2; 32]).unwrap().frozen = true;
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 30));
    assert!(
        ring.head.losses()[0].contains("stage 2 (0202020202), computing: no sign of life for 2.0 s"),
        "{:?}",
        ring.head.losses()
    );
}

#[test]
fn a_rebuilt_state_that_differs_is_not_continued() {
    let model = model("demo");
    let (_folder, altered) = altered(6);
    let prompts = prompts(&model, 1);
    let mut ring = Ring::new(&model, &Setup { stages: 2, spares: 1, ..Setup::default() }, vec![ask(&prompts[0], 9)]);
    // The spare takes the lost stage's layers with other weights.
    ring.stages.get_mut(&[3; 32]).unwrap().model = &altered;
    ring.inject(2, "kill@tok4");
    let error = ring.run().unwrap_err();
    assert!(
        error.contains("computing: the hidden row that it gave at position 0")
            && error.contains("not the recorded one"),
        "{error}"
    );
}

#[test]
fn a_head_without_layers_holds_both_ends() {
    let model = model("demo");
    let need = demand(&program(&model), ROOM).unwrap();
    let prompts = prompts(&model, 1);
    let mut ring = Ring::new(&model, &Setup { memory: need.ends, ..Setup::default() }, vec![ask(&prompts[0], 6)]);
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 6));
    assert_eq!(ring.head.plan().unwrap().ranges(), [0..0, 0..4, 4..8]);
}

#[test]
fn a_cancelled_answer_ends_and_frees_its_state() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 20)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    for round in 0..20 {
        ring.round(round);
    }
    ring.head.cancel(0);
    let written = ring.run().unwrap();
    assert_eq!(ring.head.outcomes()[0].ending, Ending::Interrupted);
    assert!(written[0].len() < 20);
    assert_eq!(written[1], alone(&model, &prompts, 20)[1]);
    assert!(ring.stages.values_mut().all(|s| s.worker.as_mut().unwrap().held() == 0));
}
