//! `Quic`: links over QUIC by iroh. A peer is dialled by its public key, which is its TLS key: whoever answers for it has it.
//!
//! No relay, DNS or discovery takes part unless it was asked for. A link is one connection with one long-lived stream;
//! a message is its length (u32, little-endian) and its bytes, and one without bytes is a greeting. Keep-alives go out twice a
//! second, so a peer that died or froze is lost within three seconds.

use super::identity::Identity;
use super::keeper::{Keeper, turn};
use super::{Link, LinkEvent, Reach};
use crate::pipeline::plan::{Key, short};
use crate::pipeline::wire::MAX_MESSAGE;
use iroh::endpoint::{Connection, IdleTimeout, QuicTransportConfig, RecvStream, SendStream, VarInt, presets};
use iroh::{Endpoint, EndpointAddr, PublicKey, RelayMode, RelayUrl, TransportAddr};
use iroh_mdns_address_lookup::MdnsAddressLookup;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc as tasks};
use tokio::time::timeout;

/// Name of the protocol: another one is not answered.
const ALPN: &[u8] = b"wordline/pipeline/1";
/// A peer that is not heard for this long is lost.
const IDLE: Duration = Duration::from_secs(3);
/// How often a link says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// How long dialling may take.
const DIAL: Duration = Duration::from_secs(4);
/// How long the end of a link waits for what was sent.
const LINGER: Duration = Duration::from_millis(700);
/// Name under which devices look for each other on a local network: no other program's.
const MDNS_SERVICE: &str = "wordline";
/// How often they do, as long as few are there.
const MDNS_CADENCE: Duration = Duration::from_millis(700);
/// Turns that they get to bring what is at the socket.
const GLANCE: usize = 3;
/// An empty message, with which whoever dials begins: a stream is not there for the other side before something is on it, and
/// this side's owner may compute for longer than that one waits.
const GREETING: [u8; 4] = [0; 4];
/// Bytes of one peer's messages that may wait to be taken; past them it is not read on.
const WAITING: usize = 2 * MAX_MESSAGE;
/// What a message counts for at least: more than it takes to keep an empty one.
const LEAST: usize = 512;

/// How links are made.
#[derive(Clone, Debug, Default)]
pub struct QuicConfig {
    /// Where to listen; none: any free port of every interface.
    pub listen: Option<SocketAddr>,
    /// Relays of one's own, by URL.
    pub relays: Vec<String>,
    /// Tell this device's addresses on the local network by multicast DNS, and ask for those of others there.
    pub mdns: bool,
}

/// Why there are no links.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The runtime could not be started.
    #[error("the link's threads: {0}")]
    Runtime(#[from] std::io::Error),
    /// The socket could not be had.
    #[error("cannot listen on {listen}: {reason}")]
    Bind {
        /// The address.
        listen: String,
        /// Why.
        reason: String,
    },
    /// A relay's URL is none.
    #[error("the relay '{url}' is no URL: {reason}")]
    Relay {
        /// As given.
        url: String,
        /// Why.
        reason: String,
    },
}

/// Links over QUIC.
pub struct Quic {
    keeper: Keeper,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    events: tasks::UnboundedReceiver<(LinkEvent, Option<OwnedSemaphorePermit>)>,
    /// When to be awake.
    awake: Option<Range<Instant>>,
    /// Addresses of others are asked for on the local network.
    mdns: bool,
}

struct Shared {
    peers: Mutex<HashMap<Key, Peer>>,
    events: tasks::UnboundedSender<(LinkEvent, Option<OwnedSemaphorePermit>)>,
}

struct Peer {
    connection: Connection,
    /// Messages with their lengths in front.
    outbox: tasks::UnboundedSender<Vec<u8>>,
}

impl std::fmt::Debug for Quic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quic").field("key", &short(&self.key())).finish_non_exhaustive()
    }
}

