"""Activation-stationary: windows of x are the stationaries, filters move; y comes out as NHWC."""
