//! Hosts in namespaces of their own: on one wire, and behind a network that delays, drops, reorders and doubles.

use super::forward::Weather;
use super::kit::{ASK, PATIENCE, Ring, Running, Setting, Space, alone, failed, stage_command};
use crate::support::path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use wordline::pipeline::link::Ticket;

/// Hosts `10.77.i.1`, and a place in the middle that each has a wire to.
struct Hosts {
    middle: Space,
    hosts: Vec<Space>,
}

impl Hosts {
    /// None where the system does not allow it, which is said.
    fn new(count: usize, bridged: bool) -> Option<Self> {
        let made = Self::make(count, bridged);
        if made.is_none() {
            println!("skipped: no namespaces with wires between them are to be had here");
        }
        made
    }

    fn make(count: usize, bridged: bool) -> Option<Self> {
        let middle = Space::new()?;
        let hosts = (0..count).map(|_| Space::new()).collect::<Option<Vec<_>>>()?;
        if bridged && !(middle.tool("ip link add bridge type bridge") && middle.tool("ip link set bridge up")) {
            return None;
        }
        for (i, host) in hosts.iter().enumerate() {
            let link = format!("ip link add w{i} type veth peer name eth0 netns {}", host.id());
            let own = format!(
                "ip addr add 10.77.{}.1/{} dev eth0",
                if bridged { 0 } else { i },
                if bridged { 16 } else { 24 }
            );
            // On one wire all are in one network, by their last figure.
            let own = if bridged { own.replace("10.77.0.1", &Self::at(i, true)) } else { own };
            let ends = if bridged {
                format!("ip link set w{i} master bridge")
            } else {
                format!("ip addr add 10.77.{i}.2/24 dev w{i}")
            };
            let up = middle.tool(&link) && middle.tool(&ends) && middle.tool(&format!("ip link set w{i} up"));
            if !(up && host.tool(&own) && host.tool("ip link set eth0 up")) {
                return None;
            }
        }
        Some(Self { middle, hosts })
    }

    /// A host's address.
    fn at(host: usize, bridged: bool) -> String {
        if bridged { format!("10.77.0.{}", host + 1) } else { format!("10.77.{host}.1") }
    }

    fn ring(&self, bridged: bool, setting: &Setting<'_>) -> Ring {
        let listen = format!("{}:4400", Self::at(0, bridged));
        Ring::with(&Setting { listen: &listen, space: Some(&self.hosts[0]), ..*setting })
    }

    fn stage(&self, host: usize, bridged: bool, join: &str, more: &[&str]) -> Running {
        let command = stage_command(join, &format!("{}:4400", Self::at(host, bridged)), more);
        Running::start(self.hosts[host].enter(&command))
    }
}

#[test]
fn hosts_on_a_wire_write_what_one_machine_writes() {
    let Some(hosts) = Hosts::new(4, true) else { return };
    let expected = alone("demo");
    let more = [&ASK[..], &["--check", "--audit", "1"]].concat();
    let ring = hosts.ring(true, &Setting { stages: 3, more: &more, ..Setting::default() });
    let stages: Vec<Running> = (1..4).map(|host| hosts.stage(host, true, &ring.join(), &[])).collect();
    let (report, err) = ring.report();
    assert_eq!((&report["ids"], &report["check"]["equal"]), (&expected["ids"], &true.into()), "{err}");
    assert!(
        report["stages"].as_array().unwrap()[1..]
            .iter()
            .all(|s| s["relayed"] == false && s["rtt_ms"].as_f64().is_some())
    );
    for stage in stages {
        let ended = stage.output();
        assert!(ended.status.success(), "{}", ended.err);
    }
}

