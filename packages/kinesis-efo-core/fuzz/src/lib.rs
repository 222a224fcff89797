//! Runs the targets of `tests/fuzz/targets.py`, which compare the core with Python, so that libFuzzer sees what code of the core an input
//! reaches.

use kinesis_efo_core::kinesis_efo_core;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::wrap_pymodule;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

static TARGET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Runs a target with an input. Panics if a promise is broken.
pub fn run(name: &str, input: &[u8]) {
    Python::attach(|py| {
        if let Err(error) = TARGET.get_or_try_init(py, || load(py, name)).and_then(|target| target.call1(py, (input,))) {
            error.print(py);
            panic!("{name}: {error}");
        }
    });
}

fn load(py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
    let sys = py.import("sys")?;
    sys.getattr("path")?.call_method1("insert", (0, ROOT))?;
    // Before anything imports another build of it.
    sys.getattr("modules")?.set_item("kinesis_efo_core", wrap_pymodule!(kinesis_efo_core)(py))?;
    Ok(py.import("tests.fuzz.targets")?.getattr("TARGETS")?.get_item(name)?.unbind())
}
