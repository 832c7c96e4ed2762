//! What security costs: put and get over TCP in an open cluster, in one with a token (so every locator
//! has a grant that the node checks), and in one with a token and TLS; and a grant alone.
//!
//! What must stay true: the three take turns; the open cluster is the floor; each value that a get
//! brought is looked at.

use crate::effort::Effort;
use crate::measure::{Lap, Series, take_turns};
use crate::paths::{put, rate_cells, remove, segment_bytes};
use crate::peer::Peer;
use crate::render::{bytes, note};
use crate::report::{Row, Table, Verdict, duel_json, spread, time};
use crate::workload::{BenchKey, Rotation, Value, is_value, key};
use anyhow::{Result, ensure};
use mooncrate::{ClusterSecret, ConnectOptions, Credentials, Store, TlsFiles};
use mooncrate_check::certs::Authority;
use mooncrate_core::plan::Right;
use mooncrate_core::{Extent, Generation, Incarnation, Locator, SegmentId, Slot, TenantId};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::auth::GrantKey;
use mooncrate_wire::clock::wall_seconds;
use mooncrate_wire::message::Role;
use mooncrate_wire::{Credential, LinkConfig, PoolConfig};
use serde_json::json;
use std::hint::black_box;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const SIZES: [u64; 2] = [4 << 10, 1 << 20];
/// Goal for one check of a grant.
const GRANT_NS: f64 = 1000.0;
const GRANTS: u32 = 100_000;

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let apart = effort.cores.apart();
    apart.enter()?;
    let folder = tempfile::tempdir()?;
    let (token, tls) = credentials(folder.path())?;
    note("tls: starting the servers");
    let segment = segment_bytes(effort).to_string();
    let serve = ["serve-for-bench", "--bytes", &segment];
    let names = ["open", "token", "token and TLS"];
    let stores = [
        (Peer::start(&apart, &serve)?, Credentials::default()),
        (Peer::start(&apart, &[&serve[..], &["--security", folder_text(&token)]].concat())?, token),
        (
            Peer::start(
                &apart,
                &[&serve[..], &["--security", folder_text(&tls), "--tls"]].concat(),
            )?,
            tls,
        ),
    ]
    .map(|(peer, credentials)| connect(&peer, &credentials).map(|store| (peer, store)));
    let stores = stores.into_iter().collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for size in SIZES {
        let keys: Vec<BenchKey> = (0..effort.values(size) as u64).map(key).collect();
        note(&format!("tls: put {}", bytes(size)));
        let stores: [&Store; 3] = std::array::from_fn(|n| &stores[n].1);
        let puts = measure_puts(effort, stores, &keys, size)?;
        rows.extend(compare("put", size, names, &puts));
        note(&format!("tls: get {}", bytes(size)));
        let gets = measure_gets(effort, stores, &keys, size)?;
        rows.extend(compare("get", size, names, &gets));
    }
    rows.push(grant_row());
    Ok(vec![table(rows)])
}

fn folder_text(credentials: &Credentials) -> &str {
    let file = credentials.token_file.as_deref().and_then(Path::parent);
    file.and_then(Path::to_str).expect("made below, in a folder with a plain name")
}

/// A secret, a CA and a certificate that serves as both ends.
fn credentials(folder: &Path) -> Result<(Credentials, Credentials)> {
    let keep = |name: &str, text: &str| -> Result<std::path::PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        Ok(path)
    };
    let authority = Authority::default();
    let issued = authority.issue(&["master.mooncrate", "node.mooncrate", "client.mooncrate"]);
    let token_file = Some(keep("cluster.token", &ClusterSecret::generate()?.to_hex())?);
    let tls = TlsFiles {
        cert: Some(keep("cert.pem", &issued.cert)?),
        key: Some(keep("key.pem", &issued.key)?),
        ca: Some(keep("ca.pem", &authority.cert())?),
    };
    let token = Credentials { token_file, tls: TlsFiles::default() };
    Ok((token.clone(), Credentials { tls, ..token }))
}

/// What a peer reads out of such a folder.
pub(crate) fn read_credentials(folder: &Path, tls: bool) -> Credentials {
    let file = |name: &str| Some(folder.join(name));
    Credentials {
        token_file: file("cluster.token"),
        tls: if tls {
            TlsFiles { cert: file("cert.pem"), key: file("key.pem"), ca: file("ca.pem") }
        } else {
            TlsFiles::default()
        },
    }
}

fn connect(peer: &Peer, credentials: &Credentials) -> Result<Store> {
    let link = LinkConfig { access: credentials.access()?, ..LinkConfig::default() };
    Ok(Store::connect(ConnectOptions {
        master: peer.said().parse().map_err(anyhow::Error::msg)?,
        shared_memory: false,
        links: PoolConfig { link, ..PoolConfig::default() },
        ..ConnectOptions::default()
    })?)
}

