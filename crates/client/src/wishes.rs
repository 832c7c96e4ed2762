//! The wishes of a batch of puts: the same for all of its values, but for the groups that they are evicted with.

use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::PutConfig;
use std::borrow::Cow;

/// Wishes for all values of a batch, and a group for each. Made of a [`PutConfig`] where all have the same.
#[derive(Clone, Copy, Debug)]
pub struct Wishes<'a> {
    config: &'a PutConfig,
    /// By the places of the values; empty: all have the group of `config`.
    groups: &'a [GroupId],
}

impl<'a> From<&'a PutConfig> for Wishes<'a> {
    fn from(config: &'a PutConfig) -> Self {
        Self { config, groups: &[] }
    }
}

impl<'a> Wishes<'a> {
    /// Wishes with a group for each value, in the order of the values. A value without one, or with group 0, has
    /// that of `config`.
    pub const fn grouped(config: &'a PutConfig, groups: &'a [GroupId]) -> Self {
        Self { config, groups }
    }

    /// What all values have in common.
    pub const fn config(&self) -> &'a PutConfig {
        self.config
    }

    /// The groups, one per value; empty if all have that of the config.
    pub const fn groups(&self) -> &'a [GroupId] {
        self.groups
    }

    /// The wishes of the values from this one on.
    #[must_use]
    pub fn skip(self, values: usize) -> Self {
        Self { groups: self.groups.get(values..).unwrap_or(&[]), ..self }
    }

    /// The groups of the values at these places, for a batch of them alone.
    pub fn pick(&self, places: impl Iterator<Item = usize>) -> Vec<GroupId> {
        if self.groups.is_empty() { Vec::new() } else { places.map(|at| self.own(at)).collect() }
    }

    /// The group that the value at this place was given; 0: none.
    pub(crate) fn own(&self, at: usize) -> GroupId {
        self.groups.get(at).copied().unwrap_or(GroupId(0))
    }

    /// All wishes of the value at this place.
    pub fn of(&self, at: usize) -> Cow<'a, PutConfig> {
        of_group(self.config, self.own(at))
    }
}

/// Wishes with another group, unless that is 0.
pub(crate) fn of_group(config: &PutConfig, group: GroupId) -> Cow<'_, PutConfig> {
    if group == GroupId(0) || group == config.group {
        return Cow::Borrowed(config);
    }
    Cow::Owned(PutConfig { group, ..config.clone() })
}
