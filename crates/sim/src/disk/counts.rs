//! What a run of the rig for disks judged, in numbers: a run that met nothing proves nothing.

/// What was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were kept.
    pub kept: u64,
    /// Records that were not, whatever the reason.
    pub refused: u64,
    /// Values, or parts, whose bytes were compared.
    pub loads: u64,
    /// Of those, parts.
    pub parts: u64,
    /// Loads that found nothing.
    pub missing: u64,
    /// Loads that found something else, and said so.
    pub corrupt: u64,
    /// Loads that failed.
    pub failed: u64,
    /// Records that were removed.
    pub removed: u64,
    /// Records that were evicted.
    pub evicted: u64,
    /// Evictions that were taken back.
    pub taken_back: u64,
    /// Records that a scrub found bad.
    pub scrubbed: u64,
    /// Records that were found when a directory was opened.
    pub recovered: u64,
    /// Records whose keep was under way at a crash: found, and not found.
    pub half_found: u64,
    /// Not found.
    pub half_lost: u64,
    /// Lives that ended with a power cut, that were killed, that were closed.
    pub cuts: u64,
    /// Killed.
    pub kills: u64,
    /// Closed.
    pub closes: u64,
    /// Lives at whose end everything was evicted, to see that all space comes back.
    pub drains: u64,
    /// Power cuts while a directory was being opened.
    pub cuts_in_open: u64,
    /// Directories that harm had made unreadable; the run went on with an empty one.
    pub ruined: u64,
}

impl Counts {
    /// Names and numbers, for reports.
    pub fn rows(&self) -> [(&'static str, u64); 20] {
        [
            ("records kept", self.kept),
            ("records refused", self.refused),
            ("loads verified", self.loads),
            ("of those, parts", self.parts),
            ("loads: missing", self.missing),
            ("loads: corrupt, and told", self.corrupt),
            ("loads: disk failed", self.failed),
            ("records removed", self.removed),
            ("records evicted", self.evicted),
            ("evictions taken back", self.taken_back),
            ("found bad by scrubs", self.scrubbed),
            ("records recovered", self.recovered),
            ("half kept, found", self.half_found),
            ("half kept, lost", self.half_lost),
            ("power cuts", self.cuts),
            ("kills", self.kills),
            ("closes", self.closes),
            ("closes with everything evicted", self.drains),
            ("power cuts while opening", self.cuts_in_open),
            ("directories ruined by harm", self.ruined),
        ]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        let mine = [
            &mut self.kept,
            &mut self.refused,
            &mut self.loads,
            &mut self.parts,
            &mut self.missing,
            &mut self.corrupt,
            &mut self.failed,
            &mut self.removed,
            &mut self.evicted,
            &mut self.taken_back,
            &mut self.scrubbed,
            &mut self.recovered,
            &mut self.half_found,
            &mut self.half_lost,
            &mut self.cuts,
            &mut self.kills,
            &mut self.closes,
            &mut self.drains,
            &mut self.cuts_in_open,
            &mut self.ruined,
        ];
        for (mine, (_, theirs)) in mine.into_iter().zip(other.rows()) {
            *mine += theirs;
        }
    }
}
