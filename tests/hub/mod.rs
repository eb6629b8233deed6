//! Models on the Hub, against servers on the loopback: a good one, and ones that misbehave.

mod cache;
mod cli;
mod faults;
mod load;
mod rude;
mod server;
mod site;
mod token;
