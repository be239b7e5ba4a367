"""Accuracies (percent) and hours of the paper's tables, by the cell's table under experiments/ and its name there."""

SIGMAS = ("1.0", "1.5", "2.0")


def _by_sigma(folder: str, methods: tuple[str, ...], rows: tuple[tuple[float, ...], ...]) -> dict[str, float]:
    """One row of the table for each sigma, one column for each method."""
    return {
        f"{folder}/sigma-{sigma}/{method}": number
        for sigma, row in zip(SIGMAS, rows, strict=True)
        for method, number in zip(methods, row, strict=True)
    }


FIVE = ("udp-fedavg", "ppsgd", "centaur", "fedceo-ratio-1", "fedceo")
FOUR = ("udp-fedavg", "ppsgd", "centaur", "fedceo")
INTERVALS = ("interval-10", "interval-15", "interval-20", "interval-25", "interval-30")

ACCURACY = (
    _by_sigma(
        "paper/table1/emnist-mlp",
        FIVE,
        ((76.59, 77.01, 77.26, 77.14, 78.05), (69.91, 70.78, 71.86, 71.56, 72.44), (60.32, 61.51, 62.12, 63.38, 64.20)),
    )
    | _by_sigma(
        "paper/table1/cifar10-lenet5",
        FIVE,
        ((43.87, 49.24, 50.14, 50.09, 54.16), (34.34, 47.56, 46.90, 48.89, 50.00), (26.88, 34.61, 36.70, 37.39, 45.35)),
    )
    | _by_sigma(
        "paper/heterogeneity/iid",
        FOUR,
        ((40.21, 41.34, 42.17, 42.76), (35.79, 37.28, 38.21, 39.16), (31.62, 33.51, 33.86, 35.93)),
    )
    | _by_sigma(
        "paper/heterogeneity/non-iid",
        FOUR,
        ((33.09, 34.91, 34.56, 36.10), (28.92, 31.40, 30.87, 32.39), (26.54, 28.01, 28.11, 29.13)),
    )
    | _by_sigma(
        "paper/more/cifar10-alexnet",
        FOUR,
        ((50.67, 56.58, 58.44, 60.73), (41.11, 51.07, 50.20, 55.49), (33.38, 39.93, 43.95, 49.06)),
    )
    | _by_sigma(
        "paper/more/sent140-lstm",
        FOUR,
        ((60.31, 61.04, 63.33, 65.70), (57.62, 57.87, 59.05, 60.22), (50.94, 55.12, 54.88, 56.65)),
    )
    | _by_sigma(
        "paper/intervals",
        INTERVALS,
        ((53.62, 54.16, 53.01, 52.81, 52.80), (50.00, 49.71, 48.90, 47.41, 47.98), (45.35, 44.37, 44.81, 43.75, 43.20)),
    )
)
ACCURACY |= {f"{cell}-fixed-rate": number for cell, number in ACCURACY.items() if cell.endswith(("/ppsgd", "/centaur"))}
"""The paper does not say at which rates it ran the personal parts of those two: its number stands beside both."""

HOURS = {
    "EMNIST, MLP": {"udp-fedavg": "5.436", "ppsgd": "> 24", "centaur": "> 24", "fedceo": "5.445"},
    "CIFAR-10, LeNet-5": {"udp-fedavg": "3.876", "ppsgd": "> 24", "centaur": "> 24", "fedceo": "3.908"},
}
"""Hours that the paper gives for one RTX 4090."""

AUTHORS_PROGRAM = {("CIFAR-10, LeNet-5", "fedceo"): "2.6"}
"""Hours of the authors' program on one H200: 300 rounds at 31.4 s, of which local training took 25.9 s; timed once."""
