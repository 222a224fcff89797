fn main() {
    // The programs find the library of the Python that they were built for.
    pyo3_build_config::add_libpython_rpath_link_args();
}
