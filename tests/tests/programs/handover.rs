//! A connection that is handed to another program image goes on, whatever that image is and however many there are.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use underpass_tests::apart::apart;
use underpass_tests::compiler::cc;
use underpass_tests::library::{self, AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, copy_program, find, fixture, skip};

/// What the client does while the server hands its connections over.
const STATES: [&str; 6] = ["idle", "silent", "sending", "sent", "full", "elsewhere"];
/// How the server hands them over.
const WAYS: [&str; 8] = ["exec", "fork", "fork-kept", "spawn", "vfork", "system", "popen", "scm"];
/// What changes the process or the library before that, so that the image has no library, or can attach no memory.
const CAUSES: [&str; 14] = [
    "removed",
    "replaced",
    "real-user",
    "real-group",
    "effective-user",
    "effective-group",
    "another-user",
    "ipc-namespace",
    "user-namespace",
    "address-space",
    "file-size",
    "other-preload",
    "no-environment",
    "switched-off",
];
/// What a client may do on a single connection while the server keeps it beside an image.
const BESIDE: [&str; 4] = ["silent", "sending", "sent", "full"];
/// Exit code of a program whose connection was reset.
const RESET: i32 = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// A stage with the program, and a library of its own that may be removed.
struct Scene {
    stage: Stage,
    program: PathBuf,
    /// What is executed: that program, as a rule.
    image: PathBuf,
    library: PathBuf,
}

/// One hand-over.
#[derive(Clone, Copy, Debug)]
struct HandOver<'a> {
    connections: usize,
    state: &'a str,
    way: &'a str,
    cause: &'a str,
    /// Whether the server may copy the client's descriptors (pidfd_getfd), and so put on the kernel path what is
    /// unread.
    copies: bool,
}

impl HandOver<'_> {
    /// The hand-over of one connection, without a particular cause.
    const ONE: HandOver<'static> = HandOver { connections: 1, state: "idle", way: "exec", cause: "none", copies: true };
}

impl Scene {
    fn new() -> Option<Scene> {
        if is_kernel_only() {
            skip("there is no library to be handed over");
            return None;
        }
        Scene::on(Stage::beside_others(&[])?)
    }

    fn on(stage: Stage) -> Option<Scene> {
        let program = stage.path("handover");
        compile("handover.c", &program, &["-std=c11"]);
        let library = stage.path("libunderpass.so");
        // Another user reads the library, and where the streams stand.
        fs::set_permissions(stage.path("."), fs::Permissions::from_mode(0o755)).expect("open the folder");
        let image = program.clone();
        Some(Scene { stage, program, image, library })
    }

    fn command(&self, program: &Path, words: &[&str], library: Option<&Path>) -> Command {
        let mut command = self.stage.command(program.to_str().expect("a plain path"), words);
        command.env_remove("LD_PRELOAD");
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let variables = [
            ("HANDOVER_FILE", self.stage.path("streams")),
            ("HANDOVER_PROGRAM", self.program.clone()),
            ("HANDOVER_IMAGE", self.image.clone()),
            ("HANDOVER_LIBRARY", self.library.clone()),
            ("HANDOVER_OTHER", self.stage.path("other.so")),
            ("HANDOVER_ROOT", self.stage.path("root")),
        ];
        command.envs(variables);
        command
    }

