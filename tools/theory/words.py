"""The words of docs/theory.md beside its numbers: names, claims, prose. Names in braces are filled in by page.py."""

NAMES = {
    "udp-fedavg": "UDP-FedAvg",
    "fedceo-theorem": "FedCEO as in the proof",
    "fedceo-scheduled-own": "FedCEO, scheduled, restart own",
    "fedceo-scheduled-mean": "FedCEO, scheduled, restart mean",
    "fedceo-noise-own": "FedCEO, noise-aware, restart own",
    "fedceo-noise-mean": "FedCEO, noise-aware, restart mean",
    "centaur": "CENTAUR",
    "jain": "Jain et al., linear",
}

TITLES = {
    "d": "In d (N = K = 128, sigma = 1; Jain: N = 2,048, sigma = 0.5)",
    "N, K fixed": "In N at K = 128 (d = 64, sigma = 2)",
    "K, N fixed": "In K at N = 1,024 (d = 64, sigma = 2)",
    "N = K": "In N = K, everybody in every round (d = 64, sigma = 1; Jain: d = 32, sigma = 0.5)",
    "sigma": "In sigma (d = 64, N = K = 128; Jain: d = 32, N = 2,048)",
}

CLAIMS: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "d": {"udp": (None, None), "fedceo": (0.5, 0.5), "centaur": (None, 1.0), "jain": (None, 1.5)},
    "N, K fixed": {"udp": (None, None), "fedceo": (0.0, -1.0), "centaur": (None, -1.0)},
    "K, N fixed": {"udp": (None, None), "fedceo": (-1.0, 0.0), "centaur": (None, 0.0)},
    "N = K": {"udp": (None, None), "fedceo": (-1.0, -1.0), "centaur": (None, -1.0), "jain": (None, -1.0)},
    "sigma": {"udp": (None, None), "fedceo": (1.0, 0.0), "centaur": (None, 0.0), "jain": (None, 0.0)},
}
"""Sweep -> the first word of a method -> exponents of epsilon_u and of epsilon_u epsilon_p."""

HEAD = """# The theory, measured

The paper's Section 4 claims epsilon_u epsilon_p <= O(sqrt(d) / N) for FedCEO, and quotes O(d / N) for CENTAUR and
O(d^1.5 / N) for Jain et al. Here these exponents are measured with the library's own methods, mechanism and accountant
on a federation whose minimum is known. Written by `tools/theory/page.py` from `results/theory.json`, which
`python tools/theory/measure.py` makes.

![epsilon_u and its product with epsilon_p, on logarithmic axes](theory.png)

## In short

- **In d, the algorithm of the proof has UDP-FedAvg's exponent, not 1/2.** UDP-FedAvg: {udp_d}. FedCEO as the proof has
  it: {theorem_d}, and its epsilon_u is UDP-FedAvg's to within {same} % in every cell. The paper's schedule has no
  slope: for small d its shrinkage costs more than the noise does. **But with much noise it is better by a factor**:
  where sigma = 2 or d >= 128 it has {schedule_good} of UDP-FedAvg's epsilon_u, with little noise up to
  {schedule_bad} times as much. With a threshold that follows the noise, which the
  paper does not have: {noise_d}; that one is {gain} times better than UDP-FedAvg at d = 1024, and worse at d = 16.
  A rank-1 matrix of d x 4 entries has a quarter of its freedom, so a factor of about 4 is what low rank can give here;
  an exponent it cannot, because h does not grow with d. Part of the smaller slope is no better rate but saturation: a
  model that is shrunk to zero loses f(0) - f(w*), {nothing}, and no more.
- **epsilon_u is quadratic in the noise.** In sigma: {udp_sigma}, in K: {udp_k} (claimed 1 and -1, which as bounds in K
  hold, and in sigma do not). Near its minimum a smooth f grows with the square of the distance, so
  epsilon_u = (1/2) d h (sigma C / K)^2 / (1 - (1 - eta)^2), which for d = 64 and N = K = 128 is {predicted}; measured:
  {base}.
- **So the product is no constant of the trade-off.** It grows with sigma: {udp_sigma_product} (claimed 0). In N at
  fixed K it falls with {udp_n_product}, all of it epsilon_p's doing: epsilon_u has {udp_n}. The claimed -1 is that of
  the paper's closed form for epsilon_p; the accountant's epsilon for cohorts of fixed size falls otherwise.
- **CENTAUR and Jain et al.** in d: {centaur_d} and {jain_d}, beside the quoted 1 and 3/2; Jain et al. in N: {jain_n},
  beside -1. CENTAUR's private power method finds the shared direction or does not, by the seed, so nothing can be said
  of its exponent; where it finds it, it is the best here by far, on a problem with one shared direction made for it.
- **Restart own or mean makes no difference to epsilon_u** ({gap} % at most) but all the difference to privacy: at
  N = K = 128 an outsider's epsilon_p is {mean_epsilon} with mean and {own_epsilon} with own, since personal models come
  from single uploads. Local steps are nearly affine here, and the mean of affine steps is the step of the mean.
- **The utility bound itself says nothing here, or little**: with the constants that runs meet its m is negative, and
  with the kindest that there are it is [{bound_least} to {bound_most} times](#the-bound-as-a-number) what is measured.

Confidence: intervals are 95 %, Student's t over {seeds} seeds (problem, noise and cohorts drawn anew), of the slope
over the points listed; they do not cover that a curve is no straight line. An exponent of 1 in d for UDP-FedAvg also
follows from the formula above. What is measured is one family of problems: the exponents claimed are not those of this
one, which does not meet the theorem's assumptions, as nothing can (see the end); elsewhere they may be others.

## The problem

`tools/theory/problem.py`. Every client holds the rows of sqrt(d) Q, Q a random orthogonal d x d matrix, each once
with a label of its own among 5; the model is W, h x d with h = 4, and logits are contrasts of W x. A client's loss then
has the identity for a Hessian at W = 0, whatever d is, and is strongly convex and smooth on every ball: the library's
cross-entropy needs no weight decay for that. Strongly convex on all of space it is not, and cannot be while it is
Lipschitz, see below. f is the mean of all clients' losses; its minimiser w* is in closed form, with a gradient below
1e-10. Labels come from V_k U: a rank-1 model with a direction U that all share, and V_k a vector V of norm 0.6 plus the
client's own deviation of about 0.15.

All but Jain et al.: distributed noise, C = 1 (CENTAUR 0.4; about the norm of the updates), one full-batch gradient step
a round as in the proof, eta = 0.5, T = 16. epsilon_u = f(w') - f(w*), w' the global model after the last round.
CENTAUR shares a body of 1 x d; the first 4 rounds are its private power method. Its epsilon_u is the mean of the
clients' losses with last layers fitted exactly (ridge 0.01), less the least such loss that L-BFGS finds from the
planted direction. Jain et al. is the linear method, on regression with the same sharing (`regression.py`), 4 releases;
what a user sends is d x d numbers, so N must be far above d. epsilon_p is the accountant's for an outsider, user level,
[zero-out](glossary.md#what-is-promised), delta = {delta}.

FedCEO comes in five: *as in the proof*: smoothing in every round, everybody starts from the mean, threshold tau_0 / K
with tau_0 = {tau}; *scheduled*: the paper's schedule, lambda = 0.05, vartheta = 1.04, I = 4, which on the mean is a
threshold of 0.08 as the paper's lambda = 0.6 is at K = 10; *noise-aware*: `threshold = "noise"`, kappa = 1, I = 4; the
last two with restart own (Algorithm 2) and mean.

## The slopes

Exponents of a power law in what is varied, with 95 % intervals, beside these claims:

- FedCEO, epsilon_u: the utility theorem (Section 4.1), O(sqrt(d) / K) for r << d, linear in sigma, free of N.
- FedCEO, product: the corollary (Section 4.3), O(sqrt(d) / N), free of K and sigma.
- CENTAUR and Jain et al., product: O(d / N) and O(d^1.5 / N) as Section 4.3 quotes them; not checked in those papers.
- UDP-FedAvg: the paper claims nothing; its theorem at tau_0 = 0 would give it FedCEO's exponents.

The claims are upper bounds: **above** means that no constant free of what is varied can save the bound if the power law
goes on, *below* that it holds with room. Points at which more than a quarter of epsilon_u is there without noise too
(cohorts that differ, a descent that is not finished, shrinkage) are left out, and such at which it is not positive in
every seed: CENTAUR sometimes ends below the loss that L-BFGS found, which is then not the least.
"""

