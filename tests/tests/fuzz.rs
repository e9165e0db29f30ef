//! Programs of socket operations that once differed, and a few random ones: `make fuzz` runs as many as one likes.

use std::fs;
use std::time::{Duration, Instant};
use underpass_tests::fuzz::{self, Player};
use underpass_tests::library;
use underpass_tests::mode::{MODES, Mode};

/// No further random program begins after so long.
const RANDOM: Duration = Duration::from_secs(15);

fn player() -> Player {
    let folder = library::target().join("fuzz");
    fs::create_dir_all(&folder).expect("a folder in the build folder");
    Player::new(&folder)
}

fn modes() -> impl Iterator<Item = &'static Mode> {
    MODES.iter().filter(|mode| mode.is_fast() && !library::is_kernel_only())
}

#[test]
fn programs_that_once_differed_agree() {
    let player = player();
    let mut report = String::new();
    for entry in fs::read_dir(fuzz::corpus()).expect("the corpus") {
        let file = entry.expect("an entry of the corpus").path();
        let text = fs::read_to_string(&file).expect("a program");
        let kernel = player.play(&text, None);
        assert!(kernel.operations > 0, "{} does not end on the kernel", file.display());
        for mode in modes() {
            if let Some(difference) = fuzz::difference(&kernel, &player.play(&text, Some(mode))) {
                report += &format!(
                    "{}, {}:\n{difference}\n  again: {}\n",
                    file.display(),
                    mode.name,
                    player.again(&file, mode)
                );
            }
        }
    }
    assert!(report.is_empty(), "{report}");
}

#[test]
fn random_programs_agree() {
    let player = player();
    let begin = Instant::now();
    let mut fast = 0;
    // These programs are the same each time: what is new is for `make fuzz` to find.
    for seed in 1.. {
        let text = fuzz::program(seed, 150);
        let kernel = player.play(&text, None);
        for mode in modes() {
            let said = player.play(&text, Some(mode));
            fast += said.fast.bytes;
            let difference = fuzz::difference(&kernel, &said).filter(|_| player.is_steady(&text, &kernel));
            assert!(
                difference.is_none(),
                "{}:\n{}\n  made short and saved by: make fuzz MINUTES=0.001 ARGUMENTS=\"--seed {seed} --lines 150\"",
                mode.name,
                difference.unwrap_or_default()
            );
        }
        if begin.elapsed() > RANDOM {
            break;
        }
    }
    assert!(fast > 0 || library::is_kernel_only(), "nothing went fast");
}
