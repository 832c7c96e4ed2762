// read: bytes of a pinned value in any rank's heap go to memory of this rank; the last block unpins it.
#include "nano.cuh"

// `bytes` bytes at `offset` in the heap of `owner` go to `target`, if `pin` says that the value was pinned
// in this generation; otherwise nothing is written. With a counter, the block that comes last takes one
// pin of `rank` back.
extern "C" __global__ void read_value(const __grid_constant__ Bases bases, u32 owner, u32 slot,
                                      u32 generation, u64 offset, u64 bytes, u8* target, u32 block_pieces,
                                      const Outcome* pin, u32 rank, Counter* counter) {
    wait_for_earlier_work();
    const u64 word = pin->word;
    const bool allowed =
        pin->code == DONE && u32(word >> 32) == generation && state_of(word) == READY;
    if (allowed) {
        copy_part(target, place(bases, owner, offset), bytes, block_pieces);
    }
    if (counter == nullptr || !last_of_all(counter)) {
        return;
    }
    fence_sys();
    // Unless another reader came or went, the word is as the pin left it.
    leave(counter, allowed ? step_word(word_at(bases, owner, slot), word, generation, UNPIN, rank,
                                       cas_relaxed_sys)
                           : Outcome{word, REFUSED, 0});
}
