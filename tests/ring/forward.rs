//! A UDP forwarder with weather: it delays, drops, reorders and doubles what it forwards, by a seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What happens to datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weather {
    pub(super) seed: u64,
    /// Each waits so many microseconds at least, and at most; those that wait less overtake.
    pub(super) delay: (u64, u64),
    /// Of a thousand, so many are dropped.
    pub(super) dropped: u64,
    /// Of a thousand, so many come twice.
    pub(super) doubled: u64,
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, delay: (least, most), dropped, doubled } = self;
        write!(f, "{seed} {least} {most} {dropped} {doubled}")
    }
}

impl FromStr for Weather {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let figures: Option<Vec<u64>> = text.split(' ').map(|figure| figure.parse().ok()).collect();
        match figures.as_deref() {
            Some(&[seed, least, most, dropped, doubled]) => Ok(Self { seed, delay: (least, most), dropped, doubled }),
            _ => Err(format!("'{text}' is no weather")),
        }
    }
}

/// What happens to each datagram in turn.
#[derive(Debug)]
struct Fate {
    weather: Weather,
    state: u64,
}

impl Fate {
    fn draw(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    /// When copies of the next one go out, from now on; none: it is dropped.
    fn next(&mut self) -> Vec<Duration> {
        let Weather { delay: (least, most), dropped, doubled, .. } = self.weather;
        let count = match self.draw(1000) {
            fate if fate < dropped => 0,
            fate if fate < dropped + doubled => 2,
            _ => 1,
        };
        (0..count).map(|_| Duration::from_micros(least + self.draw(most - least + 1))).collect()
    }
}

#[derive(Debug, Default)]
struct Tally {
    taken: AtomicU64,
    dropped: AtomicU64,
    doubled: AtomicU64,
    overtaken: AtomicU64,
}

/// A datagram that waits: when it is due, its number, where it goes out and to whom.
struct Due {
    at: Instant,
    number: u64,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// What all threads of a forwarder share.
struct Desk {
    fate: Mutex<Fate>,
    tally: Tally,
    queue: Sender<Due>,
}

impl Desk {
    fn take(&self, socket: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8]) {
        let number = self.tally.taken.fetch_add(1, Ordering::Relaxed);
        let fates = self.fate.lock().unwrap().next();
        match fates.len() {
            0 => _ = self.tally.dropped.fetch_add(1, Ordering::Relaxed),
            1 => {}
            _ => _ = self.tally.doubled.fetch_add(1, Ordering::Relaxed),
        }
        for delay in fates {
            let at = Instant::now() + delay;
            let _ = self.queue.send(Due { at, number, socket: Arc::clone(socket), to, bytes: bytes.to_vec() });
        }
    }
}

/// A forwarder at work.
pub(super) struct Forwarder(Arc<Desk>);

impl Forwarder {
    /// Forward each pair: what comes to the first address goes to the second, and answers go back.
    pub(super) fn start(pairs: &[(SocketAddr, SocketAddr)], weather: Weather) -> Self {
        let (queue, due) = channel();
        let fate = Mutex::new(Fate { weather, state: weather.seed });
        let desk = Arc::new(Desk { fate, tally: Tally::default(), queue });
        let clock = Arc::clone(&desk);
        std::thread::spawn(move || send(&due, &clock.tally));
        for (listen, target) in pairs.iter().copied() {
            let (desk, socket) = (Arc::clone(&desk), Arc::new(UdpSocket::bind(listen).unwrap()));
            std::thread::spawn(move || forward(&desk, &socket, target));
        }
        Self(desk)
    }

