"""Measured constants instead of trn2.toml's: probe kernels, their times on a device, and the constants from them.

    slope of a probe = (time of many repetitions - time of few) / difference
    constants        = those under which the timing model has the measured slopes

`suite` lists the probes, `kernels` has their code; `measured` times them, `model` predicts the same under any
constants, `estimate` solves for the constants and names those that the slopes do not determine.
"""
