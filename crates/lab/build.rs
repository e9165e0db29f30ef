//! Takes the charting library out of the package that has it, for the report to carry along.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let sources = plotly::Plot::offline_js_sources();
    // Behind the library, in an element of its own, comes one for formulas, which no report has.
    let library = sources.trim_start().strip_prefix("<script type=\"text/javascript\">");
    let library = library.and_then(|rest| rest.split_once("</script>")).map(|(library, _)| library);
    let library = library.filter(|library| library.contains("Licensed under the MIT license"));
    let library = library.ok_or("the package plotly does not have plotly.js where it used to have it: see build.rs")?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("plotly.min.js"), library)?;
    Ok(())
}
