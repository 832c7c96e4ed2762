// push: bytes of this rank go to a value in the heap of another one; the last block publishes it.
#include "nano.cuh"

// `bytes` bytes of `source` go to `offset` in the heap of `owner`. Nothing after them is written. With a
// counter, the block that comes last makes the header ready: with no bytes, that is a commit alone. With `begun`,
// nothing is written unless it says that this life was begun: the range may be another one's by now.
extern "C" __global__ void push_pages(const __grid_constant__ Bases bases, u32 owner, u32 slot,
                                      u32 generation, u64 offset, u64 bytes, const u8* source,
                                      u32 block_pieces, const Outcome* begun, Counter* counter) {
    wait_for_earlier_work();
    const u64 writing = make_word(generation, WRITING, 0);
    const Outcome found = begun != nullptr ? *begun : Outcome{writing, DONE, 0};
    const bool allowed = found.code == DONE && found.word == writing;
    if (allowed) {
        copy_part(place(bases, owner, offset), source, bytes, block_pieces);
    }
    if (counter == nullptr || !last_of_all(counter)) {
        return;
    }
    fence_sys();
    // Nobody can have pinned what is not ready, so the word is known but for a failure.
    leave(counter, allowed ? step_word(word_at(bases, owner, slot), writing, generation, PUBLISH, 0,
                                       cas_relaxed_sys)
                           : Outcome{found.word, REFUSED, 0});
}
