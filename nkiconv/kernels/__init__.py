"""NKI kernels. They import NKI through `nkiconv._nki` and nothing else of nkiconv."""
