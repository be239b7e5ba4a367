"""The batched trainer's work on a GPU, where there is Triton.

captured.py             steps recorded once as a CUDA graph and replayed
blocks.py               the blocks of a chain on kernels: which have which
convolution.py          a convolution with its ReLU and pooling
first_convolution.py    one on records of few channels, cut into blocks
linear.py               a linear layer with its mask and ReLU
recurrent.py            an LSTM layer
branches.py             work that runs beside other work
losses.py               cross-entropy and clipping factors on kernels
records.py              the records of a step, copied by a kernel
draws.py                random numbers of many clients' streams
step.py                 a step of SGD with its noise as one kernel
convolution_kernels.py  the kernels of a convolution, forward and backward
gradient_kernels.py     those of the gradients of its weights
first_kernels.py        those of a first convolution on blocks
draw_kernels.py         the kernels of random numbers and of dropout masks
row_kernels.py          the kernels that go through a batch record by record
product_kernels.py      products of linear layers
recurrent_kernels.py    the kernels of an LSTM's cell
step_kernels.py         the kernels of the noise and of the step

The memory that they work on is described in fedceo.training.batched.
"""
