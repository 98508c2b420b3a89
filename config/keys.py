"""Every Redis key of Assay: one function each, with its type and lifetime.

All keys of the state Redis start with `assay:`; Celery's own (queue lists, `unacked*`, `_kombu*`) do not.
"""


def workers() -> str:
    """Set of the names of workers that announced themselves; a name leaves with its worker. No expiry: it is bounded by
    the number of workers, and names whose record has lapsed are taken out by the next reader."""
    return "assay:workers"


def worker(name: str) -> str:
    """Hash: what the worker of this name is. Lapses `heartbeat_ttl_s` after the last heartbeat."""
    return f"assay:worker:{name}"


def probe(token: str) -> str:
    """List, one JSON entry: what a worker answered to one probe. Lives 60 s."""
    return f"assay:probe:{token}"
