//! Reports of reads over a link of their own, so that nobody waits for their answers.
//!
//! ```text
//!   report ─► answers that have come meanwhile ─► send ─► back to the reader
//!                 │ peer gone, leads no more, or silent for long
//!                 └─► one ordinary call, which finds the leader; its link is the next one here
//! ```
//!
//! What must stay true: a report waits only while it has no link, and never beyond its deadline; at most
//! [`AHEAD_MAX`] reports are unanswered, so a master that stands still is not flooded.

use crate::clock::boottime;
use crate::error::{CallError, DecodeError};
use crate::link::Link;
use crate::masters::MasterPools;
use crate::message::{MarksHeard, ReadMarks, Reply, Request};
use mooncrate_core::plan::ReadMark;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::Mutex;
use std::borrow::Cow;
use std::time::Duration;

/// Reports that may be unanswered.
const AHEAD_MAX: usize = 2;
/// A busy master may take so long to answer one: nobody waits for it.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// A master that answers none of them for so long is looked for anew.
const SILENT: Duration = Duration::from_secs(1);

/// The link that reports travel on.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<Option<ReportLink>>);

#[derive(Debug)]
struct ReportLink {
    link: Link,
    /// When the last answer came, or the link was made.
    heard_at: Now,
}

impl Reports {
    /// Sends a report to the leader; what has been answered since the last one.
    pub(crate) fn tell(
        &self,
        pools: &MasterPools,
        marks: &[ReadMark],
        deadline: Deadline,
    ) -> Result<MarksHeard, CallError> {
        let request = Request::ReadMarks(ReadMarks { marks: Cow::Borrowed(marks) });
        // A link that failed is dropped, so none is kept that is half used.
        let mut held = self.0.lock();
        if let Some(mut report) = held.take() {
            match report.send(&request, deadline) {
                Err(CallError::Busy { peer, links, after_ms }) => {
                    *held = Some(report);
                    return Err(CallError::Busy { peer, links, after_ms });
                }
                // Its peer is gone, leads no more or is silent: an ordinary call finds out who leads.
                Err(_) => {}
                sent => {
                    *held = Some(report);
                    return sent;
                }
            }
        }
        let reply = pools.call(&request, deadline)?;
        let link = pools.current().take_idle();
        *held = link.map(|link| ReportLink { link, heard_at: boottime() });
        heard(reply)
    }
}

impl ReportLink {
    fn send(&mut self, request: &Request<'_>, deadline: Deadline) -> Result<MarksHeard, CallError> {
        let mut all = MarksHeard { pause_ms: 0, outdated: Vec::new() };
        while let Some(reply) = self.link.try_recv(deadline)? {
            let MarksHeard { pause_ms, outdated } = heard(reply)?;
            all.pause_ms = pause_ms;
            all.outdated.extend(outdated);
            self.heard_at = boottime();
        }
        let ahead = self.link.in_flight();
        if ahead >= AHEAD_MAX {
            let silent = boottime().since(self.heard_at);
            if silent > SILENT {
                let awaited = "the answer to a report of reads";
                return Err(CallError::Deadline { awaited, silent });
            }
            let peer = self.link.peer().name.clone();
            return Err(CallError::Busy { peer, links: 1, after_ms: 1 });
        }
        if ahead == 0 {
            // Nothing was owed until now.
            self.heard_at = boottime();
        }
        self.link.send_ahead(request, ANSWER_TIME, deadline)?;
        Ok(all)
    }
}

fn heard(reply: Reply) -> Result<MarksHeard, CallError> {
    match reply {
        Reply::ReadMarks(heard) => Ok(heard),
        Reply::Refuse(refusal) => Err(refusal.into()),
        other => Err(DecodeError::Unexpected { kind: other.kind() }.into()),
    }
}
