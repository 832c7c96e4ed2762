//! `sums` on host memory: what the kernel must give for each page.

use mooncrate_mem::crc::crc;

/// The checksums of all pages of a value.
pub fn sums_oracle(value: &[u8], page_bytes: u32) -> Vec<u64> {
    value.chunks(page_bytes as usize).map(crc).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_its_own() {
        let sums = sums_oracle(b"123456789 123456789", 10);
        // The check value of CRC-64/NVME.
        assert_eq!(sums[1], 0xae8b_1486_0a79_9888);
        assert_eq!((sums.len(), sums[0]), (2, crc(b"123456789 ")));
    }
}
