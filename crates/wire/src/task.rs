//! What async code asks of the runtime under it: to sleep, to have tasks of its own, to hand work to a thread.
//!
//! Outside of a world that is tokio. In a [`World`] one thread runs all tasks of a [`Runtime`] as one tree of
//! futures: a task goes on while whoever has its [`TaskSet`] waits, and the world says when a socket or a time
//! has come.

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use mooncrate_rt::{self as rt, Way, World};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::{Id, JoinSet};

/// Runs async code on one thread.
#[derive(Debug)]
pub struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    /// A runtime of the system, or of the world that this thread has entered.
    pub fn new() -> io::Result<Self> {
        if rt::world().is_some() {
            return Ok(Self(None));
        }
        Ok(Self(Some(tokio::runtime::Builder::new_current_thread().enable_all().build()?)))
    }

    /// For other threads, while this one runs.
    pub fn handle(&self) -> Handle {
        Handle(self.0.as_ref().map(|runtime| runtime.handle().clone()))
    }

    /// Runs a future to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.0 {
            Some(runtime) => runtime.block_on(future),
            None => run_in_world(future),
        }
    }
}

/// A runtime that another thread runs.
#[derive(Clone, Debug)]
pub struct Handle(Option<tokio::runtime::Handle>);

impl Handle {
    /// Runs a future to its end in this thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.0 {
            Some(runtime) => runtime.block_on(future),
            None => run_in_world(future),
        }
    }
}

fn run_in_world<F: Future>(future: F) -> F::Output {
    let world = rt::world().expect("what was made in a world runs there");
    let parked = Arc::new(Parked { world, woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&parked));
    let mut future = pin!(future);
    loop {
        while !parked.woken.swap(false, Ordering::Relaxed) {
            world.wait(parked.queue(), None);
        }
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
    }
}

/// A thread of a world that waits for its futures.
struct Parked {
    world: &'static dyn World,
    woken: AtomicBool,
}

impl Parked {
    fn queue(&self) -> usize {
        std::ptr::from_ref(&self.woken).addr()
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
        self.world.wake(self.queue(), true);
    }
}

/// Sleeps.
pub async fn sleep(time: Duration) {
    match rt::world() {
        None => tokio::time::sleep(time).await,
        Some(world) => Sleep { world, until: until(time), timer: None }.await,
    }
}

/// What a future comes to within `time`.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    if rt::world().is_none() {
        return tokio::time::timeout(time, future).await.ok();
    }
    tokio::select! {
        biased;
        done = &mut future => Some(done),
        () = sleep(time) => None,
    }
}

fn until(time: Duration) -> u64 {
    rt::boottime().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

struct Sleep {
    world: &'static dyn World,
    until: u64,
    timer: Option<u64>,
}

impl Sleep {
    fn forget_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.world.forget_timer(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.forget_timer();
        let left = self.until.saturating_sub(rt::boottime());
        if left == 0 {
            return Poll::Ready(());
        }
        self.timer = Some(self.world.wake_after(Duration::from_nanos(left), context.waker()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget_timer();
    }
}

/// A task or a thread that panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it panicked")]
pub struct Panicked;

/// Starts work in a thread that may block; its result.
pub fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, Panicked>> + Send {
    let (done, told) = oneshot::channel();
    let work = move || {
        // Whoever asked may have left.
        let _ = done.send(work());
    };
    if rt::world().is_some() {
        // Refused, it is dropped, and so is `done`.
        let _ = rt::spawn("blocking", work);
    } else {
        drop(tokio::task::spawn_blocking(work));
    }
    async move { told.await.map_err(|_| Panicked) }
}

/// Names a task of a [`TaskSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskId {
    /// Of tokio.
    Tokio(Id),
    /// Of a world.
    World(u64),
}

/// Tasks that end with their owner.
pub struct TaskSet<T>(Tasks<T>);

enum Tasks<T> {
    Tokio(JoinSet<T>),
    World { tasks: FuturesUnordered<BoxFuture<'static, (u64, T)>>, made: u64 },
}

impl<T: Send + 'static> Default for TaskSet<T> {
    fn default() -> Self {
        Self(match rt::world() {
            None => Tasks::Tokio(JoinSet::new()),
            Some(_) => Tasks::World { tasks: FuturesUnordered::new(), made: 0 },
        })
    }
}

impl<T: Send + 'static> TaskSet<T> {
    /// Starts a task.
    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) -> TaskId {
        match &mut self.0 {
            Tasks::Tokio(tasks) => TaskId::Tokio(tasks.spawn(task).id()),
            Tasks::World { tasks, made } => {
                *made += 1;
                let number = *made;
                tasks.push(Box::pin(async move { (number, task.await) }));
                TaskId::World(number)
            }
        }
    }

    /// Waits for the end of some task: its name, and its result. `None`: there is none.
    pub async fn next(&mut self) -> Option<(TaskId, Result<T, Panicked>)> {
        match &mut self.0 {
            Tasks::Tokio(tasks) => Some(match tasks.join_next_with_id().await? {
                Ok((id, done)) => (TaskId::Tokio(id), Ok(done)),
                Err(error) => (TaskId::Tokio(error.id()), Err(Panicked)),
            }),
            // A panic ends the run of a world.
            Tasks::World { tasks, .. } => {
                tasks.next().await.map(|(number, done)| (TaskId::World(number), Ok(done)))
            }
        }
    }

    /// How many have not been told to have ended.
    pub fn len(&self) -> usize {
        match &self.0 {
            Tasks::Tokio(tasks) => tasks.len(),
            Tasks::World { tasks, .. } => tasks.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> fmt::Debug for TaskSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSet").finish_non_exhaustive()
    }
}

/// A connection of a world.
pub(crate) struct WorldStream {
    world: &'static dyn World,
    socket: OwnedFd,
}

impl WorldStream {
    /// The next connection that somebody makes to `address`.
    pub(crate) async fn accept(world: &'static dyn World, address: &str) -> io::Result<Self> {
        let socket = std::future::poll_fn(|context| {
            world.poll_accept(address, context.waker()).map_or_else(
                |error| Poll::Ready(Err(error)),
                |came| came.map_or(Poll::Pending, |socket| Poll::Ready(Ok(socket))),
            )
        });
        Ok(Self { world, socket: socket.await? })
    }

    /// What a call gave, unless the socket must be waited for.
    fn now(&self, way: Way, done: Result<usize, Errno>, waker: &Waker) -> Poll<io::Result<usize>> {
        match done {
            Err(Errno::AGAIN | Errno::INTR) => {
                self.world.watch_socket(self.socket.as_fd(), way, waker);
                Poll::Pending
            }
            done => Poll::Ready(done.map_err(io::Error::from)),
        }
    }
}

impl AsyncRead for WorldStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = rustix::io::read(&self.socket, into.initialize_unfilled());
        let count = ready!(self.now(Way::Read, read, context.waker()))?;
        into.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WorldStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = send(&self.socket, bytes, SendFlags::NOSIGNAL);
        self.now(Way::Write, sent, context.waker())
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.world.closing(self.socket.as_fd());
        Poll::Ready(shutdown(&self.socket, Shutdown::Write).map_err(io::Error::from))
    }
}

impl Drop for WorldStream {
    fn drop(&mut self) {
        self.world.closing(self.socket.as_fd());
    }
}
