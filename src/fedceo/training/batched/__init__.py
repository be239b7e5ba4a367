"""The whole cohort as one program: every step trains one batch of each of K clients at once.

trainer.py     the rounds: clients that fit in memory together, their steps
joining.py     which runs may be trained together, as further clients of one cohort
cohort.py      the buffers of a cohort in training, and its batches
step.py        a step of SGD on these buffers
descent.py     plain SGD without a GPU's kernels, which needs none of them
span.py        that of a first linear layer, in which a step reads inner products of records and no features
rotation.py    its other steps in coordinates of each client's records, with noise in these
room.py        memory, by which a cohort is cut
chain.py       models that are a chain of blocks
tracing.py     such chains, read off models' own code
blocks.py      those layers for K clients, backward passes written out: linear ones
convolution.py convolutions
recurrent.py   likewise LSTM layers, with a table of their memory
losses.py      the cross-entropy and the clipping of records' gradients between the layers' passes
products.py    gradients left as products, for a step that multiplies on the way to the weights
functional.py  gradients of any other model, through torch.func

Memory
------
K clients, B slots in a batch (records first, filling after them), S steps of the client that takes most, D parameters.
A row has D entries and zeros up to a multiple of 4, on a GPU of 16, so that rows begin alike. On a GPU, S is a multiple
of 64, B of 16 and K above 32 of 8, so that few captured steps serve all rounds. "or none": nothing is allocated where
nobody reads it.

    buffer            shape             meaning
    Cohort.weights    (K, row)          the models
    Cohort.gradients  (K, row)          the gradients of the step, then with noise and terms
    Cohort.momenta    (K, row) or none  SGD's buffers, with momentum; Adam's first moments
    Cohort.squares    (K, row) or none  Adam's second moments
    Cohort.starts     (K, row) or none  the weights at the start, or the anchor, for terms that look back at it
    Cohort.noised     (K, row) or none  the noised gradient of the step before, for an ascent under record privacy
    Cohort.shifts     (K, row) or none  the way of each step beside its gradient, where the Work has a shift
    Cohort.batches    (S, K, B)         indices of records in the federation; filling is the index of a record of zeros
    Cohort.counts     (S, K)            how many of the B slots hold records
    Cohort.masks      (S, K, B, units)  dropout masks of 0 and 1 / keep, or none
    Cohort.mask_keys  (K,) or none      keys of the masks, where a kernel draws them step by step
    Cohort.steps      (K,)              how many steps each client takes
    Cohort.step       (1,)              how many steps were taken
    Cohort.rates      (K,)              learning rates
    Cohort.clips      (K,) or none      largest norms of a record's gradient, under record privacy
    Cohort.stds       (K,) or none      standard deviations of the noise on the sums of clipped gradients
    Cohort.divisors   (K,)              expected batch sizes, which divide noised sums under record privacy
    Cohort.keys       (K,) or none      keys of the noise, where it is a function of them
    Cohort.losses     (K,)              mean losses, summed over steps
    Batch.x           (K, B, *shape)    the inputs of one step; filling is zeros
    Batch.labels      (K, B)            their labels
    factors           (K, B)            what each record's gradient is multiplied by; 0 for filling
    squared norms     (K, B)            of each record's gradient over one block's parameters

In a row, parameters lie one after another in the model's order, each in the order of its axes.

On a GPU (training/cuda), per convolution; R x C is the size of its pooled output, P the side of the pooled squares:

    x, dx       (K, B, height, width, channels)  images with channels last, shown as (K, B, channels, height, width)
    weight      (K, taps, channels, out)         a copy in which neighbours in a patch are neighbours
    y           (K, B, R, C, out)                the pooled output; (K, B, out, R, C) where no convolution is next
    winner      (K, B, R, C, out), int8          which of the P^2 pooled values won, -1 where ReLU cut it off
    dz          (K, B, R P, C P, out)            the gradient before ReLU and pooling
    each        (groups, rows, out)              gradients, summed over groups of a client's records; a group is one
                                                 record where single gradients are clipped and were formed for that;
                                                 rows: taps * channels, and one for the bias
    squares     (groups, parts)                  squared norms of each record's gradient, to be summed over the parts

A first convolution on blocks has no dz: its gradients are taken from dy and winner.

x, weight, dz, dx, and `each` of single records are float32, or float16 under TF32, gradients then times 64.
"""
