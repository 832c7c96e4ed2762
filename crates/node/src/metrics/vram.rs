//! The numbers of GPUs whose memory a node lends, a row for each. A node that lends none shows none of them.

use crate::duty::Node;
use crate::vram::Vram;
use mooncrate_admin::{Page, Shown};
use std::fmt;

type Row = ([(&'static str, String); 1], Shown);

/// All families.
pub(super) fn show(page: &mut Page<'_>, node: &Node) -> fmt::Result {
    let lent = node.lent().all();
    if lent.is_empty() {
        return Ok(());
    }
    let mut family = |name, help, of: &dyn Fn(&Vram) -> Shown| {
        let rows: Vec<Row> =
            lent.iter().map(|(id, vram)| ([("segment", id.to_string())], of(vram))).collect();
        page.many(name, help, &rows)
    };
    family("mooncrate_node_vram_store_seconds", "Copies from host memory to the GPU.", &|vram| {
        Shown::Spread(vram.tally.stores.now())
    })?;
    family("mooncrate_node_vram_stored_bytes", "Bytes of them.", &|vram| {
        Shown::Count(vram.tally.stored_bytes.value())
    })?;
    family("mooncrate_node_vram_load_seconds", "Copies from the GPU to host memory.", &|vram| {
        Shown::Spread(vram.tally.loads.now())
    })?;
    family("mooncrate_node_vram_loaded_bytes", "Bytes of them.", &|vram| {
        Shown::Count(vram.tally.loaded_bytes.value())
    })?;
    family("mooncrate_node_vram_free_rooms", "Rooms for copies that are not in use.", &|vram| {
        Shown::level(vram.free_rooms() as u64)
    })?;
    family(
        "mooncrate_node_vram_no_room",
        "Times that all rooms were in use for too long.",
        &|vram| Shown::Count(vram.tally.no_room.value()),
    )?;
    family(
        "mooncrate_node_vram_lent",
        "Times that the memory was lent to a GPU process of this host.",
        &|vram| Shown::Count(vram.tally.lent.value()),
    )
}