impl Quic {
    /// Links under this identity.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn bind(identity: &Identity, config: &QuicConfig) -> Result<Self, LinkError> {
        let keeper = Keeper::new(tokio::runtime::Builder::new_current_thread().enable_all().build()?)?;
        let relays = config.relays.iter().map(|url| {
            let parsed = url.parse::<RelayUrl>();
            parsed.map_err(|e| LinkError::Relay { url: url.clone(), reason: e.to_string() })
        });
        let relays = relays.collect::<Result<Vec<_>, _>>()?;
        let mode = if relays.is_empty() { RelayMode::Disabled } else { RelayMode::custom(relays) };
        let listen = config.listen.map_or_else(|| "0.0.0.0:0".to_owned(), |addr| addr.to_string());
        let failed = |reason: String| LinkError::Bind { listen: listen.clone(), reason };
        let transport = QuicTransportConfig::builder()
            .max_idle_timeout(IdleTimeout::try_from(IDLE).ok())
            .keep_alive_interval(KEEP_ALIVE)
            .default_path_max_idle_timeout(IDLE)
            .default_path_keep_alive_interval(KEEP_ALIVE)
            .build();
        let endpoint = keeper.drive(async {
            let mut builder = Endpoint::builder(presets::Minimal);
            if config.mdns {
                let lookup = MdnsAddressLookup::builder().service_name(MDNS_SERVICE).discovery_cadence(MDNS_CADENCE);
                builder = builder.address_lookup(lookup);
            }
            builder
                .secret_key(identity.secret.clone())
                .alpns(vec![ALPN.to_vec()])
                .relay_mode(mode)
                .transport_config(transport)
                .clear_ip_transports()
                .bind_addr(listen.as_str())
                .map_err(|e| failed(e.to_string()))?
                .bind()
                .await
                .map_err(|e| failed(format!("{e:#}")))
        });
        let endpoint = endpoint.unwrap_or_else(|| Err(failed("the link has ended".to_owned())))?;
        if !config.relays.is_empty() {
            // A device behind a relay has its address there once it has joined it. One that does not answer is no reason not
            // to be reached directly.
            keeper.drive(async { timeout(DIAL, endpoint.online()).await.is_ok() });
        }
        let (sender, events) = tasks::unbounded_channel();
        let shared = Arc::new(Shared { peers: Mutex::new(HashMap::new()), events: sender });
        keeper.spawn(accept(endpoint.clone(), shared.clone()));
        Ok(Self { keeper, endpoint, shared, events, awake: None, mdns: config.mdns })
    }

    /// This device's key.
    #[must_use]
    pub fn key(&self) -> Key {
        *self.endpoint.id().as_bytes()
    }

    /// Where other devices reach this one: addresses, and relays with `relay:` in front.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let bound = self.endpoint.bound_sockets().into_iter().filter(|addr| !addr.ip().is_unspecified());
        let addr = self.endpoint.addr();
        let mut all: Vec<String> = bound.chain(addr.ip_addrs().copied()).map(|addr| addr.to_string()).collect();
        if all.is_empty() {
            // Nothing but a loopback interface.
            let local = |addr: SocketAddr| SocketAddr::from(([127, 0, 0, 1], addr.port())).to_string();
            all.extend(self.endpoint.bound_sockets().into_iter().filter(SocketAddr::is_ipv4).map(local));
        }
        all.extend(addr.relay_urls().map(|url| format!("relay:{url}")));
        all.sort();
        all.dedup();
        all
    }

    /// Whether a peer's address may still be found after it was dialled in vain: devices that look for each other on a local
    /// network hear of each other when it pleases the network.
    #[must_use]
    pub fn searches(&self) -> bool {
        self.mdns
    }

    /// Something that sends to peers from another thread.
    pub fn sender(&self) -> impl Fn(&Key, Vec<u8>) + Send + use<> {
        let shared = self.shared.clone();
        move |peer, bytes| shared.send(peer, bytes)
    }

    /// Something that says from another thread how well peers are reached.
    pub fn gauge(&self) -> impl Fn(&Key) -> Option<Reach> + Send + use<> {
        let shared = self.shared.clone();
        move |peer| shared.reach(peer)
    }
}