    /// Exit codes of server and client, and what they said. Fails if one hangs.
    fn run(&self, it: HandOver<'_>) -> ([i32; 2], String) {
        fs::copy(library::path(), &self.library).expect("a copy of the library");
        let (port, count) = (free_port().to_string(), it.connections.to_string());
        let words = ["without-copies", "serve", &port, &count, it.state, it.way, it.cause];
        let words = if it.copies { &words[1..] } else { &words };
        let serve = self.command(&self.program, words, Some(&self.library));
        let mut server = self.stage.serve(serve, port.parse().expect("a port"));
        let mut ask = self.command(&self.program, &["ask", &port, &count, it.state], Some(library::path()));
        if it.state.starts_with("asleep") {
            // So that it neither polls nor dozes, and is woken by a doorbell alone.
            ask.envs([("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "0")]);
        }
        let mut client = self.stage.start(ask);
        let ended = [client.wait(LIMIT), server.wait(LIMIT)];
        let said = format!("{}{}", server.said(), client.said());
        let [Some(asked), Some(served)] = ended else {
            panic!("{it:?} hangs: {said}\nclient\n{}server\n{}", client.where_it_is(), server.where_it_is());
        };
        fs::remove_file(&self.library).or_else(gone).expect("remove the library");
        ([served, asked].map(|status| status.code().unwrap_or(-1)), said)
    }

    fn assert_whole(&self, it: HandOver<'_>) {
        let (codes, said) = self.run(it);
        assert_eq!(codes, [0, 0], "{it:?}: {said}");
    }

    /// Runs each of these ways in each of these states; what the other end cannot put on the kernel path may be ended
    /// by a reset of both ends.
    fn assert_whole_or_reset(&self, ways: &[&str], states: &[&str], cause: &str) {
        for (way, state) in each(ways, states) {
            self.assert_one_whole_or_reset(HandOver { connections: 2, state, way, cause, ..HandOver::ONE });
        }
    }

    /// Runs this one; what the other end cannot put on the kernel path may be ended by a reset of both ends.
    fn assert_one_whole_or_reset(&self, it: HandOver<'_>) {
        let (codes, said) = self.run(it);
        // Behind a filter the process neither copies the other end's socket nor wakes that end. So it copies it before.
        let has_filter = it.cause.starts_with("confined");
        let is_stuck = matches!(it.state, "sent" | "full") || has_filter && !it.copies;
        // A close behind a filter does not reset, nor does the death of a child: the client may hear of an end, or of
        // nothing if it has got all.
        let is_quiet = has_filter || it.way == "scm-beside";
        let is_loud = codes == [RESET, RESET] || is_quiet && codes[0] == RESET;
        assert!(codes == [0, 0] || is_stuck && is_loud, "{it:?}: {codes:?} {said}");
    }

    /// The process goes on after the image has only looked; that finds `behind` where the client has ended its stream.
    fn assert_goes_on(&self, it: HandOver<'_>, behind: &str) {
        let (codes, said) = self.run(it);
        assert_eq!(codes, [0, 0], "{it:?}: {said}");
        assert!(it.state != "sent" || said.contains(behind), "{it:?}: {said}");
    }

    fn finish(self) {
        self.stage.run.assert_fast("handover");
        self.stage.finish();
    }
}

/// Each of the ways in each of the states.
fn each<'a>(ways: &'a [&'a str], states: &'a [&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    ways.iter().flat_map(|way| states.iter().map(move |state| (*way, *state)))
}

fn gone(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[test]
fn streams_go_on_whatever_the_client_does() {
    let Some(scene) = Scene::new() else { return };
    for way in WAYS {
        for state in STATES {
            scene.assert_whole(HandOver { connections: 2, state, way, ..HandOver::ONE });
        }
    }
    scene.finish();
}

/// UNDERPASS_TEST_CONNECTIONS names other numbers, "10000" for example.
#[test]
fn no_number_of_connections_is_special() {
    let Some(scene) = Scene::new() else { return };
    let numbers = std::env::var("UNDERPASS_TEST_CONNECTIONS").unwrap_or("1 64 65 105 106 1000".into());
    for number in numbers.split_whitespace() {
        let connections = number.parse().expect("a number of connections");
        // With a thousand connections, either state shows as much as the other.
        let states: &[&str] = if connections < 1000 { &["idle", "sent"] } else { &["sent"] };
        for (way, state) in each(&WAYS, states) {
            scene.assert_whole(HandOver { connections, state, way, ..HandOver::ONE });
        }
    }
    scene.finish();
}

/// The image sees plain TCP. Only what lies unread behind the end of a stream cannot be put there any more: then both
/// ends hear of a reset at once.
#[test]
fn an_image_that_cannot_go_on_finds_plain_tcp() {
    let Some(scene) = Scene::new() else { return };
    for cause in CAUSES {
        for (state, way) in
            [("idle", "exec"), ("silent", "exec"), ("sending", "exec"), ("elsewhere", "exec"), ("sending", "fork-kept")]
        {
            fs::write(scene.stage.path("other.so"), "no library").expect("write a file");
            scene.assert_whole(HandOver { connections: 2, state, way, cause, ..HandOver::ONE });
        }
        fs::write(scene.stage.path("other.so"), "no library").expect("write a file");
        scene.assert_one_whole_or_reset(HandOver { state: "sent", way: "exec", cause, ..HandOver::ONE });
    }
    scene.finish();
}

/// An image finds plain TCP where no further System V segment may be made.
#[test]
fn an_image_without_segments_finds_plain_tcp() {
    apart(libc::CLONE_NEWIPC, || {
        let Some(scene) = Scene::new() else { return };
        for state in ["idle", "silent", "sending"] {
            fs::write("/proc/sys/kernel/shmmni", "4096").expect("as root");
            scene.assert_whole(HandOver { state, way: "exec", cause: "no-segments", ..HandOver::ONE });
        }
        scene.finish();
    });
}

/// An image behind chroot(2) has only a program, its loader and libc.
#[test]
fn an_image_in_another_root_finds_plain_tcp() {
    let Some(mut scene) = Scene::new() else { return };
    let root = scene.stage.path("root");
    let inside = |path: &Path| root.join(path.strip_prefix("/").expect("an absolute path"));
    let copy = |from: &Path| {
        let to = inside(from);
        fs::create_dir_all(to.parent().expect("a folder")).expect("make a folder");
        fs::copy(from, to).expect("copy a file");
    };
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    let libc = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"].map(Path::new);
    let Some(libc) = libc.into_iter().find(|path| path.exists()) else { return skip("libc is somewhere else here") };
    [loader, libc, &scene.program.clone()].into_iter().for_each(copy);
    // The image reads the list of streams from a file of the same name.
    let streams = scene.stage.path("streams");
    let there = inside(&streams);
    fs::create_dir_all(there.parent().expect("a folder")).expect("make a folder");
    for state in ["idle", "silent", "sending"] {
        let _ = fs::remove_file(&there);
        fs::write(&streams, "").expect("write a file");
        fs::hard_link(&streams, &there).expect("a second name");
        scene.assert_whole(HandOver { state, way: "exec", cause: "chroot", ..HandOver::ONE });
    }
    scene.program = scene.stage.path("handover");
    scene.finish();
}

/// The library is upgraded in place, and a program executes itself: what the two versions share of memory is nothing.
#[test]
fn another_version_of_the_library_finds_plain_tcp() {
    let Some(scene) = Scene::new() else { return };
    for state in ["idle", "silent", "sending"] {
        fs::copy(library::other_version(), scene.stage.path("other.so")).expect("a copy of the other version");
        scene.assert_whole(HandOver { state, way: "exec", cause: "replaced", ..HandOver::ONE });
    }
    scene.finish();
}

/// Two versions on either side of a connection do not meet.
#[test]
fn two_versions_of_the_library_do_not_meet() {
    let Some(scene) = Scene::new() else { return };
    let port = free_port().to_string();
    let serve = ["serve", &port, "2", "sending", "exec", "none"];
    let serve = scene.command(&scene.program, &serve, Some(library::other_version()));
    let mut server = scene.stage.serve(serve, port.parse().expect("a port"));
    let ask = scene.command(&scene.program, &["ask", &port, "2", "sending"], Some(library::path()));
    scene.stage.output(ask);
    assert!(server.wait(LIMIT).is_some_and(|status| status.success()), "{}", server.said());
    scene.stage.run.assert_not_fast();
    scene.stage.finish();
}

/// How a process hands its connections over and keeps its descriptors.
const KEEPING: [&str; 3] = ["fork-kept", "spawn-kept", "system"];

/// The process waits for the image's end, and calls nothing on the connections.
#[test]
fn the_process_keeps_its_descriptors() {
    let Some(scene) = Scene::new() else { return };
    for (way, state) in each(&KEEPING, &["silent", "sending", "sent"]) {
        scene.assert_whole(HandOver { connections: 2, state, way, ..HandOver::ONE });
    }
    scene.finish();
}

/// The process waits for the end of an image without the library, and calls nothing on the connections.
#[test]
fn the_process_keeps_what_an_image_without_the_library_reads() {
    let Some(scene) = Scene::new() else { return };
    scene.assert_whole_or_reset(&KEEPING, &["idle", "silent", "sending", "elsewhere"], "no-environment");
    scene.finish();
}

/// The process keeps what an image without the library has as its standard input. The other end may have sent more than
/// the ring takes, behind which nothing can be put: what the image reads has no gap.
#[test]
fn an_image_reads_no_gap_in_its_standard_input() {
    let Some(scene) = Scene::new() else { return };
    for (way, state) in each(&["fork-input", "vfork-input"], &BESIDE) {
        scene.assert_one_whole_or_reset(HandOver { state, way, cause: "no-environment", ..HandOver::ONE });
    }
    scene.finish();
}

/// The process keeps what an image without the library has under another number, or as the standard input that is the
/// process's own: what the image reads has no gap.
#[test]
fn an_image_reads_no_gap_beside_a_process_that_keeps_the_connection() {
    let Some(scene) = Scene::new() else { return };
    for (way, state) in each(&["fork-kept", "vfork-kept", "fork-own"], &BESIDE) {
        scene.assert_one_whole_or_reset(HandOver { state, way, cause: "no-environment", ..HandOver::ONE });
    }
    scene.finish();
}

/// The image only looks, and the process goes on with the connection: nothing of it is lost.
#[test]
fn a_process_goes_on_beside_an_image_that_cannot() {
    let Some(scene) = Scene::new() else { return };
    let ways = [
        "fork-probe",
        "fork-thread-probe",
        "vfork-probe",
        "spawn-probe",
        "spawn-given-probe",
        "spawn-given-closefrom-probe",
    ];
    for (way, state) in each(&ways, &BESIDE) {
        // After the other end's last byte, no process can put bytes on the kernel path.
        let behind = if way == "fork-thread-probe" { "no descriptor" } else { "no connection" };
        scene.assert_goes_on(HandOver { state, way, cause: "no-environment", ..HandOver::ONE }, behind);
    }
    scene.finish();
}

/// A shell of wordexp's executes the image, and libc has started that shell by itself.
#[test]
fn a_process_goes_on_beside_what_wordexp_starts() {
    let Some(scene) = Scene::new() else { return };
    for (cause, state) in each(&["no-environment", "confined-no-environment"], &BESIDE) {
        let it = HandOver { state, way: "wordexp-probe", cause, ..HandOver::ONE };
        scene.assert_goes_on(it, "no words");
    }
    scene.finish();
}

/// A process with a seccomp filter makes no system calls for its connections, but for what it executes or passes it
/// does.
#[test]
fn a_process_with_a_seccomp_filter_hands_over() {
    let Some(scene) = Scene::new() else { return };
    let ways = ["exec", "fork-kept", "fork-input", "vfork-input", "spawn", "system", "popen", "scm", "fork-left"];
    for (way, state) in each(&ways, &BESIDE) {
        for copies in [true, false] {
            let cause = "confined-no-environment";
            scene.assert_one_whole_or_reset(HandOver { state, way, cause, copies, ..HandOver::ONE });
        }
    }
    // An image with the library begins behind the same filter.
    for (way, state) in each(&["exec", "spawn", "scm"], &BESIDE) {
        scene.assert_one_whole_or_reset(HandOver { state, way, cause: "confined", ..HandOver::ONE });
    }
    for (way, state) in each(&["fork-probe", "vfork-probe", "spawn-probe"], &BESIDE) {
        let it = HandOver { state, way, cause: "confined-no-environment", ..HandOver::ONE };
        scene.assert_goes_on(it, "no connection");
    }
    scene.finish();
}

/// The process pins the connection without a message to the client, which has sent something and sleeps. Later only the
/// client can put that on the kernel path. Fails if `Port::pin` does not wake the client.
#[test]
fn a_client_is_woken_that_sleeps_before_a_connection_that_was_pinned() {
    let Some(scene) = Scene::new() else { return };
    for (way, state) in each(&["exec", "fork-kept", "spawn", "scm"], &["asleep", "asleep-epoll"]) {
        let cause = "pinned-no-environment";
        scene.assert_whole(HandOver { state, way, cause, copies: false, ..HandOver::ONE });
    }
    scene.finish();
}

/// A process passes the connection to one without the library.
#[test]
fn a_stranger_reads_no_gap_in_what_is_passed() {
    let Some(scene) = Scene::new() else { return };
    // A child of the process can reach the ring, but that says nothing about the receiver.
    for (way, state) in each(&["scm", "scm-beside"], &BESIDE) {
        for copies in [true, false] {
            let cause = "no-environment";
            scene.assert_one_whole_or_reset(HandOver { state, way, cause, copies, ..HandOver::ONE });
        }
    }
    scene.finish();
}

/// A process passes the connection to a process that it has just spawned, whose loader has not come to the library yet.
#[test]
fn a_receiver_that_is_about_to_begin_is_awaited() {
    let Some(scene) = Scene::new() else { return };
    for state in STATES {
        scene.assert_whole(HandOver { connections: 2, state, way: "scm-late", ..HandOver::ONE });
    }
    scene.finish();
}

/// The image's standard output arrives, even if there are unread bytes before it.
#[test]
fn an_image_writes_to_a_connection_beside_a_process() {
    let Some(scene) = Scene::new() else { return };
    for (way, state) in each(&["spawn-output", "spawn-inetd"], &BESIDE) {
        scene.assert_whole(HandOver { state, way, cause: "no-environment", ..HandOver::ONE });
    }
    scene.finish();
}

/// The execution fails when the file is read, and the process that tried it goes on with the connection.
#[test]
fn a_failed_execution_leaves_the_connection_as_it_was() {
    let Some(scene) = Scene::new() else { return };
    for state in BESIDE {
        scene.assert_whole(HandOver { state, way: "fork-failed", ..HandOver::ONE });
    }
    scene.finish();
}

/// The process executes a program that does not inherit a connection which an image without the library reads: no
/// process reads the ring any more.
#[test]
fn the_process_leaves_what_an_image_without_the_library_reads() {
    let Some(scene) = Scene::new() else { return };
    scene.assert_whole_or_reset(&["fork-left"], &["idle", "silent", "sending", "sent", "full"], "no-environment");
    scene.finish();
}

/// The process executes a program that does not inherit a connection which an image with the library reads, and that
/// image has not begun yet.
#[test]
fn the_process_leaves_what_an_image_has_not_come_for() {
    let Some(scene) = Scene::new() else { return };
    for state in STATES {
        scene.assert_whole(HandOver { connections: 2, state, way: "spawn-left", ..HandOver::ONE });
    }
    scene.finish();
}

/// The image has not begun either, and the process has closed its descriptors before, or that program gets them too: it
/// must not take the table of ends along before the image has come.
#[test]
fn a_program_takes_nothing_along_that_an_image_has_not_come_for() {
    let Some(scene) = Scene::new() else { return };
    let ways = ["spawn-closed-left", "vfork-closed-left", "spawn-kept-left", "vfork-kept-left"];
    for (way, state) in each(&ways, &["silent", "sending", "sent"]) {
        scene.assert_whole(HandOver { connections: 2, state, way, ..HandOver::ONE });
    }
    scene.finish();
}

/// The process's own standard input is the connection, and a program that it executes beside itself has that too, and
/// leaves it.
#[test]
fn a_bystander_takes_nothing_of_a_standard_input() {
    let Some(scene) = Scene::new() else { return };
    for (way, state) in each(&["bystander", "spawn-bystander"], &BESIDE) {
        scene.assert_whole(HandOver { state, way, ..HandOver::ONE });
    }
    scene.finish();
}

/// The process closes its descriptors as soon as it has started an image without the library.
#[test]
fn the_process_gives_what_an_image_without_the_library_reads() {
    let Some(scene) = Scene::new() else { return };
    for _ in 0..5 {
        scene.assert_whole_or_reset(&["fork", "spawn", "vfork", "popen"], &["silent", "sending"], "no-environment");
    }
    scene.finish();
}

/// A child had the connections too, and was killed. No other process has them, so they are the image's alone.
#[test]
fn a_child_was_killed_before() {
    let Some(scene) = Scene::new() else { return };
    scene.assert_whole_or_reset(&["widowed"], &["idle", "silent", "sending"], "no-environment");
    scene.finish();
}

/// A file action gives a connection the number that another one had, where the image has the library and where it has
/// not.
#[test]
fn file_actions_change_the_numbers() {
    let Some(scene) = Scene::new() else { return };
    for state in STATES {
        scene.assert_whole(HandOver { connections: 3, state, way: "actions", ..HandOver::ONE });
    }
    scene.assert_whole_or_reset(&["actions"], &["idle", "silent", "sending"], "no-environment");
    scene.finish();
}

/// If a file action makes a path mean another file, it is not known which file that is: the image finds plain TCP.
#[test]
fn a_file_action_changes_the_working_directory() {
    let Some(scene) = Scene::new() else { return };
    scene.assert_whole_or_reset(&["relative"], &STATES, "none");
    scene.finish();
}

#[test]
fn a_static_image_finds_plain_tcp() {
    let Some(mut scene) = Scene::new() else { return };
    scene.image = scene.stage.path("static");
    compile("handover.c", &scene.image, &["-std=c11", "-static"]);
    scene.assert_whole_or_reset(&["exec"], &["idle", "silent", "sending", "sent"], "none");
    scene.assert_whole_or_reset(&["actions"], &["idle", "silent", "sending"], "none");
    scene.finish();
}

/// The loader heeds no LD_PRELOAD where a file gives capabilities to a user who has none.
#[test]
fn an_image_with_capabilities_finds_plain_tcp() {
    let Some(stage) = Stage::as_user("nobody", &["setcap"]) else { return };
    let Some(mut scene) = Scene::on(stage) else { return };
    scene.image = scene.stage.path("capable");
    copy_program(&scene.program, &scene.image);
    let given = Command::new("setcap").arg("cap_net_raw+ep").arg(&scene.image).output();
    if !given.is_ok_and(|it| it.status.success()) {
        return skip("needs root and setcap to give a file capabilities");
    }
    for state in ["idle", "silent", "sending"] {
        let it = HandOver { state, way: "exec", ..HandOver::ONE };
        let (codes, said) = scene.run(it);
        assert_eq!(codes, [0, 0], "{it:?}: {said}");
        if !said.contains("with privileges") {
            return skip("the folder of the test is on a file system that gives no capabilities (nosuid)");
        }
    }
    scene.finish();
}

/// The stage beside other programs, with the fixture `name` compiled there.
fn with_program(name: &str) -> Option<(Stage, String)> {
    let stage = Stage::beside_others(&["cc"])?;
    let program = stage.compiled(name);
    Some((stage, program))
}

/// Images that make no call on their only connection hand it on. A connection that no process has used yet goes fast in
/// the last of them. Fails if `has_any`, which finds out that it is a connection and makes the table of ends for it,
/// comes behind the question whether there is a table.
#[test]
fn images_that_use_nothing_hand_all_on() {
    if is_kernel_only() {
        return skip("there is no library to be handed over");
    }
    let Some((stage, program)) = with_program("untouched") else { return };
    for (state, images) in each(&["new", "used"], &["1", "2", "5"]) {
        let said = stage.output(stage.tuned(&program, [state, images], AT_ONCE));
        let by_kernel: u64 = said.trim().parse().expect("a count of bytes");
        assert!(by_kernel < 50_000, "{state} {images}: the kernel carried {by_kernel} bytes");
    }
    stage.finish();
}

/// Threads that execute programs do not wait for each other, and what a killed child had is not missing.
#[test]
fn executions_do_not_depend_on_what_goes_on_beside() {
    let Some((stage, program)) = with_program("crowded_exec") else { return };
    for beside in ["threads", "failing", "child", "spawned"] {
        for settings in [&[][..], AT_ONCE] {
            let rounds = (0..10).map(|_| {
                let said = stage.output(stage.tuned(&program, [beside], settings));
                said.trim().parse::<u64>().expect("a time in ms")
            });
            // Before executions took turns, this took 21,000 ms in nearly each round.
            let slowest = rounds.max().expect("some rounds");
            assert!(slowest < 10_000, "{beside}: an execution took {slowest} ms");
        }
    }
    stage.finish();
}

/// A process executes a program just when an image dies that it has spawned: what that image came for is not missing.
/// The image dies at the right moment where many do this at once: without the mend of
/// `images::take_back_from_dead_images`, 13 of 600 are reset.
#[test]
fn executions_beside_a_dying_image_lose_nothing() {
    let Some((stage, program)) = with_program("crowded_exec") else { return };
    for _ in 0..10 {
        let plays: Vec<_> = (0..12).map(|_| stage.start(stage.tuned(&program, ["spawned"], AT_ONCE))).collect();
        plays.into_iter().for_each(|play| _ = play.succeed(Duration::from_secs(60)));
    }
    stage.finish();
}

/// A sender that ends does not wait for a reader that has left its ring and reads late: the kernel takes the rest.
#[test]
fn the_end_of_a_sender_does_not_wait_for_a_reader_that_has_left() {
    let Some((stage, program)) = with_program("absent") else { return };
    for way in ["close", "shutdown", "execute"] {
        let said = stage.output(stage.tuned(&program, [way], &[]));
        // More than kernel TCP takes with such buffers: so the ring has some of it.
        let least = if is_kernel_only() { 100_000 } else { 210_000 };
        assert!(said.trim().parse::<u64>().is_ok_and(|total| total > least), "{way}: {said}");
    }
    stage.finish();
}

/// A script executes itself, then the program, as servers do that restart themselves.
#[test]
fn a_script_executes_itself() {
    let Some(mut scene) = Scene::new() else { return };
    scene.image = scene.stage.path("script");
    let script = "#!/bin/sh\n\
                  if [ -z \"$AGAIN\" ]; then AGAIN=1; export AGAIN; exec \"$0\" \"$@\"; fi\n\
                  exec \"$HANDOVER_PROGRAM\" \"$@\"\n";
    fs::write(&scene.image, script).expect("write a script");
    fs::set_permissions(&scene.image, fs::Permissions::from_mode(0o755)).expect("make it executable");
    for state in STATES {
        scene.assert_whole(HandOver { connections: 2, state, way: "exec", ..HandOver::ONE });
    }
    scene.assert_whole(HandOver { connections: 2, state: "sending", way: "spawn", ..HandOver::ONE });
    scene.finish();
}

/// Beside heavy load an image may begin long after it was spawned. Fails if `LENT_NS` is 5 s, if the end of an image
/// that was not awaited any more is another connection's by then, or if a process ends, or executes a program, with
/// what the image alone can read, beside a child that was killed or not. An image that was killed is not awaited.
#[test]
fn an_image_that_begins_late_reads_what_its_other_end_has_left_or_is_reset() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let program = fixture("late.py");
    let too_late = if is_kernel_only() { "whole" } else { "reset" };
    let cases = [
        ("6", "closes", "whole"),
        ("22", "closes", too_late),
        ("3", "ends", "whole"),
        ("3", "closes-and-ends", "whole"),
        ("3", "executes", "whole"),
        ("3", "closes-and-executes", "whole"),
        ("3", "mourns-and-ends", "whole"),
        ("3", "mourns-closes-and-ends", "whole"),
        ("0", "kills-and-ends", "at-once"),
    ];
    let images = cases.map(|(seconds, how, outcome)| {
        let fifo = stage.path(&format!("{how}-{seconds}"));
        let words = [program.to_str().unwrap(), fifo.to_str().unwrap(), seconds, how];
        (stage.start(stage.tuned("python3", words, AT_ONCE)), how, outcome)
    });
    for (group, how, outcome) in images {
        let said = group.succeed(LIMIT);
        // Behind what the loader says of the FIFO.
        assert_eq!(said.split_whitespace().last(), Some(outcome), "{how}: {said}");
    }
    stage.finish();
}

/// A receiver that finds neither the end nor its channel any more must not read a clean end in place of what was in the
/// ring.
#[test]
fn a_receiver_of_what_is_lost_is_told() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let program = fixture("lost.py");
    for how in ["kill", "execute"] {
        let said = stage.output(stage.tuned("python3", [program.to_str().unwrap(), how], AT_ONCE));
        assert!(["10 bytes", "reset"].contains(&said.trim()), "{how}: {said}");
    }
    stage.run.assert_fast("python3");
    stage.finish();
}

/// Fails if the loan of a message that was not sent stands: the process that ends awaits a receiver, for 20 s.
#[test]
fn who_is_not_passed_a_connection_is_not_awaited() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let program = fixture("refused.py");
    let said = stage.output(stage.tuned("python3", [program.to_str().unwrap()], AT_ONCE));
    assert_eq!(said.trim(), "at-once");
    stage.run.assert_fast("python3");
    stage.finish();
}

/// The image comes for an end that another process has, which is between two images and does not have the memory with
/// the unread bytes. Fails if the process that ends leaves the memory to that one.
#[test]
fn an_image_is_awaited_beside_a_process_between_two_images() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let program = fixture("late.py");
    for how in ["shares-and-ends", "shares-closes-and-ends"] {
        let fifo = stage.path(how);
        let words = [program.to_str().unwrap(), fifo.to_str().unwrap(), "0.3", how];
        let said = stage.start(stage.tuned("python3", words, AT_ONCE)).succeed(LIMIT);
        assert_eq!(said.split_whitespace().last(), Some("whole"), "{how}: {said}");
    }
    stage.finish();
}

/// An image that gets no processor after it has attached the table of ends, in which it counts itself, and before it
/// attaches the memory with the unread bytes, its third segment: strace(1) holds it up there. Fails if its parent does
/// not wait until the image has both.
#[test]
fn an_image_that_has_half_come_is_awaited() {
    let Some(stage) = Stage::with(&["python3", "strace"]) else { return };
    let (program, python) = (fixture("late.py"), find("python3").expect("it is installed"));
    for how in ["ends", "closes-and-ends", "comes-and-ends", "comes-closes-and-ends"] {
        let fifo = stage.path(how);
        let options = ["-f", "-o", "/dev/null", "-e", "trace=shmat", "-e", "inject=shmat:delay_enter=300000:when=3+"];
        let words = [python.to_str().unwrap(), program.to_str().unwrap(), fifo.to_str().unwrap(), "0", how];
        let said = stage.start(stage.tuned("strace", [&options[..], &words].concat(), AT_ONCE)).succeed(LIMIT);
        assert_eq!(said.split_whitespace().last(), Some("whole"), "{how}: {said}");
    }
    stage.finish();
}

/// Both processes that have the connection end at the same moment, each of them beside the other, and the image begins
/// later than it is awaited: strace(1) holds them up between the look whether they are the last and the leaving. Fails
/// if the process that then turns out to be the last does not leave the ring: the image would find the end of the
/// stream in place of what the other end sends into the ring.
#[test]
fn the_last_of_two_that_end_at_once_leaves_the_ring_to_an_image() {
    let Some(stage) = Stage::with(&["python3", "strace"]) else { return };
    let (program, python) = (fixture("gone.py"), find("python3").expect("it is installed"));
    let fifo = stage.path("fifo");
    let options = ["-f", "-o", "/dev/null", "-e", "trace=tkill", "-e", "inject=tkill:delay_enter=50000"];
    let words = [python.to_str().unwrap(), program.to_str().unwrap(), fifo.to_str().unwrap(), "6", "twins"];
    let said = stage.start(stage.tuned("strace", [&options[..], &words].concat(), AT_ONCE)).succeed(LIMIT);
    assert_eq!(said.split_whitespace().last(), Some("whole"), "{said}");
    stage.finish();
}

/// Whether a process may copy another one's socket which is neither its parent nor its child (ptrace(2), Yama).
fn may_trace_others() -> bool {
    let is_root = || fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    matches!(scope.trim(), "" | "0") || scope.trim() != "3" && is_root()
}

/// No process has the table of ends any more when an image begins. If a process was killed that might have had
/// something in its ring, the image must not find the end of the stream, or what comes later, in its place. If all have
/// ended in order, everything comes by the kernel.
#[test]
fn an_image_that_finds_no_process_reads_all_or_is_reset() {
    let Some(stage) = Stage::with(&["python3"]) else { return };
    let program = fixture("gone.py");
    let killed = if is_kernel_only() { "whole" } else { "reset" };
    // A process that may not copy the other end's socket leaves it to the other end to put what is unread there.
    let copied = if may_trace_others() { "whole" } else { killed };
    let cases = [
        ("ends", "whole"),
        ("closes-and-ends", "whole"),
        ("executes", "whole"),
        ("closes-and-executes", "whole"),
        ("closes-and-dies", "whole"),
        ("asks-ends", "whole"),
        ("asks-closes-and-ends", "whole"),
        ("asks-closes-and-executes", "whole"),
        ("unread-ends", copied),
        ("unread-closes-and-ends", copied),
        ("unread-executes", copied),
        ("dies", killed),
        ("leaves-and-dies", killed),
        ("fails-and-dies", killed),
        ("unread-dies", killed),
        ("beside-and-ends", "whole"),
        ("waits-and-ends", "whole"),
    ];
    let images = cases.map(|(how, outcome)| {
        let fifo = stage.path(how);
        let seconds = if how.starts_with("waits") { "26" } else { "3" };
        let words = [program.to_str().unwrap(), fifo.to_str().unwrap(), seconds, how];
        (stage.start(stage.tuned("python3", words, AT_ONCE)), how, outcome)
    });
    for (group, how, outcome) in images {
        let said = group.succeed(LIMIT);
        // Behind what the loader says of the FIFO.
        assert_eq!(said.split_whitespace().last(), Some(outcome), "{how}: {said}");
    }
    stage.finish();
}

/// Fails if another thread goes back to the ring while the process ends, or executes a program: then the image misses
/// what comes there.
#[test]
fn a_thread_that_receives_while_its_process_ends_takes_nothing_from_a_late_image() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.compiled("parting");
    let images: Vec<_> = ["exit", "_exit", "executes"]
        .into_iter()
        .flat_map(|how| [AT_ONCE, &[]].map(|settings| (how, settings)))
        .enumerate()
        .map(|(number, (how, settings))| {
            let fifo = stage.path(&number.to_string());
            let words = [fifo.to_str().unwrap(), "3", how];
            (stage.start(stage.tuned(&program, words, settings)), how)
        })
        .collect();
    for (group, how) in images {
        let said = group.succeed(LIMIT);
        assert_eq!(said.split_whitespace().last(), Some("whole"), "{how}: {said}");
    }
    stage.finish();
}

