//! What every backend must do on every disk. One suite; backends and disks are its parameters.

mod basics;
mod crashes;
mod eviction;
mod lanes;
mod model;
mod rig;
mod rot;

use crate::record::Kind;
use rig::{Home, PosixHome, Rig, SimHome};

/// Runs a test for each backend on each disk.
fn everywhere(test: fn(&mut Rig)) {
    for kind in Kind::ALL {
        let homes: [Box<dyn Home>; 2] = [Box::new(SimHome::new(1)), Box::new(PosixHome::new())];
        for home in homes {
            println!("{} on {}", kind.name(), home.name());
            test(&mut Rig::new(kind, home));
        }
    }
}

/// Runs a test for each backend on the simulated disk, which can crash and rot.
fn simulated(seed: u64, test: fn(&mut Rig)) {
    for kind in Kind::ALL {
        println!("{} on sim, seed {seed}", kind.name());
        test(&mut Rig::new(kind, Box::new(SimHome::new(seed))));
    }
}
