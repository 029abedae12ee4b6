"""Transposed convolutions by phases: each of neighbouring outputs has taps of its own, no zeros are multiplied."""
