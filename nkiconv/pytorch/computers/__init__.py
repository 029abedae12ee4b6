"""Who computes an operator: torch or the simulator on the host, the kernel on a Neuron device."""
