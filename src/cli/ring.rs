//! What `head` and `stage` share: links, identity, memory, and the copy of the model.

use super::failure::{Failure, chain};
use super::out;
use crate::checkpoint::{Folder, Weights};
use crate::image_cache::ImageCache;
use crate::model::{DEMO, Model};
use crate::pipeline::capacity::measure;
use crate::pipeline::link::{Identity, Quic, QuicConfig};
use crate::pipeline::wire::Hello;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use wordline_engine::Kernels;
use wordline_kernels::gate::Verdict;

/// Repository under which the checkpoint inside the program goes.
pub(super) const DEMO_REPO: &str = "wordline/demo";

/// How a device takes part.
#[derive(Debug, Args)]
#[command(next_help_heading = "Link")]
pub(super) struct LinkArgs {
    /// Address to listen on [default: a free port of every interface]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) listen: Option<SocketAddr>,
    /// Relay of one's own (iroh-relay) by URL; without it no relay, DNS or discovery takes part
    #[arg(long, value_name = "URL")]
    relay: Vec<String>,
    /// File with this device's key, made when it is not there [default: one of the cache directory that is free]
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Memory that this device lends for weights and state, e.g. 6G or 512M [default: 4/5 of what is free]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
}

impl LinkArgs {
    pub(super) fn identity(&self) -> Result<Identity, Failure> {
        if let Some(path) = &self.identity {
            return Identity::open(path).map_err(|e| Failure::refused(chain(&e)));
        }
        let Some(cache) = ImageCache::of_user() else { return Ok(Identity::fresh()) };
        Identity::of_folder(&cache.folder().join("identity")).or_else(|error| {
            out::note(format_args!("note: {error}; this run has a key of its own"));
            Ok(Identity::fresh())
        })
    }

    pub(super) fn bind(&self, identity: &Identity) -> Result<Quic, Failure> {
        let config = QuicConfig { listen: self.listen, relays: self.relay.clone() };
        Quic::bind(identity, &config).map_err(|e| Failure::refused(chain(&e)))
    }

    pub(super) fn memory(&self) -> u64 {
        self.memory.or_else(|| free().map(|free| free / 5 * 4)).unwrap_or(8 << 30)
    }
}

/// The kernels of this device, and its hello: capacity measured, the probe that they printed.
pub(super) fn hello(threads: usize) -> Result<(Kernels, Hello), Failure> {
    let kernels = Kernels::new().map_err(|e| Failure::refused(format!("this device does not compute: {e}")))?;
    let capacity = measure(&kernels, threads).map_err(|e| Failure::fault(chain(&e)))?;
    let report = kernels.array.report();
    let probe = report.forms.iter().find_map(|form| match form.verdict {
        Verdict::Passed(probe) if form.form == report.active => Some(probe.0),
        _ => None,
    });
    let backend = format!("{} x{threads}", report.active);
    let hello = Hello { capacity, probe: probe.unwrap_or_default(), backend };
    Ok((kernels, hello))
}

/// Weights of a copy of the model: headers, and tensors as they are asked for.
pub(super) fn weights(model: &str) -> Result<Weights, Failure> {
    if model == DEMO {
        return Ok(Model::open(DEMO)?.checkpoint.weights);
    }
    let folder = Folder::open(model).map_err(|e| Failure::refused(chain(&e)))?;
    Weights::open(&folder).map_err(|e| Failure::refused(chain(&e)))
}

/// The repository and revision that a MODEL goes under on the wire.
pub(super) fn repo(model: &str) -> (String, String) {
    if model == DEMO {
        return (DEMO_REPO.into(), env!("CARGO_PKG_VERSION").into());
    }
    let name = Path::new(model).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    let name: String = name.chars().map(plain).take(90).collect();
    (format!("local/{}", if name.is_empty() { "model" } else { &name }), "main".into())
}

/// A number of bytes with or without K, M, G or T.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        text if text.ends_with('K') => (text.trim_end_matches('K').to_owned(), 10),
        text if text.ends_with('M') => (text.trim_end_matches('M').to_owned(), 20),
        text if text.ends_with('G') => (text.trim_end_matches('G').to_owned(), 30),
        text if text.ends_with('T') => (text.trim_end_matches('T').to_owned(), 40),
        text => (text.to_owned(), 0),
    };
    let number: f64 =
        digits.trim().parse().map_err(|_| format!("'{text}' is no number of bytes, such as 6G or 512M"))?;
    if !(number.is_finite() && (1.0..1e18).contains(&(number * f64::from(2_u32).powi(shift)))) {
        return Err(format!("'{text}' is no amount of memory"));
    }
    Ok((number * f64::from(2_u32).powi(shift)) as u64)
}

/// Free memory, where the system says.
fn free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory() {
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("6G"), Ok(6 << 30));
        assert_eq!(bytes("1.5 MiB"), Ok(3 << 19));
        assert_eq!(bytes("2kb"), Ok(2048));
        for text in ["", "G", "-1", "0", "nan", "1e99T", "six"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_model_has_a_name_that_the_wire_takes() {
        for model in ["demo", "/a/b/Some Model.v1/", "..", "/", "x/é", ""] {
            let (repo, revision) = repo(model);
            crate::pipeline::wire::check_repo(&repo).unwrap();
            crate::pipeline::wire::check_revision(&revision).unwrap();
        }
    }
}
