//! reach: GPUs, through the CUDA driver that is found at run time.
