use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_part_runs_once_for_any_number_of_members() {
    for members in [1, 2, 3, 7] {
        let mut team = Team::eager(members);
        for parts in [0, 1, 2, 5, 64] {
            let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            team.run(0, parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{members} members, {parts} parts");
        }
    }
}

#[test]
fn chunks_cover_the_data() {
    let mut team = Team::eager(2);
    let mut data = vec![0_usize; 103];
    team.chunks(0, &mut data, 10, &|index, chunk| chunk.iter_mut().for_each(|v| *v += index + 1));
    assert!(data.iter().enumerate().all(|(i, v)| *v == i / 10 + 1));
}

#[test]
fn each_member_has_its_own() {
    let mut team = Team::eager(3);
    let mut own = [0_usize; 3];
    team.run_with(0, 1000, &mut own, &|own, _| *own += 1);
    assert_eq!(own.iter().sum::<usize>(), 1000);
}

#[test]
fn members_work_at_the_same_time() {
    let mut team = Team::eager(2);
    let meet = std::sync::Barrier::new(2);
    for _ in 0..100 {
        // One thread alone would wait for itself for ever.
        team.run(0, 2, &|_| {
            meet.wait();
        });
    }
}

#[test]
fn little_work_stays_with_the_caller() {
    let mut team = Team::new(2);
    let caller = std::thread::current().id();
    team.run(10, 100, &|_| assert_eq!(std::thread::current().id(), caller));
}

#[test]
fn rounds_follow_one_another_and_a_sleeping_member_wakes() {
    let mut team = Team::eager(2);
    let total = AtomicUsize::new(0);
    for round in 0..2000 {
        if round % 500 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        team.run(0, 2, &|part| {
            total.fetch_add(part + 1, Ordering::Relaxed);
        });
    }
    assert_eq!(total.load(Ordering::Relaxed), 6000);
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_goes_on() {
    let mut team = Team::eager(2);
    for bad in [0, 1] {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            team.run(0, 2, &|part| assert_ne!(part, bad, "wanted"));
        }));
        assert!(caught.is_err());
    }
    let total = AtomicUsize::new(0);
    team.run(0, 2, &|_| {
        total.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(total.load(Ordering::Relaxed), 2);
}

#[test]
fn ranges_are_every_part_once_and_the_first_share_goes_front_to_back() {
    for members in [1, 2, 3, 7] {
        let mut team = Team::eager(members);
        let mut own = vec![Vec::new(); team.members()];
        for (parts, most) in [(0, 4), (1, 4), (2, 1), (64, 3), (1000, 1000)] {
            own.iter_mut().for_each(Vec::clear);
            team.expect(&vec![0; 8 * parts], 8, 64);
            team.ranges(0, parts, most, &mut own, &|own, range| own.push(range));
            let mut all: Vec<_> = own.iter().flatten().cloned().collect();
            assert!(all.iter().all(|range| !range.is_empty() && range.len() <= most), "{all:?}");
            all.sort_by_key(|range| range.start);
            let ends = all.iter().map(|range| range.end);
            let starts = all.iter().map(|range| range.start).chain([parts]);
            assert!([0].into_iter().chain(ends).eq(starts), "{members} members, {parts} parts: {all:?}");
            let first = own[0].iter().take_while(|range| range.end <= parts.div_ceil(members));
            assert!(first.map(|range| range.start).is_sorted(), "{own:?}");
        }
    }
}

#[test]
fn a_member_that_is_held_up_is_helped() {
    let mut team = Team::eager(2);
    let done = AtomicUsize::new(0);
    let mut own = [(); 2];
    // Whoever takes part 0 waits for all the others: half of them are its own.
    team.ranges(0, 100, 1, &mut own, &|(), range| {
        while range.start == 0 && done.load(Ordering::Acquire) < 99 {
            std::hint::spin_loop();
        }
        done.fetch_add(1, Ordering::Release);
    });
    assert_eq!(done.load(Ordering::Relaxed), 100);
}