/// Rounds of the soak `executions` that failed before. Which moves they have depends on how the soak picks them. After
/// a change of that, `make soak` finds others.
#[test]
fn both_ends_of_a_connection_execute_programs_at_the_same_time() {
    let seed_1: &[&str] = &["8", "12", "46", "318", "332", "397", "432", "526", "670", "946", "1275", "1815"];
    let all = [
        ("1", seed_1, AT_ONCE),
        ("3", &["848"], AT_ONCE),
        ("7", &["979"], AT_ONCE),
        ("4101", &["4857"], AT_ONCE),
        ("2", &["314"], &[]),
        ("6", &["867"], &[]),
        ("8", &["75"], &[]),
        ("5002", &["51", "403", "2013"], &[]),
        ("6101", &["2266"], AT_ONCE),
        ("6102", &["813"], &[]),
        ("9103", &["7057"], &[]),
    ];
    const TIMES: usize = 5;
    let Some(stage) = Stage::beside_others(&["cc"]) else { return };
    let program = stage.path("executions");
    cc(&program, &["-O2"], &[Path::new(env!("CARGO_MANIFEST_DIR")).join("soak/executions.c")]);
    for (seed, rounds, settings) in all {
        for round in rounds.iter().cycle().take(rounds.len() * TIMES) {
            let played = stage.tuned(program.to_str().unwrap(), [seed, "1", round], settings);
            stage.start(played).succeed(LIMIT);
        }
    }
    stage.finish();
}
