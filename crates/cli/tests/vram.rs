//! The real binary: nodes that lend memory of a GPU. Without a driver that is refused in words; with one, or
//! with the emulator of one, values that are put into VRAM are read by every way there is.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]
#![expect(clippy::float_cmp, reason = "counts are whole numbers, which floats hold exactly")]
#![expect(clippy::cast_precision_loss, reason = "bytes and nanoseconds of a test are small")]

#[path = "support/metrics.rs"]
mod metrics;
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use metrics::Scrape;
use mooncrate::{ConnectOptions, PutConfig, Store, Stored};
use mooncrate_core::ids::name_hash;
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::seal::table;
use mooncrate_core::time::Deadline;
use mooncrate_core::{
    Extent, HostId, Incarnation, Key, LeaderEpoch, NodeId, Seal, SegmentId, TenantId,
};
use mooncrate_gpu::{AddressRange, DeviceBuffer, Gpu, PinnedBuffer, SharedMemory, Span, Stream};
use mooncrate_master::{Master, MasterConfig};
use mooncrate_mem::SliceSums;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_node::{Node, NodeConfig, VramConfig};
use mooncrate_transfer::{Engine, EngineConfig, Nodes, Segments};
use mooncrate_wire::message::{BeginWrite, PutEndItem, PutItem, SealList};
use mooncrate_wire::{Hello, LinkKind, LinkPool, MasterApi, MasterLink, PoolConfig, Role};
use rustix::process::Signal;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{Server, fetch, run, wait};

const ANY: &str = "127.0.0.1:0";
const SOON: Duration = Duration::from_secs(20);

/// The GPU, if there is one; else says which test is skipped.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn gpu(test: &str) -> Option<Gpu> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) if error.is_absent() => {
            println!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A master and nodes, each a process.
struct Fleet {
    folder: tempfile::TempDir,
    master: Server,
}

impl Fleet {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let master = Server::start(folder.path(), &["master", "--master", ANY, "--admin", "off"]);
        Self { folder, master }
    }

    fn node(&self, name: &str, more: &[&str]) -> Server {
        self.node_with(name, more, |_| ())
    }

    fn node_with(
        &self,
        name: &str,
        more: &[&str],
        change: impl FnOnce(&mut std::process::Command),
    ) -> Server {
        let unix = self.folder.path().join(format!("{name}.sock"));
        let at = self.master.address("master");
        let args = ["node", "--master", at, "--data", ANY, "--node-name", name];
        let memory = ["--segment-size", "32MiB", "--unix", unix.to_str().unwrap()];
        Server::start_with(self.folder.path(), &[&args[..], &memory, more].concat(), change)
    }

    /// The master, asked without a store.
    fn master_link(&self) -> MasterLink {
        let hello = Hello::new(Role::Client, LinkKind::Control, "a test");
        let address = self.master.address("master").parse().unwrap();
        MasterLink::new(LinkPool::new(address, hello, PoolConfig::default()))
    }

    fn connect(&self, shared_memory: bool) -> Store {
        let master = self.master.address("master").parse().unwrap();
        Store::connect(ConnectOptions { master, shared_memory, ..ConnectOptions::default() })
            .unwrap()
    }
}

fn in_vram(store: &Store) -> PutConfig {
    let mut media = [0; 3];
    media[Medium::Vram as usize] = 1;
    PutConfig { media, ..store.put_config() }
}

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(seed + 7) >> 3) as u8 ^ seed as u8).collect()
}

/// Lengths around a slice and a room, and one of several rooms.
const LENGTHS: [usize; 8] = [0, 1, 5000, 1 << 20, (1 << 20) + 1, 4 << 20, (4 << 20) + 3, 9 << 20];

fn put_all(store: &Store, round: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let config = in_vram(store);
    let one = |(n, len): (usize, usize)| {
        let (key, value) = (format!("{round}/{n}").into_bytes(), value(n, len));
        assert_eq!(store.put_parts(&key, &[&value], &config).unwrap(), Stored::New);
        (key, value)
    };
    LENGTHS.into_iter().enumerate().map(one).collect()
}

