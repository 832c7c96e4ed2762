//! The KV of some tokens of a sequence, copied in and out: for engines on the host, tools and tests.
//!
//! Both calls hold the sequence, as all calls for one sequence do. So nothing can be published, forked or
//! freed between the check and the copy, and no block changes its owner under it.

use crate::arena::ArenaError;
use crate::cache::Cache;
use crate::error::CacheError;
use crate::geometry::Half;
use crate::ids::BlockId;
use crate::part::{Order, Part};
use crate::sequence::Sequence;
use std::ops::Range;

/// Some tokens of one sequence.
struct Wanted<'a> {
    id: &'a str,
    layer: u32,
    half: Half,
    tokens: Range<u64>,
}

impl Cache {
    /// Writes the K or V of one layer for the tokens from `start` on: `[tokens, heads, dim]`. Tokens in
    /// published blocks are refused: others may read them. How many tokens were written.
    pub fn write_tokens(
        &self,
        id: &str,
        layer: u32,
        half: Half,
        start: u64,
        bytes: &[u8],
    ) -> Result<u64, CacheError> {
        let tokens = start..start.saturating_add(self.tokens_in(bytes.len())?);
        let count = tokens.end - tokens.start;
        let wanted = Wanted { id, layer, half, tokens };
        self.with(id, |sequence| {
            let own = sequence.published_tokens();
            if start < own && count > 0 {
                return Err(CacheError::Published { id: id.to_owned(), token: start, own });
            }
            self.each_block(sequence, &wanted, |part, at| {
                self.arena().write(part, Order::Tokens, &bytes[at])
            })
        })??;
        Ok(count)
    }

    /// Reads the K or V of one layer of the tokens from `start` on, as many as fill `bytes` exactly.
    pub fn read_tokens(
        &self,
        id: &str,
        layer: u32,
        half: Half,
        start: u64,
        bytes: &mut [u8],
    ) -> Result<(), CacheError> {
        let tokens = start..start.saturating_add(self.tokens_in(bytes.len())?);
        let wanted = Wanted { id, layer, half, tokens };
        self.with(id, |sequence| {
            self.each_block(sequence, &wanted, |part, at| {
                self.arena().read(part, Order::Tokens, &mut bytes[at])
            })
        })?
    }

    /// Bytes of the K or V of one token in one layer.
    fn layer_token_bytes(&self) -> u64 {
        self.geometry().layer_block_bytes() / u64::from(self.geometry().block_tokens())
    }

    fn tokens_in(&self, buffer: usize) -> Result<u64, CacheError> {
        let (one, buffer_bytes) = (self.layer_token_bytes(), buffer as u64);
        if buffer_bytes.is_multiple_of(one) {
            return Ok(buffer_bytes / one);
        }
        let part_bytes = buffer_bytes.next_multiple_of(one);
        Err(ArenaError::WrongLength { part_bytes, buffer_bytes }.into())
    }

