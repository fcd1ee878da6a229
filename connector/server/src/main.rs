//! The connector as a program: reads the command line, builds the runtime, runs [`berth_connector::run`],
//! says how it ended. Exit codes: 0 ended in order, 1 failed while running, 2 configuration, port or data
//! folder cannot be used.

use std::process::ExitCode;

fn main() -> ExitCode {
    match berth_connector::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("berth-connector: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
