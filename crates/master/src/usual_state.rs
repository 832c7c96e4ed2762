//! The state of a master that nobody told where to keep it: in the first of the usual places that takes it.
//!
//! It is a convenience, so it never refuses a start or holds a key up. A place that cannot be written is left for the
//! next one, and a list that can no longer be written is deleted, which needs no room: the next leader finds none then,
//! and believes nobody.
//!
//! What must stay true: an old list in a place that was left is never read in place of a newer one (G6). Of all lists
//! the latest counts; the others are deleted once it is written, and before it is.

use crate::kept::Kept;
use crate::state_file::{StateFile, read};
use crate::state_lock::HANDOVER;
use mooncrate_core::Now;
use mooncrate_wire::clock::boottime;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// After a write that failed the next one comes this much later: somebody may have made room.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The place that took it.
#[derive(Debug)]
pub(crate) struct UsualState {
    file: StateFile,
    /// Places where an earlier list may lie.
    others: Vec<StateFile>,
    /// Nothing is kept, and until when nothing is tried.
    rests: Option<Now>,
}

/// What was found in the usual places.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// `None`: no place takes it.
    pub(crate) state: Option<UsualState>,
    pub(crate) kept: Option<Kept>,
    /// A master led here, and nobody can read what it wrote.
    pub(crate) damaged: bool,
}

impl UsualState {
    /// Looks through the places, the best first.
    pub(crate) fn open(places: &[PathBuf]) -> Found {
        let (mut found, mut file) = (Found::default(), None);
        let (mut others, mut refused) = (Vec::new(), Vec::new());
        for path in places {
            if file.is_some() && !path.exists() {
                continue;
            }
            let wait = if file.is_none() { HANDOVER } else { Duration::ZERO };
            let place = match StateFile::locked(path, boottime().deadline_in(wait)) {
                Err(held) if held.kind() == io::ErrorKind::ResourceBusy && file.is_none() => {
                    tracing::warn!(
                        "no state is kept: {held}; after a restart nodes that were away for some seconds start over \
                         empty, and quotas are forgotten; --state-file names another place"
                    );
                    return Found::default();
                }
                Err(error) => {
                    refused.push(error.to_string());
                    continue;
                }
                Ok(place) => place,
            };
            match read(path) {
                Ok(kept) => {
                    let order = |kept: &Option<Kept>| kept.as_ref().map(|kept| kept.epoch);
                    if order(&kept) > order(&found.kept) {
                        found.kept = kept;
                    }
                }
                Err(error) => {
                    tracing::warn!("{error}; this master starts without it");
                    found.damaged = true;
                }
            }
            if file.is_none() {
                match place.probe() {
                    Ok(()) => file = Some(place),
                    Err(error) => {
                        refused.push(format!("{} cannot be written: {error}", path.display()));
                        others.push(place);
                    }
                }
            } else {
                others.push(place);
            }
        }
        if let Some(file) = file {
            for left in refused {
                tracing::info!("{left}: the state is kept elsewhere");
            }
            found.state = Some(Self { file, others, rests: None });
            return found;
        }
        others.iter_mut().for_each(forget_or_say);
        let refused = refused.join("; ");
        tracing::warn!(
            "no state is kept ({refused}): after a restart nodes that were away for some seconds start over empty, and \
             quotas are forgotten; make room there, or name a place with --state-file"
        );
        found
    }

    /// Makes the file say `kept`. False: nothing is kept, and the next leader finds nothing.
    pub(crate) fn keep(&mut self, kept: Kept) -> io::Result<bool> {
        let now = boottime();
        if self.rests.is_some_and(|until| now < until) {
            return Ok(false);
        }
        let Err(error) = self.file.keep(kept) else {
            self.others.drain(..).for_each(|mut other| forget_or_say(&mut other));
            if self.rests.take().is_some() {
                tracing::info!("the master's state is kept again");
            }
            return Ok(true);
        };
        // The latest one last.
        for file in self.others.iter_mut().chain([&mut self.file]) {
            file.forget()?;
        }
        if self.rests.replace(now.plus(TRY_AGAIN)).is_none() {
            tracing::warn!(
                "{error}; it was deleted, and no state is kept until it can be written: after a restart nodes that were \
                 away for some seconds start over empty, and quotas are forgotten"
            );
        }
        Ok(false)
    }
}

fn forget_or_say(file: &mut StateFile) {
    if let Err(error) = file.forget() {
        tracing::warn!("{error}; delete it: it is older than what this master does");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::LeaderEpoch;
    use std::fs;

    fn at(epoch: u64) -> Kept {
        Kept { epoch: LeaderEpoch(epoch), ..Kept::default() }
    }

    /// Was: the first folder was taken if a file of no bytes could be made there, or none was.
    #[test]
    fn the_first_place_that_takes_a_block_is_used_and_the_latest_list_counts() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["a", "b", "c"].map(|name| folder.path().join(name).join("state"));
        let [a, b, c] = &places;
        let epoch = |path: &PathBuf| read(path).unwrap().map(|kept| kept.epoch.0);
        // A file stands where the first folder should be.
        fs::write(folder.path().join("a"), "").unwrap();
        let mut found = UsualState::open(&places);
        assert_eq!(found.kept, None);
        assert!(found.state.as_mut().unwrap().keep(at(7)).unwrap());
        assert_eq!((epoch(b), c.exists()), (Some(7), false));
        drop(found);
        // The first folder is there again, with a list that somebody brought back from a backup.
        fs::remove_file(folder.path().join("a")).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(a, at(3).render()).unwrap();
        let mut found = UsualState::open(&places);
        assert_eq!(found.kept, Some(at(7)));
        assert!(found.state.as_mut().unwrap().keep(at(8)).unwrap());
        assert_eq!((epoch(a), b.exists()), (Some(8), false), "one list is left");
        drop(found);
        fs::write(a, "torn").unwrap();
        let found = UsualState::open(&places);
        assert!(found.damaged && found.kept.is_none() && found.state.is_some());
    }

    /// A write fails, as on a disk that is full: the list is gone, and comes back when it can.
    #[test]
    fn a_list_that_cannot_be_written_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let places = [folder.path().join("state")];
        let mut state = UsualState::open(&places).state.unwrap();
        assert!(state.keep(at(7)).unwrap());
        let in_the_way = places[0].with_extension("new");
        fs::create_dir(&in_the_way).unwrap();
        assert!(!state.keep(at(8)).unwrap());
        assert!(!places[0].exists());
        fs::remove_dir(&in_the_way).unwrap();
        assert!(!state.keep(at(8)).unwrap(), "not ten times a second");
        state.rests = Some(Now(0));
        assert!(state.keep(at(8)).unwrap());
        assert_eq!(read(&places[0]).unwrap(), Some(at(8)));
    }

    /// Two masters with one home, at one address. Was: each wrote its list over the other's, and nodes were given up
    /// after a restart.
    #[test]
    fn a_place_that_another_master_has_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["a", "b"].map(|name| folder.path().join(name).join("state"));
        let mut first = UsualState::open(&places);
        assert!(first.state.as_mut().unwrap().keep(at(7)).unwrap());
        let second = UsualState::open(&places);
        assert!(second.state.is_none() && second.kept.is_none());
        assert_eq!(read(&places[0]).unwrap(), Some(at(7)));
        let error = StateFile::locked(&places[0], boottime().deadline_in(Duration::ZERO));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&format!("process {} on ", std::process::id())), "{error}");
        drop(first);
        assert_eq!(UsualState::open(&places).kept, Some(at(7)));
    }
}
