//! A Hub on the loopback, by axum: serves a [`Site`], keeps what it saw, and changes answers where a test asks for it.

use super::site::{MODEL, Reply, Seen, Site};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use wordline::checkpoint::hub::{Hub, Limits, ModelId, Settings, Token};
use wordline::checkpoint::{Checkpoint, CheckpointError, Folder};

/// Changes an answer: the request, how many of its file came before, and the answer as it should be.
type Change = dyn Fn(&Seen, usize, Reply) -> Reply + Send + Sync;

struct Shared {
    site: Site,
    seen: Mutex<Vec<Seen>>,
    change: Box<Change>,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl Server {
    pub(crate) fn new(site: Site) -> Self {
        Self::changing(site, |_, _, reply| reply)
    }

    /// A server whose answers are changed.
    pub(crate) fn changing(site: Site, change: impl Fn(&Seen, usize, Reply) -> Reply + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared { site, seen: Mutex::default(), change: Box::new(change) });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(handle).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { endpoint, shared, _runtime: runtime }
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Forget the requests so far.
    pub(crate) fn forget(&self) {
        self.shared.seen.lock().unwrap().clear();
    }

    /// The requests for one file.
    pub(crate) fn of(&self, file: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.file == file).collect()
    }
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<_> = request.headers().iter().map(|(key, value)| (key.to_string(), text(value))).collect();
    let seen = Seen::new(request.uri().path(), &headers);
    let before = {
        let mut all = shared.seen.lock().unwrap();
        let before = all.iter().filter(|other| other.file == seen.file).count();
        all.push(seen.clone());
        before
    };
    let mut reply = (shared.change)(&seen, before, shared.site.answer(&seen));
    // How long a test lets an answer wait.
    if let Some(at) = reply.headers.iter().position(|(key, _)| key == "test-wait-ms") {
        let (_, ms) = reply.headers.remove(at);
        tokio::time::sleep(Duration::from_millis(ms.parse().unwrap())).await;
    }
    let mut response = Response::builder().status(reply.status);
    for (key, value) in &reply.headers {
        response = response.header(key, value);
    }
    response.body(Body::from(reply.body)).unwrap()
}

/// Patience for tests: nothing waits for long.
pub(crate) fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        wait: Duration::from_secs(5),
        slow: Duration::from_secs(10),
        tries: 3,
        backoff: Duration::from_millis(2),
        longest_wait: Duration::from_secs(2),
        ..Limits::default()
    }
}

/// A way to a server, with caches of its own and what it remarked.
pub(crate) struct Desk {
    pub(crate) hub: Arc<Hub>,
    pub(crate) remarks: Arc<Mutex<Vec<String>>>,
}

/// How a desk is set up.
pub(crate) fn settings(endpoint: &str, cache: &Path) -> Settings {
    let pairs = [
        ("HF_ENDPOINT", endpoint.to_owned()),
        ("HF_HOME", cache.join("hf").display().to_string()),
        ("WORDLINE_CACHE", cache.join("wl").display().to_string()),
    ];
    let mut settings =
        Settings::from_lookup(&|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()))
            .unwrap();
    settings.limits = limits();
    settings
}

impl Desk {
    pub(crate) fn new(endpoint: &str, cache: &Path) -> Self {
        Self::with(settings(endpoint, cache))
    }

    pub(crate) fn with(mut settings: Settings) -> Self {
        let remarks: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&remarks);
        settings.remarks = Arc::new(move |text| kept.lock().unwrap().push(text.to_owned()));
        Self { hub: Hub::new(settings).unwrap(), remarks }
    }

    /// Open [`MODEL`] and all of its headers.
    pub(crate) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let repo = self.hub.open(&MODEL.parse::<ModelId>().unwrap());
        Checkpoint::from_folder(Folder::Hub(repo.map_err(|error| CheckpointError::File(error.into()))?))
    }
}

/// A token for tests.
pub(crate) fn token(text: &str) -> Option<Token> {
    Token::parse(text, "a test").unwrap()
}

/// A server, a cache, and a way from one to the other.
pub(crate) fn desk(server: &Server) -> (TempDir, Desk) {
    let cache = TempDir::new().unwrap();
    let desk = Desk::new(&server.endpoint, cache.path());
    (cache, desk)
}

/// Every tensor of a checkpoint equals that of another, byte for byte.
pub(crate) fn same_weights(a: &Checkpoint, b: &Checkpoint) {
    let mut count = 0;
    for (_, entry) in a.weights.entries() {
        let (a, b) = (a.weights.tensor(&entry.name).unwrap(), b.weights.tensor(&entry.name).unwrap());
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{}", entry.name);
        assert!(a.bytes().unwrap() == b.bytes().unwrap(), "{}", entry.name);
        count += 1;
    }
    assert!(count > 0 && count == b.weights.entries().count());
}
