//! The library begins in a program image, before the program does.

use super::{child, exit, handoff};
use crate::guest::forked::{self, Forked};
use crate::guest::{real, settings, statistics, table};
use underpass_segment::clock;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

static FORKED: Forked = Forked { become_child: child::become_child };

extern "C" fn construct() {
    if settings::are_read() {
        return;
    }
    real::find_all();
    clock::begin();
    settings::read(|| {
        table::set_up();
        handoff::unpack();
        handoff::set_up();
        forked::set_up(&FORKED);
        exit::leave_at_exit();
    });
    statistics::identify();
    handoff::claim();
}
