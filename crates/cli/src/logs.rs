//! Logs go to stderr, so that stdout holds nothing but what was asked for.

use std::io::{IsTerminal, stderr};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging; once per process. `filter` has been checked with the configuration.
pub(crate) fn start(filter: Option<&str>, default: &str) {
    let filter: Targets = filter
        .unwrap_or(default)
        .parse()
        .expect("the default is a filter, and the configuration refuses what is none");
    // What operators change is logged however quiet the rest is to be.
    let filter = filter.with_target("audit", LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
}
