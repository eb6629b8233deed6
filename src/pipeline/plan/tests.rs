use super::*;
use proptest::prelude::*;
use std::ops::Range;

const ROOM: Room = Room { ctx: 64, step_rows: 16, sequences: 2 };

fn device(name: u8, capacity: f64) -> Device {
    Device { key: [name; 32], capacity, memory: u64::MAX }
}

fn demand(layers: usize) -> Demand {
    Demand { ends: 10, layers: vec![5; layers] }
}

fn plan(capacities: &[f64], layers: usize) -> Plan {
    let devices: Vec<Device> = (1..).zip(capacities).map(|(name, capacity)| device(name, *capacity)).collect();
    Plan::of(devices[0], &devices[1..], &demand(layers), ROOM).unwrap()
}

#[test]
fn thirty_layers_over_a_hundred_fifty_and_fifty() {
    assert_eq!(plan(&[100.0, 50.0, 50.0], 30).ranges(), [0..15, 15..23, 23..30]);
}

#[test]
fn the_head_comes_first_and_the_others_by_key() {
    let (head, a, b) = (device(9, 1.0), device(1, 1.0), device(2, 1.0));
    let forwards = Plan::of(head, &[a, b], &demand(6), ROOM).unwrap();
    let backwards = Plan::of(head, &[b, a], &demand(6), ROOM).unwrap();
    assert_eq!(forwards, backwards);
    assert_eq!([0, 1, 2].map(|stage| forwards.key(stage).unwrap()[0]), [9, 1, 2]);
    assert_eq!(forwards.stage_of(&[2; 32]), Some(2));
}

#[test]
fn a_device_without_layers_leaves_the_ring_unless_it_is_the_head() {
    let plan = plan(&[0.0, 1.0, 0.0, 1.0], 4);
    assert_eq!(plan.ranges(), [0..0, 0..2, 2..4]);
    assert_eq!(plan.stages.iter().map(|s| s.device).collect::<Vec<_>>(), [0, 1, 3]);
}

#[test]
fn figures_that_are_no_capacity_count_as_none() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0, 0.0, -0.0] {
        assert_eq!(plan(&[2.0, odd], 4).ranges(), vec![Range { start: 0, end: 4 }], "{odd}");
        // Where nobody has one, all count alike.
        assert_eq!(plan(&[odd, odd], 4).ranges(), [0..2, 2..4], "{odd}");
    }
    assert_eq!(plan(&[f64::MAX, f64::MIN_POSITIVE], 4).ranges(), vec![Range { start: 0, end: 4 }]);
}

#[test]
fn more_devices_than_layers() {
    assert_eq!(plan(&[1.0; 9], 3).ranges(), [0..1, 1..2, 2..3]);
}

#[test]
fn memory_bounds_a_share_and_the_others_take_the_rest() {
    let mut devices = [device(1, 1.0), device(2, 8.0), device(3, 1.0)];
    devices[1].memory = 11;
    let plan = Plan::of(devices[0], &devices[1..], &demand(10), ROOM).unwrap();
    assert_eq!(plan.ranges(), [0..4, 4..6, 6..10]);
    devices[0].memory = 9;
    assert_eq!(Plan::of(devices[0], &devices[1..], &demand(10), ROOM), Err(PlanError::Ends { given: 9, needed: 10 }));
    devices.iter_mut().for_each(|d| d.memory = 16);
    let refused = Plan::of(devices[0], &devices[1..], &demand(10), ROOM);
    assert_eq!(refused, Err(PlanError::Memory { given: 48, needed: 60, held: 7, layers: 10 }));
}

#[test]
fn a_plan_that_lies_is_refused_by_name() {
    let good = plan(&[1.0, 1.0, 1.0], 6);
    good.check().unwrap();
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        plan.check().unwrap_err().to_string()
    };
    for (change, says) in [
        (&(|p: &mut Plan| p.stages[1].layers = 3..4) as &dyn Fn(&mut Plan), "layers 2..3 are on no stage"),
        (&|p| p.stages[1].layers = 1..4, "layer 1 is on stages 0 and 1"),
        (&|p| p.stages[2].layers = 4..7, "the stages end at layer 7, the model at layer 6"),
        (&|p| p.stages[2].layers = 4..5, "the stages end at layer 5"),
        (&|p| p.stages[1].layers = 2..2, "stage 1 holds no layers (2..2)"),
        (&|p| p.stages[1].layers = Range { start: 4, end: 2 }, "stage 1 holds no layers (4..2)"),
        (&|p| p.stages.clear(), "the stages end at layer 0"),
        (&|p| p.stages[0].device = 1, "stage 0 is on device 0202020202, not on the head 0101010101"),
        (&|p| p.stages[1].device = 0, "stages 0 and 1 are both on device 0101010101"),
        (&|p| p.stages[1].device = 7, "stage 1 is on device 7 of 3"),
        (&|p| p.devices[1].key = [1; 32], "device 0101010101 is listed twice"),
        (&|p| p.devices.swap(1, 2), "device 0202020202 stands out of order"),
        (&|p| p.devices.clear(), "a plan over 0 devices"),
        (&|p| p.layers = 0, "a plan over 0 layers"),
        (&|p| p.layers = 256, "a plan over 256 layers"),
        (&|p| p.room.ctx = 0, "room for positions is 0"),
    ] {
        let error = with(change);
        assert!(error.contains(says), "{error}: {says}");
    }
}

