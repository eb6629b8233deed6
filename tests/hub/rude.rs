//! A server below HTTP: sends what bytes a test likes, when it likes, and hangs up in the middle.

use super::site::{Reply, Seen, Site};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a server does next on a connection.
pub(crate) enum Act {
    Send(Vec<u8>),
    Wait(Duration),
    /// Go on without an answer until the client has gone.
    Hang,
}

/// A running server. Its threads end with the process.
pub(crate) struct Rude {
    pub(crate) endpoint: String,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
}

impl Rude {
    /// `act` is given each request, how many of its file came before, and the answer as it should be.
    pub(crate) fn new(site: Site, act: impl Fn(&Seen, usize, Reply) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, act, site) = (Arc::clone(&seen), Arc::new(act), Arc::new(site));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, act, site) = (Arc::clone(&log), Arc::clone(&act), Arc::clone(&site));
                // A client that hangs up ends its connection's thread, no more.
                std::thread::spawn(move || _ = serve(stream, &log, &*act, &site));
            }
        });
        Self { endpoint, seen }
    }
}

fn serve(
    stream: TcpStream,
    log: &Mutex<Vec<Seen>>,
    act: &(dyn Fn(&Seen, usize, Reply) -> Vec<Act> + Send + Sync),
    site: &Site,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((key, value)) = line.trim().split_once(':') {
            headers.push((key.to_owned(), value.trim().to_owned()));
        }
    }
    let seen = Seen::new(&path, &headers);
    let before = {
        let mut all = log.lock().unwrap();
        let before = all.iter().filter(|other| other.file == seen.file).count();
        all.push(seen.clone());
        before
    };
    for act in act(&seen, before, site.answer(&seen)) {
        match act {
            Act::Send(bytes) => stream.write_all(&bytes)?,
            Act::Wait(time) => std::thread::sleep(time),
            Act::Hang => while reader.read_line(&mut String::new())? > 0 {},
        }
        stream.flush()?;
    }
    Ok(())
}

impl Reply {
    /// The head as it goes over the wire, with a length of the body that may be a lie.
    pub(crate) fn head(&self, length: usize) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: {length}\r\n", self.status);
        for (key, value) in &self.headers {
            text += &format!("{key}: {value}\r\n");
        }
        (text + "\r\n").into_bytes()
    }

    /// The whole answer, as it should go over the wire.
    pub(crate) fn wire(&self) -> Vec<u8> {
        [self.head(self.body.len()), self.body.clone()].concat()
    }
}
