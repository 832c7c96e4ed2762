//! `layers`: the dependency table of the house, compared with what the manifests say.
//!
//! The closure counts, not the single edge: the master may not reach memory or transfer code even
//! through a friend. Only normal and build dependencies ship; what a test uses is free, except for
//! `xtask` itself. Packages from elsewhere cannot depend on ours, so the manifests of the workspace
//! are enough and no network is needed.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Each crate of ours, by folder, and what it may reach. A new crate needs a row here and in the
/// layout page; `check` is in no shipped crate's row, so it stays a dev-dependency there.
const TABLE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("rt", &[]),
    ("lock", &["rt"]),
    ("mem", &["core", "lock", "rt"]),
    ("wire", &["core", "lock", "rt"]),
    ("transfer", &["core", "lock", "rt", "mem", "wire"]),
    ("ssd", &["core", "lock", "rt", "mem"]),
    ("gpu", &[]),
    ("paged", &["core", "lock", "rt", "mem", "gpu"]),
    ("heap", &["core", "lock", "rt", "mem", "gpu", "wire"]),
    ("ep", &["core", "lock", "rt", "mem", "gpu", "wire", "heap"]),
    ("admin", &["core", "lock", "rt", "wire"]),
    ("grpc", &["core", "lock", "rt", "wire"]),
    ("master", &["core", "lock", "rt", "wire", "admin"]),
    ("node", &["core", "lock", "rt", "mem", "gpu", "wire", "transfer", "ssd", "admin"]),
    ("client", &["core", "lock", "rt", "mem", "wire", "transfer", "gpu", "paged"]),
    ("nano", &["core", "lock", "rt", "mem", "wire", "transfer", "gpu", "heap"]),
    ("store", STORE),
    ("cli", DOORS),
    ("python", PYTHON),
    ("check", &["core"]),
    ("sim", SIM),
    ("bench", BENCH),
    ("xtask", &[]),
];

/// What the facade composes.
const STORE: &[&str] = &[
    "core", "lock", "rt", "mem", "wire", "transfer", "ssd", "gpu", "heap", "paged", "admin",
    "grpc", "master", "node", "client", "nano",
];
/// What the doors reach.
const DOORS: &[&str] = &[
    "core", "lock", "rt", "mem", "wire", "transfer", "ssd", "gpu", "heap", "paged", "ep", "admin",
    "grpc", "master", "node", "client", "nano", "store",
];
/// The package brings the command along.
const PYTHON: &[&str] = &[
    "core", "lock", "rt", "mem", "wire", "transfer", "ssd", "gpu", "heap", "paged", "ep", "admin",
    "grpc", "master", "node", "client", "nano", "store", "cli",
];
const SIM: &[&str] = &[
    "core", "lock", "rt", "mem", "wire", "transfer", "ssd", "gpu", "heap", "paged", "ep", "admin",
    "master", "node", "client", "nano", "check",
];
const BENCH: &[&str] = &[
    "core", "lock", "rt", "mem", "wire", "transfer", "ssd", "gpu", "heap", "paged", "ep", "admin",
    "grpc", "master", "node", "client", "nano", "store", "check", "sim",
];

/// Packages from elsewhere that a crate may not name, with the reason.
const BANNED: &[(&str, &[&str], &str)] = &[
    ("core", &["tokio", "mio", "socket2", "rustix", "libc", "rand", "getrandom"], CORE_IS_PURE),
    ("core", &["parking_lot", "crossbeam", "rayon", "tracing", "chrono"], CORE_IS_PURE),
    ("mem", &["tokio", "mio", "socket2"], "mem opens no sockets and runs no tasks"),
];
const CORE_IS_PURE: &str = "core does no I/O, reads no clock, draws no randomness, has no threads";

/// Who may use `anyhow`: programs, not libraries, whose errors tell the caller what to do.
const MAY_SHRUG: &[&str] = &["cli", "sim", "bench", "xtask"];

