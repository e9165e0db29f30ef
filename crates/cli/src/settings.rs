//! The effective configuration and where each value came from: flag, environment, file or default, in this order.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use underpass_segment::config::{Config, HANDOFF_VARIABLE, KEYS, Key};

use crate::failure::Failure;

/// Before each variable of ours.
pub const PREFIX: &str = "UNDERPASS_";
/// The variable that names the library.
pub const LIBRARY_VARIABLE: &str = "UNDERPASS_LIBRARY";
/// The variable that names the configuration file.
pub const FILE_VARIABLE: &str = "UNDERPASS_CONFIG";
/// The variable by which processes find where to count; set by `run --stats` itself.
pub const STATS_VARIABLE: &str = "UNDERPASS_STATS";
/// Before each variable of the tests, which may run this command.
const TEST_PREFIX: &str = "UNDERPASS_TEST_";

const SYSTEM_FILE: &str = "/etc/underpass.toml";
const USER_FILE: &str = "underpass/underpass.toml";

/// Every key with its value.
pub struct Settings {
    /// In the order of [`KEYS`].
    pub values: Vec<Setting>,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// The settings, typed.
    pub typed: Config,
}

/// One key's value.
pub struct Setting {
    /// The key.
    pub key: &'static Key,
    /// The value as it was written.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No flag, variable or file sets the key.
    Default,
    /// This line of a file.
    File(PathBuf, usize),
    /// The variable of the key.
    Environment,
    /// `--set`.
    Flag,
}

/// Why there is no valid configuration. Each message says where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file that was asked for cannot be read.
    #[error("cannot read the configuration file {path} (named by {by}): {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// What named it.
        by: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// File and line.
        place: String,
        /// The parser's words.
        message: String,
    },
    /// There is no such key.
    #[error("{place}: there is no setting {name}; {hint}")]
    Unknown {
        /// File and line, or the flag, or "the environment".
        place: String,
        /// The name as it was written.
        name: String,
        /// What was probably meant, or where to look.
        hint: String,
    },
    /// The value does not fit the key.
    #[error("{place}: {text:?} does not fit {name}, which is: {}", .key.shape)]
    BadValue {
        /// File and line, or the flag, or "the environment".
        place: String,
        /// The name as it was written.
        name: String,
        /// The key.
        key: &'static Key,
        /// The value as it was written.
        text: String,
    },
    /// `--set` without a key or without an equals sign.
    #[error("--set {0}: a setting is written KEY=VALUE, for instance --set mode=off")]
    NotAPair(String),
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

impl Settings {
    /// Puts together what the flags, the environment and one file say.
    ///
    /// `file` is `--config`; without it the file is that of `UNDERPASS_CONFIG`, else the user's, else the system's, and
    /// the last two may be missing. `flags` are the texts of `--set`.
    pub fn gather(file: Option<&Path>, flags: &[String]) -> Result<Settings, SettingsError> {
        let values =
            KEYS.iter().map(|key| Setting { key, text: key.default.into(), origin: Origin::Default }).collect();
        let mut settings = Settings { values, file: None, typed: Config::default() };
        if let Some((path, text)) = find_file(file)? {
            settings.take_file(&path, &text)?;
            settings.file = Some(path);
        }
        settings.take_environment(env::vars_os())?;
        for flag in flags {
            let pair = flag.split_once('=').filter(|(name, _)| !name.trim().is_empty());
            let (name, text) = pair.ok_or_else(|| SettingsError::NotAPair(flag.clone()))?;
            settings.take(&format!("--set {flag}"), name.trim(), name.trim(), text.trim(), Origin::Flag)?;
        }
        Ok(settings)
    }

    /// The variables that the library needs and the environment does not have yet.
    pub fn variables(&self) -> impl Iterator<Item = (String, &str)> {
        let said = |s: &&Setting| matches!(s.origin, Origin::File(..) | Origin::Flag);
        self.values.iter().filter(said).map(|s| (variable(s.key), s.text.as_str()))
    }

