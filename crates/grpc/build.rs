//! Compiles `proto/mooncrate/v1/master.proto` without `protoc`, and keeps its descriptor for
//! reflection.

use prost::Message;
use std::path::PathBuf;

// A link to the folder at the root, so that a source archive of this crate has the file.
const PROTO: &str = "proto";
const FILE: &str = "mooncrate/v1/master.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}/{FILE}");
    let descriptors = protox::compile([FILE], [PROTO])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out.join("master.bin"), descriptors.encode_to_vec())?;
    // Without the transport: the crate needs no client sockets; tests bring their own channel.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
