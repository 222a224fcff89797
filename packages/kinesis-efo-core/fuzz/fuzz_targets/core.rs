#![no_main]

libfuzzer_sys::fuzz_target!(init: kinesis_efo_core_fuzz::load("core"), |input: &[u8]| kinesis_efo_core_fuzz::run(input));
