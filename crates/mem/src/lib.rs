//! hold: regions, the header and its control word, segments, checksummed copies
