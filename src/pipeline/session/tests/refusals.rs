//! What a device does not take: plans, models, tickets, probes, links and hops, each refused by name; and what is on no wire.

use super::*;

/// Bytes of a piece of weights that is looked for on the wire.
const PIECE: usize = 32;

#[test]
fn duplicates_and_late_hops_are_dropped() {
    let model = model("demo");
    let prompts = prompts(&model, 2);
    let asks = prompts.iter().map(|p| ask(p, 6)).collect();
    let mut ring = Ring::new(&model, &Setup::default(), asks);
    let mut old: Vec<Message> = Vec::new();
    ring.bend = Box::new(move |_, to, message| {
        if !matches!(message, Message::Hop(_)) {
            return vec![message];
        }
        // Each hop twice, and one of long ago behind it.
        let mut all = vec![message.clone(), message.clone()];
        all.extend(
            old.iter()
                .rev()
                .find(|m| matches!((m, &message), (Message::Hop(a), Message::Hop(b)) if a.next == b.next))
                .cloned(),
        );
        let _ = to;
        old.push(message);
        all
    });
    assert_eq!(ring.run().unwrap(), alone(&model, &prompts, 6));
    assert!(ring.said.iter().any(|text| text.contains("a duplicate; dropped")), "{:?}", ring.said);
}

#[test]
fn a_device_refuses_a_plan_of_other_figures_and_says_whose() {
    let model = model("demo");
    let asks = || vec![ask(&[1, 2, 3], 2)];
    for (field, says) in [
        ("capacity", "plan: the plan was made with the capacity 11 of device 0202020202; this device heard 10"),
        ("layers", "plan: stage 0 is layers 0..4"),
        ("model", "is not the one that"),
    ] {
        let mut ring = Ring::new(&model, &Setup::default(), asks());
        ring.bend = Box::new(move |_, to, message| match message {
            Message::Assign(mut assign) if *to == [2; 32] => {
                match field {
                    "capacity" => assign.plan.devices[2].capacity = 11.0,
                    "layers" => {
                        let ranges = [0..4, 4..5, 5..8];
                        assign.plan.stages.iter_mut().zip(ranges).for_each(|(s, layers)| s.layers = layers);
                        assign.layers = 5..8;
                    }
                    _ => assign.numerics = assign.numerics.replace("two_limbs", "one_limb"),
                }
                vec![Message::Assign(assign)]
            }
            message => vec![message],
        });
        let error = ring.run().unwrap_err();
        assert!(error.contains("stage 2 (0202020202), loading:") && error.contains(says), "{field}: {error}");
    }
}

#[test]
fn another_model_a_wrong_ticket_and_a_wrong_probe_are_refused_by_name() {
    let (own, other) = (model("demo"), model("given/qwen3"));
    let mut ring = Ring::new(&own, &Setup { stages: 1, ..Setup::default() }, vec![ask(&[1, 2], 2)]);
    ring.stages.clear();
    ring.join(1, 1.0, Some(&[1; 32]), &own);
    for round in 0..10 {
        ring.round(round);
    }
    let refused = ring.stages[&[1; 32]].session.ended().unwrap().as_ref().unwrap_err().to_string();
    assert!(refused.contains("ticket: device 0101010101 is refused: its key is not on the roster"), "{refused}");
    let head = ring.head.ended();
    assert!(head.is_none(), "the head waits on: {head:?}");
    ring.bend = Box::new(|_, _, message| match message {
        Message::Hello(hello) => vec![Message::Hello(Hello { probe: [0; 32], ..hello })],
        message => vec![message],
    });
    ring.join(2, 1.0, Some(&SECRET), &own);
    for round in 0..10 {
        ring.round(round);
    }
    let refused = ring.stages[&[2; 32]].session.ended().unwrap().as_ref().unwrap_err().to_string();
    assert!(
        refused.contains("probe: device 0202020202 is refused: its kernel probe 0000000000000000 is not"),
        "{refused}"
    );
    ring.bend = Box::new(|_, _, message| vec![message]);
    ring.join(3, 1.0, Some(&SECRET), &other);
    let error = ring.run().unwrap_err();
    assert!(
        error.contains("stage 1 (0303030303), loading: model: the copy on this device has the tensor index"),
        "{error}"
    );
}

#[test]
fn a_hop_of_another_model_is_refused_as_that_and_not_as_corrupted() {
    let model = model("demo");
    let mut ring = Ring::new(&model, &Setup::default(), vec![ask(&[1, 2, 3], 4)]);
    ring.bend = Box::new(|from, _, message| match message {
        Message::Hop(hop) if *from == HEAD => {
            vec![Message::Hop(crate::pipeline::wire::Hop { model: hop.model ^ 1, ..hop })]
        }
        message => vec![message],
    });
    // Nobody is left in the end but the head, which needs no hop.
    let _ = ring.run().unwrap();
    let losses = ring.head.losses();
    assert!(losses[0].contains("model-mismatch: stage 1 holds a slice of model"), "{losses:?}");
    assert!(losses.iter().all(|text| !text.contains("corrupt")), "{losses:?}");
}

