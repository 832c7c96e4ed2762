"""Rows of many batches under names of their own: a catalog, and the transfer that keeps it.

    catalog = DataProtoCatalog()                         # in one process, or an actor; one call at a time
    rows = DataProtoCatalogTransfer(transfer, lambda name, *a, **k: getattr(catalog, name)(*a, **k))
    rows.put(batch, partition="step-1", keys=["a", "b"], tags=[{}, {}])
    plan = rows.resolve("step-1", ["b"], ["tokens"])
    for group in plan["field_groups"]:                   # fields that lie in the same places
        [(fragment, row)] = group["locations"]
        transfer.get(plan["handles"][fragment], fields=group["fields"], rows=[row])
    rows.release_read(plan["read_token"])

A batch is removed from the store when no row and no reader needs it.
"""

from ._absent import getter
from ._catalog import DataProtoCatalog
from ._catalog_transfer import DataProtoCatalogTransfer
from ._codes import log as logger

__all__ = ["DataProtoCatalog", "DataProtoCatalogTransfer", "logger"]
__getattr__ = getter(__name__)
