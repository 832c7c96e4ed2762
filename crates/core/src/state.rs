//! The life of a replica: one table, the only place where a state changes (M1).

/// Where a replica, and the header slot that describes it, stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReplicaState {
    /// Nobody's bytes.
    Dead = 0,
    /// A plan names it; no byte is written yet.
    Reserved = 1,
    /// The writer is at work.
    Writing = 2,
    /// Complete and readable.
    Ready = 3,
    /// No new reader can pin it; the last ones finish.
    Retiring = 4,
    /// The put failed; the writer may still be alive, so the range waits in quarantine.
    Failed = 5,
}

/// What happens to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The owner accepts a plan for the slot.
    Reserve,
    /// The writer starts.
    Begin,
    /// The last byte is in place and the put token matched.
    Publish,
    /// Remove: no new reader.
    Unlink,
    /// Evict or free: the range is given back. Carries the pins that are left.
    Reclaim {
        /// Readers that still hold the slot.
        pins: u32,
    },
    /// Revoke, timeout, or the writer hung up.
    Abort,
    /// The writer can no longer store into the range.
    Fence,
}

impl ReplicaState {
    /// All states, in the order of their codes.
    pub const ALL: [Self; 6] =
        [Self::Dead, Self::Reserved, Self::Writing, Self::Ready, Self::Retiring, Self::Failed];

    /// The state with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Dead,
            1 => Self::Reserved,
            2 => Self::Writing,
            3 => Self::Ready,
            4 => Self::Retiring,
            5 => Self::Failed,
            _ => return None,
        })
    }

    /// The only place where a replica changes state. `None`: refuse the event and say so.
    #[must_use]
    pub const fn after(self, event: Event) -> Option<Self> {
        use {Event as E, ReplicaState as S};
        Some(match (self, event) {
            (S::Dead, E::Reserve) => S::Reserved,
            (S::Reserved, E::Begin) => S::Writing,
            // After the last byte, never before.
            (S::Writing, E::Publish) => S::Ready,
            (S::Ready, E::Unlink) => S::Retiring,
            // Quarantine: the writer may still be alive.
            (S::Reserved | S::Writing, E::Abort) => S::Failed,
            // The last reader has left, or the writer can no longer store.
            (S::Ready | S::Retiring, E::Reclaim { pins: 0 }) | (S::Failed, E::Fence) => S::Dead,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// A new arrow in the table shows up in review.
    #[test]
    fn the_table_is_this() {
        let events = [
            Event::Reserve,
            Event::Begin,
            Event::Publish,
            Event::Unlink,
            Event::Reclaim { pins: 0 },
            Event::Reclaim { pins: 1 },
            Event::Abort,
            Event::Fence,
        ];
        let mut dump = String::new();
        for state in ReplicaState::ALL {
            for event in events {
                if let Some(next) = state.after(event) {
                    writeln!(dump, "{state:?} --{event:?}--> {next:?}").unwrap();
                }
            }
        }
        insta::assert_snapshot!(dump, @r"
        Dead --Reserve--> Reserved
        Reserved --Begin--> Writing
        Reserved --Abort--> Failed
        Writing --Publish--> Ready
        Writing --Abort--> Failed
        Ready --Unlink--> Retiring
        Ready --Reclaim { pins: 0 }--> Dead
        Retiring --Reclaim { pins: 0 }--> Dead
        Failed --Fence--> Dead
        ");
    }
}
