//! The ranks of this process: one of them, or all. Calls are made for all of them phase by phase, so that
//! nobody waits for a rank whose turn comes later.

use super::EpArgs;
use crate::nano::Backend;
use anyhow::{Context, Result};
use mooncrate_ep::barrier::Fault;
use mooncrate_ep::heaps::Heaps;
use mooncrate_ep::seat::{CudaSeat, HostSeat, Replay};
use mooncrate_ep::workload::{Drawn, Routing};
use mooncrate_ep::{CudaEp, Ep, EpConfig, EpError, EpKernels, EpLayout, Replays, Shape};
use mooncrate_gpu::{Gpu, Stream};
use mooncrate_heap::{Group, GroupSpec, Heap, Watch};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long processes wait for each other outside of the exchange.
pub(super) const WITHIN: Duration = Duration::from_mins(1);

/// A rank of this process.
#[derive(Debug)]
pub(super) enum Seat {
    Host(Box<HostSeat>),
    Cuda(Rc<CudaSeat>),
}

/// The ranks of this process.
pub(super) struct Team {
    pub(super) seats: Vec<Seat>,
    pub(super) shape: Shape,
    pub(super) args: EpArgs,
    /// `None`: all ranks are here.
    group: Option<Group>,
    gpu: Option<Gpu>,
    /// Where graphs of all ranks of this process begin and end.
    pub(super) stream: Option<Rc<Stream>>,
    epoch: u64,
}

/// What each rank of this process got from a layer: its output, or its error.
pub(super) type Answers = Vec<Result<Vec<u16>, EpError>>;

impl Team {
    pub(super) fn join(args: &EpArgs, config: &EpConfig) -> Result<Self> {
        let shape = config.shape()?;
        let mut team = Self {
            seats: Vec::new(),
            shape,
            args: args.clone(),
            group: None,
            gpu: None,
            stream: None,
            epoch: 0,
        };
        if args.backend != Backend::Cpu {
            let gpu = Gpu::open(0)?;
            team.stream = Some(Rc::new(Stream::new(&gpu)?));
            team.gpu = Some(gpu);
        }
        if args.backend == Backend::CudaVirtual {
            team.sit_together(config)?;
            return Ok(team);
        }
        let path = args.path.clone().context("--path is said by the program that starts ranks")?;
        let (rank, world) = (args.rank.unwrap_or(0).into(), args.world.into());
        let spec = GroupSpec { path, rank, world, layout: 0, within: WITHIN };
        let mut group = Group::join(&spec)?;
        let seat = match &team.gpu {
            None => Seat::Host(Box::new(HostSeat::new(Ep::host(&mut group, config, WITHIN)?))),
            Some(gpu) => {
                let ep = CudaEp::join(&mut group, gpu, config, WITHIN)?;
                Seat::Cuda(Rc::new(CudaSeat::new(gpu, ep)?))
            }
        };
        // Memory is there on all ranks before the first one waits on its GPU.
        group.barrier("sit down", WITHIN)?;
        team.seats.push(seat);
        team.group = Some(group);
        Ok(team)
    }

    fn sit_together(&mut self, config: &EpConfig) -> Result<()> {
        let gpu = self.gpu.as_ref().context("a GPU")?;
        let layout = EpLayout::new(self.shape);
        let kernels = EpKernels::load(gpu)?;
        for heap in Heap::cuda_ranks(gpu, self.shape.world(), layout.bytes())? {
            let (heap, watch) = (Arc::new(heap), Watch::default());
            let ep = CudaEp::over(gpu, heap, watch, kernels.clone(), config)?;
            self.seats.push(Seat::Cuda(Rc::new(CudaSeat::new(gpu, ep)?)));
        }
        Ok(())
    }

    /// What the ranks of this process send in a step.
    pub(super) fn draw(&self, routing: Routing, step: u64) -> Vec<Drawn> {
        let draw =
            |seat: &Seat| Drawn::new(&self.shape, routing, self.args.seed, seat.rank(), step);
        self.seats.iter().map(draw).collect()
    }

    /// One layer of all ranks of this process; rank r uses layer number `layer(r)`.
    pub(super) fn layer(&mut self, layer: impl Fn(u32) -> u16, drawn: &[Drawn]) -> Answers {
        let mut ends = self.each(|_, seat, at| {
            let layer = layer(seat.rank());
            seat.dispatch(layer, &drawn[at])
        });
        for phase in [Seat::await_rows, Seat::pack, Seat::give_back, Seat::await_results] {
            let next = self.each(|_, seat, _| phase(seat));
            ends = ends.into_iter().zip(next).map(|(end, next)| end.and(next)).collect();
        }
        let outputs = self.each(|_, seat, _| seat.combine());
        ends.into_iter().zip(outputs).map(|(end, output)| end.and(output)).collect()
    }

    fn each<T>(&mut self, call: impl Fn(&Shape, &mut Seat, usize) -> T) -> Vec<T> {
        let shape = self.shape;
        self.seats.iter_mut().enumerate().map(|(at, seat)| call(&shape, seat, at)).collect()
    }

