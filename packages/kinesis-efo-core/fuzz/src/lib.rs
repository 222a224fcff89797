//! Runs the targets of `tests/fuzz/targets.py`, which compare the core with Python, so that libFuzzer sees what code of the core an input
//! reaches.

use kinesis_efo_core::kinesis_efo_core;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::wrap_pymodule;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

static TARGET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Imports a target, which takes longer than any input may.
pub fn load(name: &str) {
    Python::attach(|py| {
        let target = import(py, name).unwrap_or_else(|error| fail(py, error));
        TARGET.set(py, target).expect("a program has one target");
    });
}

/// Runs the target with an input. Panics if a promise is broken.
pub fn run(input: &[u8]) {
    Python::attach(|py| {
        let target = TARGET.get(py).expect("a target is loaded first");
        target.call1(py, (input,)).unwrap_or_else(|error| fail(py, error));
    });
}

fn import(py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
    let sys = py.import("sys")?;
    sys.getattr("path")?.call_method1("insert", (0, ROOT))?;
    // Before anything imports another build of it.
    sys.getattr("modules")?.set_item("kinesis_efo_core", wrap_pymodule!(kinesis_efo_core)(py))?;
    Ok(py.import("tests.fuzz.targets")?.getattr("TARGETS")?.get_item(name)?.unbind())
}

fn fail(py: Python<'_>, error: PyErr) -> ! {
    error.print(py);
    panic!("{error}");
}
