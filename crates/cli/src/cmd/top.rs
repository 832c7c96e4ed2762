//! `top`: the cluster at work, looked at once a second over the control link, so that it needs no
//! admin port. Where nobody watches, one picture is printed.
//!
//! What must stay true: a master that does not answer is said so on the screen, and asked again; `q`
//! and Ctrl-C end it within a call's time.

mod view;

pub(crate) use view::View;

use super::signals::Signals;
use super::{connect, failed};
use crate::args::Top;
use crate::cmd::look::Look;
use crate::config::Settings;
use crate::failure::Failure;
use crate::render::{Output, to_terminal};
use crate::screen::Screen;
use mooncrate::Store;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for a look: the screen shall not stand still because a master does.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the picture under way when a signal ends it.
const END_MAX: Duration = Duration::from_secs(5);
/// Between two looks at the keyboard.
const KEY_STEP: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Top, settings: &Settings, out: Output) -> Result<(), Failure> {
    let impatient = Settings { deadline: settings.deadline.min(LOOK_MAX), ..settings.clone() };
    let store = connect(&impatient)?;
    let mut view = View::new(settings.master.to_string());
    view.see(Look::take(&store).map_err(failed)?);
    if out.json || !to_terminal() {
        std::thread::sleep(args.every);
        view.see(Look::take(&store).map_err(failed)?);
        return out.top(&view);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start a runtime: {error}")))?;
    let ended = runtime.block_on(live(view, store, args.every));
    runtime.shutdown_background();
    ended.map_err(|error| Failure::failed(format!("the terminal cannot be used: {error}")))
}

/// Paints in a thread of its own until a key or a signal ends it.
async fn live(view: View, store: Store, every: Duration) -> io::Result<()> {
    let mut signals = Signals::catch()?;
    let screen = Arc::new(Screen::take()?);
    let over = Arc::new(AtomicBool::new(false));
    let (shown, end) = (Arc::clone(&screen), Arc::clone(&over));
    let mut painting =
        tokio::task::spawn_blocking(move || paint(view, &store, every, &shown, &end));
    let painted = tokio::select! {
        painted = &mut painting => painted,
        () = signals.next() => {
            // Release: pairs with the Acquire in `paint`.
            over.store(true, Ordering::Release);
            match tokio::time::timeout(END_MAX, painting).await {
                Ok(painted) => painted,
                Err(_) => return Ok(()),
            }
        }
    };
    painted.map_err(io::Error::other)?
}

fn paint(
    mut view: View,
    store: &Store,
    every: Duration,
    screen: &Screen,
    over: &AtomicBool,
) -> io::Result<()> {
    loop {
        let (width, height) = Screen::size();
        Screen::paint(&view.lines(width, height))?;
        let mut left = every;
        while !left.is_zero() {
            let step = left.min(KEY_STEP);
            let key = screen.key(step)?;
            // Acquire: pairs with the Release in `live`.
            if over.load(Ordering::Acquire) || matches!(key, Some(b'q' | b'Q')) {
                return Ok(());
            }
            left = left.saturating_sub(step);
        }
        match Look::take(store) {
            Ok(look) => view.see(look),
            Err(error) => view.lost(error.to_string()),
        }
    }
}
