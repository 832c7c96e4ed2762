//! Turns: work that takes processors and comes from peers is done a little at a time, and tenants take turns.
//!
//! A tenant has one turn at a time and a queue of its own. Only the first of each queue stands in the queue of
//! all, so a tenant that asks for a thousand patterns waits for itself, and another one waits for at most one
//! piece of work of each tenant that came before it.

use mooncrate_core::TenantId;
use mooncrate_lock::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pieces of work at once, of all tenants.
const AT_ONCE: usize = 2;

/// Who works, and who waits.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    /// Queues of tenants that work or wait; the others have none.
    by_tenant: Mutex<BTreeMap<TenantId, Weak<Semaphore>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(AT_ONCE)), by_tenant: Mutex::default() }
    }
}

/// Leave to work, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    // First, so that who comes next of all is not the same tenant again.
    _of_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

impl Turns {
    /// Waits for a turn of this tenant. Whoever stops waiting leaves the queue.
    pub(crate) async fn take(&self, tenant: TenantId) -> Turn {
        let own = self.queue(tenant).acquire_owned().await;
        let of_tenant = own.expect("queues are never closed");
        let all = Arc::clone(&self.all).acquire_owned().await;
        Turn { _of_all: all.expect("queues are never closed"), _of_tenant: of_tenant }
    }

    fn queue(&self, tenant: TenantId) -> Arc<Semaphore> {
        let mut queues = self.by_tenant.lock();
        if let Some(queue) = queues.get(&tenant).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Semaphore::new(1));
        queues.insert(tenant, Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Waiting<'a> = Pin<Box<dyn Future<Output = Turn> + 'a>>;

    fn has_turn(waiting: &mut Waiting<'_>) -> Option<Turn> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// The story: turns were given in the order of asking, whoever asked. One tenant that asked for patterns
    /// without end delayed those of all others.
    #[test]
    fn security_a_tenant_that_asks_without_end_waits_for_itself() {
        let turns = Turns::default();
        let [a, b, c] = [1, 2, 3].map(TenantId);
        let ask = |tenant| -> Waiting<'_> { Box::pin(turns.take(tenant)) };
        let mut greedy: Vec<Waiting<'_>> = (0..100).map(|_| ask(a)).collect();
        let given: Vec<_> = greedy.iter_mut().filter_map(has_turn).collect();
        assert_eq!(given.len(), 1, "one at a time");
        let mut other = ask(b);
        let others = has_turn(&mut other).expect("it waits for nobody");
        // Both turns are taken; whoever comes now is next, before the rest of the greedy one.
        let mut third = ask(c);
        assert!(has_turn(&mut third).is_none());
        drop(given);
        let next = greedy[1..].iter_mut().find_map(has_turn);
        assert!(next.is_none(), "another tenant was first");
        assert!(has_turn(&mut third).is_some());
        drop(others);
        assert!(has_turn(&mut greedy[1]).is_some(), "its own turn comes again");
    }

    /// Who stops waiting is not waited for, and tenants that have left leave nothing behind.
    #[test]
    fn queues_end_with_those_who_wait() {
        let turns = Turns::default();
        let first = has_turn(&mut (Box::pin(turns.take(TenantId(1))) as Waiting<'_>)).unwrap();
        let mut gone: Waiting<'_> = Box::pin(turns.take(TenantId(1)));
        let mut waits: Waiting<'_> = Box::pin(turns.take(TenantId(1)));
        assert!(has_turn(&mut gone).is_none() && has_turn(&mut waits).is_none());
        drop(gone);
        drop(first);
        drop(has_turn(&mut waits).expect("nobody is before it"));
        drop(waits);
        for tenant in 2..100 {
            drop(has_turn(&mut (Box::pin(turns.take(TenantId(tenant))) as Waiting<'_>)));
        }
        assert!(turns.by_tenant.lock().len() <= 1);
    }
}
