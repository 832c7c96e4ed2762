//! The methods of `PagedCache`: arguments in, one call of the cache, the result out.

use crate::buffer::{Source, Target};
use crate::error::invalid;
use crate::paged::{Making, PagedCache, block_map, is_inside};
use crate::paged_geometry::{Geometry, layout_name};
use crate::paged_input::{
    self, ExtraKey, Index, KeyBytes, Numbers, Slots, Tokens, Whole, Word, extras, half,
};
use crate::paged_memory::Memory;
use crate::paged_tables::{self, BlockTables, CsrOut};
use crate::paged_view::PagedView;
use mooncrate_paged::{Admission, CacheError, Layout, PageOrder, Prompt, Shard};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

#[pymethods]
impl PagedCache {
    #[new]
    #[pyo3(
        signature = (geometry, blocks, *, layout=None, model=String::new(), shard=None, policy="density", blocks_max=None, prefix_caching=true, memory="host", device=Whole(0)),
        text_signature = "(geometry, blocks, *, layout=None, model='', shard=None, policy='density', blocks_max=None, prefix_caching=True, memory='host', device=0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        geometry: Geometry,
        blocks: Word,
        layout: Option<&str>,
        model: String,
        shard: Option<(Word, Word, Word, Word, Word)>,
        policy: &str,
        blocks_max: Option<Word>,
        prefix_caching: bool,
        memory: &str,
        device: Word,
    ) -> PyResult<Self> {
        let (blocks, blocks_max, device) = (blocks.get(), blocks_max.map(Word::get), device.get());
        let shard = shard.map(|(rank, ranks, stage, stages, first_layer)| Shard {
            tensor_rank: rank.get(),
            tensor_ranks: ranks.get(),
            stage: stage.get(),
            stages: stages.get(),
            first_layer: first_layer.get(),
        });
        let making = Making {
            geometry,
            blocks,
            layout,
            model,
            shard,
            policy,
            blocks_max,
            prefix_caching,
            memory,
            device,
        };
        Self::make(py, making)
    }

    /// Admits a sequence: its blocks, and tokens at the front whose KV is there already.
    #[pyo3(
        signature = (id, tokens=None, *, count=None, tenant=Whole(0), adapter=String::new(), cache_salt=KeyBytes::default(), extra_keys=None, rank=Whole(0), contiguous=false),
        text_signature = "($self, id, tokens=None, *, count=None, tenant=0, adapter='', cache_salt='', extra_keys=None, rank=0, contiguous=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn allocate(
        &self,
        py: Python<'_>,
        id: &str,
        tokens: Option<&Bound<'_, PyAny>>,
        count: Option<Index>,
        tenant: Word,
        adapter: String,
        cache_salt: KeyBytes,
        extra_keys: Option<Vec<ExtraKey>>,
        rank: Whole<255>,
        contiguous: bool,
    ) -> PyResult<(usize, u64)> {
        let tokens = Tokens::of(py, tokens, count)?;
        let how = Admission {
            tenant: tenant.get(),
            adapter,
            salt: cache_salt.0,
            extras: extras(extra_keys),
            rank: rank.0 as u8,
            contiguous,
        };
        self.call(py, |cache| {
            let prompt = match &tokens {
                Tokens::Ids(ids) => Prompt::Tokens(ids),
                Tokens::Count(count) => Prompt::Count(*count),
            };
            let admitted = cache.allocate(id, prompt, &how)?;
            Ok((admitted.blocks, admitted.cached_tokens))
        })
    }

    /// Adds tokens whose KV is about to be written; how many blocks were added for them.
    #[pyo3(signature = (id, tokens=None, *, count=None, extra_keys=None))]
    fn append(
        &self,
        py: Python<'_>,
        id: &str,
        tokens: Option<&Bound<'_, PyAny>>,
        count: Option<Index>,
        extra_keys: Option<Vec<ExtraKey>>,
    ) -> PyResult<usize> {
        let (tokens, extras) = (Tokens::of(py, tokens, count)?, extras(extra_keys));
        self.call(py, |cache| match &tokens {
            Tokens::Ids(ids) => cache.append_with(id, ids, &extras),
            Tokens::Count(count) => cache.append_count(id, *count),
        })
    }

    /// The keys under which a store has the full blocks of a prompt.
    #[pyo3(
        signature = (tokens, *, tenant=Whole(0), adapter=String::new(), cache_salt=KeyBytes::default(), extra_keys=None),
        text_signature = "($self, tokens, *, tenant=0, adapter='', cache_salt='', extra_keys=None)"
    )]
    fn block_keys<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        tenant: Word,
        adapter: String,
        cache_salt: KeyBytes,
        extra_keys: Option<Vec<ExtraKey>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        if self.shard.is_none() {
            let words = "say which part of the model's KV this cache holds before its blocks are shared: \
                         PagedCache(..., shard=Shard()) for an engine that is not split";
            return Err(invalid(py, words));
        }
        let ids = paged_input::ids(tokens)?;
        let (salt, extras) = (cache_salt.0, extras(extra_keys));
        let how = Admission { tenant: tenant.get(), adapter, salt, extras, ..Admission::default() };
        let keys = self.call(py, |cache| {
            let names = cache.block_names(&ids, &how).into_iter();
            Ok(names.map(|name| cache.block_key(name)).collect::<Vec<_>>())
        })?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key.as_bytes())).collect())
    }

    /// The KV of the first `written` tokens is in place: full blocks among them are shared from now on.
    fn publish(&self, py: Python<'_>, id: &str, written: Index) -> PyResult<usize> {
        self.call(py, |cache| cache.publish(id, written.0))
    }

    /// A second sequence with the tokens of the first.
    fn fork(&self, py: Python<'_>, id: &str, child: &str) -> PyResult<()> {
        self.call(py, |cache| cache.fork(id, child))
    }

    /// Keeps the tokens with the highest scores: its tokens, how many were dropped, its blocks.
    fn keep_important(
        &self,
        py: Python<'_>,
        id: &str,
        scores: &Bound<'_, PyAny>,
        keep: Index,
    ) -> PyResult<(u64, u64, usize)> {
        let scores = paged_input::scores(scores)?;
        let kept = self.call(py, |cache| cache.keep_important(id, &scores, keep.0))?;
        Ok((kept.tokens, kept.dropped, kept.blocks))
    }

    /// The position of each token in the text.
    fn positions(&self, py: Python<'_>, id: &str) -> PyResult<Vec<u64>> {
        self.call(py, |cache| {
            let mut positions = Vec::new();
            cache.positions(id, &mut positions)?;
            Ok(positions)
        })
    }

    /// The position that the next token will have.
    fn next_position(&self, py: Python<'_>, id: &str) -> PyResult<u64> {
        self.call(py, |cache| cache.next_position(id))
    }

    /// Ends a sequence; its blocks go back with the last view of it.
    fn free(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        self.call(py, |cache| cache.free_for(id))
    }

    /// Tokens of a sequence.
    fn used_tokens(&self, py: Python<'_>, id: &str) -> PyResult<u64> {
        self.call(py, |cache| cache.used_tokens(id))
    }

    /// Where the last token of a sequence lies: its block of the sequence, and its slot in it.
    fn token_place(&self, py: Python<'_>, id: &str) -> PyResult<(u64, u32)> {
        let place = self.call(py, |cache| cache.token_place(id))?;
        Ok((place.logical_block, place.slot))
    }

    fn __contains__(&self, py: Python<'_>, id: &str) -> PyResult<bool> {
        self.call(py, |cache| match cache.used_tokens(id) {
            Ok(_) => Ok(true),
            Err(CacheError::Unknown { .. }) => Ok(false),
            Err(error) => Err(error),
        })
    }

    /// The block ids of a sequence; written to `out` if it is given, and their number is the result.
    #[pyo3(signature = (id, out=None, *, pad=-1))]
    fn block_table<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        out: Option<&Bound<'py, PyAny>>,
        pad: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(out) = out {
            let out = Numbers::of(out, "out", "int32", 1)?;
            return paged_tables::rows(py, self, &[id], &out, pad)?.into_bound_py_any(py);
        }
        let table = self.call(py, |cache| {
            let mut table = Vec::new();
            cache.block_table(id, &mut table)?;
            Ok(table.into_iter().map(|block| block.0).collect::<Vec<u32>>())
        })?;
        table.into_bound_py_any(py)
    }

    /// A row of block ids for each sequence; the rest of `out` is padded.
    #[pyo3(signature = (ids, out, *, pad=-1))]
    #[expect(clippy::needless_pass_by_value, reason = "it is what Python hands over")]
    fn fill_block_tables(
        &self,
        py: Python<'_>,
        ids: Vec<String>,
        out: &Bound<'_, PyAny>,
        pad: i32,
    ) -> PyResult<()> {
        let out = Numbers::of(out, "out", "int32", 2)?;
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        paged_tables::rows(py, self, &ids, &out, pad).map(drop)
    }

    /// A table of block ids in an array of the caller, which is kept up to date.
    #[pyo3(signature = (out, *, pad=-1))]
    fn block_tables(
        slf: &Bound<'_, Self>,
        out: &Bound<'_, PyAny>,
        pad: i32,
    ) -> PyResult<BlockTables> {
        let out = Numbers::of(out, "out", "int32", 2)?;
        Ok(BlockTables::new(slf.clone().unbind(), out, pad))
    }

    /// The slots of tokens, `block * block_tokens + slot`, and -1 behind them; how many tokens there are.
    #[expect(clippy::needless_pass_by_value, reason = "it is what Python hands over")]
    fn slot_mapping(
        &self,
        py: Python<'_>,
        items: Vec<Slots>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let out = Numbers::of(out, "out", "int64", 1)?;
        paged_tables::slots(py, self, &items, &out)
    }

    /// `FlashInfer`'s page table; how many pages there are.
    #[expect(clippy::needless_pass_by_value, reason = "it is what Python hands over")]
    fn csr(
        &self,
        py: Python<'_>,
        ids: Vec<String>,
        indptr: &Bound<'_, PyAny>,
        indices: &Bound<'_, PyAny>,
        last_page_len: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let out = CsrOut {
            indptr: Numbers::of(indptr, "indptr", "int32", 1)?,
            indices: Numbers::of(indices, "indices", "int32", 1)?,
            last_page_len: Numbers::of(last_page_len, "last_page_len", "int32", 1)?,
        };
        paged_tables::csr(py, self, &ids, &out)
    }

    /// `[heads, blocks, block tokens, dim]` of a sequence whose blocks lie in a row.
    #[pyo3(signature = (id, layer, half="k", *, own=false))]
    fn view(
        &self,
        py: Python<'_>,
        id: &str,
        layer: Word,
        half: &str,
        own: bool,
    ) -> PyResult<PagedView> {
        let half = crate::paged_input::half(py, half)?;
        self.call(py, |cache| {
            let layer = layer.get();
            let view = if own {
                cache.own_blocks_view(id, layer, half)
            } else {
                cache.blocks_view(id, layer, half)
            };
            Ok(PagedView::of_sequence(view?, cache))
        })
    }

    /// `[heads, tokens, dim]` of a sequence whose blocks lie in a row, where the layout has one.
    #[pyo3(signature = (id, layer, half="k", *, own=false))]
    fn tokens_view(
        &self,
        py: Python<'_>,
        id: &str,
        layer: Word,
        half: &str,
        own: bool,
    ) -> PyResult<PagedView> {
        let half = crate::paged_input::half(py, half)?;
        self.call(py, |cache| {
            let layer = layer.get();
            let view = if own {
                cache.own_tokens_view(id, layer, half)
            } else {
                cache.tokens_view(id, layer, half)
            };
            Ok(PagedView::of_sequence(view?, cache))
        })
    }

    /// All blocks of one layer: `[blocks, 2, block tokens, heads, dim]`, for MLA `[blocks, block tokens, dim]`.
    #[pyo3(signature = (layer, order=None))]
    fn pages(&self, py: Python<'_>, layer: Word, order: Option<&str>) -> PyResult<PagedView> {
        let order = match (order, self.layout) {
            (Some("hnd" | "HND"), _) | (None, Layout::Hnd) => PageOrder::Hnd,
            (Some("nhd" | "NHD") | None, _) => PageOrder::Nhd,
            (Some(other), _) => {
                return Err(invalid(py, &format!("{other:?} is neither \"nhd\" nor \"hnd\"")));
            }
        };
        self.call(py, |cache| {
            let shape = cache.arena().shape();
            let pages = if shape.geometry().is_mla() {
                shape.latent_pages_view(layer.get())
            } else {
                shape.pages_view(layer.get(), order)
            };
            Ok(PagedView::of_pages(pages?, cache))
        })
    }

    /// Internal: the bytes of K or V of tokens from `start` on; how many tokens.
    #[expect(clippy::needless_pass_by_value, reason = "it is what Python hands over")]
    fn _write_tokens(
        &self,
        py: Python<'_>,
        id: &str,
        layer: Word,
        name: &str,
        start: Index,
        source: Source,
    ) -> PyResult<u64> {
        let half = half(py, name)?;
        let source = &source;
        self.call(py, |cache| {
            let bytes = source.bytes();
            let copy = if is_inside(cache, bytes) { Some(bytes.to_vec()) } else { None };
            cache.write_tokens(id, layer.get(), half, start.0, copy.as_deref().unwrap_or(bytes))
        })
    }

    /// Internal: the same the other way, as many tokens as fill the target.
    fn _read_tokens(
        &self,
        py: Python<'_>,
        id: &str,
        layer: Word,
        name: &str,
        start: Index,
        mut target: Target,
    ) -> PyResult<()> {
        let half = half(py, name)?;
        let target = &mut target;
        self.call(py, |cache| {
            let bytes = target.bytes();
            if !is_inside(cache, bytes) {
                return cache.read_tokens(id, layer.get(), half, start.0, bytes);
            }
            let mut copy = vec![0; bytes.len()];
            cache.read_tokens(id, layer.get(), half, start.0, &mut copy)?;
            bytes.copy_from_slice(&copy);
            Ok(())
        })
    }

    /// Changes the number of blocks, up to `blocks_max`, while sequences use others.
    fn resize(&self, py: Python<'_>, blocks: Word) -> PyResult<()> {
        self.call(py, |cache| cache.resize(blocks.get()))
    }

    /// How full it is.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.call(py, |cache| Ok(cache.stats()))?;
        crate::stats::paged(py, &stats)
    }

    /// The numbers of the cache as Prometheus reads them.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |cache| Ok(mooncrate::paged::metrics_text(cache)))
    }

    /// The cache in words, one line for each sequence.
    fn dump(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |cache| Ok(cache.dump()))
    }

    /// A letter for each block.
    fn block_map(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |cache| Ok(block_map(cache)))
    }

    /// What a token stores.
    #[getter]
    const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The name of the order in which its memory is laid out.
    #[getter]
    fn layout(&self) -> String {
        layout_name(self.layout)
    }

    /// The name of its eviction policy.
    #[getter]
    const fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Whose KV it holds.
    #[getter]
    fn model(&self) -> &str {
        &self.model
    }

    /// Which part of the model's KV it holds, if that was said.
    #[getter]
    fn shard(&self) -> Option<(u32, u32, u32, u32, u32)> {
        self.shard.map(|shard| {
            (shard.tensor_rank, shard.tensor_ranks, shard.stage, shard.stages, shard.first_layer)
        })
    }

    /// Where its blocks lie: "host", "pinned" or "cuda".
    #[getter]
    const fn memory(&self) -> &'static str {
        self.memory.name()
    }

    /// The number of the GPU that its memory belongs to, or is pinned for; `None` in ordinary memory.
    #[getter]
    fn device(&self) -> Option<u32> {
        (self.memory != Memory::Host).then_some(self.device)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.call(py, |cache| Ok(cache.stats())) {
            Ok(stats) => {
                let used = stats.used_blocks;
                format!(
                    "<mooncrate.paged.PagedCache, {used} of {} blocks used, {} cached>",
                    stats.total_blocks, stats.cached_blocks
                )
            }
            Err(_) => "<mooncrate.paged.PagedCache of another process>".into(),
        }
    }
}
