//! Hops held to what a stage expects of them, laps that begin when everybody is ready, and tokens that everybody hears of.

use super::*;
use crate::pipeline::wire::{Form, Hop, Next};
use std::cell::RefCell;
use std::rc::Rc;

/// What a device was sent, in order.
fn sent_to(ring: &Ring<'_>, key: Key) -> Vec<(Key, Message)> {
    let own = ring.wire.iter().filter(|(_, to, _)| *to == key);
    own.map(|(from, _, bytes)| (*from, Message::decode(bytes).unwrap())).collect()
}

/// The hops that a stage was sent, in order.
fn hops_to(ring: &Ring<'_>, key: Key) -> Vec<Hop> {
    let hop = |(_, message)| if let Message::Hop(hop) = message { Some(hop) } else { None };
    sent_to(ring, key).into_iter().filter_map(hop).collect()
}

/// A stage of a ring that has run, as it stood when its last assignment had come and, if so, was ready.
fn standing(ring: &Ring<'_>, key: Key, ready: bool) -> StageSession {
    let introduction = Introduction { hello: hello(10.0), memory: 1 << 40, addresses: Vec::new() };
    let mut stage = StageSession::new(key, HEAD, Some(&SECRET), introduction, |c| sign(&key, c), verify);
    let last = |kind: fn(&Message) -> bool| sent_to(ring, key).into_iter().rfind(|(_, m)| kind(m)).unwrap().1;
    let assign = last(|m| matches!(m, Message::Assign(_)));
    let Message::Assign(held) = &assign else { unreachable!() };
    let epoch = held.epoch;
    stage.message(HEAD, last(|m| matches!(m, Message::Roster(_))), Duration::ZERO);
    stage.message(HEAD, assign, Duration::ZERO);
    let made = sent_to(ring, HEAD).into_iter().rfind(|(from, m)| *from == key && matches!(m, Message::Ready(_)));
    let (_, Message::Ready(made)) = made.unwrap() else { unreachable!() };
    if ready {
        stage.loaded(epoch, Ok(made));
    }
    stage.actions().for_each(drop);
    stage
}

/// What a stage makes of a hop: the name of the error that it sends its head, and what it says.
fn made_of(stage: &mut StageSession, from: Key, hop: Hop) -> (Option<String>, String) {
    stage.message(from, Message::Hop(hop), Duration::ZERO);
    let (mut code, mut said) = (None, String::new());
    for action in stage.actions() {
        match action {
            Action::Send { to: HEAD, message: Message::Error(fault), .. } => code = Some(fault.code),
            Action::Say(text) => said.push_str(&text),
            other => panic!("a hop that is not taken has no other result: {other:?}"),
        }
    }
    (code, said)
}

