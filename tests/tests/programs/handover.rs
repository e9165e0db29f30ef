//! A connection that is handed to another program image goes on, whatever that image is and however many there are.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use underpass_tests::apart::apart;
use underpass_tests::library::{self, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, skip};

/// What the client does while the server hands its connections over.
const STATES: [&str; 6] = ["idle", "silent", "sending", "sent", "full", "elsewhere"];
/// How the server hands them over.
const WAYS: [&str; 8] = ["exec", "fork", "keep", "spawn", "vfork", "system", "popen", "scm"];
/// What becomes of the process or the library before that, so that the image has no library, or can attach nothing.
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
/// Exit code of a program whose connection was reset.
const RESET: i32 = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// A stage with the program, and a library of its own that may be removed.
struct Scene {
    stage: Stage,
    program: PathBuf,
    library: PathBuf,
}

/// One hand-over.
#[derive(Clone, Copy, Debug)]
struct HandOver<'a> {
    connections: usize,
    state: &'a str,
    way: &'a str,
    cause: &'a str,
}

impl Scene {
    fn new() -> Option<Scene> {
        if is_kernel_only() {
            skip("there is no library to be handed over");
            return None;
        }
        let stage = Stage::with(&[])?;
        let program = stage.path("handover");
        compile("handover.c", &program, &["-std=c11"]);
        let library = stage.path("libunderpass.so");
        // Another user reads the library, and where the streams stand.
        fs::set_permissions(stage.path("."), fs::Permissions::from_mode(0o755)).expect("open the folder");
        Some(Scene { stage, program, library })
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
        let serve =
            self.command(&self.program, &["serve", &port, &count, it.state, it.way, it.cause], Some(&self.library));
        let mut server = self.stage.serve(serve, port.parse().expect("a port"));
        let ask = self.command(&self.program, &["ask", &port, &count, it.state], Some(library::path()));
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

    fn finish(self) {
        self.stage.run.assert_fast("handover");
        self.stage.finish();
    }
}

fn gone(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[test]
fn streams_go_on_whatever_the_client_does() {
    let Some(scene) = Scene::new() else { return };
    for way in WAYS {
        for state in STATES {
            scene.assert_whole(HandOver { connections: 2, state, way, cause: "none" });
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
        // Of a thousand the one shows as much as the other.
        let states: &[&str] = if connections < 1000 { &["idle", "sent"] } else { &["sent"] };
        for (way, state) in WAYS.into_iter().flat_map(|way| states.iter().map(move |state| (way, *state))) {
            scene.assert_whole(HandOver { connections, state, way, cause: "none" });
        }
    }
    scene.finish();
}

/// The image sees plain TCP. Only what lies unread behind the end of a stream cannot be put there any more: then both ends hear
/// of a reset at once.
#[test]
fn an_image_that_cannot_go_on_finds_plain_tcp() {
    let Some(scene) = Scene::new() else { return };
    for cause in CAUSES {
        for (state, way) in
            [("idle", "exec"), ("silent", "exec"), ("sending", "exec"), ("elsewhere", "exec"), ("sending", "keep")]
        {
            fs::write(scene.stage.path("other.so"), "no library").expect("write a file");
            scene.assert_whole(HandOver { connections: 2, state, way, cause });
        }
        fs::write(scene.stage.path("other.so"), "no library").expect("write a file");
        let it = HandOver { connections: 1, state: "sent", way: "exec", cause };
        let (codes, said) = scene.run(it);
        assert!(codes == [0, 0] || codes == [RESET, RESET], "{it:?}: {codes:?} {said}");
    }
    scene.finish();
}

/// The same where no further System V segment may be made.
#[test]
fn an_image_without_segments_finds_plain_tcp() {
    apart(libc::CLONE_NEWIPC, || {
        let Some(scene) = Scene::new() else { return };
        for state in ["idle", "silent", "sending"] {
            fs::write("/proc/sys/kernel/shmmni", "4096").expect("as root");
            scene.assert_whole(HandOver { connections: 1, state, way: "exec", cause: "no-segments" });
        }
        scene.finish();
    });
}

/// What an image behind chroot(2) has is a program, its loader and libc.
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
    // Where the streams stand, it reads from a file of the same name.
    let streams = scene.stage.path("streams");
    let there = inside(&streams);
    fs::create_dir_all(there.parent().expect("a folder")).expect("make a folder");
    for state in ["idle", "silent", "sending"] {
        let _ = fs::remove_file(&there);
        fs::write(&streams, "").expect("write a file");
        fs::hard_link(&streams, &there).expect("a second name");
        scene.assert_whole(HandOver { connections: 1, state, way: "exec", cause: "chroot" });
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
        scene.assert_whole(HandOver { connections: 1, state, way: "exec", cause: "replaced" });
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
