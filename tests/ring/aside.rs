//! Processes beside the ring, which run in a namespace: this test binary again, told by its environment what to be.

use super::forward::{Forwarder, Weather};
use super::kit::{Running, Space, within};
use crate::hub::{Server, Site};
use iroh_relay::server::{RelayConfig, ServerConfig};
use std::io::Read;
use std::net::SocketAddr;
use std::process::Command;

const ENV: &str = "WORDLINE_TEST_ASIDE";

/// This binary as a process of that kind.
pub(super) fn start(space: Option<&Space>, what: &str) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "ring::aside::aside", "--ignored", "--nocapture"]).env(ENV, what);
    Running::start(within(space, command))
}

/// A Hub with the files of a fixture; the process prints `endpoint URL`, and at the end of its input what it was asked for.
pub(super) fn hub(space: Option<&Space>, fixture: &str, token: Option<&str>) -> (Running, String) {
    let what = format!("hub\n{}\n{}", crate::support::path(fixture).display(), token.unwrap_or_default());
    let server = start(space, &what);
    let endpoint = server.prints("endpoint ").expect("an endpoint");
    (server, endpoint)
}

/// A forwarder in a namespace: `pairs` of where it listens and where to it forwards.
pub(super) fn forwarder(space: &Space, pairs: &[(String, String)], weather: &Weather) -> Running {
    let lines: Vec<String> = pairs.iter().map(|(from, to)| format!("{from} {to}")).collect();
    let forwarder = start(Some(space), &format!("forward\n{weather}\n{}", lines.join("\n")));
    forwarder.prints("ready").expect("a forwarder");
    forwarder
}

/// A relay in a namespace, as the program `iroh-relay` is one.
pub(super) fn relay(space: &Space, listen: &str) -> Running {
    let relay = start(Some(space), &format!("relay\n{listen}"));
    relay.prints("ready").expect("a relay");
    relay
}

#[test]
#[ignore = "not a test: the processes that other tests start beside a ring"]
fn aside() {
    let Ok(what) = std::env::var(ENV) else { return };
    let mut lines = what.lines();
    match lines.next() {
        Some("hub") => {
            let site = Site::of(lines.next().unwrap().as_ref());
            let token = lines.next().filter(|token| !token.is_empty()).map(str::to_owned);
            let server = Server::new(Site { token, ..site });
            println!("endpoint {}", server.endpoint);
            wait();
            for seen in server.seen() {
                let range = seen.range.map_or("whole".to_owned(), |range| format!("{} {}", range.start, range.end));
                println!("seen {} {} {range}", seen.authorization.unwrap_or_else(|| "-".to_owned()), seen.file);
            }
        }
        Some("forward") => {
            let weather = lines.next().unwrap().parse().unwrap();
            let pair = |line: &str| {
                let (from, to) = line.split_once(' ').unwrap();
                (from.parse().unwrap(), to.parse().unwrap())
            };
            let forwarder = Forwarder::start(&lines.map(pair).collect::<Vec<_>>(), weather);
            println!("ready");
            wait();
            println!("tally {}", forwarder.tally());
        }
        Some("relay") => {
            let mut config = ServerConfig::default();
            config.relay = Some(RelayConfig::new(lines.next().unwrap().parse::<SocketAddr>().unwrap()));
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let relay = runtime.block_on(iroh_relay::server::Server::spawn(config)).unwrap();
            println!("ready");
            wait();
            drop(relay);
        }
        _ => panic!("{what}"),
    }
}

/// Until whoever started this process closes its input.
fn wait() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