#[test]
fn nothing_secret_is_on_the_wire() {
    let model = model("demo");
    let tokenizer = model.tokenizer().unwrap();
    let text = "The quick brown fox jumped over the sleeping dog";
    let prompt = tokenizer.encode(text, true).unwrap();
    let mut ring = Ring::new(&model, &Setup { audit: 1.0, ..Setup::default() }, vec![ask(&prompt, 5)]);
    ring.run().unwrap();
    let file = model.file("model.safetensors").unwrap().unwrap();
    // Behind the names, which an assignment's spec has too.
    let weights = &file[8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize..];
    let ids: Vec<u8> = prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert!(ring.wire.len() > 40);
    // Weights as they are stored (bf16), as f32, and as the units read them: tiles of int8 and their scales.
    let widened: Vec<u8> = weights.chunks_exact(2).flat_map(|bf16| [0, 0, bf16[0], bf16[1]]).collect();
    let (_, tiles) = image(&model);
    let mut windows = std::collections::HashSet::new();
    for (_, _, bytes) in &ring.wire {
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!holds(text.as_bytes()) && !holds(b"quick brown") && !holds(&ids[..16]), "a prompt");
        assert!(!holds(&SECRET), "the ticket's secret");
        windows.extend(bytes.windows(PIECE).map(|window| <[u8; PIECE]>::try_from(window).unwrap()));
    }
    for (name, stored) in [("bf16", weights), ("f32", &widened[..]), ("tiles", &tiles[..])] {
        let pieces = stored.chunks_exact(PIECE);
        // A piece with little in it, such as zeros, is anybody's.
        let telling = |piece: &&[u8]| piece.iter().collect::<std::collections::BTreeSet<_>>().len() > PIECE / 4;
        let found = pieces.clone().filter(telling).filter(|piece| windows.contains(*piece)).count();
        assert!(pieces.filter(telling).count() > stored.len() / PIECE / 2, "{name}: most of it is looked for");
        assert_eq!(found, 0, "{name}: weights are on the wire");
    }
    // An assignment says what to hold; it is as short as names are.
    let longest = ring.wire.iter().filter(|(_, _, b)| b[..4] == (-21_i32).to_le_bytes()).map(|(_, _, b)| b.len()).max();
    assert!(longest.is_some_and(|len| len < weights.len() / 20), "{longest:?} of {}", weights.len());
}

#[test]
fn a_link_ahead_of_its_roster_waits_and_a_stranger_is_refused() {
    let model = model("given/qwen3");
    let mut ring = Ring::new(&model, &Setup::default(), vec![ask(&[1, 2, 3], 2)]);
    ring.run().unwrap();
    let [first, second, stranger] = [[1; 32], [2; 32], [7; 32]];
    let sent = |kind: fn(&Message) -> bool| {
        let own = ring.wire.iter().filter(|(from, to, _)| (*from, *to) == (HEAD, second));
        own.map(|(.., bytes)| Message::decode(bytes).unwrap()).find(kind).unwrap()
    };
    let roster = sent(|m| matches!(m, Message::Roster(_)));
    let assign = sent(|m| matches!(m, Message::Assign(_)));
    let Message::Assign(held) = &assign else { unreachable!() };
    let epoch = held.epoch;
    let link = |epoch| Message::Join(Join { version: VERSION, purpose: Purpose::Hops { epoch }, proof: [0; 32] });
    let introduction = Introduction { hello: hello(10.0), memory: 1 << 40, addresses: Vec::new() };
    let mut stage = StageSession::new(second, HEAD, Some(&SECRET), introduction, |c| sign(&second, c), verify);
    let mut closed = |messages: Vec<(Key, Message)>| -> Vec<Key> {
        messages.into_iter().for_each(|(from, message)| stage.message(from, message, Duration::ZERO));
        let peer = |action| if let Action::Close { peer } = action { Some(peer) } else { None };
        stage.actions().filter_map(peer).collect()
    };
    // Its own link to the head may be slower than the stage before and that one's link to it.
    assert!(closed(vec![(first, link(epoch)), (stranger, link(epoch))]).is_empty());
    assert_eq!(closed(vec![(HEAD, roster), (HEAD, assign)]), [stranger]);
    assert!(closed(vec![(first, link(epoch)), (first, link(epoch + 1))]).is_empty());
    assert_eq!(closed(vec![(stranger, link(epoch))]), [stranger]);
    let mut old = link(epoch);
    if let Message::Join(join) = &mut old {
        join.version += 1;
    }
    assert_eq!(closed(vec![(first, old)]), [first], "another version");
    // So many of them wait, and no more.
    let many = (0..1000).map(|i| (stranger, link(epoch + 1 + i))).collect();
    assert!(closed(many).len() > 900);
}
