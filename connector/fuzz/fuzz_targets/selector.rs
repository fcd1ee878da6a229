#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| berth_selector::fuzz::fuzz_selector(data));