fn check(store: &Store, values: &[(Vec<u8>, Vec<u8>)]) {
    for (key, value) in values {
        let found = store.get(key).unwrap();
        assert!(found.as_deref() == Some(&value[..]), "{} bytes", value.len());
    }
}

#[test]
fn what_cannot_be_lent_is_refused_with_what_helps() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |vram: &[&str]| {
        let args = ["serve", "--master", ANY, "--admin", "off", "--data", ANY];
        run(folder.path(), &[&args[..], vram].concat())
    };
    let bad = serve(&["--vram", "8GiB"]);
    assert!(bad.code != Some(0) && bad.err.contains("0=8GiB"), "{bad:?}");
    let twice = serve(&["--vram", "0=8MiB", "--vram", "0=8MiB"]);
    assert!(twice.err.contains("GPU 0 is named twice"), "{twice:?}");
    if Gpu::open(0).is_err() {
        let none = serve(&["--vram", "0=8MiB"]);
        assert!(none.code != Some(0) && none.err.contains("no CUDA driver"), "{none:?}");
        assert!(none.err.contains("install NVIDIA's driver"), "{none:?}");
        return;
    }
    let small = serve(&["--vram", "0=1MiB"]);
    assert!(small.code != Some(0) && small.err.contains("lend at least 2MiB"), "{small:?}");
    let large = serve(&["--vram", "0=4TiB"]);
    assert!(large.code != Some(0) && large.err.contains("lend less of GPU 0"), "{large:?}");
    let other = serve(&["--vram", "99=8MiB"]);
    assert!(other.code != Some(0) && other.err.contains("CUDA_VISIBLE_DEVICES"), "{other:?}");
}

