//! The report in a browser: wide and narrow, light and dark.

mod browser;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use browser::Browser;
use serde_json::{Value, json};

/// Scrolls to each chart until it is drawn.
const DRAW_ALL: &str = "(async () => {
  for (const chart of document.querySelectorAll('.chart')) {
    chart.scrollIntoView();
    for (let turn = 0; turn < 200 && !chart.querySelector('svg'); turn++) await new Promise((go) => setTimeout(go, 20));
  }
  scrollTo(0, 0);
  return document.querySelectorAll('.chart').length;
})()";

/// What is wrong with where things lie, in words; nothing if nothing is.
const MISPLACED: &str = "(() => {
  const wrong = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} \
  wide`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode()) {
    const text = texts.currentNode;
    // Tables scroll.
    if (!text.data.trim() || text.parentElement.closest('.scroll, .chart, .skip, #told, script, style')) continue;
    range.selectNodeContents(text);
    for (const at of range.getClientRects())
      if (at.left < -1 || at.right > width + 1) wrong.push(`\"${text.data.trim()}\" is cut off`);
  }
  document.querySelectorAll('.chart').forEach((chart, number) => {
    const box = chart.getBoundingClientRect(), name = \
    chart.parentElement.querySelector('figcaption').textContent.slice(0, 50);
    const figure = chart.parentElement.getBoundingClientRect();
    if (!chart.querySelector('.main-svg')) return wrong.push(`${name}: not drawn`);
    if (box.left < figure.left || box.right > figure.right || box.right > width) wrong.push(`${name}: beyond its \
    figure`);
    const texts = [...chart.querySelectorAll('.main-svg text')].filter((it) => it.textContent && \
    it.getBoundingClientRect().width);
    for (const text of texts) {
      const at = text.getBoundingClientRect();
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        wrong.push(`${name}: \"${text.textContent}\" is cut off`);
    }
    for (const kind of ['.xtick text', '.ytick text', '.legendtext', '.annotation text', '.heatmap-label text']) {
      const all = [...chart.querySelectorAll(kind)].map((it) => [it.textContent, it.getBoundingClientRect()]);
      all.forEach(([one, a], at) => all.slice(at + 1).forEach(([other, b]) => {
        const over = Math.min(a.right, b.right) - Math.max(a.left, b.left), under = Math.min(a.bottom, b.bottom) - \
        Math.max(a.top, b.top);
        if (over > 1 && under > 3) wrong.push(`${name}: \"${one}\" lies over \"${other}\"`);
      }));
    }
    const legend = chart.querySelector('.legend'), axis = chart.querySelector('.xtitle');
    if (legend && axis && axis.textContent) {
      const [a, b] = [legend.getBoundingClientRect(), axis.getBoundingClientRect()];
      if (a.top < b.bottom - 2) wrong.push(`${name}: the legend lies over the axis`);
    }
  });
  return wrong;
})()";

fn record(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records").join(name)
}

fn write_page(folder: &Path, records: &[&str]) -> PathBuf {
    let page = folder.join("report.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_underpass"));
    command.arg("report").arg("--output").arg(&page).args(records.iter().map(|name| record(name)));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    page
}

/// The browser, or the reason why there is none.
fn browser() -> Option<Browser> {
    let program = browser::program();
    if program.is_none() {
        let reason = "the report in a browser, because chromium is not installed (apt-get install chromium)";
        assert!(std::env::var_os("UNDERPASS_TEST_REQUIRE").is_none(), "not to be skipped: {reason}");
        eprintln!("SKIPPED: {reason}");
    }
    program.map(|program| Browser::start(&program))
}

/// Errors of the page, and what it asked the network for.
fn complaints(events: &[Value]) -> Vec<String> {
    let is_error = |it: &&Value| {
        let level = |name: &str| it["params"][name]["level"] == "error";
        it["method"] == "Runtime.exceptionThrown"
            || (it["method"] == "Runtime.consoleAPICalled" && it["params"]["type"] == "error")
            || (it["method"] == "Log.entryAdded" && level("entry"))
    };
    let requests = events.iter().filter(|it| it["method"] == "Network.requestWillBeSent");
    let urls = requests.filter_map(|it| it["params"]["request"]["url"].as_str());
    let foreign = urls.filter(|url| !["file:", "data:", "blob:"].iter().any(|own| url.starts_with(own)));
    let errors = events.iter().filter(is_error).map(|it| it["params"].to_string());
    foreign.map(|url| format!("asks for {url}")).chain(errors).collect()
}