#[test]
fn a_hop_that_does_not_follow_is_refused_by_name() {
    let model = model("given/qwen3");
    let mut ring = Ring::new(&model, &Setup::default(), vec![ask(&[1, 2, 3], 4)]);
    ring.run().unwrap();
    let first = [1; 32];
    let hops = hops_to(&ring, first);
    let (begin, next) = (&hops[0], &hops[1]);
    assert_eq!((begin.lap, next.lap, begin.hidden.len() / next.hidden.len()), (0, 1, 3), "three rows, then one");
    let rows = |count: usize| next.hidden.repeat(count);
    let moved = |by: u32| match next.form {
        Form::Cached { position, keep } => Form::Cached { position: position + by, keep },
        Form::Anew => unreachable!(),
    };
    let cases: [(&str, Hop, Option<&str>, &str); 11] = [
        ("a lap is left out", Hop { lap: 2, ..next.clone() }, Some("order"), "lap 2 at position 3 came, lap 1 at"),
        ("a row is left out", Hop { form: moved(1), ..next.clone() }, Some("order"), "at position 4 came"),
        (
            "rows again",
            Hop { form: Form::Cached { position: 2, keep: 1 }, ..next.clone() },
            Some("order"),
            "position 2",
        ),
        ("a lap again", begin.clone(), None, "sequence 0, lap 0: a duplicate; dropped"),
        ("half a row", Hop { hidden: next.hidden[1..].to_vec(), ..next.clone() }, Some("shape"), "are no rows of"),
        ("no row", Hop { hidden: Vec::new(), ..next.clone() }, Some("shape"), "0 values are no rows of"),
        ("too many", Hop { hidden: rows(6), ..next.clone() }, Some("shape"), "6 rows, the plan says at most 5"),
        (
            "another stage's",
            Hop { next: Next::Stage(2), ..next.clone() },
            Some("address"),
            "addressed 2 came to stage 1",
        ),
        ("the head's", Hop { next: Next::Return, ..next.clone() }, Some("address"), "came to stage 1"),
        (
            "another model's",
            Hop { model: !next.model, ..next.clone() },
            Some("model-mismatch"),
            "holds a slice of model",
        ),
        (
            "a new sequence in its middle",
            Hop { sequence: 7, ..next.clone() },
            Some("order"),
            "lap 0 at position 0 is next",
        ),
    ];
    for (name, hop, code, says) in cases {
        let mut stage = standing(&ring, first, true);
        assert_eq!(made_of(&mut stage, HEAD, begin.clone()), (None, String::new()), "{name}: the first is right");
        let (found, said) = made_of(&mut stage, HEAD, hop);
        assert_eq!((found.as_deref(), said.contains(says)), (code, true), "{name}: {said}");
        // What was refused has changed nothing: the right one is still next.
        assert_eq!(made_of(&mut stage, HEAD, next.clone()), (None, String::new()), "{name}");
    }
    // Only the stage before sends hops, whoever else is on the roster; and none may come early.
    let mut stage = standing(&ring, first, true);
    let (code, said) = made_of(&mut stage, [2; 32], begin.clone());
    assert!(code.is_none() && said.contains("a hop from 0202020202, which is not the stage before stage 1"), "{said}");
    assert!(!stage.pending());
    let mut stage = standing(&ring, first, false);
    let (code, said) = made_of(&mut stage, HEAD, begin.clone());
    assert!(code.as_deref() == Some("order") && said.contains("before it was ready") && !stage.pending(), "{said}");
    // More sequences than memory was planned for.
    let mut stage = standing(&ring, first, true);
    let of = |sequence| Hop { sequence, ..begin.clone() };
    let (taken, over) = (2 * ROOM.sequences, 2 * ROOM.sequences + 1);
    (0..taken).for_each(|s| assert_eq!(made_of(&mut stage, HEAD, of(s)), (None, String::new())));
    assert_eq!(made_of(&mut stage, HEAD, of(over)).0.as_deref(), Some("sequences"));
}

#[test]
fn hops_of_before_a_loss_are_dropped_and_a_stage_frees_what_it_held() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 6)).collect();
    let mut ring = Ring::new(&model, &Setup { spares: 1, ..Setup::default() }, asks);
    ring.inject(2, "kill@tok2");
    let survivor = [1; 32];
    let (mut round, mut most) = (0, 0);
    while ring.head.ended().is_none() {
        round += 1;
        assert!(round < 20_000, "{:#?}", ring.said);
        ring.round(round);
        let worker = ring.stages.get_mut(&survivor).unwrap().worker.as_mut();
        most = worker.map_or(0, |worker| worker.held()).max(most);
    }
    let written: Vec<Vec<u32>> = ring.head.outcomes().into_iter().map(|outcome| outcome.ids).collect();
    assert_eq!(written, alone(&model, &prompts, 6));
    assert_eq!(most, 2, "what it held before the loss went when it was assigned anew");
    // Both answers went under other numbers before.
    let hops = hops_to(&ring, survivor);
    let numbers: std::collections::BTreeSet<u32> = hops.iter().map(|hop| hop.sequence).collect();
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    // What is said of stages is of those that ended it.
    assert_eq!(ring.head.laps().count(), hops.iter().filter(|hop| hop.sequence >= 2).count());
    let mut stage = standing(&ring, survivor, true);
    let previous = ring.head.plan().unwrap().key(ring.head.plan().unwrap().stage_of(&survivor).unwrap() - 1).unwrap();
    let (code, said) = made_of(&mut stage, previous, hops[0].clone());
    assert!(code.is_none() && said.contains("sequence 0, lap 0: late; dropped") && !stage.pending(), "{said}");
}

