//! The threads of a master: workers with a runtime each, and the ticker.

use crate::seat::{Seat, SeatHandler};
use crate::service::Master;
use mooncrate_rt as rt;
use mooncrate_wire::address::Bound;
use mooncrate_wire::task::{Runtime, TaskSet};
use mooncrate_wire::{ServerConfig, serve_control};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often the lists of nodes and segments are compared with what was written down: keys of a silent node wait
/// until it is off the list.
const KEEP: Duration = Duration::from_millis(100);

/// A master at work. Dropping it stops it.
#[derive(Debug)]
pub struct Serving {
    /// Ends the threads that keep time, before anything else: a node that finds nobody listening relies on it that
    /// this master gives no key up any more.
    timeless: watch::Sender<bool>,
    tickers: Vec<rt::Thread<()>>,
    shutdown: watch::Sender<bool>,
    threads: Vec<rt::Thread<()>>,
}

impl Serving {
    /// Finishes what is being handled, refuses the rest, and returns when all threads have ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.timeless.send(true);
        for thread in self.tickers.drain(..) {
            let _ended = thread.join();
        }
        let _ = self.shutdown.send(true);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the ticker and, on every socket, `workers` threads that answer.
pub fn serve(
    master: &Arc<Master>,
    sockets: &[Bound],
    config: &ServerConfig,
    workers: usize,
) -> io::Result<Serving> {
    serve_seat(&Seat::always(Arc::clone(master)), master.config.tick, sockets, config, workers)
}

/// The same for whoever takes the seat; while it is vacant, callers are told where the leader is.
pub fn serve_seat(
    seat: &Arc<Seat>,
    tick: Duration,
    sockets: &[Bound],
    config: &ServerConfig,
    workers: usize,
) -> io::Result<Serving> {
    let ((timeless, still), (shutdown, down)) = (watch::channel(false), watch::channel(false));
    let mut serving = Serving { timeless, tickers: Vec::new(), shutdown, threads: Vec::new() };
    serving.tickers.push(every("master-tick", tick, seat, &still, Seat::tick)?);
    if seat.master().is_none_or(|master| master.keeps()) {
        // Nodes that were lost since the last mount.
        serving
            .tickers
            .push(every("master-keep", KEEP, seat, &still, |_, master| master.keep_or_say())?);
    }
    for worker in 0..workers.max(1) {
        let runtime = Runtime::new()?;
        let sockets: Vec<Bound> =
            sockets.iter().map(Bound::try_clone).collect::<io::Result<_>>()?;
        if sockets.is_empty() {
            break;
        }
        let handler = Arc::new(SeatHandler(Arc::clone(seat)));
        let (config, down) = (Arc::new(config.clone()), down.clone());
        let handle = rt::spawn(&format!("master-{worker}"), move || {
            runtime.block_on(async {
                let mut doors = TaskSet::default();
                for socket in sockets {
                    let (handler, config) = (Arc::clone(&handler), Arc::clone(&config));
                    doors.spawn(serve_control(socket, handler, config, down.clone()));
                }
                while let Some((_, ended)) = doors.next().await {
                    if let Ok(Err(error)) = ended {
                        tracing::error!(%error, "a listener of the master ended");
                    }
                }
            });
        })?;
        serving.threads.push(handle);
    }
    Ok(serving)
}

/// Work for whoever leads here, at regular times. The catalog sees time pass by it; a thread of its
/// own, so that no request holds it up (G13).
fn every(
    name: &str,
    pause: Duration,
    seat: &Arc<Seat>,
    down: &watch::Receiver<bool>,
    work: fn(&Seat, &Master),
) -> io::Result<rt::Thread<()>> {
    let (seat, down) = (Arc::clone(seat), down.clone());
    rt::spawn(name, move || {
        while !*down.borrow() && down.has_changed().is_ok() {
            if let Some(master) = seat.master() {
                work(&seat, &master);
            }
            rt::sleep(pause);
        }
    })
}
