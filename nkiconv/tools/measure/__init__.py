"""Measuring kernels on a device: correctness first, then interleaved timing, then a row with the model's prediction.

`device.Device` is the interface of a machine; `torch_neuron` is the real one, and the only file here that knows torch.
`interleave` times, `one_case` puts a case through all of it, `rows` keeps the results.
"""
