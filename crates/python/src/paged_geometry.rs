//! `Geometry`: what a token stores; and the names of element types and layouts.

use crate::error::invalid;
use crate::paged_input::{Index, Whole, Word};
use mooncrate_paged::{AttentionSpec, DType, Layout, MlaSpec};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::hash::{Hash, Hasher};

/// What a KV cache stores for each token, and how many tokens make a block.
#[pyclass(module = "mooncrate.paged", frozen, eq, hash, from_py_object)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    whole: mooncrate_paged::Geometry,
    /// How it was made: its representation, and what is hashed.
    made_as: MadeAs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MadeAs {
    Attention { layers: u32, kv_heads: u32, head_dim: u32, block_tokens: u32, dtype: DType },
    Mla { layers: u32, latent_dim: u32, rope_dim: u32, block_tokens: u32, dtype: DType },
}

impl Hash for Geometry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.made_as.hash(state);
    }
}

impl Geometry {
    fn make(py: Python<'_>, made_as: MadeAs) -> PyResult<Self> {
        let whole = match made_as {
            MadeAs::Attention { layers, kv_heads, head_dim, block_tokens, dtype } => {
                let spec = AttentionSpec { layers, kv_heads, head_dim, block_tokens, dtype };
                mooncrate_paged::Geometry::attention(spec)
            }
            MadeAs::Mla { layers, latent_dim, rope_dim, block_tokens, dtype } => {
                let spec = MlaSpec { layers, latent_dim, rope_dim, block_tokens, dtype };
                mooncrate_paged::Geometry::mla(spec)
            }
        };
        let whole = whole.map_err(|error| invalid(py, &error.to_string()))?;
        Ok(Self { whole, made_as })
    }

    pub(crate) const fn geometry(&self) -> &mooncrate_paged::Geometry {
        &self.whole
    }
}

/// The name of an element type, as `PyTorch` and `NumPy` write it.
pub(crate) const fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::Fp8E4m3 => "float8_e4m3fn",
        DType::Fp8E5m2 => "float8_e5m2",
        DType::I8 => "int8",
    }
}

/// An element type by its name, or as an object of torch or `NumPy`.
#[derive(Clone, Copy)]
pub(crate) struct AnyDType(DType);

impl<'py> FromPyObject<'_, 'py> for AnyDType {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let said = if object.is_instance_of::<PyString>() {
            object.to_owned()
        } else {
            // `numpy.dtype` has a name, `numpy.float16` is a class, and torch's say it as text.
            let named = object.getattr("name").or_else(|_| object.getattr("__name__"));
            named.or_else(|_| Ok::<_, PyErr>(object.str()?.into_any()))?
        };
        let said: String = said.extract()?;
        let name = said.strip_prefix("torch.").unwrap_or(&said);
        let found = DType::ALL.into_iter().find(|dtype| dtype_name(*dtype) == name);
        found.map(Self).ok_or_else(|| {
            let all = DType::ALL.map(dtype_name).join(", ");
            invalid(object.py(), &format!("there is no element type {said:?}; choose of {all}"))
        })
    }
}

/// The layout of this name; without one the usual one of the geometry.
pub(crate) fn layout(
    py: Python<'_>,
    name: Option<&str>,
    geometry: &mooncrate_paged::Geometry,
) -> PyResult<Layout> {
    let Some(name) = name else {
        return Ok(if geometry.is_mla() { Layout::Mla } else { Layout::Nhd });
    };
    let wanted = name.to_lowercase().replace('_', "-");
    let found = Layout::ALL.into_iter().find(|layout| layout_name(*layout) == wanted);
    found.ok_or_else(|| {
        let all = Layout::ALL.map(layout_name).join(", ");
        invalid(py, &format!("there is no layout {name:?}; choose of {all}"))
    })
}

pub(crate) fn layout_name(layout: Layout) -> String {
    layout.to_string().to_lowercase()
}

#[pymethods]
impl Geometry {
    #[new]
    #[pyo3(
        signature = (*, layers, kv_heads, head_dim, block_tokens=Whole(16), dtype=AnyDType(DType::F16)),
        text_signature = "(*, layers, kv_heads, head_dim, block_tokens=16, dtype='float16')"
    )]
    fn new(
        py: Python<'_>,
        layers: Word,
        kv_heads: Word,
        head_dim: Word,
        block_tokens: Word,
        dtype: AnyDType,
    ) -> PyResult<Self> {
        let made_as = MadeAs::Attention {
            layers: layers.get(),
            kv_heads: kv_heads.get(),
            head_dim: head_dim.get(),
            block_tokens: block_tokens.get(),
            dtype: dtype.0,
        };
        Self::make(py, made_as)
    }

    /// What a model with multi-head latent attention stores: one vector per token and layer, no V.
    #[staticmethod]
    #[pyo3(
        signature = (*, layers, latent_dim, rope_dim=Whole(0), block_tokens=Whole(16), dtype=AnyDType(DType::F16)),
        text_signature = "(*, layers, latent_dim, rope_dim=0, block_tokens=16, dtype='float16')"
    )]
    fn mla(
        py: Python<'_>,
        layers: Word,
        latent_dim: Word,
        rope_dim: Word,
        block_tokens: Word,
        dtype: AnyDType,
    ) -> PyResult<Self> {
        let made_as = MadeAs::Mla {
            layers: layers.get(),
            latent_dim: latent_dim.get(),
            rope_dim: rope_dim.get(),
            block_tokens: block_tokens.get(),
            dtype: dtype.0,
        };
        Self::make(py, made_as)
    }

    /// Layers that have a cache.
    #[getter]
    const fn layers(&self) -> u32 {
        self.whole.layers()
    }

    /// Heads of K, and as many of V; 1 for MLA.
    #[getter]
    const fn kv_heads(&self) -> u32 {
        self.whole.kv_heads()
    }

    /// Elements of one head's vector; for MLA of the whole latent vector.
    #[getter]
    const fn head_dim(&self) -> u32 {
        self.whole.head_dim()
    }

    /// Tokens of a block.
    #[getter]
    const fn block_tokens(&self) -> u32 {
        self.whole.block_tokens()
    }

    /// The name of the element type.
    #[getter]
    const fn dtype(&self) -> &'static str {
        dtype_name(self.whole.dtype())
    }

    /// Whether there is one vector per token and layer, and no V.
    #[getter]
    const fn is_mla(&self) -> bool {
        matches!(self.made_as, MadeAs::Mla { .. })
    }

    /// Bytes of a block, all layers, K and V.
    #[getter]
    const fn block_bytes(&self) -> u64 {
        self.whole.block_bytes()
    }

    /// Bytes of a token, all layers, K and V.
    #[getter]
    const fn token_bytes(&self) -> u64 {
        self.whole.token_bytes()
    }

    /// Blocks that hold so many tokens.
    const fn blocks_for(&self, tokens: Index) -> u64 {
        self.whole.blocks_for(tokens.0)
    }

    fn __repr__(&self) -> String {
        match self.made_as {
            MadeAs::Attention { layers, kv_heads, head_dim, block_tokens, dtype } => format!(
                "Geometry(layers={layers}, kv_heads={kv_heads}, head_dim={head_dim}, \
                 block_tokens={block_tokens}, dtype='{}')",
                dtype_name(dtype)
            ),
            MadeAs::Mla { layers, latent_dim, rope_dim, block_tokens, dtype } => format!(
                "Geometry.mla(layers={layers}, latent_dim={latent_dim}, rope_dim={rope_dim}, \
                 block_tokens={block_tokens}, dtype='{}')",
                dtype_name(dtype)
            ),
        }
    }
}