/// Puts into VRAM over the Unix socket and over TCP, reads both ways, by another node's copies, after a
/// drain, and nothing after the node was killed.
#[test]
fn values_in_vram_are_read_by_everybody() {
    if gpu("values_in_vram_are_read_by_everybody").is_none() {
        return;
    }
    let fleet = Fleet::start();
    let admin = ["--node-admin", ANY];
    let first = fleet.node("first", &[&["--vram", "0=64MiB"], &admin[..]].concat());
    let near = fleet.connect(true);
    let far = fleet.connect(false);
    let mut values = put_all(&near, "near");
    values.extend(put_all(&far, "far"));
    check(&near, &values);
    check(&far, &values);
    let mut part = vec![0; 1000];
    let (key, whole) = &values[7];
    assert!(near.get_range(key, 3_000_000, &mut part).unwrap().is_some());
    assert!(part == whole[3_000_000..][..1000]);

    let page = scrape(&first);
    let documented = metrics::documented();
    let shown = page.families.iter().filter(|(name, _)| name.starts_with("mooncrate_node_vram_"));
    assert_eq!(shown.clone().count(), 7);
    for (name, family) in shown {
        assert_eq!(Some(family), documented.get(name), "docs/metrics.md about {name}");
    }
    let bytes: usize = values.iter().map(|(_, value)| value.len()).sum();
    let stored = page.value(&of_vram("stored_bytes_total"));
    assert!(stored >= bytes as f64, "they are in VRAM");
    assert_eq!(page.value(&of_vram("free_rooms")), 16.0, "rooms are back");

    // A plain put goes to host memory.
    near.put(b"plain", &value(99, 100_000)).unwrap();
    let after = scrape(&first).value(&of_vram("stored_bytes_total"));
    assert_eq!(after, stored, "a plain put went to VRAM");

    // Removed and put again, many times: ranges are reused, and nobody reads another's bytes.
    for round in 0..20 {
        let (key, value) = (b"again".to_vec(), value(round, 3 << 20));
        near.put_parts(&key, &[&value], &in_vram(&near)).unwrap();
        check(&far, &[(key.clone(), value)]);
        near.remove(&key, true).unwrap();
        assert!(far.get(&key).unwrap().is_none());
    }

    drop(first);
    let key = &values[7].0;
    let end = boottime().deadline_in(SOON);
    while near.get(key).unwrap_or_default().is_some() {
        assert!(!end.passed(boottime()), "a dead node's VRAM is read on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn scrape(node: &Server) -> Scrape {
    let address = node.address("admin").strip_prefix("http://").unwrap();
    let (status, page) = fetch(address, "GET", "/metrics");
    assert_eq!(status, 200, "{page}");
    Scrape::read(&page)
}

/// A sample of the node `first`.
fn of_vram(name: &str) -> String {
    let segment = first_vram();
    format!("mooncrate_node_vram_{name}{{segment=\"{segment}\"}}")
}

/// The memory of a node's GPU, as a process with the same GPU maps it.
struct Mapped {
    engine: Engine,
    master: Arc<MasterLink>,
    range: AddressRange,
    stream: Stream,
}

impl Mapped {
    fn open(fleet: &Fleet, gpu: &Gpu, like: &[u8]) -> Self {
        let master = Arc::new(fleet.master_link());
        let host = HostId(name_hash(&mooncrate::this_host()));
        let config = EngineConfig { host, ..EngineConfig::default() };
        let directory = Arc::new(Nodes::new(Arc::clone(&master) as _));
        let engine = Engine::new(config, Arc::<Segments>::default(), directory);
        let (locator, ..) = locate(&master, like);
        let door = engine.device_door(&locator, soon()).unwrap().unwrap();
        let lent = door.lend(locator.segment, soon()).unwrap();
        assert_eq!((lent.incarnation, lent.device), (locator.incarnation, gpu.uuid()));
        let memory = SharedMemory::import(gpu, lent.memory.as_fd(), lent.memory_bytes).unwrap();
        let range = AddressRange::of(&memory).unwrap();
        Self { engine, master, range, stream: Stream::new(gpu).unwrap() }
    }

    fn span(&self, extent: Extent, len: usize) -> Span<'_> {
        self.range.span(extent.offset()..extent.offset() + len as u64).unwrap()
    }

    /// Reads a value under a pin of its owner.
    fn get(&self, key: &[u8], len: usize) -> Vec<u8> {
        let (locator, seal) = locate(&self.master, key);
        let door = self.engine.device_door(&locator, soon()).unwrap().unwrap();
        let pin = door.pin(&locator, soon()).unwrap();
        let mut bytes = vec![0; len];
        self.span(pin.extent(), len).read(&mut bytes, &self.stream).unwrap();
        assert_eq!(seal_of(&bytes), seal, "a reader verifies");
        bytes
    }

    /// Stores value and table, and has the owner publish them.
    fn put(&self, key: &[u8], value: &[u8], config: &PutConfig) {
        let items = [PutItem::new(key, value.len() as u64)];
        let plan = self.master.put_start(config, &items, soon()).unwrap().remove(0).unwrap();
        let [locator] = plan.replicas[..] else { panic!("{plan:?}") };
        let door = self.engine.device_door(&locator, soon()).unwrap().unwrap();
        let name = Key::new(key).unwrap();
        let label = config.label(TenantId::DEFAULT, name, plan.striping, 0).encode();
        let (token, object, epoch) = (plan.token, plan.object, plan.epoch);
        let len = value.len() as u64;
        let begin = BeginWrite { locator, token, object, epoch, len, label: &label };
        let put = door.begin(&begin, soon()).unwrap();
        let (extent, seal) = sealed(value);
        let place = self.span(put.extent(), extent.len());
        place.write(&extent, &self.stream).unwrap();
        put.signal(seal, soon()).unwrap();
        let seals = SealList::encode(&[seal]);
        let end = [PutEndItem { key, token, seals: SealList::of(&seals) }];
        self.master.put_end(&end, soon()).unwrap().remove(0).unwrap();
    }
}

/// A value with the table of its slices behind it, as it lies in its extent.
fn sealed(value: &[u8]) -> (Vec<u8>, Seal) {
    let mut sums = SliceSums::new();
    sums.update(value);
    let (seal, sums) = sums.finish();
    let (start, bytes) = table(value.len() as u64);
    let mut extent = value.to_vec();
    if bytes > 0 {
        extent.resize(start as usize, 0);
        extent.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }
    (extent, seal)
}

fn soon() -> Deadline {
    boottime().deadline_in(SOON)
}

fn locate(master: &MasterLink, key: &[u8]) -> (Locator, Seal) {
    let located = master.locate(0, &[key], soon()).unwrap().remove(0).unwrap();
    (located.replicas[0], located.seal)
}

/// What the owner stored a GPU process reads on the GPU, and the other way round.
#[test]
fn a_gpu_process_of_the_host_maps_the_memory() {
    let Some(gpu) = gpu("a_gpu_process_of_the_host_maps_the_memory") else { return };
    let fleet = Fleet::start();
    let node = fleet.node("first", &["--vram", "0=64MiB", "--node-admin", ANY]);
    let store = fleet.connect(true);
    let values = put_all(&store, "staged");
    let mapped = Mapped::open(&fleet, &gpu, &values[0].0);
    for (key, value) in &values {
        assert!(mapped.get(key, value.len()) == *value, "{} bytes", value.len());
    }
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let (key, value) = (format!("direct/{n}").into_bytes(), value(n + 50, len));
        mapped.put(&key, &value, &in_vram(&store));
        check(&fleet.connect(false), &[(key, value)]);
    }
    assert_eq!(scrape(&node).value(&of_vram("lent_total")), 1.0);
    // It may outlive the owner: what it has mapped stays mapped, and is nobody's value any more.
    drop(node);
}