    pub(super) fn tally(&self) -> String {
        let Tally { taken, dropped, doubled, overtaken } = &self.0.tally;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!("{} {} {} {}", count(taken), count(dropped), count(doubled), count(overtaken))
    }
}

/// Whatever comes goes on, from a socket for each client, which takes the answers too.
fn forward(desk: &Arc<Desk>, socket: &Arc<UdpSocket>, target: SocketAddr) {
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut bytes = vec![0; 65_536];
    loop {
        let Ok((count, client)) = socket.recv_from(&mut bytes) else { continue };
        let upstream = clients.entry(client).or_insert_with(|| {
            let upstream = Arc::new(UdpSocket::bind((socket_of(target), 0)).unwrap());
            let (desk, back, answers) = (Arc::clone(desk), Arc::clone(socket), Arc::clone(&upstream));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 65_536];
                loop {
                    // An answer of "nobody listens there" comes as an error; the next one may not be.
                    if let Ok((count, _)) = answers.recv_from(&mut bytes) {
                        desk.take(&back, client, &bytes[..count]);
                    }
                }
            });
            upstream
        });
        desk.take(upstream, target, &bytes[..count]);
    }
}

fn socket_of(target: SocketAddr) -> &'static str {
    if target.is_ipv4() { "0.0.0.0" } else { "::" }
}

/// Send what is due, in the order in which it is.
fn send(queue: &Receiver<Due>, tally: &Tally) {
    let mut waiting: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    let mut last: HashMap<SocketAddr, u64> = HashMap::new();
    loop {
        let wait = waiting
            .peek()
            .map_or(Duration::from_secs(1), |Reverse(due)| due.at.saturating_duration_since(Instant::now()));
        match queue.recv_timeout(wait) {
            Ok(due) => waiting.push(Reverse(due)),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while waiting.peek().is_some_and(|Reverse(due)| due.at <= Instant::now()) {
            let Some(Reverse(due)) = waiting.pop() else { break };
            let before = last.insert(due.to, due.number).unwrap_or(0);
            if due.number < before {
                tally.overtaken.fetch_add(1, Ordering::Relaxed);
                last.insert(due.to, before);
            }
            let _ = due.socket.send_to(&due.bytes, due.to);
        }
    }
}

#[test]
fn weather_is_a_function_of_its_seed_and_keeps_its_shares() {
    let weather = Weather { seed: 7, delay: (100, 900), dropped: 50, doubled: 30 };
    assert_eq!(weather.to_string().parse(), Ok(weather));
    let fates = |weather: Weather| {
        let mut fate = Fate { weather, state: weather.seed };
        (0..20_000).map(|_| fate.next()).collect::<Vec<_>>()
    };
    let (first, again, other) = (fates(weather), fates(weather), fates(Weather { seed: 8, ..weather }));
    assert!(first == again && first != other);
    let share = |copies: usize| first.iter().filter(|fate| fate.len() == copies).count() as f64 / 20_000.0;
    assert!((share(0) - 0.05).abs() < 0.01 && (share(2) - 0.03).abs() < 0.01, "{} {}", share(0), share(2));
    let all = first.iter().flatten();
    assert!(all.clone().all(|d| (100..=900).contains(&d.as_micros())) && all.clone().any(|d| d.as_micros() > 800));
}

#[test]
fn what_is_forwarded_comes_back_from_where_it_was_sent() {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = probe.local_addr().unwrap();
    drop(probe);
    let weather = Weather { seed: 1, delay: (0, 2000), dropped: 0, doubled: 0 };
    let forwarder = Forwarder::start(&[(listen, b.local_addr().unwrap())], weather);
    for timeout in [&a, &b] {
        timeout.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    let mut bytes = [0; 8];
    for number in 0..20_u8 {
        a.send_to(&[number], listen).unwrap();
        let (_, from) = b.recv_from(&mut bytes).unwrap();
        b.send_to(&[number ^ 0xff], from).unwrap();
        assert_eq!(a.recv_from(&mut bytes).unwrap(), (1, listen));
        assert_eq!(bytes[0], number ^ 0xff);
    }
    assert!(forwarder.tally().starts_with("40 0 0 "), "{}", forwarder.tally());
}
