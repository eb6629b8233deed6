//! Hops replayed by the head or by another device, and whom they blame.

use super::*;

#[test]
fn an_altered_weight_passes_the_hashes_and_is_caught_by_the_audit() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let (_folder, altered) = altered(4);
    let asks = prompts.iter().map(|p| ask(p, 12)).collect();
    let mut ring = Ring::new(&model, &Setup { audit: 1.0, ..Setup::default() }, asks);
    let stage = ring.stages.get_mut(&[1; 32]).unwrap();
    stage.model = &altered;
    ring.run().unwrap();
    assert!(ring.head.losses().is_empty(), "nothing on the wire shows it");
    let ranges = ring.head.plan().unwrap().ranges();
    assert!(ranges[1].contains(&4), "{ranges:?}");
    let mut workers = maker(&model.checkpoint.weights, true).all(&ring.program, &ranges, ROOM).unwrap();
    let audited = ring.head.audited();
    assert_eq!(audited.len(), 4, "two answers on two stages");
    for audited in &audited {
        let worker = &mut workers[audited.stage as usize].worker;
        let found = judge(audited, &replay(audited, worker).unwrap(), worker.width());
        match audited.stage {
            1 => assert!(matches!(found, Finding::Wrong { position: 0, lap: 0 }), "{found:?}"),
            _ => assert!(matches!(found, Finding::Right { rows } if rows > 12), "{found:?}"),
        }
    }
}

#[test]
fn another_device_replays_and_the_blame_is_the_same() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let (_folder, altered) = altered(4);
    let width = model.checkpoint.spec.hidden;
    for wrong in [None, Some(1), Some(2)] {
        let asks = prompts.iter().map(|p| ask(p, 6)).collect();
        let setup = Setup { audit: 1.0, others: true, ..Setup::default() };
        let mut ring = Ring::new(&model, &setup, asks);
        wrong.iter().for_each(|stage| ring.stages.get_mut(&[*stage; 32]).unwrap().model = &altered);
        ring.run().unwrap();
        let audited = ring.head.audited();
        assert_eq!(audited.len(), 4, "two answers on two stages");
        for audited in &audited {
            let (by, traces) = ring.head.replayed(audited.sequence, audited.stage).unwrap();
            // The other one of the two stages.
            assert_eq!(by, [3 - audited.stage as u8; 32]);
            let found = judge(audited, traces, width);
            // Layer 4 is stage 1's: whoever of the two has it altered, they differ about stage 1 and agree about stage 2.
            match (wrong, audited.stage) {
                (Some(_), 1) => assert!(matches!(found, Finding::Wrong { position: 0, lap: 0 }), "{found:?}"),
                _ => assert!(matches!(found, Finding::Right { rows } if rows >= 6), "{wrong:?}: {found:?}"),
            }
        }
        assert!(ring.stages.values().all(|s| s.session.ended() == Some(&Ok(()))), "{wrong:?}");
    }
}

#[test]
fn after_a_loss_the_audit_is_of_the_ring_that_wrote_the_answer() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    for others in [false, true] {
        let asks = prompts.iter().map(|p| ask(p, 8)).collect();
        let mut ring = Ring::new(&model, &Setup { stages: 3, audit: 1.0, others, ..Setup::default() }, asks);
        ring.inject(1, "kill@tok4");
        assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 8), "{:#?}", ring.said);
        let ranges = ring.head.plan().unwrap().ranges();
        assert_eq!(ranges.len(), 3);
        let mut workers = maker(&model.checkpoint.weights, true).all(&ring.program, &ranges, ROOM).unwrap();
        let audited = ring.head.audited();
        assert_eq!(audited.len(), 4, "two answers on two stages");
        for audited in &audited {
            let worker = &mut workers[audited.stage as usize].worker;
            let traces = match ring.head.replayed(audited.sequence, audited.stage) {
                Some((_, traces)) => traces.to_vec(),
                None => replay(audited, worker).unwrap(),
            };
            assert_eq!(ring.head.replayed(audited.sequence, audited.stage).is_some(), others);
            let found = judge(audited, &traces, worker.width());
            assert!(matches!(found, Finding::Right { rows } if rows >= 8), "{found:?}");
        }
    }
}

#[test]
fn a_device_that_dies_while_it_replays_leaves_the_audit_to_the_head() {
    let model = model("demo");
    let setup = Setup { audit: 1.0, others: true, ..Setup::default() };
    let mut ring = Ring::new(&model, &setup, vec![ask(&[1, 2, 3], 4)]);
    ring.bend = Box::new(|_, to, message| match message {
        // Whoever is to replay stage 1 never hears of it, and falls silent.
        Message::Replay { stage: 1, .. } if *to == [2; 32] => vec![],
        message => vec![message],
    });
    let mut round = 0;
    while ring.said.iter().all(|text| !text.contains("replays what stage 1")) {
        round += 1;
        assert!(round < 20_000, "{:#?}", ring.said);
        ring.round(round);
    }
    ring.stages.get_mut(&[2; 32]).unwrap().frozen = true;
    assert_eq!(ring.run().unwrap()[0].len(), 4, "the answer is written");
    assert!(ring.said.iter().any(|text| text.contains("does not replay stage 1: no sign of life")), "{:#?}", ring.said);
    assert!(ring.head.replayed(0, 1).is_none() && ring.head.replayed(0, 2).is_some());
    assert_eq!(ring.head.audited().len(), 2);
}