#[test]
fn a_device_compares_the_plan_with_what_it_heard() {
    let plan = plan(&[4.0, 2.0, 2.0], 8);
    let heard = plan.devices.clone();
    plan.agree(&heard, &demand(8)).unwrap();
    let with = |change: &dyn Fn(&mut Vec<Device>)| {
        let mut heard = heard.clone();
        change(&mut heard);
        plan.agree(&heard, &demand(8)).unwrap_err().to_string()
    };
    assert_eq!(
        with(&|h| h[2].capacity = 7.0),
        "the plan was made with the capacity 2 of device 0303030303; this device heard 7"
    );
    assert!(with(&|h| h[1].memory = 1).contains("the memory limit 18446744073709551615 of device 0202020202"));
    assert!(with(&|h| h.truncate(2)).contains("weighs device 0303030303, which this device has not heard of"));
    assert!(with(&|h| h.push(device(9, 1.0))).contains("leaves out device 0909090909"));
    let mut moved = plan.clone();
    (moved.stages[0].layers, moved.stages[1].layers) = (0..3, 3..6);
    assert_eq!(
        moved.agree(&heard, &demand(8)).unwrap_err().to_string(),
        "stage 0 is layers 0..3 on 0101010101 in the plan; the same figures give layers 0..4 on 0101010101"
    );
}

proptest! {
    #[test]
    fn every_layer_has_one_place(
        capacities in prop::collection::vec(prop::num::f64::ANY, 1..12),
        layers in 1_usize..=255,
        memory in prop::collection::vec(prop::option::of(0_u64..2000), 12),
    ) {
        let devices: Vec<Device> = (1..).zip(&capacities).zip(&memory).map(|((name, capacity), memory)| Device {
            key: [name; 32], capacity: *capacity, memory: memory.unwrap_or(u64::MAX),
        }).collect();
        let demand = Demand { ends: 3, layers: (0..layers as u64).map(|i| 1 + i % 7).collect() };
        match Plan::of(devices[0], &devices[1..], &demand, ROOM) {
            Ok(plan) => {
                prop_assert_eq!(plan.check(), Ok(()));
                prop_assert_eq!(plan.agree(&devices, &demand), Ok(()));
                for stage in &plan.stages {
                    let own = &demand.layers[stage.layers.start as usize..stage.layers.end as usize];
                    let ends = if stage.device == 0 { demand.ends } else { 0 };
                    prop_assert!(own.iter().sum::<u64>() + ends <= plan.devices[stage.device].memory);
                }
            }
            Err(PlanError::Ends { .. }) => prop_assert!(devices[0].memory < 3),
            Err(PlanError::Memory { .. }) => {
                // No contiguous placement in this order exists: filling each device in turn does not reach the end.
                let mut next = 0;
                for (i, device) in devices.iter().enumerate() {
                    let mut left = device.memory - if i == 0 { 3 } else { 0 };
                    while next < layers && demand.layers[next] <= left {
                        left -= demand.layers[next];
                        next += 1;
                    }
                }
                prop_assert!(next < layers);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn shares_stay_within_one_of_their_quota(
        weights in prop::collection::vec(1_u32..1000, 1..9), total in 1_u32..300,
    ) {
        let capacities: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
        let shares = largest_remainder(total, &capacities, &vec![total; weights.len()]);
        prop_assert_eq!(shares.iter().sum::<u32>(), total);
        let sum: f64 = capacities.iter().sum();
        for (share, capacity) in shares.iter().zip(&capacities) {
            let quota = f64::from(total) * capacity / sum;
            prop_assert!((f64::from(*share) - quota).abs() < 1.0, "{} of {}", share, quota);
        }
    }
}
