"""Keyed BLAKE3 of up to 1024 bytes in plain Python: all that a proof in a hello needs. Written from the
published definition of the hash, for the same reason as frames.py: nothing is shared with the Rust side.
"""

import struct

START = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
CHUNK_START, CHUNK_END, ROOT, KEYED = 1, 2, 8, 16
BLOCK, CHUNK = 64, 1024
WORD = 0xFFFFFFFF


def turn(word, by):
    return (word >> by) | (word << (32 - by)) & WORD


def stir(state, at, one, two):
    a, b, c, d = at
    for extra, first, second in ((one, 16, 12), (two, 8, 7)):
        state[a] = (state[a] + state[b] + extra) & WORD
        state[d] = turn(state[d] ^ state[a], first)
        state[c] = (state[c] + state[d]) & WORD
        state[b] = turn(state[b] ^ state[c], second)


def compress(chain, block, flags):
    words = list(struct.unpack("<16I", block.ljust(BLOCK, b"\0")))
    # The counter of chunks stays 0: there is one.
    state = [*chain, *START[:4], 0, 0, len(block), flags]
    for _ in range(7):
        for row, at in enumerate(COLUMNS + DIAGONALS):
            stir(state, at, words[2 * row], words[2 * row + 1])
        words = [words[at] for at in ORDER]
    return [state[n] ^ state[n + 8] for n in range(8)]


def digest(chain, data, flags):
    assert len(data) <= CHUNK
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)] or [b""]
    for number, block in enumerate(blocks):
        more = CHUNK_START if number == 0 else 0
        more |= CHUNK_END | ROOT if number == len(blocks) - 1 else 0
        chain = compress(chain, block, flags | more)
    return struct.pack("<8I", *chain)


def plain(data):
    return digest(START, data, 0)


def keyed(key, data):
    return digest(struct.unpack("<8I", key), data, KEYED)