/// Figures beside a plain copy of pinned memory on the same link. They decide nothing.
#[test]
fn figures_of_staged_puts_and_gets() {
    let Some(gpu) = gpu("figures_of_staged_puts_and_gets") else { return };
    let fleet = Fleet::start();
    let _node = fleet.node("first", &["--vram", "0=1GiB"]);
    let store = fleet.connect(true);
    println!(
        "| bytes | put | get | plain copy to the GPU | plain copy from it | (GB/s, median of 9)"
    );
    for len in [1 << 20, 16 << 20, 64 << 20] {
        let value = value(3, len);
        let plain = DeviceBuffer::new(&gpu, len as u64).unwrap();
        let mut pinned = PinnedBuffer::new(&gpu, len).unwrap();
        let stream = Stream::new(&gpu).unwrap();
        let mut times = [const { Vec::new() }; 4];
        for round in 0..9 {
            let key = format!("{len}/{round}").into_bytes();
            let config = in_vram(&store);
            timed(&mut times[0], || {
                assert_eq!(store.put_parts(&key, &[&value], &config).unwrap(), Stored::New);
            });
            let mut found = None;
            timed(&mut times[1], || found = store.get(&key).unwrap());
            assert!(found.as_deref() == Some(&value[..]));
            store.remove(&key, true).unwrap();
            timed(&mut times[2], || plain.span().write(&pinned, &stream).unwrap());
            timed(&mut times[3], || plain.span().read(&mut pinned, &stream).unwrap());
        }
        let rates = times.map(|mut times| {
            times.sort_unstable();
            format!("{:.2}", len as f64 / times[4] as f64)
        });
        println!("| {len} | {} |", rates.join(" | "));
    }
}

fn timed(times: &mut Vec<u128>, work: impl FnOnce()) {
    let began = boottime();
    work();
    times.push(boottime().since(began).as_nanos());
}

/// A master in this process.
fn master() -> Arc<Master> {
    let config = MasterConfig::default();
    Master::new(config, LeaderEpoch(1)).unwrap()
}

fn first_vram() -> SegmentId {
    SegmentId::on(Medium::Vram, NodeId::named("first"), 0)
}

/// A node in this process, and which start of it this is.
fn start(master: &Arc<Master>, incarnation: u64) -> Arc<Node> {
    let config = NodeConfig {
        name: "first".into(),
        segment_bytes: 1 << 20,
        shared: false,
        incarnation: Incarnation(incarnation),
        vram: vec![VramConfig { device: 0, bytes: 8 << 20 }],
        ..NodeConfig::default()
    };
    let node = Node::new(config, master.scope(TenantId::DEFAULT), Vec::new()).unwrap();
    node.register(true).unwrap();
    node
}