/// Puts; what was put is removed between timed calls.
fn measure_puts(
    effort: &Effort,
    stores: [&Store; 3],
    keys: &[BenchKey],
    size: u64,
) -> Result<[Series; 3]> {
    let mut contenders = stores.map(|store| {
        let (mut turn, mut live) = (Rotation::new(keys.len()), Vec::new());
        let mut value = Value::new(size as usize);
        move |lap: &mut Lap| -> Result<()> {
            while lap.going() {
                if live.len() == keys.len() {
                    remove(store, &live)?;
                    live.clear();
                }
                let at = turn.next();
                let value = value.stamp(at);
                lap.time(|| store.put(&keys[at], value))?;
                live.push(keys[at]);
            }
            // A lap leaves nothing behind.
            remove(store, &live)?;
            live.clear();
            Ok(())
        }
    });
    let [a, b, c] = &mut contenders;
    take_turns(effort, [a, b, c])
}

fn measure_gets(
    effort: &Effort,
    stores: [&Store; 3],
    keys: &[BenchKey],
    size: u64,
) -> Result<[Series; 3]> {
    let mut value = Value::new(size as usize);
    for store in stores {
        for (number, key) in keys.iter().enumerate() {
            put(store, key, value.stamp(number))?;
        }
    }
    let mut contenders = stores.map(|store| {
        let (mut turn, mut target) = (Rotation::new(keys.len()), vec![0; size as usize]);
        move |lap: &mut Lap| -> Result<()> {
            while lap.going() {
                let at = turn.next();
                let got = lap.time(|| store.get_into(&keys[at], &mut target))?;
                ensure!(got == Some(target.len()), "value {at} is gone: {got:?}");
                ensure!(is_value(&target, at), "WRONG BYTES for value {at}");
            }
            Ok(())
        }
    });
    let [a, b, c] = &mut contenders;
    let series = take_turns(effort, [a, b, c])?;
    for store in stores {
        remove(store, keys)?;
    }
    Ok(series)
}

fn compare(call: &str, size: u64, names: [&str; 3], series: &[Series; 3]) -> Vec<Row> {
    let floor = &series[0];
    let row = |(name, subject): (&str, &Series)| {
        let mut cells = vec![name.to_owned(), call.to_owned(), bytes(size)];
        cells.extend(rate_cells(subject, size));
        cells.push(spread(subject.over(floor), "x"));
        let mut values = duel_json(subject, floor);
        values["cluster"] = json!(name);
        values["call"] = json!(call);
        values["value_bytes"] = json!(size);
        Row { cells, values, verdict: None }
    };
    names.into_iter().zip(series).map(row).collect()
}

/// One mint and one check, without a cluster around them.
fn grant_row() -> Row {
    let key = GrantKey::new(&ClusterSecret::from_bytes([1; 32]));
    let peer = Credential { role: Role::Client, tenant: TenantId(7) };
    let bare = Locator {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        slot: Slot(1),
        generation: Generation(1),
        extent: Extent::new(64, 128).expect("it fits"),
        stripe: 0,
        grant: None,
    };
    let grant = key.mint(&bare, peer.tenant, Right::Read, wall_seconds());
    let locator = Locator { grant: Some(grant), ..bare };
    let timed = |mut work: Box<dyn FnMut() + '_>| {
        let before = boottime();
        for _ in 0..GRANTS {
            work();
        }
        boottime().since(before).as_secs_f64() * 1e9 / f64::from(GRANTS)
    };
    let mint = timed(Box::new(|| {
        black_box(key.mint(black_box(&bare), peer.tenant, Right::Read, wall_seconds()));
    }));
    let check = timed(Box::new(|| {
        let good = key.check(black_box(&locator), Right::Read, peer, wall_seconds());
        assert!(black_box(good).is_ok());
    }));
    let cells = ["grant alone", "check", "-", &time(check), "-", "-", "-"].map(str::to_owned);
    Row {
        cells: cells.to_vec(),
        values: json!({ "call": "grant", "check_ns": check, "mint_ns": mint }),
        verdict: Some(Verdict::at_most(check, GRANT_NS, "<= 1 µs")),
    }
}

fn table(rows: Vec<Row>) -> Table {
    let columns =
        ["CLUSTER", "CALL", "SIZE", "P50", "P99", "GB/s (MIN..MAX)", "TIMES OPEN (MIN..MAX)"];
    Table {
        name: "tls",
        title: "What credentials and encryption cost over TCP, one thread",
        notes: [
            "Open: nobody is asked for anything. Token: every link is proved once, every locator \
             carries a grant that the node checks. TLS 1.3 in addition, with certificates on both \
             sides (ring).",
            "TIMES OPEN: time per call over that of the open cluster, round by round; the three take \
             turns. Links are kept, so handshakes are not in these figures.",
            "Grant alone: keyed BLAKE3 over 49 bytes and a look at the clock, per locator and request.",
        ]
        .map(str::to_owned)
        .to_vec(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
