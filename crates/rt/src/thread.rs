//! Threads that the system runs, or the world of the thread that starts them.

use crate::{Task, World, world};
use std::any::Any;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Between two looks at a thread of a world that is joined.
const LOOK: Duration = Duration::from_millis(1);

/// A thread that was started. Dropping this leaves it alone.
pub struct Thread<T>(Kind<T>);

enum Kind<T> {
    System(JoinHandle<T>),
    World(&'static dyn World, Task, Arc<Mutex<Option<T>>>),
}

/// Starts a thread with this name.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    start(Builder::new(), name, work)
}

/// The same with a stack of 256 KiB, for threads of which there may be thousands.
pub fn spawn_small<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    start(Builder::new().stack_size(256 << 10), name, work)
}

fn start<T: Send + 'static>(
    system: Builder,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    let Some(world) = world() else {
        return Ok(Thread(Kind::System(system.name(name.into()).spawn(work)?)));
    };
    let result = Arc::new(Mutex::new(None));
    let place = Arc::clone(&result);
    let work = move || {
        let done = work();
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    };
    Ok(Thread(Kind::World(world, world.spawn(name, Box::new(work))?, result)))
}

impl<T> Thread<T> {
    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Kind::System(thread) => thread.is_finished(),
            Kind::World(world, task, _) => world.has_ended(*task),
        }
    }

    /// Waits for its end; its result, or what it panicked with.
    pub fn join(self) -> std::thread::Result<T> {
        match self.0 {
            Kind::System(thread) => thread.join(),
            Kind::World(world, task, result) => {
                while !world.has_ended(task) {
                    world.sleep(LOOK);
                }
                let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
                result.ok_or_else(|| Box::new("it panicked") as Box<dyn Any + Send>)
            }
        }
    }
}

impl<T> fmt::Debug for Thread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::System(thread) => thread.fmt(f),
            Kind::World(_, task, _) => task.fmt(f),
        }
    }
}
