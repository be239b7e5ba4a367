"""The batched trainer's work on a GPU, where there is Triton.

captured.py             steps recorded once as a CUDA graph and replayed
blocks.py               the blocks of a chain on kernels: which have which
convolution.py          a convolution with its ReLU and pooling
first_convolution.py    one on records of few channels, cut into blocks
linear.py               a linear layer with its mask and ReLU
losses.py               cross-entropy and clipping factors on kernels
records.py              the records of a step, copied by a kernel
step.py                 a step of SGD with its noise as one kernel
convolution_kernels.py  the kernels of a convolution, forward and backward
gradient_kernels.py     those of the gradients of its weights
first_kernels.py        those of a first convolution on blocks
row_kernels.py          the kernels that go through a batch record by record
product_kernels.py      products of linear layers
step_kernels.py         the kernels of the noise and of the step

The memory that they work on is described in fedceo.training.batched.
"""