TAIL = """## Reading the proof

What the theorem speaks of, and why its exponents are not those measured:

1. Its algorithm smooths in every round, starts every client from the mean and has the threshold tau_0 / K. Algorithm 2
   smooths every I rounds, restarts clients from models of their own, and its threshold grows and does not fall with K.
   On the mean, tau_0 / K is a threshold of tau_0 / K^2: nothing.
2. The bound, sqrt(r) tau_0 + sqrt(d h) C sigma, grows with tau_0 and is least at tau_0 = 0, which is UDP-FedAvg. It
   bounds what smoothing costs and says nothing of what it gains; it cannot set FedCEO above UDP-FedAvg.
3. A function that is mu-strongly convex on all of space is L_1-Lipschitz on none. On the ball that noise reaches, L_1
   grows with the radius, sqrt(d h) C sigma / K: the product of both is the d / K^2 that is measured.
4. B-local dissimilarity with a finite B asks every client's gradient to vanish at w*. And m > 0 needs
   eta > L_2 B^2 (1 + gamma)^2 / (2 mu^2), beyond the stable step 2 / L_2 once L_2 >= 2 mu.
5. From the mean distance of K models to the Frobenius norm of their stack it takes a factor sqrt(2) / K, where Cauchy
   and Schwarz give 1 / sqrt(K). The rate in K survives by another way: the mean of the smoothed models is the mean
   soft-thresholded at threshold / K, and soft-thresholding moves no two points apart.
6. Where truncation is bounded, r counts every singular value of the noisy tensor, since one that is cut changes as
   well: it is the rank before the processing, not after. The Parseval factor 1 / sqrt(K) is missing there, and eta in
   the norm of the noise; both are on the safe side for eta <= 1.
7. Utility is analysed in K, and the trade-off is stated in N: the N is epsilon_p's alone, from a lemma for small
   epsilon and Poisson cohorts whose constant is not known.

## Provenance

{machine}, {date}, {versions}; {minutes} minutes of processor time in two processes. Every seed's number is in
`results/theory.json`.
"""
