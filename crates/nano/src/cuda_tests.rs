//! Chains of kernels on a GPU, or on the emulator of the driver: what a put and a get leave in the heap and in the caller's
//! memory, for memory that kernels can move and for memory that they cannot.

use super::*;
use crate::layout::Pages;
use mooncrate_core::ReplicaState;
use mooncrate_gpu::DeviceBuffer;
use mooncrate_heap::World;
use mooncrate_mem::clock::boottime;
use std::time::Duration;

const SLOTS: u32 = 4;
const BYTES: u64 = 2 << 20;

fn landed(mut flight: Box<dyn Flight>) -> Stepped {
    let until = boottime().deadline_in(Duration::from_mins(1));
    wait_until(until, || flight.look()).unwrap().expect("it has ended")
}

fn place(layout: &HeapLayout, owner: Rank, slot: u32, bytes: u64) -> Place {
    Place {
        owner,
        slot: Slot(slot),
        header_offset: layout.header(slot).unwrap().offset(),
        payload_offset: layout.payload().offset() + u64::from(slot) * (256 << 10),
        pages: Pages::new(bytes, 4096).unwrap(),
        epoch: 0,
    }
}

#[test]
fn cuda_values_go_and_come_in_chains() {
    let gpu = match Gpu::open(0) {
        Err(error) if error.is_absent() => {
            eprintln!("SKIPPED cuda_values_go_and_come_in_chains: {error}");
            return;
        }
        opened => opened.unwrap(),
    };
    let (group, layout) = (World::new(2).unwrap(), HeapLayout::new(SLOTS, BYTES).unwrap());
    let heaps = Heap::cuda_ranks(&gpu, group, BYTES).unwrap();
    let ranks: Vec<_> =
        heaps.into_iter().map(|heap| CudaReach::new(&gpu, heap, layout).unwrap()).collect();
    let (me, owner) = (&ranks[0], group.rank(1).unwrap());
    let caller = Stream::new(&gpu).unwrap();
    let until = boottime().deadline_in(Duration::from_mins(1));
    let (source, target) =
        (DeviceBuffer::new(&gpu, 200_064).unwrap(), DeviceBuffer::new(&gpu, 200_064).unwrap());
    let bytes: Vec<u8> = (0..200_064_u32).map(|at| (at * 7 + (at >> 8)) as u8).collect();
    source.span().write(&bytes, &caller).unwrap();
    let cases = [(0, 200_000, Some(caller.raw())), (1, 100_001, Some(caller.raw())), (0, 0, None)];
    for (slot, (odd, len, stream)) in (0..).zip(cases) {
        let when = When { stream, until };
        let place = place(&layout, owner, slot, len);
        let span = source.span().part(odd..odd + len).unwrap();
        let header = Header::default();
        let ready = landed(me.put(&place, &header, Source::Device(span), when).unwrap()).unwrap();
        assert_eq!(ready.state(), ReplicaState::Ready, "{slot}");
        // The life is there already: nothing is written, and nothing was.
        let other = source.span().part(64..64 + len).unwrap();
        landed(me.put(&place, &header, Source::Device(other), when).unwrap()).unwrap_err();
        target.span().fill(0xee, &caller).unwrap();
        let room = target.span().part(odd..odd + len).unwrap();
        landed(me.get(&place, &mut Target::Device(room), when).unwrap()).unwrap();
        let wanted = &bytes[odd as usize..(odd + len) as usize];
        assert_eq!(room.to_vec(&caller).unwrap(), wanted, "{slot}");
        let mut host = vec![0; len as usize];
        landed(me.get(&place, &mut Target::Host(&mut host), when).unwrap()).unwrap();
        assert_eq!(host, wanted, "{slot}");
        assert_eq!(me.words(owner, &[Slot(slot)]).unwrap()[0].pins(), 0, "no pin is left");
        // Another life: nothing is read.
        let later = Place { epoch: 7, ..place };
        target.span().fill(0xee, &caller).unwrap();
        landed(me.get(&later, &mut Target::Device(room), when).unwrap()).unwrap_err();
        assert!(room.to_vec(&caller).unwrap().iter().all(|byte| *byte == 0xee), "{slot}");
        assert_eq!(me.sums(owner, place.payload_offset, len).unwrap(), sums(wanted), "{slot}");
    }
    // Bytes of the host, and a plan that is pushed in parts and published by the caller's stream.
    let when = When { stream: Some(caller.raw()), until };
    let place = place(&layout, owner, 3, 5_000);
    let begin = place.step(Touch::Begin(Box::default()));
    me.step(owner, &[begin]).unwrap().remove(0).unwrap();
    let marks = Marks::default();
    me.write(owner, place.payload_offset, Source::Host(&bytes[..4096]), when, &marks).unwrap();
    let rest = source.span().part(4096..5000).unwrap();
    me.write(owner, place.payload_offset + 4096, Source::Device(rest), when, &marks).unwrap();
    landed(me.publish(&place, when, &marks).unwrap()).unwrap();
    landed(me.publish(&place, when, &marks).unwrap()).unwrap_err();
    let mut host = vec![0; 5_000];
    landed(me.get(&place, &mut Target::Host(&mut host), when).unwrap()).unwrap();
    assert_eq!(host, bytes[..5_000]);
}

fn sums(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(SLICE_BYTES as usize).map(crc).collect()
}
