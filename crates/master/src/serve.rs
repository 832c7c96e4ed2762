//! The threads of a master: workers with a runtime each, and the ticker.

use crate::handler::MasterHandler;
use crate::service::Master;
use mooncrate_wire::address::Bound;
use mooncrate_wire::{ServerConfig, serve_control};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use tokio::sync::watch;

/// A master at work. Dropping it stops it.
#[derive(Debug)]
pub struct Serving {
    shutdown: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    /// Finishes what is being handled, refuses the rest, and returns when all threads have ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
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
    let (shutdown, down) = watch::channel(false);
    let mut serving = Serving { shutdown, threads: vec![ticker(master, &down)?] };
    for worker in 0..workers.max(1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sockets: Vec<Bound> =
            sockets.iter().map(Bound::try_clone).collect::<io::Result<_>>()?;
        if sockets.is_empty() {
            break;
        }
        let handler = Arc::new(MasterHandler(Arc::clone(master)));
        let (config, down) = (Arc::new(config.clone()), down.clone());
        let thread = Builder::new().name(format!("master-{worker}"));
        let handle = thread.spawn(move || {
            runtime.block_on(async {
                let mut doors = tokio::task::JoinSet::new();
                for socket in sockets {
                    let (handler, config) = (Arc::clone(&handler), Arc::clone(&config));
                    doors.spawn(serve_control(socket, handler, config, down.clone()));
                }
                while let Some(ended) = doors.join_next().await {
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

/// Lets the catalog see time pass. A thread of its own: no request holds it up (G13).
fn ticker(master: &Arc<Master>, down: &watch::Receiver<bool>) -> io::Result<JoinHandle<()>> {
    let (master, down) = (Arc::clone(master), down.clone());
    Builder::new().name("master-tick".into()).spawn(move || {
        while !*down.borrow() && down.has_changed().is_ok() {
            master.tick();
            std::thread::sleep(master.config.tick);
        }
    })
}
