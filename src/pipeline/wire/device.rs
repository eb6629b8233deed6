//! What devices say of themselves and of each other: `Hello` (-20), `About` (-27), and the roster's `Member`s (-28).

use super::super::plan::{Key, MAX_DEVICES};
use super::bytes::{Reader, Writer};
use super::{ABOUT, HELLO, ROSTER, WireError};

const BACKEND_CAP: usize = 64;
const ADDRESS_CAP: usize = 64;
const ADDRESSES: usize = 32;

/// What a device says of itself (-20).
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Products of matrices a second, measured.
    pub capacity: f64,
    /// The kernel probe's hash.
    pub probe: [u8; 32],
    /// What computes, by name.
    pub backend: String,
}

/// The rest of what a device says of itself (-27).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Bytes that it lends.
    pub memory: u64,
    /// Where other stages reach it.
    pub addresses: Vec<String>,
    /// Its signature over [`claim`].
    pub signature: [u8; 64],
}

/// One device of the roster: what it said to the head, with its own signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its key.
    pub key: Key,
    /// Its hello.
    pub hello: Hello,
    /// The rest.
    pub about: About,
}

/// What a device signs: its figures, for this head.
#[must_use]
pub fn claim(head: &Key, key: &Key, hello: &Hello, memory: u64) -> Vec<u8> {
    let mut out = Writer(b"wordline device".to_vec());
    out.bytes(head).bytes(key).f64(hello.capacity).bytes(&hello.probe).text(&hello.backend, BACKEND_CAP).u64(memory);
    out.0
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(HELLO);
        self.put(&mut out);
        out.0
    }

    fn put(&self, out: &mut Writer) {
        out.f64(self.capacity).bytes(&self.probe).text(&self.backend, BACKEND_CAP);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (capacity, probe) = (r.f64("capacity")?, r.array("probe")?);
        Ok(Self { capacity, probe, backend: r.text("backend", BACKEND_CAP)? })
    }
}

impl About {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(ABOUT);
        self.put(&mut out);
        out.0
    }

    fn put(&self, out: &mut Writer) {
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES)];
        out.u64(self.memory).u16(addresses.len() as u16);
        addresses.iter().for_each(|address| {
            out.text(address, ADDRESS_CAP);
        });
        out.bytes(&self.signature);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let memory = r.u64("memory")?;
        let count = r.count("addresses", ADDRESSES, 4)?;
        let addresses = (0..count).map(|_| r.text("address", ADDRESS_CAP)).collect::<Result<_, _>>()?;
        Ok(Self { memory, addresses, signature: r.array("signature")? })
    }
}

/// A roster as bytes.
pub(super) fn encode_roster(members: &[Member]) -> Vec<u8> {
    let mut out = Writer::new(ROSTER);
    out.u16(members.len() as u16);
    for member in members {
        out.bytes(&member.key);
        member.hello.put(&mut out);
        member.about.put(&mut out);
    }
    out.0
}

/// A roster's members.
pub(super) fn take_roster(r: &mut Reader<'_>) -> Result<Vec<Member>, WireError> {
    let count = r.count("members", MAX_DEVICES, 32 + 44 + 74)?;
    let member = |_| Ok(Member { key: r.array("key")?, hello: Hello::take(r)?, about: About::take(r)? });
    (0..count).map(member).collect()
}
