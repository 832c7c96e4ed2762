//! Segments together with the memory of the machine. One test, in a process of its own: what it promises counts
//! for the whole process.

use mooncrate::{EmbeddedOptions, Error, Store};
use mooncrate_node::NodeError;
use mooncrate_wire::clock::boottime;
use std::time::Duration;

fn store(segment_bytes: u64, memory_overcommit: bool) -> Result<Store, Error> {
    // Few headers: pages of the payload are not touched, so the test takes no memory.
    let slots = Some(1024);
    let options = EmbeddedOptions { segment_bytes, slots, memory_overcommit, ..Default::default() };
    Store::embedded(options)
}

/// Was: any size was accepted, and the kernel killed the process when values had filled the memory.
#[test]
fn segments_that_do_not_fit_are_refused_unless_that_is_meant() {
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    if strict.is_ok_and(|mode| mode.trim() == "2") {
        println!(
            "skipped: vm.overcommit_memory = 2, so the kernel itself refuses what is not there"
        );
        return;
    }
    let Err(error @ Error::Node(NodeError::Memory(_))) = store(1 << 46, false) else {
        panic!("64 TiB fit into no machine");
    };
    assert!(error.to_string().contains("memory_overcommit = true"), "{error}");
    let Error::Node(NodeError::Memory(refused)) = error else { unreachable!() };
    let all = refused.limit.bytes / 4096 * 4096;
    assert!(store(all + 4096, false).is_err());
    // Each of the two fits, and both together do not.
    let most = all / 4 * 3 / 4096 * 4096;
    let first = store(most, false).unwrap();
    let Err(Error::Node(NodeError::Memory(refused))) = store(most, false) else {
        panic!("both were accepted");
    };
    assert_eq!((refused.bytes, refused.others), (most, most));
    // Whoever means it says so, and it works: pages are taken as values come.
    let meant = store(most, true).unwrap();
    meant.put(b"key", b"value").unwrap();
    assert_eq!(meant.get(b"key").unwrap().unwrap(), b"value");
    drop((first, meant));
    // A thread that ends may hold the memory of its store for a moment.
    let began = boottime();
    while let Err(error) = store(most, false) {
        assert!(boottime().since(began) < Duration::from_mins(1), "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