    fn take_file(&mut self, path: &Path, text: &str) -> Result<(), SettingsError> {
        let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
        let place = |line: usize| format!("{}:{line}", path.display());
        let table = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
            place: place(line(error.span().map_or(0, |s| s.start))),
            message: error.message().into(),
        })?;
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let at = line(name.span().start);
            let written = text.get(value.span()).unwrap_or_default();
            let is_section = matches!(value.get_ref(), DeValue::Table(_));
            let value = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
                    Ok(number) => number.to_string(),
                    Err(_) => written.to_string(),
                },
                _ => written.to_string(),
            };
            let name = name.get_ref();
            let taken = self.take(&place(at), name, name, &value, Origin::File(path.into(), at));
            taken.map_err(|error| match error {
                SettingsError::Unknown { place, name, .. } if is_section => {
                    let hint = "settings stand in the file by themselves, in no section".into();
                    SettingsError::Unknown { place, name, hint }
                }
                error => error,
            })?;
        }
        Ok(())
    }

    fn take_environment(&mut self, all: impl Iterator<Item = (OsString, OsString)>) -> Result<(), SettingsError> {
        for (name, value) in all {
            let Some(name) = name.to_str().filter(|n| n.starts_with(PREFIX)) else { continue };
            let other = [LIBRARY_VARIABLE, FILE_VARIABLE, STATS_VARIABLE, HANDOFF_VARIABLE].contains(&name);
            // An empty one is as good as none, also to the library.
            if other || name.starts_with(TEST_PREFIX) || value.is_empty() {
                continue;
            }
            // Capitals and nothing else: underpass_MODE or UNDERPASS_mode is a mistake, not another spelling.
            let key = name[PREFIX.len()..].to_ascii_lowercase();
            let key = if variable_of(&key) == name { key } else { name.into() };
            self.take("in the environment", name, &key, &value.to_string_lossy(), Origin::Environment)?;
        }
        Ok(())
    }

    /// Takes one value; `written` is the key's name in the spelling of its place.
    fn take(&mut self, place: &str, written: &str, key: &str, text: &str, origin: Origin) -> Result<(), SettingsError> {
        let (place, name) = (place.to_string(), written.to_string());
        match self.typed.set(key, text) {
            Ok(()) => {
                let setting = self.values.iter_mut().find(|s| s.key.name == key).expect("a key that was set exists");
                (setting.text, setting.origin) = (text.into(), origin);
                Ok(())
            }
            Err(Some(bad)) => Err(SettingsError::BadValue { place, name, key: bad.0, text: text.into() }),
            Err(None) => Err(SettingsError::Unknown { hint: hint(written, &origin), place, name }),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Environment => f.write_str("environment"),
            Origin::Flag => f.write_str("--set"),
        }
    }
}

/// The variable of a key.
pub fn variable(key: &Key) -> String {
    variable_of(key.name)
}

fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_ascii_uppercase())
}

/// The places in which a file is looked for when none is named, the first one first.
pub fn file_places() -> Vec<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config"))).map(|d| d.join(USER_FILE));
    user.into_iter().chain([PathBuf::from(SYSTEM_FILE)]).collect()
}

fn find_file(flag: Option<&Path>) -> Result<Option<(PathBuf, String)>, SettingsError> {
    let named = match flag {
        Some(path) => Some((path.to_path_buf(), "--config")),
        None => env::var_os(FILE_VARIABLE).filter(|v| !v.is_empty()).map(|v| (v.into(), FILE_VARIABLE)),
    };
    let unreadable = |path: &Path, by, error: io::Error| {
        let error = match error.kind() {
            io::ErrorKind::InvalidData => io::Error::other("it is not text in UTF-8, as TOML is"),
            _ => error,
        };
        SettingsError::Unreadable { path: path.display().to_string(), by, error }
    };
    if let Some((path, by)) = named {
        let text = read(&path).map_err(|e| unreadable(&path, by, e))?;
        return Ok(Some((path, text)));
    }
    for path in file_places() {
        match read(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            // HOME may still be another user's, whose folders are closed: nothing of this user's is in there.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && fs::metadata(&path).is_err() => {}
            Err(e) => return Err(unreadable(&path, "its usual place", e)),
        }
    }
    Ok(None)
}

/// The text of a configuration file; /dev/null stands for none.
fn read(path: &Path) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let check = |kind: fs::FileType| {
        // To read what is no file may take for ever.
        let fits = kind.is_file() || kind.is_dir() || path == Path::new("/dev/null");
        if fits { Ok(()) } else { Err(io::Error::other("it is not a regular file")) }
    };
    check(fs::metadata(path)?.file_type())?;
    // By now the name may belong to another file, such as a FIFO whose other end is never opened.
    let file = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    check(file.metadata()?.file_type())?;
    let mut text = String::new();
    if file.take(MOST + 1).read_to_string(&mut text)? as u64 > MOST {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    Ok(text)
}

/// What to do about a name that does not exist: the nearest name that does, spelt as its place spells names.
fn hint(written: &str, origin: &Origin) -> String {
    let word = written.replace('-', "_").to_ascii_uppercase();
    let nearest = if *origin == Origin::Environment {
        let names: Vec<String> =
            KEYS.iter().map(variable).chain([LIBRARY_VARIABLE, FILE_VARIABLE].map(String::from)).collect();
        nearest(&word, names.iter().map(String::as_str))
    } else {
        match word.strip_prefix(PREFIX).unwrap_or(&word) {
            "LIBRARY" => return format!("the library is named by {LIBRARY_VARIABLE} in the environment"),
            "CONFIG" => return format!("the file is named by --config or {FILE_VARIABLE} in the environment"),
            word => nearest(word, KEYS.iter().map(|key| key.name)),
        }
    };
    nearest.map_or("`underpass config` lists them all".into(), |name| format!("did you mean {name}?"))
}

