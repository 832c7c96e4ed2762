//! Puts that began through this door and are still open. `MasterService` ends a put by its key alone, so
//! the door keeps the token for the client; it forgets a put when the master does, and is bounded.

use crate::pb::StatusCode;
use crate::status::Judged;
use mooncrate_core::error::Advice;
use mooncrate_core::plan::WritePlan;
use mooncrate_core::{Now, PutToken, TenantId};
use mooncrate_lock::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// Hint when too many puts are open.
const FULL_MS: u32 = 100;

/// Whose put, under which key.
type Name = (TenantId, Box<[u8]>);

/// The open puts of this door.
#[derive(Debug)]
pub(crate) struct OpenPuts {
    open: Mutex<HashMap<Name, (WritePlan, Now)>>,
    most: usize,
    timeout: Duration,
}

impl OpenPuts {
    /// Remembers `most` puts, each for as long as the master keeps it open.
    pub(crate) fn new(most: usize, timeout: Duration) -> Self {
        Self { open: Mutex::default(), most, timeout }
    }

    /// Whether one more can be remembered. Asked before the master reserves anything.
    pub(crate) fn room(&self, now: Now) -> Result<(), Judged> {
        let mut open = self.open.lock();
        if open.len() >= self.most {
            open.retain(|_, (_, until)| *until > now);
        }
        if open.len() < self.most {
            return Ok(());
        }
        let message = format!("{} puts are open at this door, which is the limit", self.most);
        Err(Judged::new(StatusCode::Busy, Advice::Retry { after_ms: FULL_MS }, message))
    }

    /// A put began.
    pub(crate) fn began(&self, tenant: TenantId, key: &[u8], plan: WritePlan, now: Now) {
        self.open.lock().insert((tenant, key.into()), (plan, now.plus(self.timeout)));
    }

    /// The put that is open under this key.
    pub(crate) fn find(&self, tenant: TenantId, key: &[u8], now: Now) -> Option<WritePlan> {
        let open = self.open.lock();
        let (plan, until) = open.get(&(tenant, key.into()))?;
        (*until > now).then(|| plan.clone())
    }

    /// A put is over. A later one of the same key stays.
    pub(crate) fn ended(&self, tenant: TenantId, key: &[u8], token: PutToken) {
        let mut open = self.open.lock();
        let name = (tenant, key.into());
        if open.get(&name).is_some_and(|(plan, _)| plan.token == token) {
            open.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::plan::Striping;
    use mooncrate_core::{LeaderEpoch, ObjectId};

    const T: TenantId = TenantId::DEFAULT;

    fn plan(token: u64) -> WritePlan {
        WritePlan {
            object: ObjectId::default(),
            token: PutToken(token),
            epoch: LeaderEpoch(1),
            striping: Striping::whole(1),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn a_put_is_known_to_its_tenant_until_its_time_is_over() {
        let puts = OpenPuts::new(2, Duration::from_nanos(10));
        puts.began(T, b"k", plan(7), Now(100));
        assert_eq!(puts.find(T, b"k", Now(109)).unwrap().token, PutToken(7));
        assert_eq!(puts.find(TenantId(3), b"k", Now(101)), None);
        assert_eq!(puts.find(T, b"k", Now(110)), None);
    }

    #[test]
    fn the_end_of_an_old_put_leaves_the_next_one_alone() {
        let puts = OpenPuts::new(2, Duration::from_secs(1));
        puts.began(T, b"k", plan(2), Now(0));
        puts.ended(T, b"k", PutToken(1));
        assert!(puts.find(T, b"k", Now(1)).is_some());
        puts.ended(T, b"k", PutToken(2));
        assert!(puts.find(T, b"k", Now(1)).is_none());
    }

    #[test]
    fn puts_are_bounded_and_old_ones_make_room() {
        let puts = OpenPuts::new(1, Duration::from_nanos(10));
        puts.began(T, b"a", plan(1), Now(0));
        assert_eq!(puts.room(Now(5)).unwrap_err().code, StatusCode::Busy);
        assert_eq!(puts.room(Now(10)), Ok(()));
        assert!(puts.open.lock().is_empty());
    }
}
