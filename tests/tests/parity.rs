//! The same C program on kernel TCP and under Underpass: every return value, errno and byte must agree.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use underpass_tests::parity::{Flavour, check, compile};

macro_rules! families {
    ($($family:ident)+) => {
        const FAMILIES: &[&str] = &[$(stringify!($family)),+];

        mod plain {
            $(#[test] fn $family() { super::check(stringify!($family), super::Flavour::Plain); })+
        }

        mod fortified_build {
            $(#[test] fn $family() { super::check(stringify!($family), super::Flavour::Fortified); })+
        }
    };
}

families! {
    aliases beside bulk byways calls confined descriptors ending epoll faults files flags fortified inherited nested
    nonblocking options pointers poll processes room sets signals sleepers threads waits
}

#[test]
fn every_program_is_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("parity");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let programs: BTreeSet<String> = names.filter_map(|name| name.strip_suffix(".c").map(String::from)).collect();
    let known: BTreeSet<String> = FAMILIES.iter().map(|family| family.to_string()).chain(["harness".into()]).collect();
    assert_eq!(programs, known);
}

#[test]
fn a_fortified_build_uses_the_checked_aliases() {
    let program = fs::read(compile("fortified", Flavour::Fortified)).unwrap();
    for alias in ["__read_chk", "__recv_chk", "__recvfrom_chk", "__poll_chk", "__ppoll_chk", "__pread_chk"] {
        assert!(program.windows(alias.len()).any(|window| window == alias.as_bytes()), "{alias} is not used");
    }
}