#[test]
fn no_lap_begins_before_every_stage_is_ready() {
    let model = model("given/qwen3");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 4)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    let late = Rc::new(RefCell::new(None));
    let keep = late.clone();
    ring.bend = Box::new(move |from, _, message| match message {
        Message::Ready(_) if *from == [2; 32] => {
            *keep.borrow_mut() = Some(message);
            Vec::new()
        }
        message => vec![message],
    });
    (1..300).for_each(|round| ring.round(round));
    let is_hop = |bytes: &[u8]| matches!(Message::decode(bytes), Ok(Message::Hop(_)));
    let hops = |ring: &Ring<'_>| ring.wire.iter().filter(|(.., bytes)| is_hop(bytes)).count();
    assert!(ring.head.ended().is_none() && hops(&ring) == 0, "a lap began with a stage that still reads");
    let ready = late.borrow_mut().take().expect("the stage was ready long ago");
    ring.queue.push_back(([2; 32], HEAD, ready.encode()));
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 4));
    assert!(hops(&ring) > 0 && ring.head.losses().is_empty());
}

#[test]
fn a_head_takes_no_hop_of_another_model_address_or_shape() {
    let model = model("demo");
    type Change = fn(Hop) -> Hop;
    let changes: [(Change, &str); 3] = [
        (|hop| Hop { model: hop.model ^ 1, ..hop }, "model-mismatch: a hop of model"),
        (|hop| Hop { next: Next::Stage(1), ..hop }, "address: a hop addressed 1 came to the head"),
        (|hop| Hop { hidden: hop.hidden[1..].to_vec(), ..hop }, "shape: "),
    ];
    for (change, says) in changes {
        let mut ring = Ring::new(&model, &Setup { spares: 1, ..Setup::default() }, vec![ask(&[1, 2, 3], 5)]);
        let mut once = true;
        ring.bend = Box::new(move |_, to, message| match message {
            // The second lap's return, once.
            Message::Hop(hop) if *to == HEAD && hop.lap == 1 && std::mem::take(&mut once) => {
                vec![Message::Hop(change(hop))]
            }
            message => vec![message],
        });
        assert_eq!(ring.run().unwrap(), alone(&model, &[vec![1, 2, 3]], 5), "{says}");
        let losses = ring.head.losses();
        assert!(losses.len() == 1 && losses[0].contains(says) && losses[0].starts_with("stage 2"), "{losses:?}");
    }
}

#[test]
fn every_device_hears_of_every_token() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 5)).collect();
    // Two stages with layers, and a device that is there in case of need.
    let mut ring = Ring::new(&model, &Setup { spares: 1, ..Setup::default() }, asks);
    let written = ring.run().unwrap();
    assert_eq!((ring.stages.len(), ring.head.plan().unwrap().stages.len()), (3, 3));
    for key in ring.stages.keys() {
        let mut heard = vec![Vec::new(); 2];
        for (sequence, index, token) in &ring.told[key] {
            assert_eq!(*index as usize, heard[*sequence as usize].len());
            heard[*sequence as usize].push(*token);
        }
        assert_eq!(heard, written, "{key:?}");
    }
}

