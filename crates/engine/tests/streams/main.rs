//! Class 4 over links: a stream arrives as it was sent, whatever happens to packets and links.

mod host;
mod links;
mod sharing;
mod udp;
