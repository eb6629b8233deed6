//! Devices that come again, devices that take long, and answers that wait for one another.

use super::*;

#[test]
fn answers_that_find_no_room_wait_without_work() {
    let model = model("demo");
    let prompts = prompts(&model, 3);
    let asks = prompts.iter().map(|p| ask(p, 5)).collect();
    let setup = Setup { room: Room { sequences: 1, ..ROOM }, ..Setup::default() };
    let mut ring = Ring::new(&model, &setup, asks);
    for round in 0.. {
        assert!(round < 20_000, "{:#?}", ring.said);
        ring.round(round);
        // A prompt goes on its way in a few steps; whoever says for ever that it has something to compute never looks at its links
        // again.
        let now = ring.now;
        if let Some(worker) = &mut ring.worker {
            (0..10).for_each(|_| ring.head.work(worker, &|| now));
        }
        assert!(!ring.head.pending(), "round {round}");
        if ring.head.ended().is_some() {
            break;
        }
    }
    let written: Vec<Vec<u32>> = ring.head.outcomes().into_iter().map(|outcome| outcome.ids).collect();
    assert_eq!(written, alone(&model, &prompts, 5));
}

/// A process that was killed and started again with its key, whenever that is.
#[test]
fn a_stage_that_comes_again_is_given_its_layers_again() {
    let model = model("demo");
    let prompts = prompts(&model, 1);
    let expected = alone(&model, &prompts, 12);
    let mut lost = 0;
    for moment in 1..=24 {
        let mut ring = Ring::new(&model, &Setup::default(), vec![ask(&prompts[0], 12)]);
        (0..moment).for_each(|round| ring.round(round));
        ring.join(1, 10.0, Some(&SECRET), &model);
        assert_eq!(ring.run().unwrap(), expected, "in round {moment}: {:#?}", ring.said);
        let losses = ring.head.losses();
        assert!(losses.iter().all(|text| text.contains("its process was started anew")), "{losses:?}");
        assert!(losses.len() <= 1, "{losses:?}");
        lost += losses.len();
    }
    assert!(lost > 10, "{lost} of 24 came again in a ring at work");
}

#[test]
fn a_device_that_comes_again_while_it_replays_is_not_waited_for() {
    let model = model("demo");
    let prompts = prompts(&model, 1);
    let setup = Setup { audit: 1.0, others: true, ..Setup::default() };
    for later in 0..6 {
        let mut ring = Ring::new(&model, &setup, vec![ask(&prompts[0], 6)]);
        let mut asked = None;
        for round in 0..20_000 {
            ring.round(round);
            let replays = || ring.said.iter().any(|text| text.contains("replays what stage 1"));
            asked = asked.or_else(|| replays().then_some(round));
            if asked.is_some_and(|asked| round == asked + later) {
                break;
            }
        }
        ring.join(2, 10.0, Some(&SECRET), &model);
        assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 6), "{:#?}", ring.said);
    }
}

#[test]
fn a_busy_device_is_waited_for_as_its_figures_say_and_an_idle_one_is_not() {
    let model = model("demo");
    let prompts = prompts(&model, 1);
    let expected = alone(&model, &prompts, 8);
    // A quarter as fast as the head, and it takes three times as long as the head might.
    let mut ring = Ring::new(&model, &Setup { stages: 2, ..Setup::default() }, vec![ask(&prompts[0], 8)]);
    ring.join(2, 2.5, Some(&SECRET), &model);
    (0..14).for_each(|round| ring.round(round));
    assert!(ring.head.plan().unwrap().stage_of(&[2; 32]).is_some(), "it has layers");
    ring.stages.get_mut(&[2; 32]).unwrap().busy = Duration::from_secs(12);
    assert_eq!(ring.run().unwrap(), expected);
    assert_eq!(ring.head.losses(), [] as [String; 0]);
    // A lap may take minutes, but nobody computes it.
    let setup = Setup { lap: Duration::from_secs(300), ..Setup::default() };
    let mut ring = Ring::new(&model, &setup, vec![ask(&prompts[0], 8)]);
    ring.inject(2, "stall@stage2:tok3");
    assert_eq!(ring.run().unwrap(), expected);
    assert!(ring.head.losses()[0].contains("stalled: it holds lap"), "{:?}", ring.head.losses());
    assert!(ring.now < Duration::from_secs(6), "{:?}", ring.now);
}
