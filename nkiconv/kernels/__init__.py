"""NKI kernels. They import NKI only through `nkiconv._nki`."""
