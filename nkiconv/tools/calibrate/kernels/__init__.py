"""Kernels of probes. Most do their work on one core; every result is read again or stored."""
