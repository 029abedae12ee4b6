"""How algorithms run a problem, decided on the host: ordinary Python without NKI. One file an algorithm."""
