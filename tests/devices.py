"""Where tests of what CUDA computes otherwise run: here, and on CUDA where there is one."""

import torch

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
