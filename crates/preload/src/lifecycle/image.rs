//! The library begins in a program image, before the program does.

use super::{child, close, exit, handoff};
use crate::connection::inside::{self, Closing};
use crate::connection::watchers;
use crate::guest::forked::{self, Forked};
use crate::guest::{real, settings, statistics, table};
use crate::watch;
use underpass_segment::clock;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

static FORKED: Forked = Forked { become_child: child::become_child };
static CLOSING: Closing = Closing { close_kept: close::close_kept };

extern "C" fn construct() {
    if settings::are_read() {
        return;
    }
    real::find_all();
    clock::begin();
    settings::read(|| {
        table::set_up();
        inside::CLOSING.give(&CLOSING);
        watchers::WATCHERS.give(&watch::WATCHERS);
        handoff::unpack();
        handoff::set_up();
        forked::set_up(&FORKED);
        exit::leave_at_exit();
    });
    statistics::identify();
    handoff::claim();
}