/// A node whose mount was refused as an old one comes back with its VRAM, under a later number.
#[test]
fn a_node_that_begins_anew_lends_its_vram_again() {
    let Some(_gpu) = gpu("a_node_that_begins_anew_lends_its_vram_again") else { return };
    let (master, vram) = (master(), first_vram());
    let mounted = || {
        let numbers = master.scope(TenantId::DEFAULT).stat(soon()).unwrap();
        let open = numbers.segments.iter().find(|row| row.open && row.offer.segment == vram);
        open.map(|row| row.offer.incarnation.0)
    };
    let first = start(&master, 1_000_000_000);
    assert_eq!(mounted(), Some(1_000_000_000));
    first.stop();
    drop(first);
    let again = start(&master, 999_999_999);
    let end = soon();
    while mounted().is_none_or(|number| number <= 1_000_000_000) {
        assert!(!end.passed(boottime()), "it was not lent again");
        std::thread::sleep(Duration::from_millis(5));
    }
    again.stop();
}

/// A node that its master has given up lends the same memory again once nobody reads it any more.
#[test]
fn memory_is_lent_again_when_its_last_reader_has_left() {
    let Some(_gpu) = gpu("memory_is_lent_again_when_its_last_reader_has_left") else { return };
    let (master, vram) = (master(), first_vram());
    let node = start(&master, 1_000_000_000);
    let memory = || {
        let segment = node.segments().get(vram)?;
        let share = segment.far().unwrap().share().unwrap().unwrap();
        Some(rustix::fs::fstat(&share.memory).unwrap().st_ino)
    };
    let before = memory().unwrap();
    let reader = node.segments().get(vram).unwrap();
    // A later start of the same name, which ends at once.
    start(&master, 1_000_000_001).stop();
    let end = soon();
    while node.segments().get(vram).is_some_and(|now| Arc::ptr_eq(&now, &reader)) {
        assert!(!end.passed(boottime()), "the node was not given up");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(memory(), None, "somebody still reads it");
    drop(reader);
    while memory().is_none() {
        assert!(!end.passed(boottime()), "it was not lent again");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(memory(), Some(before), "other memory was taken");
    node.stop();
}

/// Whoever waits for a room goes on waiting when somebody else was faster.
#[test]
fn a_waiter_that_was_overtaken_waits_on() {
    let Some(_gpu) = gpu("a_waiter_that_was_overtaken_waits_on") else { return };
    let node = start(&master(), 1_000_000_000);
    let segment = node.segments().get(first_vram()).unwrap();
    let far = Arc::clone(segment.far().unwrap());
    let mut rooms: Vec<_> = std::iter::repeat_with(|| far.room().unwrap()).take(16).collect();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let began = boottime();
            (far.room().is_some(), boottime().since(began))
        });
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            rooms.pop();
            rooms.extend(far.room());
        }
        rooms.clear();
        let (got, time) = waiter.join().unwrap();
        assert!(got || time >= Duration::from_millis(100), "given up after {time:?}");
    });
    drop(segment);
    node.stop();
}

