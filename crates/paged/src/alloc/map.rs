//! The blocks of an allocator drawn for people: as text, and as a picture.

use super::{Allocator, seat};
use crate::BlockId;
use std::fmt::Write;

/// Characters of a line of the text map.
const LINE: u32 = 64;
/// Most cells of either map: beyond that a cell stands for several blocks.
const CELLS_MAX: u32 = 4096;
/// Pixels of a cell of the picture.
const CELL: u32 = 10;

impl Allocator {
    /// The state in words and one character for each block, or for each few blocks of a large arena.
    pub fn block_map(&self) -> String {
        let (total, per_cell) = (self.total_blocks(), self.per_cell());
        let mut text = format!(
            "Block allocator:\n  Total blocks: {total}\n  Used: {} Free: {}\n  Fragmentation: {:.2} (longest run {})\n",
            self.used_blocks(),
            self.free_blocks(),
            self.fragmentation(),
            self.largest_run(),
        );
        let scale = if per_cell > 1 { format!(", + = some of {per_cell}") } else { String::new() };
        let _ = write!(text, "  Block map (. = free, X = used{scale}):");
        for (n, used) in (0u32..).zip(self.cells()) {
            if n.is_multiple_of(LINE) {
                text.push_str("\n    ");
            }
            text.push(match used {
                0 => '.',
                used if used == per_cell => 'X',
                _ if n == (total - 1) / per_cell && used == tail(total, per_cell) => 'X',
                _ => '+',
            });
        }
        text.push('\n');
        text
    }

    /// The same as an SVG picture: a square for each block, darker the fuller it is.
    pub fn block_map_svg(&self) -> String {
        let (total, per_cell) = (self.total_blocks(), self.per_cell());
        let cells = total.div_ceil(per_cell);
        let (width, height) = (LINE * CELL, cells.div_ceil(LINE) * CELL + 24);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <style>.f{{fill:#8884}}.u{{fill:#2a78d6}}text{{fill:#808080}}</style>\n\
             <text x=\"0\" y=\"14\">{} of {total} blocks used, longest free run {}</text>\n",
            self.used_blocks(),
            self.largest_run(),
        );
        for (n, used) in (0u32..).zip(self.cells()) {
            let (x, y) = (n % LINE * CELL, n / LINE * CELL + 24);
            let (class, opacity) = if used == 0 {
                ("f", 1.0)
            } else {
                ("u", 0.4 + 0.6 * f64::from(used) / f64::from(per_cell))
            };
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"9\" height=\"9\" rx=\"1\" opacity=\"{opacity:.2}\"/>"
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn per_cell(&self) -> u32 {
        self.total_blocks().div_ceil(CELLS_MAX).max(1)
    }

    /// Used blocks of each cell.
    fn cells(&self) -> impl Iterator<Item = u32> {
        self.bits.empty_pockets(seat());
        let (total, per_cell) = (self.total_blocks(), self.per_cell());
        (0..total).step_by(per_cell as usize).map(move |first| {
            let cell = first..total.min(first + per_cell);
            cell.filter(|block| !self.bits.is_free(BlockId(*block))).count() as u32
        })
    }
}

/// Blocks of the last cell.
const fn tail(total: u32, per_cell: u32) -> u32 {
    match total % per_cell {
        0 => per_cell,
        rest => rest,
    }
}
