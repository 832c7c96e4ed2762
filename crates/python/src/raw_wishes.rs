//! The wishes of a raw put, as one `dict`: a package with a calling convention of its own makes it once
//! and hands it on.

use crate::error::invalid;
use mooncrate::Wishes;
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
    /// A name for each key, or no list; an empty name: no group.
    groups: Vec<String>,
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
                "groups" => found.groups = value.extract()?,
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

/// The wishes of a batch, as the store takes them.
pub(crate) struct Wished {
    config: PutConfig,
    groups: Vec<GroupId>,
}

impl Wished {
    pub(crate) fn all(&self) -> Wishes<'_> {
        Wishes::grouped(&self.config, &self.groups)
    }
}

impl RawWishes {
    /// Those of a put that wishes nothing but where it would like to be.
    pub(crate) fn plain(preferred: Vec<u64>) -> Self {
        Self { replicas: 1, preferred, ..Self::default() }
    }

    /// `config` with these wishes, for so many keys.
    pub(crate) fn onto(&self, py: Python<'_>, config: PutConfig, keys: usize) -> PyResult<Wished> {
        if !self.groups.is_empty() && self.groups.len() != keys {
            let words = format!("{keys} keys need as many groups, not {}", self.groups.len());
            return Err(invalid(py, &words));
        }
        let group = |name: &String| match name.as_str() {
            "" => GroupId(0),
            name => GroupId::named(name.as_bytes()),
        };
        let groups = self.groups.iter().map(group).collect();
        Ok(Wished { config: self.same_for_all(config), groups })
    }

    /// What all keys have in common.
    fn same_for_all(&self, mut config: PutConfig) -> PutConfig {
        config.replicas = self.replicas;
        config.best_effort = true;
        config.keep = match self.soft_pin_ms {
            _ if self.hard_pin => Keep::Hard,
            Some(ttl_ms) => Keep::Soft { ttl_ms },
            None => Keep::Normal,
        };
        config.preferred = self.preferred.iter().map(|id| SegmentId(*id)).collect();
        config.upsert = self.upsert;
        config
    }
}
