"""`taps_on_partition`: the published implicit GEMM, several channels a matmul; kernel.py says how."""
