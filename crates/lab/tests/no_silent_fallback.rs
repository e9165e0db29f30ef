//! A library that does nothing must never yield a figure: the programs run on kernel TCP with it, just as well.

use std::process::Command;

use underpass_lab::evidence::Evidence;
use underpass_lab::{Options, Suite, report, run};

#[test]
fn a_run_whose_bytes_went_through_the_kernel_has_no_underpass_figure() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libunderpass.so");
    let compiled = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library).status().unwrap();
    assert!(compiled.success());

    let mut options = Options::new(&library);
    (options.samples, options.quick, options.only) = (2, true, Some("64 B".to_string()));
    for (suite, name) in [(Suite::Pingpong, "blocking, 64 B"), (Suite::Stream, "64 B writes")] {
        let record = run(suite, &options).unwrap();
        if record.host.processors < 2 {
            return eprintln!("skipped: {:?}", record.skipped);
        }
        let [measurement] = &record.measurements[..] else { panic!("{:?}", record.measurements) };
        assert_eq!(measurement.name, name);
        let reason = measurement.invalid.as_deref().unwrap();
        assert!(reason.contains("the library was not at work"), "{reason}");
        assert!(measurement.kernel.median.is_some_and(|median| median > 0.0));
        assert!(measurement.underpass.samples.is_empty());
        assert_eq!((measurement.ratio, measurement.met), (None, None));
        let page = report::html(&Evidence::of("record".to_string(), record).unwrap()).unwrap();
        assert!(!page.contains("<figure"));
    }
}

#[test]
fn without_a_library_nothing_is_run() {
    let error = run(Suite::All, &Options::new("/no/libunderpass.so")).unwrap_err().to_string();
    assert!(error.contains("/no/libunderpass.so"), "{error}");
}