/// Replicas are copied from VRAM to host memory, on to VRAM of another node and back, to a disk, and away
/// from a node that leaves.
#[test]
fn copies_go_into_vram_and_out_of_it() {
    if gpu("copies_go_into_vram_and_out_of_it").is_none() {
        return;
    }
    let fleet = Fleet::start();
    let disk = format!("{}=64MiB", fleet.folder.path().join("ssd").display());
    let _first = fleet.node("first", &["--vram", "0=64MiB", "--ssd", &disk]);
    let _second = fleet.node("second", &["--vram", "0=32MiB"]);
    let store = fleet.connect(true);
    let segment = |medium, node| SegmentId::on(medium, NodeId::named(node), 0);
    let of = |node| PutConfig { preferred: vec![segment(Medium::Vram, node)], ..in_vram(&store) };
    // More than one piece of a copy, and than one room.
    let (key, value) = (b"large".to_vec(), value(5, (17 << 20) + 5));
    store.put_parts(&key, &[&value], &of("first")).unwrap();
    let all = [(key.clone(), value)];
    let (vram, host) = (segment(Medium::Vram, "first"), segment(Medium::Dram, "second"));
    let other = segment(Medium::Vram, "second");
    store.move_replica(&key, vram, host).unwrap();
    check(&fleet.connect(false), &all);
    store.move_replica(&key, host, other).unwrap();
    check(&fleet.connect(false), &all);
    store.move_replica(&key, other, vram).unwrap();
    check(&fleet.connect(true), &all);
    // A copy on the disk of the same node is made from VRAM, and is all that is left.
    let kept = b"kept".to_vec();
    let mut config = of("first");
    config.media[Medium::Ssd as usize] = 1;
    store.put_parts(&kept, &[&all[0].1], &config).unwrap();
    let master = fleet.master_link();
    let replicas = || {
        let located = master.locate(0, &[&kept], soon()).unwrap().remove(0).unwrap();
        located.replicas.iter().map(|at| at.segment.medium()).collect::<Vec<_>>()
    };
    let end = soon();
    while !replicas().contains(&Medium::Ssd) {
        assert!(!end.passed(boottime()), "no copy came to the disk");
        std::thread::sleep(Duration::from_millis(20));
    }
    store.drop_copy(&kept, vram).unwrap();
    assert_eq!(replicas(), [Medium::Ssd]);
    check(&fleet.connect(false), &[(kept.clone(), all[0].1.clone())]);
    // A node that leaves hands over what it has in VRAM.
    let first = NodeId::named("first");
    store.drain(first, None, mooncrate::DrainMode::Move).unwrap().unwrap();
    let end = soon();
    while !store.drain_stat(first, None).unwrap().unwrap().drained() {
        assert!(!end.passed(boottime()), "VRAM was not drained");
        std::thread::sleep(Duration::from_millis(20));
    }
    check(&fleet.connect(false), &all);
}

/// On the emulator, which fails on demand: a GPU that fails is given up, and everything else goes on.
#[test]
fn a_gpu_that_fails_is_given_up() {
    let Some(gpu) = gpu("a_gpu_that_fails_is_given_up") else { return };
    if gpu.name() != "emulator" {
        return println!("a real GPU does not fail on demand");
    }
    let fleet = Fleet::start();
    let fails = fleet.folder.path().join("fails");
    let node = fleet.node_with("first", &["--vram", "0=32MiB", "--node-admin", ANY], |command| {
        command.env("EMULATOR_FAILS_IF", &fails);
    });
    let store = fleet.connect(true);
    let values = put_all_small(&store);
    store.put(b"plain", b"in host memory").unwrap();
    check(&store, &values);
    std::fs::write(&fails, "").unwrap();
    let end = soon();
    loop {
        match store.get(&values[0].0) {
            Ok(None) => break,
            Ok(Some(value)) => assert!(value == values[0].1, "wrong bytes"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(!end.passed(boottime()), "the GPU was not given up");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.get(b"plain").unwrap().as_deref(), Some(&b"in host memory"[..]));
    let refused = store.put_parts(b"more", &[b"x"], &in_vram(&store));
    assert!(refused.is_err(), "no VRAM is left: {refused:?}");
    let said = log(fleet.folder.path(), "node");
    assert!(said.contains("the GPU failed; its segment is given up"), "{said}");
    drop(node);
}

/// SIGTERM ends a node in order, with everything given back to the driver.
#[test]
fn a_node_with_vram_stops_in_order() {
    if gpu("a_node_with_vram_stops_in_order").is_none() {
        return;
    }
    let fleet = Fleet::start();
    let mut node = fleet.node("first", &["--vram", "0=16MiB"]);
    let store = fleet.connect(true);
    let values = put_all_small(&store);
    check(&store, &values);
    node.signal(Signal::TERM);
    let status = wait(&mut node.child, SOON);
    assert!(status.success(), "{status:?}: {}", log(fleet.folder.path(), "node"));
}

fn put_all_small(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (key, value) = (b"one".to_vec(), value(1, 2 << 20));
    store.put_parts(&key, &[&value], &in_vram(store)).unwrap();
    vec![(key, value)]
}

fn log(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default()
}
