//! `quota`: what tenants use, and what they may.

use super::{connect_as, failed};
use crate::args::Quota;
use crate::config::Settings;
use crate::failure::Failure;
use crate::render::Output;
use mooncrate_core::TenantId;

pub(super) fn run(args: &Quota, settings: &Settings, out: Output) -> Result<(), Failure> {
    let store = connect_as(settings, true)?;
    let named = |name: &String| TenantId::named(name).map_err(|e| Failure::usage(e.to_string()));
    let tenant = args.tenant.as_ref().map(named).transpose()?;
    if let (Some(tenant), Some(bytes)) = (tenant, args.bytes) {
        store.set_quota(tenant, (bytes > 0).then_some(bytes)).map_err(failed)?;
    }
    let mut rows = store.stat().map_err(failed)?.tenants;
    rows.retain(|row| tenant.is_none_or(|tenant| row.tenant == tenant));
    out.tenants(args.tenant.as_deref(), &rows)
}
