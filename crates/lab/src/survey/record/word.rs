//! Cases as JSON and CSV have them.

use serde::Serialize;

/// The word that stands for a case in JSON.
pub(crate) fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| Some(value.as_str()?.to_string())).unwrap_or_default()
}
