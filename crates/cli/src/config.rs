//! `underpass config`.

use serde_json::{Value, json};

use crate::cli::ConfigArguments;
use crate::failure::Failure;
use crate::output::{print, table};
use crate::settings::{Origin, Settings, file_places, variable};

/// Prints every key with its value, its origin and what it is for.
pub fn show(arguments: &ConfigArguments) -> Result<(), Failure> {
    let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.settings.set)?;
    let shown = if arguments.json { format!("{:#}\n", json(&settings)) } else { text(&settings) };
    Ok(print(shown)?)
}

fn text(settings: &Settings) -> String {
    let mut rows = vec![["SETTING", "VALUE", "FROM", "MEANING"].map(String::from).to_vec()];
    for s in &settings.values {
        rows.push(vec![s.key.name.into(), s.text.clone(), s.origin.to_string(), s.key.help.into()]);
        rows.push(vec![String::new(), String::new(), String::new(), format!("({})", s.key.shape)]);
    }
    let file = match &settings.file {
        Some(path) => format!("File: {}", path.display()),
        None => {
            let places: Vec<String> = file_places().iter().map(|p| p.display().to_string()).collect();
            format!("File: none (there is no {})", places.join(" and no "))
        }
    };
    let example = &settings.values[0];
    let (name, capitals) = (example.key.name, variable(example.key));
    format!(
        "{}\n{file}\nTo change one: {name} = \"{1}\" in the file, {capitals}={1} in the environment, or --set \
         {name}={1}.\n",
        table(&rows, &[]),
        example.text,
    )
}

fn json(settings: &Settings) -> Value {
    let mut values = serde_json::Map::new();
    for s in &settings.values {
        let mut value = json!({ "value": s.text, "variable": variable(s.key), "default": s.key.default });
        match &s.origin {
            Origin::Default => value["from"] = "default".into(),
            Origin::Environment => value["from"] = "environment".into(),
            Origin::Flag => value["from"] = "flag".into(),
            Origin::File(path, line) => {
                value["from"] = "file".into();
                value["file"] = path.to_string_lossy().into();
                value["line"] = (*line).into();
            }
        }
        values.insert(s.key.name.into(), value);
    }
    json!({ "file": settings.file.as_ref().map(|f| f.to_string_lossy()), "settings": values })
}
