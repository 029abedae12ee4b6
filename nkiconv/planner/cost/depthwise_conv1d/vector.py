"""`vector` on the host: see `rows`."""

from .rows import Rows

ALGORITHM = Rows(on_tensor=False)
