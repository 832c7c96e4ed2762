//! Where in a layer a communicator is: calls in another order are refused before anything is sent.

use crate::error::EpError;
use mooncrate_gpu::{GpuError, Stream};
use std::cell::Cell;

/// The last call of a layer that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing of the next layer.
    Combined,
    Dispatched,
    Arrived,
    Packed,
    GivenBack,
    Returned,
}

impl Stage {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Combined => "combine",
            Self::Dispatched => "dispatch",
            Self::Arrived => "await_rows",
            Self::Packed => "pack",
            Self::GivenBack => "give_back",
            Self::Returned => "await_results",
        }
    }

    /// The stage that must come before this one.
    const fn before(self) -> Self {
        match self {
            Self::Dispatched => Self::Combined,
            Self::Arrived => Self::Dispatched,
            Self::Packed => Self::Arrived,
            Self::GivenBack => Self::Packed,
            Self::Returned => Self::GivenBack,
            Self::Combined => Self::Returned,
        }
    }

    /// Refuses to come to `next` from here.
    pub(crate) fn may(self, next: Self) -> Result<(), EpError> {
        if self == next.before() {
            return Ok(());
        }
        Err(EpError::Order { called: next.name(), before: self.name() })
    }
}

/// Where work is queued: a stream, and the recording that it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    stream: u64,
    recording: Option<u64>,
}

/// The stage of a communicator whose calls queue: all calls of a layer follow each other in one stream, and in
/// one recording or in none. Nothing else orders their kernels.
#[derive(Debug)]
pub(crate) struct Course {
    stage: Cell<Stage>,
    /// Where the dispatch of the layer that is under way went.
    began: Cell<Option<Place>>,
    /// Where the last layer ended that was done, and the last one that was recorded.
    ended: [Cell<Option<Place>>; 2],
    /// Whether layers, or parts of them, were ever recorded.
    recorded: Cell<bool>,
    /// Whether a call does not count.
    aside: Cell<bool>,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            stage: Cell::new(Stage::Combined),
            began: Cell::new(None),
            ended: [Cell::new(None), Cell::new(None)],
            recorded: Cell::new(false),
            aside: Cell::new(false),
        }
    }
}

impl Course {
    /// Refuses to come to `next` on this stream.
    pub(crate) fn may(&self, next: Stage, stream: &Stream) -> Result<(), EpError> {
        let here = Self::place(stream)?;
        let began = self.began.get();
        if next == Stage::Dispatched
            && began
                .is_some_and(|began| began.recording.is_some() && began.recording != here.recording)
        {
            // The recording ended in the middle of the layer, and nothing of it was done: the layer never began.
            self.reset();
        }
        self.stage.get().may(next)?;
        if next == Stage::Dispatched { Ok(()) } else { self.same(next.name(), here) }
    }

    /// Refuses a call between two stages of the layer on another stream than that of the layer.
    pub(crate) fn between(&self, called: &'static str, stream: &Stream) -> Result<(), EpError> {
        if self.stage.get() == Stage::Packed {
            return self.same(called, Self::place(stream)?);
        }
        Ok(())
    }

    fn same(&self, called: &'static str, here: Place) -> Result<(), EpError> {
        match self.began.get() {
            Some(began) if began.recording != here.recording => {
                Err(EpError::OtherRecording { called })
            }
            Some(began) if began.stream != here.stream => Err(EpError::OtherStream { called }),
            _ => Ok(()),
        }
    }

    fn place(stream: &Stream) -> Result<Place, GpuError> {
        Ok(Place { stream: stream.raw(), recording: stream.recording()? })
    }

    /// The call was made.
    pub(crate) fn came(&self, to: Stage, stream: &Stream) -> Result<(), EpError> {
        match to {
            Stage::Dispatched => {
                let here = Self::place(stream)?;
                self.recorded.set(self.recorded.get() || here.recording.is_some());
                self.began.set(Some(here));
            }
            Stage::Combined if self.aside.get() => {}
            Stage::Combined => {
                let here = Self::place(stream)?;
                self.ended[usize::from(here.recording.is_some())].set(Some(here));
                self.began.set(None);
            }
            _ => {}
        }
        self.stage.set(to);
        Ok(())
    }

    /// Whether the layer before ended on another stream than this one, in the same recording or also in none. Then
    /// nothing orders the two. What is between a recording and something else is up to who launches the graph.
    pub(crate) fn ended_elsewhere(&self, stream: &Stream) -> Result<bool, EpError> {
        let here = Self::place(stream)?;
        let ended = self.ended[usize::from(here.recording.is_some())].get();
        Ok(ended.is_some_and(|end| end.recording == here.recording && end.stream != here.stream))
    }

    /// Whether the layer before ended on this stream, in the same recording or also in none, and none has begun
    /// since.
    pub(crate) fn ended_here(&self, stream: &Stream) -> Result<bool, EpError> {
        let here = Self::place(stream)?;
        let ended = self.ended[usize::from(here.recording.is_some())].get();
        Ok(self.stage.get() == Stage::Combined && ended == Some(here))
    }

    /// Whether a layer is under way whose dispatch was done, or will be, without being replayed.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way_on().is_some()
    }

    /// The stream of that layer, by its handle.
    pub(crate) fn under_way_on(&self) -> Option<u64> {
        let began = self.began.get().filter(|began| began.recording.is_none());
        began.filter(|_| self.stage.get() != Stage::Combined).map(|began| began.stream)
    }

    /// Whether layers, or parts of them, were ever recorded: such a graph may be replayed on any stream.
    pub(crate) fn has_recorded(&self) -> bool {
        self.recorded.get()
    }

    /// Whether this call does not count.
    pub(crate) fn is_aside(&self) -> bool {
        self.aside.get()
    }

    /// Nothing is under way.
    pub(crate) fn reset(&self) {
        self.stage.set(Stage::Combined);
        self.began.set(None);
    }

    /// Does something as if the stage were `before`, on any stream, and comes back.
    pub(crate) fn aside<T>(&self, before: Stage, call: impl FnOnce() -> T) -> T {
        let (stage, began) = (self.stage.replace(before), self.began.take());
        self.aside.set(true);
        let called = call();
        self.aside.set(false);
        self.stage.set(stage);
        self.began.set(began);
        called
    }
}