/// The most similar of some words, if one is similar at all.
pub fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<String> {
    let scored = words.map(|w| (strsim::jaro_winkler(&word.to_lowercase(), &w.to_lowercase()), w));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.8).then(|| best.1.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Settings {
        let values =
            KEYS.iter().map(|key| Setting { key, text: key.default.into(), origin: Origin::Default }).collect();
        Settings { values, file: None, typed: Config::default() }
    }

    fn file(text: &str) -> Result<Settings, String> {
        let mut settings = empty();
        settings.take_file(Path::new("u.toml"), text).map_err(|e| e.to_string())?;
        Ok(settings)
    }

    fn environment(name: &str, value: &str) -> Result<Settings, String> {
        let mut settings = empty();
        settings.take_environment([(name.into(), value.into())].into_iter()).map_err(|e| e.to_string())?;
        Ok(settings)
    }

    #[test]
    fn every_default_is_the_librarys_own() {
        for key in KEYS {
            let mut config = Config::DEFAULT;
            assert_eq!(config.set(key.name, key.default), Ok(()), "{}", key.name);
            assert_eq!(config, Config::DEFAULT, "{}", key.name);
        }
    }

    #[test]
    fn a_file_gives_values_and_lines() {
        let settings = file("# ours\nmode = \"off\"\nring_bytes = 0x1_0000\n").unwrap();
        assert!(!settings.typed.enabled);
        assert_eq!(settings.typed.ring_bytes, 65536);
        assert_eq!(settings.values[0].origin, Origin::File("u.toml".into(), 2));
        let variables: Vec<_> = settings.variables().collect();
        assert_eq!(variables, [("UNDERPASS_MODE".into(), "off"), ("UNDERPASS_RING_BYTES".into(), "65536")]);
    }

    #[test]
    fn a_file_is_refused_with_its_line() {
        let refused = |text: &str| file(text).err().unwrap();
        assert_eq!(refused("\nspin_su = 1"), "u.toml:2: there is no setting spin_su; did you mean spin_us?");
        assert_eq!(refused("x = 1"), "u.toml:1: there is no setting x; `underpass config` lists them all");
        assert_eq!(refused("mode = true"), "u.toml:1: \"true\" does not fit mode, which is: on | off");
        assert_eq!(
            refused("spin_us = -1"),
            "u.toml:1: \"-1\" does not fit spin_us, which is: microseconds, 0 to 10000"
        );
        assert!(refused("mode = \"on\"\nmode =").starts_with("u.toml:2: "));
        let section =
            "u.toml:1: there is no setting underpass; settings stand in the file by themselves, in no section";
        assert_eq!(refused("[underpass]\nmode = \"on\""), section);
        for (text, meant) in
            [("UNDERPASS_MODE", "mode"), ("Underpass_Spin_Us", "spin_us"), ("RING-BYTES", "ring_bytes")]
        {
            let words = format!("u.toml:1: there is no setting {text}; did you mean {meant}?");
            assert_eq!(refused(&format!("{text} = \"off\"")), words);
        }
        assert!(refused("library = \"x\"").ends_with("the library is named by UNDERPASS_LIBRARY in the environment"));
        assert!(refused("config = \"x\"").ends_with("named by --config or UNDERPASS_CONFIG in the environment"));
    }

    #[test]
    fn the_environment_is_checked_by_prefix() {
        assert_eq!(environment("UNDERPASS_SPIN_US", "7").unwrap().typed.spin_us, 7);
        let others = [LIBRARY_VARIABLE, FILE_VARIABLE, STATS_VARIABLE, HANDOFF_VARIABLE];
        for name in others.into_iter().chain(["UNDERPASSAGE", "UNDERPASS_TEST_LIBRARY"]) {
            assert!(environment(name, "anything").is_ok());
        }
        assert_eq!(environment("UNDERPASS_MODE", "").unwrap().values[0].origin, Origin::Default);
        let refused = environment("UNDERPASS_SPIN", "7").err().unwrap();
        assert_eq!(refused, "in the environment: there is no setting UNDERPASS_SPIN; did you mean UNDERPASS_SPIN_US?");
        assert!(environment("UNDERPASS_mode", "on").err().unwrap().ends_with("did you mean UNDERPASS_MODE?"));
    }
}