/// The dependencies of one crate of ours.
#[derive(Debug, Default)]
struct Edges {
    /// Crates of ours that ship with it, by folder.
    normal: BTreeSet<String>,
    /// Crates of ours that its tests use.
    dev: BTreeSet<String>,
    /// Packages from elsewhere that ship with it.
    foreign: BTreeSet<String>,
}

/// Asks cargo and judges.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("starting cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    judge(&metadata)
}

fn judge(metadata: &Value) -> Result<Vec<String>> {
    let graph = graph(metadata)?;
    let table: BTreeMap<&str, &[&str]> = TABLE.iter().copied().collect();
    let mut findings = Vec::new();
    for (name, edges) in &graph {
        let Some(allowed) = table.get(name.as_str()) else {
            findings.push(format!(
                "crates/{name}: not in the layer table; add a row to xtask's layers.rs and to the \
                 layout page"
            ));
            continue;
        };
        for path in reached(&graph, name) {
            let target = path.last().expect("a path has an end");
            if !allowed.contains(&target.as_str()) {
                let may = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
                findings.push(format!(
                    "crates/{name}: {} is forbidden; of our crates {name} may reach: {may}",
                    path.join(" -> ")
                ));
            }
        }
        if name == "xtask" {
            findings.extend(edges.dev.iter().map(|dev| {
                format!(
                    "crates/xtask: xtask -> {dev} (dev) is forbidden: it links no crate of ours"
                )
            }));
        }
        findings.extend(banned(name, edges));
    }
    Ok(findings)
}

fn banned(name: &str, edges: &Edges) -> Vec<String> {
    let mut findings = Vec::new();
    for (_, packages, why) in BANNED.iter().filter(|(banned, ..)| *banned == name) {
        let named = packages.iter().filter(|package| edges.foreign.contains(**package));
        findings.extend(named.map(|package| format!("crates/{name}: {name} -> {package}: {why}")));
    }
    if edges.foreign.contains("parking_lot") {
        findings.push(format!(
            "crates/{name}: {name} -> parking_lot: its table of waiting threads does not survive a fork; \
             use mooncrate-lock"
        ));
    }
    if edges.foreign.contains("anyhow") && !MAY_SHRUG.contains(&name) {
        findings.push(format!(
            "crates/{name}: {name} -> anyhow: a library says what the caller can do, with an enum"
        ));
    }
    findings
}

/// For every crate that `from` reaches, one shortest path to it.
fn reached(graph: &BTreeMap<String, Edges>, from: &str) -> Vec<Vec<String>> {
    let mut paths: Vec<Vec<String>> = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut next = 0;
    while next < paths.len() {
        let path = paths[next].clone();
        next += 1;
        let Some(edges) = path.last().and_then(|last| graph.get(last)) else { continue };
        for target in &edges.normal {
            if seen.insert(target.clone()) {
                paths.push(path.iter().chain([target]).cloned().collect());
            }
        }
    }
    paths.split_off(1)
}

/// Our crates by folder name, with their direct dependencies.
fn graph(metadata: &Value) -> Result<BTreeMap<String, Edges>> {
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let mut folders = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        folders.insert(name, folder_of(package)?);
    }
    let mut graph = BTreeMap::new();
    for package in packages {
        let mut edges = Edges::default();
        for dependency in package["dependencies"].as_array().context("no dependency list")? {
            let name = dependency["name"].as_str().context("a dependency without a name")?;
            let dev = dependency["kind"].as_str() == Some("dev");
            match folders.get(name) {
                Some(folder) if dev => edges.dev.insert(folder.clone()),
                Some(folder) => edges.normal.insert(folder.clone()),
                None if dev => false,
                None => edges.foreign.insert(name.to_owned()),
            };
        }
        graph.insert(folder_of(package)?, edges);
    }
    Ok(graph)
}

