"""Weight-stationary implicit GEMM: one matmul per tap and K tile, on the window of x that the tap reads."""