    /// All ranks forget a failure and begin again.
    pub(super) fn reset(&mut self) -> Result<()> {
        self.epoch += 1;
        let epoch = self.epoch;
        if let Some(group) = &mut self.group {
            for seat in &mut self.seats {
                match seat {
                    Seat::Host(seat) => seat.ep.reset(group, WITHIN)?,
                    Seat::Cuda(seat) => {
                        seat.ep.reset(group, &[&seat.stream], Replays::Anywhere, WITHIN)?;
                    }
                }
            }
            return Ok(());
        }
        if let Some(gpu) = &self.gpu {
            gpu.synchronize()?;
        }
        for seat in &self.seats {
            if let Seat::Cuda(seat) = seat {
                seat.ep.clear(&seat.stream, epoch)?;
            }
        }
        Ok(())
    }

    /// Those ranks of this process give their communicators up; with a group they wait until all have.
    pub(super) fn close(&mut self, which: impl Fn(u32) -> bool) -> Result<()> {
        let leave = self.seats.extract_if(.., |seat| which(seat.rank()));
        for seat in leave.collect::<Vec<_>>() {
            let Some(group) = &mut self.group else { continue };
            match seat {
                Seat::Host(seat) => seat.ep.close(group, WITHIN)?,
                Seat::Cuda(seat) => {
                    let seat = Rc::into_inner(seat).context("a graph holds the seat")?;
                    seat.ep.close(group, WITHIN)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until all processes have come to this point.
    pub(super) fn together(&mut self, doing: &'static str) -> Result<()> {
        match &mut self.group {
            Some(group) => Ok(group.barrier(doing, WITHIN)?),
            None => Ok(()),
        }
    }

    /// A layer of all ranks of this process as one graph; `None`: no GPU here.
    pub(super) fn record(&self, layer: u16) -> Result<Option<Replay<'static>>> {
        let Some(stream) = &self.stream else { return Ok(None) };
        let seats: Vec<Rc<CudaSeat>> = self.seats.iter().filter_map(Seat::cuda).cloned().collect();
        Ok(Some(Replay::layer(stream, &seats, layer)?))
    }
}

impl Seat {
    pub(super) fn rank(&self) -> u32 {
        match self {
            Self::Host(seat) => seat.ep.rank().number().into(),
            Self::Cuda(seat) => seat.ep.rank().number().into(),
        }
    }

    pub(super) fn cuda(&self) -> Option<&Rc<CudaSeat>> {
        match self {
            Self::Host(_) => None,
            Self::Cuda(seat) => Some(seat),
        }
    }

    /// On a GPU this queues, and what is wrong shows up in the status later.
    pub(super) fn dispatch(&mut self, layer: u16, drawn: &Drawn) -> Result<(), EpError> {
        match self {
            Self::Host(seat) => seat.ep.dispatch(layer, &drawn.batch()),
            Self::Cuda(seat) => {
                seat.upload(drawn)?;
                seat.dispatch(layer)
            }
        }
    }

    pub(super) fn await_rows(&mut self) -> Result<(), EpError> {
        match self {
            Self::Host(seat) => seat.ep.await_rows(),
            Self::Cuda(seat) => seat.await_rows(),
        }
    }

    pub(super) fn pack(&mut self) -> Result<(), EpError> {
        match self {
            Self::Host(seat) => seat.pack(),
            Self::Cuda(seat) => seat.pack(),
        }
    }

    pub(super) fn give_back(&mut self) -> Result<(), EpError> {
        match self {
            Self::Host(seat) => seat.give_back(),
            Self::Cuda(seat) => {
                seat.experts()?;
                seat.give_back()
            }
        }
    }

    pub(super) fn await_results(&mut self) -> Result<(), EpError> {
        match self {
            Self::Host(seat) => seat.ep.await_results(),
            Self::Cuda(seat) => seat.await_results(),
        }
    }

    /// Waits for the work of this rank, and gives its output or its error.
    pub(super) fn combine(&mut self) -> Result<Vec<u16>, EpError> {
        match self {
            Self::Host(seat) => seat.combine().map(<[u16]>::to_vec),
            Self::Cuda(seat) => {
                seat.combine()?;
                seat.output()
            }
        }
    }

    /// Writes to this rank's own heap behind the back of the exchange.
    pub(super) fn damage(&self, offset: u64, bytes: &[u8]) -> Result<(), EpError> {
        match self {
            Self::Host(seat) => seat.ep.heap().store(self.rank(), offset, bytes),
            Self::Cuda(seat) => {
                seat.stream.synchronize()?;
                let heap = seat.ep.heap();
                let own = heap.span(heap.rank()).expect("heaps are on the GPU");
                own.part(offset..offset + bytes.len() as u64)?.write(bytes, &seat.stream)?;
            }
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> EpLayout {
        match self {
            Self::Host(seat) => *seat.ep.layout(),
            Self::Cuda(seat) => *seat.ep.layout(),
        }
    }

    /// Why this rank has failed, if it has.
    pub(super) fn fault(&self) -> Option<Fault> {
        let status = match self {
            Self::Host(seat) => seat.ep.status(),
            Self::Cuda(seat) => seat.ep.status(),
        };
        status.err().and_then(|error| error.fault().copied())
    }
}