impl Link for Quic {
    fn dial(&self, peer: Key, addresses: &[String]) {
        let target = target(&peer, addresses);
        let (endpoint, shared) = (self.endpoint.clone(), self.shared.clone());
        self.keeper.spawn(async move {
            let dialled = async {
                let target = target?;
                let shown: Vec<String> = target.ip_addrs().map(ToString::to_string).collect();
                let silent = format!("no answer from {} at {}", short(&peer), shown.join(", "));
                let connecting = timeout(DIAL, endpoint.connect(target, ALPN)).await;
                let connection = connecting.map_err(|_| silent.clone())?.map_err(|e| {
                    let said = plain(&format!("{e:#}"));
                    if said.contains("timed out") {
                        silent
                    } else {
                        format!("{} at {}: {said}", short(&peer), shown.join(", "))
                    }
                })?;
                let mut stream = connection.open_bi().await.map_err(|e| e.to_string())?;
                stream.0.write_all(&GREETING).await.map_err(|e| e.to_string())?;
                Ok::<_, String>((connection, stream))
            };
            match dialled.await {
                Ok((connection, stream)) => shared.link(peer, connection, stream, false),
                Err(why) => shared.tell(LinkEvent::Lost { peer, why }),
            }
        });
    }

    fn send(&self, peer: &Key, bytes: Vec<u8>) {
        self.shared.send(peer, bytes);
    }

    fn close(&self, peer: &Key) {
        // The writer sends what it has and then ends the connection.
        self.shared.peers().remove(peer);
    }

    fn flush(&self) {
        self.keeper.drive(turn());
    }

    fn expect(&mut self, due: Instant, early: Duration, late: Duration) {
        self.awake = due.checked_sub(early).map(|start| start..due + late);
    }

    fn next(&mut self, wait: Duration) -> Option<LinkEvent> {
        if let Ok((event, _permit)) = self.events.try_recv() {
            return Some(event);
        }
        let awake = self.awake.take();
        let Self { keeper, events, .. } = self;
        let event = keeper.drive(async {
            if wait.is_zero() {
                // What is at the socket, but no waiting for more.
                for _ in 0..GLANCE {
                    tokio::task::yield_now().await;
                    if let Ok(event) = events.try_recv() {
                        return Some(event);
                    }
                }
                return None;
            }
            let start = Instant::now();
            if let Some(awake) = awake.filter(|awake| awake.start < start + wait) {
                // Sleep until shortly before it is due, and look at the socket without sleep from then on.
                if let Ok(event) = timeout(awake.start.saturating_duration_since(start), events.recv()).await {
                    return event;
                }
                while Instant::now() < awake.end {
                    tokio::task::yield_now().await;
                    if let Ok(event) = events.try_recv() {
                        return Some(event);
                    }
                }
            }
            timeout(wait.saturating_sub(start.elapsed()), events.recv()).await.ok().flatten()
        });
        event.flatten().map(|(event, _permit)| event)
    }

    fn reach(&self, peer: &Key) -> Option<Reach> {
        self.shared.reach(peer)
    }
}

impl Drop for Quic {
    fn drop(&mut self) {
        self.shared.peers().clear();
        // Writers linger until what was sent is out; then the endpoint says goodbye.
        let endpoint = &self.endpoint;
        self.keeper.drive(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = timeout(LINGER, endpoint.close()).await;
        });
        self.keeper.end(LINGER);
    }
}

impl Shared {
    fn peers(&self) -> MutexGuard<'_, HashMap<Key, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: LinkEvent) {
        // Nobody listens once the link is being dropped.
        let _ = self.events.send((event, None));
    }

    fn send(&self, peer: &Key, bytes: Vec<u8>) {
        if let Some(peer) = self.peers().get(peer) {
            let mut framed = Vec::with_capacity(4 + bytes.len());
            framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            framed.extend_from_slice(&bytes);
            let _ = peer.outbox.send(framed);
        }
    }

    fn reach(&self, peer: &Key) -> Option<Reach> {
        let connection = self.peers().get(peer)?.connection.clone();
        let paths = connection.paths();
        let selected = paths.iter().find(|path| path.is_selected())?;
        Some(Reach { rtt: selected.rtt(), relayed: selected.is_relay() })
    }

    /// A connection with its stream is there: it takes the place of any before.
    fn link(
        self: &Arc<Self>,
        peer: Key,
        connection: Connection,
        (send, recv): (SendStream, RecvStream),
        incoming: bool,
    ) {
        let (outbox, inbox) = tasks::unbounded_channel();
        tokio::spawn(write(connection.clone(), send, inbox));
        self.peers().insert(peer, Peer { connection: connection.clone(), outbox });
        self.tell(LinkEvent::Linked { peer, incoming });
        tokio::spawn(read(self.clone(), peer, connection, recv));
    }
}