/// Leaves a picture where a person wants to look at it.
fn picture(browser: &mut Browser, name: &str) {
    let Some(folder) = std::env::var_os("UNDERPASS_TEST_PICTURES") else { return };
    let height = browser.evaluate("document.documentElement.scrollHeight");
    let width = browser.evaluate("document.documentElement.clientWidth");
    let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
    let taken = browser.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip }));
    // The shell's decoder saves a dependency.
    let (encoded, file) = (Path::new(&folder).join("encoded"), Path::new(&folder).join(name));
    fs::write(&encoded, taken["data"].as_str().unwrap()).unwrap();
    let decoded = Command::new("base64").arg("-d").arg(&encoded).output().unwrap();
    fs::write(file, decoded.stdout).unwrap();
    fs::remove_file(encoded).unwrap();
}

const RECORDS: [&str; 4] =
    ["2026-11-23.json", "apps-2026-11-26.json", "driver-2026-11-23.json", "checksum-gpu-2026-11-26.json"];

#[test]
fn everything_lies_where_it_belongs_and_nothing_is_fetched() {
    let Some(mut browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = write_page(folder.path(), &RECORDS);
    for (width, scheme) in [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")] {
        browser.open(&page, width, scheme);
        let charts = browser.evaluate(DRAW_ALL).as_u64().unwrap();
        assert!(charts >= 30, "{charts} charts");
        assert_eq!(browser.evaluate(MISPLACED), json!([]), "{width} pixels, {scheme}");
        let ground = browser.evaluate("getComputedStyle(document.body).backgroundColor");
        let expected = if scheme == "dark" { "rgb(20, 23, 26)" } else { "rgb(251, 251, 250)" };
        assert_eq!(ground, expected);
        let ink = browser.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill");
        assert_eq!(ink, if scheme == "dark" { "rgb(230, 232, 235)" } else { "rgb(28, 31, 35)" });
        picture(&mut browser, &format!("{width}-{scheme}.png"));
        assert_eq!(complaints(&browser.events), [""; 0], "{width} pixels, {scheme}");
    }
}

/// A part of the survey that is kept here, as its endpoints would be called in the longest names that there may be.
fn survey(folder: &Path, names: [(&str, &str); 2]) -> PathBuf {
    let mut text = fs::read_to_string(record("survey-2026-11-27.json")).unwrap();
    for (from, to) in names {
        text = text.replace(&format!("\"{from}\""), &format!("\"{to}\""));
    }
    let mut survey: Value = serde_json::from_str(&text).unwrap();
    let is_kept = |it: &Value| it["flows"] == 1 && it["load"] == "idle" && it["path"] == "kernel";
    survey["series"].as_array_mut().unwrap().retain(is_kept);
    let file = folder.join(format!("{}.json", names[0].1));
    fs::write(&file, survey.to_string()).unwrap();
    file
}

#[test]
fn no_name_of_an_endpoint_is_cut_off() {
    let Some(mut browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let longest = ["the-bluefield-2-of-the-first-rack-in-the-cellar.example.org-0001".to_string(), "n".repeat(64)];
    let files = [
        survey(folder.path(), [("nic-a", "nic-a"), ("nic-b", "nic-b")]),
        survey(folder.path(), [("nic-a", &longest[0]), ("nic-b", &longest[1])]),
    ];
    let page = write_page(folder.path(), &files.each_ref().map(|file| file.to_str().unwrap()));
    for width in [390, 1400] {
        browser.open(&page, width, "light");
        browser.evaluate(DRAW_ALL);
        assert_eq!(browser.evaluate(MISPLACED), json!([]), "{width} pixels");
        let kinds =
            browser.evaluate("['.heatmap-label', '.legendtext', '.ytick'].map((it) => !!document.querySelector(it))");
        assert_eq!(kinds, json!([true, true, true]), "fields, legends and rows have their texts");
        picture(&mut browser, &format!("names-{width}.png"));
        assert_eq!(complaints(&browser.events), [""; 0], "{width} pixels");
    }
}

#[test]
fn the_keyboard_reaches_every_point() {
    let Some(mut browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = write_page(folder.path(), &RECORDS[..1]);
    browser.open(&page, 1400, "light");
    browser.evaluate(DRAW_ALL);
    browser.evaluate("document.querySelector('.chart').focus()");
    let told = |browser: &mut Browser| browser.evaluate("document.getElementById('told').textContent");
    browser.press("ArrowRight");
    let first = told(&mut browser);
    assert!(first.as_str().unwrap().starts_with("Underpass, 1 B: 361 ns (95 %: "), "{first}");
    assert_eq!(browser.evaluate("document.querySelectorAll('.chart .hovertext').length"), 1, "and it is shown");
    browser.press("ArrowDown");
    assert!(told(&mut browser).as_str().unwrap().starts_with("kernel TCP, 1 B: "));
    browser.press("End");
    assert!(told(&mut browser).as_str().unwrap().starts_with("kernel TCP, 64 KiB: "));
    let ticks = "[...document.querySelector('.chart').querySelectorAll('.ytick')].map((it) => it.textContent).join()";
    let logarithmic = browser.evaluate(ticks);
    browser.press("l");
    assert_ne!(browser.evaluate(ticks), logarithmic);
    assert_eq!(complaints(&browser.events), [""; 0]);
}

/// The file that a button saves.
fn saved(browser: &mut Browser, folder: &Path, button: &str) -> String {
    let saved = folder.join("saved");
    fs::create_dir(&saved).unwrap();
    browser.call("Browser.setDownloadBehavior", json!({ "behavior": "allow", "downloadPath": saved }));
    browser.evaluate(&format!("{button}.click()"));
    let begin = Instant::now();
    loop {
        let mut files = fs::read_dir(&saved).unwrap().flatten().map(|it| it.path());
        let file = files.find(|it| it.extension().is_some_and(|it| it == "csv"));
        let text = file.map(|file| fs::read_to_string(file).unwrap()).filter(|text| !text.is_empty());
        if let Some(text) = text {
            return text;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "no file came");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Does something with a browser that is ended if it takes too long, as a script without end does.
fn in_time<T>(browser: &mut Browser, work: impl FnOnce(&mut Browser) -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let id = browser.id().to_string();
    thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
                Command::new("kill").args(["-KILL", &id]).status().unwrap();
            }
        });
        let value = work(browser);
        drop(done);
        value
    })
}

