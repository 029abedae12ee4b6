"""`vector` on the host: see `mixed`."""

from .mixed import Mixed

ALGORITHM = Mixed("vector")
