//! The conformance list of the expert exchange on host memory, with eight real processes.

use std::process::Command;

#[test]
fn the_list_passes_with_eight_processes() {
    let ran = Command::new(env!("CARGO_BIN_EXE_mooncrate-bench"))
        .args(["ep", "--backend", "cpu", "--world", "8", "--steps", "70"])
        .output()
        .expect("the bench can be started");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{err}");
    assert!(out.contains("17 of 17 checks passed: cpu, 8 ranks"), "{out}");
}