fn folder_of(package: &Value) -> Result<String> {
    let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
    let folder = Path::new(manifest).parent().and_then(Path::file_name);
    let folder = folder.and_then(|name| name.to_str()).context("a manifest without a folder")?;
    Ok(folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace of these crates; `"mem dev"` is a dev-dependency, a name that is no folder a
    /// package from elsewhere. The facade's package has another name than its folder.
    fn findings(crates: &[(&str, &[&str])]) -> Vec<String> {
        let package = |folder: &str| match folder {
            "store" => "mooncrate".to_owned(),
            _ => format!("mooncrate-{folder}"),
        };
        let packages: Vec<Value> = crates
            .iter()
            .map(|(folder, targets)| {
                let dependencies: Vec<Value> = targets
                    .iter()
                    .map(|target| {
                        let (name, kind) = match target.split_once(' ') {
                            Some((name, kind)) => (name, json!(kind)),
                            None => (*target, Value::Null),
                        };
                        let ours = crates.iter().any(|(folder, _)| *folder == name);
                        let name = if ours { package(name) } else { name.to_owned() };
                        json!({"name": name, "kind": kind})
                    })
                    .collect();
                json!({
                    "name": package(folder),
                    "manifest_path": format!("/src/crates/{folder}/Cargo.toml"),
                    "dependencies": dependencies,
                })
            })
            .collect();
        judge(&json!({ "packages": packages })).unwrap()
    }

    #[test]
    fn the_intended_layout_passes() {
        let found = findings(&[
            ("core", &["thiserror", "check dev"]),
            ("mem", &["core", "rustix", "tokio dev"]),
            ("wire", &["core", "tokio"]),
            ("transfer", &["core", "mem", "wire"]),
            ("grpc", &["core", "wire", "tonic", "master dev"]),
            ("master", &["core", "wire", "check dev", "node dev"]),
            ("node", &["core", "mem", "wire", "transfer"]),
            ("client", &["core", "mem", "wire", "transfer"]),
            ("store", &["grpc", "master", "node", "client"]),
            ("cli", &["store", "anyhow"]),
            ("check", &["core"]),
            ("sim", &["core", "mem", "check", "master"]),
            ("bench", &["store", "check", "sim"]),
            ("xtask", &["anyhow", "serde_json"]),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn the_master_cannot_reach_memory_even_through_a_friend() {
        let found = findings(&[
            ("core", &[]),
            ("mem", &["core"]),
            ("wire", &["core", "mem"]),
            ("master", &["core", "wire"]),
        ]);
        assert_eq!(
            found,
            [
                "crates/master: master -> wire -> mem is forbidden; of our crates master may \
                 reach: core, lock, rt, wire, admin",
                "crates/wire: wire -> mem is forbidden; of our crates wire may reach: core, lock, rt",
            ]
        );
    }

    #[test]
    fn check_ships_with_nobody() {
        let found = findings(&[("core", &[]), ("check", &["core"]), ("client", &["check"])]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/client: client -> check is forbidden"), "{found:?}");
        // A build dependency ships too.
        let found = findings(&[("core", &[]), ("check", &["core"]), ("mem", &["check build"])]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn xtask_links_no_crate_of_ours_not_even_in_tests() {
        let found = findings(&[("core", &[]), ("xtask", &["core dev"])]);
        assert_eq!(
            found,
            ["crates/xtask: xtask -> core (dev) is forbidden: it links no crate of ours"]
        );
    }

    #[test]
    fn some_packages_from_elsewhere_are_banned() {
        let found = findings(&[("core", &["tokio", "anyhow"]), ("mem", &["core", "socket2"])]);
        let ends: Vec<&str> = found.iter().filter_map(|f| f.split(':').nth(1)).collect();
        assert_eq!(ends, [" core -> tokio", " core -> anyhow", " mem -> socket2"]);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let found = findings(&[("utils", &[])]);
        assert!(found[0].starts_with("crates/utils: not in the layer table"), "{found:?}");
    }

    /// Rows name crates that have a row, and nobody reaches upwards in a circle.
    #[test]
    fn the_table_itself_points_down() {
        let table: BTreeMap<&str, &[&str]> = TABLE.iter().copied().collect();
        for (name, allowed) in &table {
            for target in *allowed {
                let below = table.get(target).unwrap_or_else(|| panic!("no row for {target}"));
                assert!(!below.contains(name), "{name} and {target} may reach each other");
            }
        }
    }
}
