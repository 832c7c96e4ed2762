//! `fill` and `verify` on host memory: what the kernels must do, byte for byte.

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;
/// Bytes of a piece of a line.
const PIECE: usize = 16;

/// A line: in each piece the id or the index, and a number that no other piece has.
fn line(id: u64, index: u64) -> [u8; LINE_BYTES] {
    let mut bytes = [0; LINE_BYTES];
    for (piece, place) in (0u64..).zip(bytes.chunks_exact_mut(PIECE)) {
        let count = index.wrapping_mul(4).wrapping_add(piece);
        let mixed = id ^ count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let name = if piece % 2 == 0 { id } else { index };
        place[..8].copy_from_slice(&name.to_le_bytes());
        place[8..].copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    bytes
}

/// Fills all of `target`; the last line may be short.
pub fn fill_oracle(target: &mut [u8], id: u64) {
    for (index, place) in (0..).zip(target.chunks_mut(LINE_BYTES)) {
        place.copy_from_slice(&line(id, index)[..place.len()]);
    }
}

/// How many lines differ from what [`fill_oracle`] writes.
pub fn verify_oracle(source: &[u8], id: u64) -> u64 {
    let lines = (0..).zip(source.chunks(LINE_BYTES));
    lines.filter(|(index, seen)| **seen != line(id, *index)[..seen.len()]).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whose_it_is() {
        let mut bytes = vec![0; 1000];
        fill_oracle(&mut bytes, 7);
        assert_eq!(verify_oracle(&bytes, 7), 0);
        assert_eq!(verify_oracle(&bytes, 8), 16);
        assert_eq!(bytes[64..72], 7u64.to_le_bytes());
        assert_eq!(bytes[80..88], 1u64.to_le_bytes());
        bytes[999] ^= 1;
        bytes[70] ^= 1;
        bytes[71] ^= 1;
        assert_eq!(verify_oracle(&bytes, 7), 2);
        assert_eq!(verify_oracle(&bytes[64..], 7), 15, "also a line in another place is wrong");
    }
}