/// Stages whose clocks begin days apart, and a way from the one to the other that is longer than all others.
#[test]
fn every_hop_has_its_own_time_and_no_clock_is_set() {
    let model = model("demo");
    let ms = Duration::from_millis;
    let [first, second, third] = [[1; 32], [2; 32], [3; 32]];
    let of = |ways: &[((Key, Key), Duration)]| {
        let mut ring = Ring::new(&model, &Setup { stages: 3, ..Setup::default() }, vec![ask(&[1, 2, 3], 24)]);
        ring.ahead = BTreeMap::from([(first, ms(7)), (second, ms(500_000_000)), (third, ms(3600))]);
        ring.ways = ways.iter().copied().collect();
        ring.run().unwrap();
        // However late a stage's account of a lap comes, behind that of the next stage even, no lap lacks it.
        let laps: Vec<&Lap> = ring.head.laps().filter(|lap| lap.rows == 1).collect();
        assert_eq!(laps.len(), 23);
        // Of the first one a stage may hear no token before it has computed.
        let known: Vec<_> = laps.iter().filter_map(|lap| Some((lap.idle(), lap.hops()?))).collect();
        assert!(known.len() >= 22, "{}", known.len());
        for (idle, hops) in &known {
            assert_eq!(Duration::from_micros(hops.iter().sum::<i64>() as u64), *idle, "a lap is the sum of its parts");
        }
        assert!(known.iter().all(|(_, hops)| *hops == known[0].1), "{known:?}");
        known[0].1.clone()
    };
    // A round of 5 ms each.
    assert_eq!(of(&[]), [5000, 5000, 5000, 5000]);
    assert_eq!(of(&[((first, second), ms(40))]), [5000, 45_000, 5000, 5000]);
    assert_eq!(of(&[((third, HEAD), ms(20)), ((HEAD, third), ms(20))]), [5000, 5000, 5000, 25_000]);
    assert_eq!(of(&[((HEAD, first), ms(10)), ((first, HEAD), ms(10))]), [15_000, 5000, 5000, 5000]);
    // What the head's ways to a stage and back differ in nobody can tell: half of it is told of the wrong hop.
    assert_eq!(of(&[((HEAD, second), ms(10))]), [5000, 0, 10_000, 5000]);
}

#[test]
fn a_roster_that_a_device_did_not_sign_and_a_program_of_its_own_are_refused() {
    let model = model("given/qwen3");
    let mut ring = Ring::new(&model, &Setup::default(), vec![ask(&[1, 2, 3], 2)]);
    ring.bend = Box::new(|_, to, message| match message {
        Message::Roster(mut members) if *to == [1; 32] => {
            members.iter_mut().filter(|m| m.key == [2; 32]).for_each(|m| m.hello.capacity *= 2.0);
            vec![Message::Roster(members)]
        }
        message => vec![message],
    });
    let error = ring.run().unwrap_err();
    assert!(error.contains("roster: the roster's figures of 0202020202 are not signed by it"), "{error}");
    // A stage that has lowered another program than the head's for it is no stage of this ring.
    let prompts = [vec![1, 2, 3]];
    let mut ring = Ring::new(&model, &Setup { spares: 1, ..Setup::default() }, vec![ask(&prompts[0], 3)]);
    ring.bend = Box::new(|from, _, message| match message {
        Message::Ready(mut ready) if *from == [2; 32] => {
            ready.program[0] ^= 1;
            vec![Message::Ready(ready)]
        }
        message => vec![message],
    });
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 3));
    let losses = ring.head.losses();
    assert!(
        losses.len() == 1 && losses[0].contains("its program is not the one that the head has lowered"),
        "{losses:?}"
    );
    // A device of another version of the wire never gets in.
    let mut ring = Ring::new(&model, &Setup { stages: 1, ..Setup::default() }, vec![ask(&prompts[0], 3)]);
    ring.bend = Box::new(|_, _, message| match message {
        Message::Join(join) => vec![Message::Join(Join { version: join.version + 1, ..join })],
        message => vec![message],
    });
    (0..10).for_each(|round| ring.round(round));
    let ended = ring.stages[&[1; 32]].session.ended().unwrap().as_ref().unwrap_err().to_string();
    assert!(ended.contains("version: device 0101010101 is refused: it speaks version"), "{ended}");
}
