//! The survey: every ordered pair of endpoints, measured by existing tools.
//!
//! From the outside in:
//!
//! - [`run`](coordinator::run) takes the [`endpoints`], asks their agents for one sample at a time in a mixed
//!   [`order`], keeps each in a [`journal`] and leaves a [`record`], which the [`observation`]s are tested on.
//! - [`again`] takes samples between the endpoints of a survey that the survey does not have.
//! - [`local`] makes endpoints of network namespaces on one computer.
//! - [`agent`] does at an endpoint what a coordinator asks, which is one of a short list of [`message`]s over a
//!   [`channel`]; both know a [`token`]. [`remote`] is an agent as its coordinator sees it, and [`roster`] all of them.
//! - `work` starts each `tool` out of a [`toolbox`] as a `child` process and reads strictly what it prints; `transfer`
//!   sends a file over TLS.
//!
//! Two rules hold everywhere. What an endpoint says is checked before it counts, and a figure is of one tool alone.
//! What fails is named and left out; nothing is averaged away.

pub mod again;
pub mod agent;
pub mod channel;
mod child;
pub mod coordinator;
pub mod endpoints;
pub mod journal;
pub mod local;
pub mod message;
pub mod observation;
pub mod order;
mod progress;
mod quota;
pub mod record;
pub mod remote;
pub mod roster;
mod sample;
pub(crate) mod summary;
pub mod token;
mod tool;
pub mod toolbox;
mod transfer;
mod work;