#[test]
fn every_failure_has_its_name_between_hosts_too() {
    let Some(hosts) = Hosts::new(3, true) else { return };
    let expected = alone("demo");
    let ring = |more: &[&str], stages: usize| hosts.ring(true, &Setting { stages, more, ..Setting::default() });
    let stage = |host: usize, join: &str, more: &[&str]| hosts.stage(host, true, join, more);

    let waits = ring(&ASK, 1);
    let text = std::fs::read_to_string(waits.ticket()).unwrap();
    let mut wrong: Ticket = text.parse().unwrap();
    wrong.secret[0] ^= 1;
    failed(stage(1, &wrong.to_string(), &[]), "its ticket is not this head's");
    let mut wrong: Ticket = text.parse().unwrap();
    // A key, but not the head's: whoever is there cannot answer for it.
    wrong.head = wordline::pipeline::link::Identity::fresh().key();
    let asked = Instant::now();
    failed(stage(1, &wrong.to_string(), &[]), "joining: the head is not reached");
    // A host that is not there.
    wrong = text.parse().unwrap();
    wrong.addresses = vec!["10.77.0.99:4400".into()];
    failed(stage(1, &wrong.to_string(), &[]), "no answer from");
    println!("two heads that do not answer: {:.1} s", asked.elapsed().as_secs_f64());
    drop(waits);

    let other = path("given/qwen3").display().to_string();
    let storyteller = path("storyteller-llama").display().to_string();
    let setting = Setting { model: &storyteller, ..Setting::default() };
    let models = hosts.ring(true, &setting);
    let wrong = stage(1, &models.join(), &["--model", &other]);
    failed(models.head, "stage 1 (");
    failed(wrong, "another model or another revision");

    for (fault, named) in [("kill@stage2:tok4", "no sign of life"), ("corrupt@stage1:tok4", "corrupted on the way")] {
        let ring = ring(&ASK, 2);
        let stages = [1, 2].map(|host| stage(host, &ring.join(), &["--fault", fault]));
        let (report, err) = ring.report();
        assert_eq!(report["ids"], expected["ids"], "{fault}: {err}");
        assert!(report["losses"].to_string().contains(named), "{fault}: {report}");
        drop(stages);
    }

    // The wire itself is cut in the middle of an answer: no process ends, and nobody says a word.
    let ring = ring(&ASK, 2);
    let stages = [1, 2].map(|host| stage(host, &ring.join(), &["--fault", "slow@stage2:tok5"]));
    let begun = Instant::now();
    let slow = loop {
        if let Some(slow) = stages.iter().position(|stage| stage.has_said("the fault that was asked for: slow")) {
            break slow;
        }
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(hosts.middle.tool(&format!("ip link set w{} down", slow + 1)));
    let (report, err) = ring.report();
    assert_eq!(report["ids"], expected["ids"], "{err}");
    assert!(report["losses"].to_string().contains("stage 2 ("), "{report}");
    assert!(hosts.middle.tool(&format!("ip link set w{} up", slow + 1)));
}

/// Rings behind forwarders: each host sees the middle alone, which forwards by its weather.
#[test]
fn a_network_that_delays_drops_reorders_and_doubles_changes_no_bit() {
    static SEEDS: AtomicUsize = AtomicUsize::new(0);
    let expected = alone("demo");
    let weathers = [
        Weather { seed: 0, delay: (200, 4000), dropped: 30, doubled: 30 },
        Weather { seed: 0, delay: (5000, 12_000), dropped: 0, doubled: 100 },
    ];
    for weather in weathers {
        let Some(hosts) = Hosts::new(3, false) else { return };
        let weather = Weather { seed: 1 + SEEDS.fetch_add(1, Ordering::Relaxed) as u64, ..weather };
        // On the wire of host i the middle listens for every other host j at port 5000 + j.
        let mut pairs = Vec::new();
        for i in 0..3 {
            let others = (0..3).filter(|j| *j != i);
            pairs.extend(others.map(|j| (format!("10.77.{i}.2:{}", 5000 + j), format!("10.77.{j}.1:4400"))));
        }
        let mut forwarder = super::aside::forwarder(&hosts.middle, &pairs, &weather);
        let announced: Vec<String> = (0..3).map(|i| format!("10.77.{i}.2")).collect();
        let announce = |own: usize| -> Vec<String> {
            let from = (0..3).filter(|host| *host != own);
            from.flat_map(|host| ["--announce".to_owned(), format!("{}:{}", announced[host], 5000 + own)]).collect()
        };
        let own = announce(0);
        let more: Vec<&str> = ASK.iter().copied().chain(["--check"]).chain(own.iter().map(String::as_str)).collect();
        let ring = hosts.ring(false, &Setting { stages: 2, more: &more, ..Setting::default() });
        let stages: Vec<Running> = (1..3)
            .map(|host| {
                let own = announce(host);
                let own: Vec<&str> = own.iter().map(String::as_str).collect();
                hosts.stage(host, false, &ring.join(), &own)
            })
            .collect();
        let (report, err) = ring.report();
        assert_eq!((&report["ids"], &report["check"]["equal"]), (&expected["ids"], &true.into()), "{weather}: {err}");
        assert_eq!(report["losses"], serde_json::json!([]), "{weather}: {err}");
        for stage in stages {
            let ended = stage.output();
            assert!(ended.status.success(), "{weather}: {}", ended.err);
        }
        forwarder.close_input();
        let told = forwarder.output().out;
        let tally = told.lines().find_map(|line| line.strip_prefix("tally ")).unwrap();
        let counts: Vec<u64> = tally.split(' ').map(|count| count.parse().unwrap()).collect();
        println!(
            "{weather}: {counts:?} datagrams taken, dropped, doubled, overtaken; lap {}",
            report["laps"]["lap_ms"]
        );
        assert!(
            counts[0] > 100 && counts[2] > 0 && counts[3] > 0 && (counts[1] > 0) == (weather.dropped > 0),
            "{counts:?}"
        );
    }
}

/// Of three hosts behind forwarders two are far from each other: that hop, and no other one, takes long, by clocks that nobody
/// has set.
#[test]
fn every_hop_is_told_by_itself() {
    const FAR: u64 = 60;
    let Some(hosts) = Hosts::new(3, false) else { return };
    let weather = |ms: u64| Weather { seed: 7, delay: (1000 * ms, 1000 * ms + 200), dropped: 0, doubled: 0 };
    let way = |from: usize, to: usize| (format!("10.77.{from}.2:{}", 5000 + to), format!("10.77.{to}.1:4400"));
    let (near, far) = ([way(0, 1), way(1, 0), way(0, 2), way(2, 0)], [way(1, 2), way(2, 1)]);
    let forwarders =
        [(&near[..], 0), (&far[..], FAR)].map(|(ways, ms)| super::aside::forwarder(&hosts.middle, ways, &weather(ms)));
    let announce = |own: usize| -> Vec<String> {
        let from = (0..3).filter(|host| *host != own);
        from.flat_map(|host| ["--announce".to_owned(), format!("10.77.{host}.2:{}", 5000 + own)]).collect()
    };
    let texts = |own: &[String]| -> Vec<String> { ASK.iter().map(|a| a.to_string()).chain(own.to_vec()).collect() };
    let more = texts(&announce(0));
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let ring = hosts.ring(false, &Setting { stages: 2, more: &more, ..Setting::default() });
    let stages = [1, 2].map(|host| {
        let own = announce(host);
        hosts.stage(host, false, &ring.join(), &own.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let (report, err) = ring.report();
    let figure =
        |stage: usize, name: &str| report["stages"][stage][name].as_f64().unwrap_or_else(|| panic!("{report}"));
    let hops = [0, 1, 2].map(|stage| figure(stage, "hop_ms"));
    println!("hops of {hops:?} ms, {err}");
    let far = FAR as f64;
    assert!(hops[1] > 0.95 * far && hops[0] < 0.5 * far && hops[2] < 0.5 * far, "{hops:?}: {report}");
    assert!(figure(1, "hop_rtt_ms") > 1.9 * far && figure(1, "rtt_ms") < far, "{report}");
    assert!(figure(0, "hop_rtt_ms") < far && figure(2, "hop_rtt_ms") < far, "{report}");
    for stage in stages {
        let ended = stage.output();
        assert!(ended.status.success(), "{}", ended.err);
    }
    drop(forwarders);
}

#[test]
fn on_request_devices_find_each_other_on_a_local_network() {
    let Some(hosts) = Hosts::new(3, true) else { return };
    for host in &hosts.hosts {
        assert!(host.tool("ip route add 224.0.0.0/4 dev eth0"));
    }
    let expected = alone("demo");
    let more = [&ASK[..], &["--mdns"]].concat();
    let ring = hosts.ring(true, &Setting { stages: 2, more: &more, ..Setting::default() });
    // The head has moved since the ticket was written: nobody is at its address.
    let mut ticket: Ticket = std::fs::read_to_string(ring.ticket()).unwrap().parse().unwrap();
    ticket.addresses = vec!["10.77.0.99:4400".into()];
    let stages = [1, 2].map(|host| hosts.stage(host, true, &ticket.to_string(), &["--mdns"]));
    let (report, err) = ring.report();
    assert_eq!(report["ids"], expected["ids"], "{err}");
    for stage in stages {
        let ended = stage.output();
        assert!(ended.status.success(), "{}", ended.err);
    }
    // Without it nobody is asked.
    let ring = hosts.ring(true, &Setting { more: &more, ..Setting::default() });
    failed(hosts.stage(1, true, &ticket.to_string(), &[]), "joining: the head is not reached");
    drop(ring);
}

#[test]
fn hosts_that_do_not_reach_each_other_go_through_a_relay_of_ones_own() {
    const RELAY: &str = "http://10.77.99.1:3340";
    let Some(hosts) = Hosts::new(3, false) else { return };
    // An address of the middle's own, to which each host has a way. It forwards nothing.
    assert!(hosts.middle.tool("ip addr add 10.77.99.1/32 dev lo"));
    for (i, host) in hosts.hosts.iter().enumerate() {
        assert!(host.tool(&format!("ip route add 10.77.99.1 via 10.77.{i}.2")));
    }
    let relay = super::aside::relay(&hosts.middle, RELAY.trim_start_matches("http://"));
    let expected = alone("demo");
    let more = [&ASK[..], &["--relay", RELAY]].concat();
    let ring = hosts.ring(false, &Setting { stages: 2, more: &more, ..Setting::default() });
    let stages = [1, 2].map(|host| hosts.stage(host, false, &ring.join(), &["--relay", RELAY]));
    let (report, err) = ring.report();
    assert_eq!(report["ids"], expected["ids"], "{err}");
    assert!(report["stages"].as_array().unwrap()[1..].iter().all(|stage| stage["relayed"] == true), "{report}");
    for stage in stages {
        let ended = stage.output();
        assert!(ended.status.success(), "{}", ended.err);
    }
    drop(relay);
}