/// A figure that was 0 in some samples has no place on a logarithmic axis, and a name may look like a formula.
#[test]
fn a_record_with_odd_figures_and_names_is_drawn_and_saved() {
    let Some(mut browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut odd: Value = serde_json::from_str(&fs::read_to_string(record(RECORDS[0])).unwrap()).unwrap();
    for it in odd["measurements"].as_array_mut().unwrap() {
        let (is_first, median) = (it["size"] == 1 && it["suite"] == "pingpong", it["underpass"]["median"].clone());
        if is_first && !median.is_null() {
            it["underpass"]["samples"] = json!([0.0, 0.0, median, median, median]);
            it["name"] = format!("=1+{}", it["name"].as_str().unwrap()).into();
        }
    }
    let file = folder.path().join("odd.json");
    fs::write(&file, odd.to_string()).unwrap();
    let page = write_page(folder.path(), &[file.to_str().unwrap()]);
    browser.open(&page, 1400, "light");
    in_time(&mut browser, |browser| browser.evaluate(DRAW_ALL));
    assert_eq!(browser.evaluate(MISPLACED), json!([]));
    let button = "[...document.querySelectorAll('table')].find((it) => it.textContent.includes('=1+'))\
                  .parentElement.previousElementSibling";
    let text = saved(&mut browser, folder.path(), button);
    assert!(text.contains("\n'=1+") || text.contains("\n\"'=1+"), "{text}");
    assert_eq!(complaints(&browser.events), [""; 0]);
}

#[test]
fn a_table_becomes_a_file_and_the_page_a_print() {
    let Some(mut browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = write_page(folder.path(), &RECORDS[..1]);
    browser.open(&page, 1400, "dark");
    let text = saved(&mut browser, folder.path(), "document.querySelector('.plain .csv')");
    let lines: Vec<&str> = text.lines().collect();
    let of = |side: &str| format!("{side},{side} (unit),{side} (low),{side} (high)");
    let paper = "message,paper: TCP/IP,paper: TCP/IP (unit),paper: bypass,paper: bypass (unit),paper: ratio";
    let ratio = "ratio,ratio (low),ratio (high)";
    assert_eq!(lines[0], format!("{paper},{},{},{ratio}", of("kernel TCP"), of("Underpass")));
    assert!(lines[1].starts_with("1 B,98000,ns,72000,ns,1.36"), "{text}");
    assert_eq!(lines[1].split(',').count(), lines[0].split(',').count(), "{text}");
    let printed = browser.call("Page.printToPDF", json!({ "printBackground": true }));
    assert!(printed["data"].as_str().unwrap().starts_with("JVBERi"), "a PDF");
    assert_eq!(
        browser.evaluate("getComputedStyle(document.body).backgroundColor"),
        "rgb(20, 23, 26)",
        "as it was before"
    );
    assert_eq!(complaints(&browser.events), [""; 0]);
}
