"""conv2d of fp32 tensors by fp16 pairs: each factor is a high and a low part, three products of them stand for one."""
