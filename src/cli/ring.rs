//! What `head` and `stage` share: links, identity, memory, and the copy of the model.

use super::args::Prepared;
use super::failure::{Failure, chain};
use super::hub::{HubArgs, NotOpened};
use super::out;
#[cfg(feature = "gpu")]
use crate::backends::{Backend, device};
use crate::checkpoint::hub::{ModelId, Revision};
use crate::checkpoint::{Folder, Weights};
use crate::image_cache::ImageCache;
use crate::model::{DEMO, on_hub};
use crate::pipeline::capacity::measure;
use crate::pipeline::link::{Identity, Quic, QuicConfig};
use crate::pipeline::load::hub_code;
use crate::pipeline::wire::Hello;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use wordline_engine::Kernels;
use wordline_kernels::gate::Verdict;

/// Repository under which the checkpoint inside the program goes.
pub(super) const DEMO_REPO: &str = "wordline/demo";
/// Revision under which a directory goes.
const LOCAL_REVISION: &str = "main";

/// How a device takes part.
#[derive(Debug, Args)]
#[command(next_help_heading = "Link")]
pub(super) struct LinkArgs {
    /// Address to listen on [default: a free port of every interface]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) listen: Option<SocketAddr>,
    /// Address at which others reach this device, such as a forwarded port; it goes in front of those that the system tells
    #[arg(long, value_name = "ADDR:PORT")]
    announce: Vec<SocketAddr>,
    /// Relay of one's own (iroh-relay) by URL; without it no relay, DNS or discovery takes part
    #[arg(long, value_name = "URL")]
    relay: Vec<String>,
    /// Tell this device's address on the local network by multicast DNS, and find others there: a ticket then works when the
    /// head's address has changed
    #[arg(long)]
    mdns: bool,
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
        let config = QuicConfig { listen: self.listen, relays: self.relay.clone(), mdns: self.mdns };
        Quic::bind(identity, &config).map_err(|e| Failure::refused(chain(&e)))
    }

    /// Where other devices reach this one.
    pub(super) fn addresses(&self, link: &Quic) -> Vec<String> {
        let mut all: Vec<String> = self.announce.iter().map(ToString::to_string).collect();
        all.extend(
            link.addresses().into_iter().filter(|address| !self.announce.iter().any(|a| a.to_string() == *address)),
        );
        all
    }

    pub(super) fn memory(&self) -> u64 {
        self.memory.or_else(|| free().map(|free| free / 5 * 4)).unwrap_or(8 << 30)
    }
}

/// The kernels of this device, and its hello: what computes, its capacity as measured through that, the probe that it printed.
pub(super) fn hello(prepared: &Prepared) -> Result<(Kernels, Hello), Failure> {
    let kernels = Kernels::new().map_err(|e| Failure::refused(format!("this device does not compute: {e}")))?;
    #[cfg(feature = "gpu")]
    if let Some(hello) = device_hello(prepared.backend)? {
        return Ok((kernels, hello));
    }
    let threads = prepared.threads;
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

/// The hello of a graphics device, where one is asked for; none where the processor computes.
#[cfg(feature = "gpu")]
fn device_hello(backend: Backend) -> Result<Option<Hello>, Failure> {
    use wordline_kernels::format::Lanes;
    use wordline_kernels::gpu::Method;
    use wordline_kernels::gpu::gate::DeviceArray;
    let best = match backend {
        Backend::Cpu => return Ok(None),
        Backend::Dp4a => Method::Dp4a,
        Backend::Lut => Method::Lut,
    };
    let gpu = device().map_err(|e| Failure::refused(chain(&e)))?;
    let array = match DeviceArray::new(&gpu, best, Lanes::default()) {
        Ok(array) => array,
        Err(error) => {
            out::note(format_args!("note: {}; the processor computes", chain(&error)));
            return Ok(None);
        }
    };
    let capacity = array.gemms_per_second(nanos).map_err(|e| Failure::refused(chain(&e)))?;
    let active = array.active();
    let probe = array.report().methods.iter().find_map(|method| match method.verdict {
        Verdict::Passed(probe) if method.method == active => Some(probe.0),
        _ => None,
    });
    let name: String = format!("{active}, {}", gpu.facts().adapter).chars().take(60).collect();
    Ok(Some(Hello { capacity, probe: probe.unwrap_or_default(), backend: name }))
}

/// Nanoseconds of a clock that starts with its first reading.
#[cfg(feature = "gpu")]
fn nanos() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Weights of a copy of the model: headers, and tensors as they are asked for. `place` is a directory, `demo`, or a model on
/// the Hub, which this device opens with its own credentials. An error comes with its name on the wire.
pub(super) fn weights(place: &str, hub: &HubArgs) -> Result<Weights, (String, String)> {
    if place == DEMO || on_hub(place).is_some() {
        let named = |error| match error {
            NotOpened::Model(error) => (error.hub().map_or("model", hub_code).to_owned(), chain(&error)),
            NotOpened::Asked(failure) => ("access".to_owned(), failure.what),
        };
        return Ok(hub.try_open(place).map_err(named)?.checkpoint.weights);
    }
    // The spec comes with the assignment: a directory need hold no more than the weights.
    let named = |error: &dyn std::error::Error| ("model".to_owned(), chain(error));
    let folder = Folder::open(place).map_err(|e| named(&e))?;
    Weights::open(&folder).map_err(|e| named(&e))
}

/// The repository and revision that a model goes under on the wire: on the Hub its own and the commit, elsewhere a name
/// that says no more than a directory's last part.
pub(super) fn repo(name: &str, folder: &Folder) -> (String, String) {
    if let Some(repo) = folder.repo() {
        return (repo.id().to_string(), repo.commit().to_string());
    }
    if name == DEMO {
        return (DEMO_REPO.into(), env!("CARGO_PKG_VERSION").into());
    }
    let name = Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    let name: String = name.chars().map(plain).take(90).collect();
    (format!("local/{}", if name.is_empty() { "model" } else { &name }), LOCAL_REVISION.into())
}

/// The model on the Hub that an assignment is of: its revision is a commit, which no other model's is.
pub(super) fn assigned_on_hub(repo: &str, revision: &str) -> Option<ModelId> {
    let commit = revision.parse::<Revision>().ok()?.commit()?;
    Some(ModelId { repo: repo.parse().ok()?, revision: Revision::from(&commit) })
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
            let (repo, revision) = repo(model, &Folder::Disk(model.into()));
            crate::pipeline::wire::check_repo(&repo).unwrap();
            crate::pipeline::wire::check_revision(&revision).unwrap();
            assert_eq!(assigned_on_hub(&repo, &revision), None, "{repo}: not asked of the Hub");
        }
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let model = assigned_on_hub("owner/name.v1", commit).unwrap();
        assert_eq!(model.to_string(), format!("owner/name.v1@{commit}"));
    }
}
