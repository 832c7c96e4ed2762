//! Heaps in device memory, all ranks in this process: on a GPU, or on the emulator of one.
//! Heaps of several processes are tested by the conformance program on a machine with a GPU.

use mooncrate_gpu::{Gpu, Stream};
use mooncrate_heap::{Heap, World};

#[test]
fn every_rank_reaches_every_heap() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) if error.is_absent() => {
            return eprintln!("SKIPPED every_rank_reaches_every_heap: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let world = World::new(4).unwrap();
    let heaps = Heap::cuda_ranks(&gpu, world, 3 << 20).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    for heap in &heaps {
        assert_eq!(heap.bytes(), 4 << 20);
        assert_eq!(heap.bases(), heaps[0].bases());
        assert_eq!(heap.shared_by(), "device memory of one process");
        for rank in world.ranks() {
            assert!(heap.region(rank).is_none());
            let place = 256 * heap.rank().index() as u64;
            let target = heap.span(rank).unwrap().part(place..place + 8).unwrap();
            assert_eq!(target.to_vec(&stream).unwrap(), [0; 8], "heaps are zero at first");
            let bytes = [heap.rank().number(), rank.number(), 1, 2, 3, 4, 5, 6];
            target.write(&bytes, &stream).unwrap();
        }
    }
    for heap in &heaps {
        for rank in world.ranks() {
            let place = 256 * rank.index() as u64;
            let own = heap.span(heap.rank()).unwrap().part(place..place + 8).unwrap();
            let bytes = own.to_vec(&stream).unwrap();
            assert_eq!(bytes, [rank.number(), heap.rank().number(), 1, 2, 3, 4, 5, 6]);
        }
    }
    assert!(Heap::cuda_ranks(&gpu, world, 0).is_err());
}