    /// Calls `copy` for the part of each block that has some of the tokens, with its place in the buffer.
    fn each_block(
        &self,
        sequence: &Sequence,
        wanted: &Wanted<'_>,
        mut copy: impl FnMut(&Part, Range<usize>) -> Result<(), ArenaError>,
    ) -> Result<(), CacheError> {
        let Wanted { id, layer, half, tokens: Range { start, end } } = wanted;
        if *end > sequence.tokens() || start > end {
            let (id, tokens) = ((*id).to_owned(), sequence.tokens());
            return Err(CacheError::Outside { id, start: *start, end: *end, tokens });
        }
        // Where there is no such layer or half, the call is refused even if it has no tokens.
        let shape = self.arena().shape();
        let nowhere = Part::block(BlockId(0)).layer(*layer).half(*half);
        shape.runs(&nowhere, Order::Tokens).map_err(ArenaError::from)?;
        let (geometry, one) = (*self.geometry(), self.layer_token_bytes());
        let mut at = *start;
        while at < *end {
            let place = geometry.token_place(at);
            let room = u64::from(geometry.block_tokens() - place.slot);
            let count = room.min(end - at);
            let slots = place.slot..place.slot + count as u32;
            let block = sequence.table()[place.logical_block as usize];
            let part = Part::block(block).layer(*layer).half(*half).tokens(slots);
            let first = ((at - start) * one) as usize;
            copy(&part, first..first + (count * one) as usize)?;
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ArenaShape, AttentionSpec, CacheConfig, DType, Geometry, HostArena, Layout, Pages, Prompt,
    };
    use std::sync::Arc;

    const SPEC: AttentionSpec =
        AttentionSpec { layers: 2, kv_heads: 2, head_dim: 4, block_tokens: 4, dtype: DType::I8 };

    fn cache(layout: Layout) -> Cache {
        let shape = ArenaShape::new(Geometry::attention(SPEC).unwrap(), layout, 16).unwrap();
        let arena = HostArena::anonymous(shape, 16, Pages::Small).unwrap();
        Cache::new(CacheConfig::new("test"), Arc::new(arena)).unwrap()
    }

    #[test]
    fn tokens_come_back_in_every_layout_and_only_where_they_were_written() {
        let bytes: Vec<u8> = (0..6 * 8).collect();
        for layout in Layout::ALL.into_iter().filter(|layout| *layout != Layout::Mla) {
            let cache = cache(layout);
            cache.allocate_for("a", Prompt::Count(10)).unwrap();
            assert_eq!(cache.write_tokens("a", 1, Half::Value, 3, &bytes).unwrap(), 6);
            let mut back = vec![9; 10 * 8];
            cache.read_tokens("a", 1, Half::Value, 0, &mut back).unwrap();
            assert_eq!(back[3 * 8..9 * 8], bytes, "{layout}");
            assert!(back[..3 * 8].iter().chain(&back[9 * 8..]).all(|byte| *byte == 0));
            for (layer, half) in [(0, Half::Value), (1, Half::Key)] {
                cache.read_tokens("a", layer, half, 0, &mut back).unwrap();
                assert!(back.iter().all(|byte| *byte == 0), "{layout}, layer {layer}, {half}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let cache = cache(Layout::Nhd);
        cache.allocate_for("a", Prompt::Tokens(&[7; 10])).unwrap();
        cache.publish("a", 9).unwrap();
        let write = |layer, start, bytes: &[u8]| {
            cache.write_tokens("a", layer, Half::Key, start, bytes).unwrap_err()
        };
        assert!(matches!(write(0, 7, &[1; 8]), CacheError::Published { token: 7, own: 8, .. }));
        assert!(matches!(write(0, 9, &[1; 16]), CacheError::Outside { end: 11, tokens: 10, .. }));
        assert!(matches!(write(2, 8, &[1; 8]), CacheError::Arena(ArenaError::Outside(_))));
        assert!(matches!(write(0, 8, &[1; 9]), CacheError::Arena(ArenaError::WrongLength { .. })));
        assert!(matches!(write(0, u64::MAX, &[1; 8]), CacheError::Outside { .. }));
        let mut all = [9; 80];
        cache.read_tokens("a", 0, Half::Key, 0, &mut all).unwrap();
        assert_eq!(all, [0; 80]);
        assert!(cache.read_tokens("a", 2, Half::Key, 0, &mut []).is_err());
        assert!(cache.read_tokens("b", 0, Half::Key, 0, &mut []).is_err());
    }

    #[test]
    fn own_views_leave_published_blocks_out() {
        let cache = cache(Layout::TokenMajor);
        cache.allocate_for("a", Prompt::Tokens(&[7; 10])).unwrap();
        cache.publish("a", 8).unwrap();
        let all = cache.tokens_view("a", 0, Half::Key).unwrap();
        let own = cache.own_tokens_view("a", 0, Half::Key).unwrap();
        assert_eq!(all.view().tensor().shape(), [2, 10, 4]);
        assert_eq!(own.view().tensor().shape(), [2, 2, 4]);
        assert_eq!(
            own.view().tensor().byte_offset(),
            all.view().tensor().offset_of(&[0, 8]).unwrap()
        );
        assert_eq!(cache.own_blocks_view("a", 0, Half::Key).unwrap().view().run().count, 1);
        cache.append_tokens("a", &[1, 2]).unwrap();
        cache.publish("a", 12).unwrap();
        let none = cache.own_blocks_view("a", 0, Half::Key).unwrap_err();
        assert!(matches!(none, CacheError::NoneOwn { .. }), "{none}");
    }
}
