//! The Hub: a model that lies on a server, read slice by slice.
//!
//! [`id`] (names held to strict rules) -> [`settings`] (environment) -> [`client`] (ranges by HTTP) -> [`remote`] (a
//! model at one commit; which bytes are fetched) -> `spans` and [`store`] (the bytes that are here). The standard Hub
//! cache (`snapshot`) is read before any of it.
//!
//! **Invariants**: a revision is resolved once, and every request after that names the commit. Opening a model moves its
//! config, the text files that are asked for and the weight headers; a tensor's bytes move when [`Repo::fetch`] or a
//! read of them asks. What was not fetched is never read as zeros. The token reaches the endpoint alone.
//!
//! Calls wait for the network; they are made from threads that may wait, never from an async task.

pub mod client;
mod error;
pub mod id;
pub mod ranges;
pub mod remote;
pub mod settings;
mod snapshot;
mod spans;
pub mod store;
mod token;

pub use client::Meter;
pub use error::HubError;
pub use id::{Commit, FileName, IdError, ModelId, RepoId, Revision};
pub use remote::{Fetched, Hub, RemoteFile, Repo};
pub use settings::{Limits, Settings};
pub use store::Store;
pub use token::{Token, TokenError};