fn target(peer: &Key, addresses: &[String]) -> Result<EndpointAddr, String> {
    let id = PublicKey::from_bytes(peer).map_err(|e| format!("{} is no key: {e}", short(peer)))?;
    let address = |text: &String| -> Result<TransportAddr, String> {
        match text.strip_prefix("relay:") {
            Some(url) => url.parse().map(TransportAddr::Relay).map_err(|e| format!("'{text}' is no relay: {e}")),
            None => text.parse().map(TransportAddr::Ip).map_err(|e| format!("'{text}' is no address: {e}")),
        }
    };
    let addresses = addresses.iter().map(address).collect::<Result<Vec<_>, _>>()?;
    Ok(EndpointAddr::from_parts(id, addresses))
}

/// An error's text without the names of the types that it passed through.
fn plain(error: &str) -> String {
    error.split(": ").filter(|part| !part.contains("::")).collect::<Vec<_>>().join(": ")
}

async fn accept(endpoint: Endpoint, shared: Arc<Shared>) {
    while let Some(incoming) = endpoint.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let taken = async {
                let connection = incoming.await.ok()?;
                let stream = connection.accept_bi().await.ok()?;
                Some((connection, stream))
            };
            // A peer that opens no stream in time is none.
            if let Ok(Some((connection, stream))) = timeout(DIAL, taken).await {
                let peer = *connection.remote_id().as_bytes();
                shared.link(peer, connection, stream, true);
            }
        });
    }
}

async fn write(connection: Connection, mut stream: SendStream, mut inbox: tasks::UnboundedReceiver<Vec<u8>>) {
    while let Some(framed) = inbox.recv().await {
        if stream.write_all(&framed).await.is_err() {
            return;
        }
    }
    let _ = stream.finish();
    let _ = timeout(LINGER, stream.stopped()).await;
    connection.close(VarInt::from_u32(0), b"closed");
}

async fn read(shared: Arc<Shared>, peer: Key, connection: Connection, mut stream: RecvStream) {
    let room = Arc::new(Semaphore::new(WAITING));
    let why = loop {
        let mut length = [0; 4];
        if let Err(error) = stream.read_exact(&mut length).await {
            break gone(&connection, &error.to_string());
        }
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            continue;
        }
        if length > MAX_MESSAGE {
            break format!("it announced a message of {length} bytes, at most {MAX_MESSAGE} are taken");
        }
        // With this much untaken the stream is not read on, and the peer's flow control stops it.
        let Ok(permit) = room.clone().acquire_many_owned(length.max(LEAST) as u32).await else { return };
        let mut bytes = vec![0; length];
        if let Err(error) = stream.read_exact(&mut bytes).await {
            break gone(&connection, &error.to_string());
        }
        let at = Instant::now();
        if shared.events.send((LinkEvent::Message { peer, bytes, at }, Some(permit))).is_err() {
            return;
        }
    };
    // A newer connection may have taken this one's place: then nobody is lost.
    let mut peers = shared.peers();
    let current = peers.get(&peer).is_none_or(|p| p.connection.stable_id() == connection.stable_id());
    if current {
        peers.remove(&peer);
        drop(peers);
        shared.tell(LinkEvent::Lost { peer, why });
    }
}

