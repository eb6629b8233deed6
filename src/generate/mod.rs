//! Writing text: from a prompt to ids to text, one step of the engine a token.

pub mod chat;
pub mod config;
pub mod sampler;
pub mod session;
pub mod stop;
pub mod stream;
