#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kinesis_efo_core_fuzz::run("values", input));
