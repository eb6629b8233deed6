//! Models on the Hub, against servers on the loopback: a good one, and ones that misbehave.

mod cache;
mod cli;
mod faults;
mod load;
mod rude;
mod server;
mod site;
mod token;

pub(crate) use server::Server;
pub(crate) use site::{MODEL, Seen, Site};
pub(crate) use token::program;
