//! The wishes of a raw put, as one `dict`: a package with a calling convention of its own makes it once
//! and hands it on.

use mooncrate_core::SegmentId;
use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::{Keep, PutConfig};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// Every key but `replicas` may be left out.
#[derive(Debug, Default)]
pub(crate) struct RawWishes {
    /// Copies, as many of them as there are nodes.
    replicas: u8,
    soft_pin_ms: Option<u32>,
    hard_pin: bool,
    /// Empty: none.
    group: String,
    /// Ids of segments to try first.
    preferred: Vec<u64>,
    upsert: bool,
}

impl<'py> FromPyObject<'_, 'py> for RawWishes {
    type Error = PyErr;

    /// By hand: `PyO3` would raise and drop an exception for each key that is left out, at every put.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let wishes = object.cast::<PyDict>()?;
        let mut found = Self::default();
        for (name, value) in wishes.iter() {
            match name.cast::<PyString>()?.to_str()? {
                "replicas" => found.replicas = value.extract()?,
                "soft_pin_ms" => found.soft_pin_ms = value.extract()?,
                "hard_pin" => found.hard_pin = value.extract()?,
                "group" => found.group = value.extract()?,
                "preferred" => found.preferred = value.extract()?,
                "upsert" => found.upsert = value.extract()?,
                other => {
                    let words = format!("there is no wish `{other}`");
                    return Err(PyValueError::new_err(words));
                }
            }
        }
        Ok(found)
    }
}

impl RawWishes {
    /// `config` with these wishes.
    pub(crate) fn onto(&self, mut config: PutConfig) -> PutConfig {
        config.replicas = self.replicas;
        config.best_effort = true;
        config.keep = match self.soft_pin_ms {
            _ if self.hard_pin => Keep::Hard,
            Some(ttl_ms) => Keep::Soft { ttl_ms },
            None => Keep::Normal,
        };
        if !self.group.is_empty() {
            config.group = GroupId::named(self.group.as_bytes());
        }
        config.preferred = self.preferred.iter().map(|id| SegmentId(*id)).collect();
        config.upsert = self.upsert;
        config
    }
}