/// Why a connection ended, where it knows; else what the stream says.
fn gone(connection: &Connection, error: &str) -> String {
    connection.close_reason().map_or_else(|| error.to_owned(), |reason| reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn link() -> Quic {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        Quic::bind(&Identity::fresh(), &QuicConfig { listen, ..QuicConfig::default() }).unwrap()
    }

    /// The next message, which must come before anything is lost.
    fn message(link: &mut Quic) -> Vec<u8> {
        loop {
            match link.next(LONG).expect("an event") {
                LinkEvent::Message { bytes, .. } => return bytes,
                LinkEvent::Linked { .. } => {}
                LinkEvent::Lost { why, .. } => panic!("{why}"),
            }
        }
    }

    #[test]
    fn a_link_outlives_steps_that_are_longer_than_a_peers_patience() {
        let (mut a, mut b) = (link(), link());
        let (to_b, to_a) = (b.key(), a.key());
        a.dial(to_b, &b.addresses());
        assert!(matches!(a.next(LONG), Some(LinkEvent::Linked { incoming: false, .. })));
        a.send(&to_b, vec![1; 100_000]);
        a.flush();
        assert_eq!(message(&mut b), vec![1; 100_000]);
        // Both compute, and nobody waits at a socket.
        std::thread::sleep(IDLE + Duration::from_secs(1));
        b.send(&to_a, vec![2]);
        b.flush();
        assert_eq!(message(&mut a), [2]);
        // What is expected at a moment comes then, before, or later.
        for (early, wait) in [(Duration::ZERO, LONG), (Duration::from_secs(1), LONG), (LONG, Duration::from_secs(1))] {
            b.send(&to_a, vec![3]);
            a.expect(Instant::now(), early, Duration::from_millis(1));
            b.flush();
            assert!(matches!(a.next(wait), Some(LinkEvent::Message { .. })));
        }
        assert_eq!(a.next(Duration::ZERO).map(|_| ()), None);
        b.close(&to_a);
        b.flush();
        assert!(matches!(a.next(LONG), Some(LinkEvent::Lost { .. })));
    }

    #[test]
    fn a_link_is_there_before_its_owner_says_anything() {
        let (mut a, mut b) = (link(), link());
        a.dial(b.key(), &b.addresses());
        // Whoever dialled computes at once, for longer than the other side waits for a stream.
        std::thread::sleep(DIAL + Duration::from_secs(1));
        assert!(matches!(b.next(LONG), Some(LinkEvent::Linked { incoming: true, .. })));
        assert!(matches!(a.next(LONG), Some(LinkEvent::Linked { incoming: false, .. })));
        a.send(&b.key(), vec![7; 3]);
        a.flush();
        assert_eq!(message(&mut b), [7; 3]);
    }

    #[test]
    fn a_peer_that_is_not_listened_to_waits() {
        let (mut a, mut b) = (link(), link());
        a.dial(b.key(), &b.addresses());
        assert!(matches!(a.next(LONG), Some(LinkEvent::Linked { incoming: false, .. })));
        // More than may wait, and none of it is taken as long as any more comes: a slow machine takes its time.
        let (large, count) = (MAX_MESSAGE / 2, 7);
        (0..count).for_each(|i| a.send(&b.key(), vec![i; large]));
        let (start, mut most, mut came) = (Instant::now(), 0, Instant::now());
        while most <= 1 || came.elapsed() < Duration::from_secs(2) {
            assert!(start.elapsed() < 6 * LONG, "nothing comes");
            std::thread::sleep(Duration::from_millis(20));
            if b.events.len() > most {
                (most, came) = (b.events.len(), Instant::now());
            }
        }
        // One says that the link is there.
        assert!(most <= 1 + WAITING / large, "{most} events wait");
        // As it is taken the rest comes, whole and in order.
        (0..count).for_each(|i| assert!(message(&mut b) == vec![i; large], "message {i}"));
    }

    #[test]
    fn errors_are_said_without_the_names_of_types() {
        let text = "ConnectError::Connecting: ConnectingError::ConnectionError: closed by peer: no";
        assert_eq!(plain(text), "closed by peer: no");
        assert_eq!(plain("timed out"), "timed out");
    }
}
