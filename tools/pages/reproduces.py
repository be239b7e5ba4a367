"""Writes docs/what-reproduces.md: which of the paper's numbers come out again, from the files in results/.

python tools/pages/reproduces.py
"""

import statistics
from collections.abc import Sequence

from leads import lead as lead_of
from paper_tables import ACCURACY, SIGMAS
from restarts import BETWEEN, LENET5, MODES, last_and_best, late_lead, lead, less, mode_of, restarts, row_of, timed_runs
from runs_found import FINALISTS, NAMES, ROOT, Found, difference, load, markdown, shown, spread, trials_of

HEAD = """# What reproduces

Which of the paper's numbers come out again, what explains those that do not, and how sure that is. Written by
`tools/pages/reproduces.py` from the files in `results/`; all numbers here are record-level DP-SGD inside clients, which
is what the authors' program does, not the user-level algorithm of their text. The tables themselves:
[results.md](results.md). What FedCEO's clients start from after a smoothing matters here:

"""

SHORT = """
Where nothing else is said it is `own`.

## In short

- **With the learning rate tuned alike, and nothing else, the order of the methods mostly does not come out**
  ([table](#every-cell)). LeNet-5, where lambda, vartheta and I are the paper's: FedCEO is above UDP-FedAvg at
  sigma_g = 1.5, by one point where the paper has sixteen, not told apart at 1 and below at 2; with vartheta = 1 it is
  above at 1.5, by a quarter of a point, and at 2, with [cautions](results.md#lenet-5-on-cifar-10). The MLP, where they
  are LeNet-5's: three times not told apart, three times below.
- **With a better rate UDP-FedAvg alone comes near FedCEO's number for LeNet-5 at sigma_g = 1.** At 0.03, the better of
  0.03 and 0.1 [in whole runs](results.md#the-rate-chosen-at-full-length), UDP-FedAvg has {whole_udp},
  FedCEO {whole_fedceo} and with vartheta = 1 {whole_one}; the paper has {paper_udp}, {paper_fedceo} and
  {paper_one}. One number of three near the paper's, at a rate that is not the paper's, is no reproduction. The tables
  below have the rates that short trials chose.
- **UDP-FedAvg's numbers come out at the paper's learning rate, 0.1**, for the MLP with iid clients, about for LeNet-5
  at sigma_g = 1, and for LeNet-5 at sigma_g = 2 as the best round of a run that diverges
  ([numbers](#at-the-papers-learning-rate-01)). For two label shards no single rate gives all three. Tuned, it is better
  than in the paper in eight cells of nine, by up to twenty points.
- **At 0.1 FedCEO's numbers for LeNet-5 do not come out**, neither with `own` (whole runs at sigma_g = 1, trials of 60
  rounds at 1.5 and 2) nor with the program's restart ([one seed](#which-restart-is-the-papers)). At sigma_g = 1 a lead
  does with the latter: {lenet_lead:+.1f} points over UDP-FedAvg of that seed, which is its worst of three.
- **For the MLP with iid clients they come out at 0.1 with the program's restart, and so does a good part of its lead**:
  in round {between}, the last measured between smoothings, all six numbers are within {within:.1f} points of the
  paper's, and the lead is {leads} points, where the paper has
  {papers} ([table](#which-restart-is-the-papers)); averaged over such rounds after 200 it is {late}.
  In the last round, right after a smoothing, it is {last}.
- **That lead is the restart's, not the smoothing's**, as far as it was tested: with a threshold of next to nothing
  (`stored-unsmoothed`) it is {bare}; smoothing adds
  {added}.
  At sigma_g = 1 the scheduled threshold is about 0.01, and nothing else was to be expected; the test is 1.5 and 2. The
  paper gives no lambda for the MLP, these are LeNet-5's, and with others smoothing may do more. With any other restart
  (`own`, `mean`, `slot`) FedCEO leads by at most {most:.2f} points. Our reading: clients that start from models of
  their own, ten rounds old, average over rounds, which helps where the rate is too large.
- **The authors' program prints the best round, and that reading fits best of all.** The MLP with iid clients, 0.1,
  `stored`, three seeds: UDP-FedAvg's last round ({best_udp}) and FedCEO's best ({best_fedceo})
  are all within {best_off:.1f} of the paper's six numbers
  ({best_paper}). It sets a best round beside a last one: by the best rounds of
  both the lead is {best_lead} points. **This was found after the fact**,
  among several rates, restarts and rounds that were looked at: a reading that was chosen for its fit proves nothing
  until it fits elsewhere. The same reading on LeNet-5 at 0.1, UDP-FedAvg's last and FedCEO's best:
  {elsewhere}.
- **At 0.01 that lead is gone**: UDP-FedAvg is above `stored` by {at_001} points, and at sigma_g = 2 smoothing
  costs {cost} points. At 0.03, which trials chose for the MLP, `stored` has not been run.
"""

TAIL = """## How sure

- Seeds: three for tuned numbers and for the restarts of the MLP, two for the diverging runs, one for trials, which are
  60 rounds and measured on validation records, and for LeNet-5 with `stored` where nothing else is said. The restarts
  have been run for the MLP with iid clients, and `stored` for LeNet-5. Of the rest [results.md](results.md) says what
  it lacks.
- Each of the paper's numbers was set beside several rates, restarts and two rounds: one match within a point means
  little, a whole row at one setting more.
- The data are the paper's for CIFAR-10; its split, cohorts drawn with replacement and random numbers are not known or
  not reproduced. FedCEO's lambda, vartheta and I are the paper's for LeNet-5 on CIFAR-10, also in the MLP's cells, for
  which the paper gives none; for two label shards it says that lambda is larger, and not how large.
- Which round the paper tabulates is not known. UDP-FedAvg at 0.1 speaks for the last one, but for LeNet-5 at
  sigma_g = 2, where the last is at guessing. That the paper ran at 0.1 is an inference: the paper gives 0.1, the
  program had it as default until after publication, and UDP-FedAvg's numbers come out there and not at 0.01.
"""


def page() -> str:
    cells = load()
    words = "".join(f"- `{mode}`: {what}\n" for mode, what in MODES.items() if mode != "udp-fedavg")
    parts = [every_cell(cells), differences(cells), at_the_papers_rate(cells), restarts(cells), TAIL]
    return "\n".join([HEAD + words + in_short(cells), *parts])


def in_short(cells: dict[str, Found]) -> str:
    off = [
        abs(statistics.fmean(mode_of(cells, sigma, mode, "0.1").at(BETWEEN).values()) - ACCURACY[row_of(sigma, method)])
        for sigma in SIGMAS
        for mode, method in (("udp-fedavg", "udp-fedavg"), ("stored", "fedceo"))
    ]
    papers = [ACCURACY[row_of(sigma, "fedceo")] - ACCURACY[row_of(sigma, "udp-fedavg")] for sigma in SIGMAS]
    udp, one, fedceo = (LENET5.format("1.0", method) for method in ("udp-fedavg", "fedceo-ratio-1", "fedceo"))
    whole, stored = load(FINALISTS), mode_of(cells, "1.0", "stored", "0.1", "lenet5")
    named = {"udp": udp, "one": one, "fedceo": fedceo}
    return SHORT.format(
        **{f"whole_{each}": spread(whole[name].percent("last")) for each, name in named.items()},
        **{f"paper_{each}": ACCURACY[name] for each, name in named.items()},
        lenet_lead=stored.by_seed("last")[0] - cells[udp].by_seed("last")[0],
        between=BETWEEN,
        within=max(off),
        leads=_listed([shown(lead(cells, sigma, "stored", "0.1")) for sigma in SIGMAS]),
        papers=_listed(papers),
        late=_listed([late_lead(cells, sigma, "stored", "0.1") for sigma in SIGMAS]),
        last=_listed([shown(less(cells, sigma, "stored", "udp-fedavg", "0.1", "last")) for sigma in SIGMAS]),
        bare=_listed([shown(lead(cells, sigma, "stored-unsmoothed", "0.1")) for sigma in SIGMAS]),
        added=_listed([shown(less(cells, sigma, "stored", "stored-unsmoothed", "0.1")) for sigma in SIGMAS]),
        most=max(lead(cells, sigma, mode, "0.1")[0] for sigma in SIGMAS for mode in ("own", "mean", "slot")),
        at_001=_listed([-lead(cells, sigma, "stored", "0.01")[0] for sigma in SIGMAS]),
        **best_round(cells),
        cost=shown(less(cells, "2.0", "stored-unsmoothed", "stored", "0.01")).removeprefix("+"),
    )


def best_round(cells: dict[str, Found]) -> dict[str, str | float]:
    """The reading of the authors' program, which prints its best round: UDP-FedAvg's last beside FedCEO's best."""
    udp, fedceo = ([mode_of(cells, sigma, mode, "0.1") for sigma in SIGMAS] for mode in ("udp-fedavg", "stored"))
    ours = [statistics.fmean(each.percent("last")) for each in udp]
    ours += [statistics.fmean(each.percent("best")) for each in fedceo]
    paper = [ACCURACY[row_of(sigma, method)] for method in ("udp-fedavg", "fedceo") for sigma in SIGMAS]
    leads = [difference(b.by_seed("best"), a.by_seed("best")) for a, b in zip(udp, fedceo, strict=True)]
    return {
        "best_udp": ", ".join(f"{value:.1f}" for value in ours[:3]),
        "best_fedceo": ", ".join(f"{value:.1f}" for value in ours[3:]),
        "best_off": max(abs(a - b) for a, b in zip(ours, paper, strict=True)),
        "best_paper": ", ".join(f"{value:.2f}" for value in paper),
        "best_lead": _listed([shown(each) for each in leads]),
        "elsewhere": elsewhere(cells),
    }


def elsewhere(cells: dict[str, Found]) -> str:
    """The same reading on LeNet-5 in words, as far as it has been run."""
    said = []
    for sigma in SIGMAS:
        udp, fedceo = (LENET5.format(sigma, method) for method in ("udp-fedavg", "fedceo"))
        stored = mode_of(cells, sigma, "stored", "0.1", "lenet5")
        plain = cells.get(f"modes/cifar10-lenet5/sigma-{sigma}/udp-fedavg,train.learning_rate=0.1")
        if plain is None and _rates(cells[udp]) == {0.1}:
            plain = cells[udp]
        last = "not run" if plain is None else spread(plain.percent("last"))
        said.append(
            f"sigma_g = {float(sigma):g}: {last}, paper {ACCURACY[udp]:.2f}, and {spread(stored.percent('best'))}, "
            f"paper {ACCURACY[fedceo]:.2f}"
        )
    return ";\n  ".join(said)


def _rates(found: Found) -> set[float]:
    return {run["experiment"]["train"]["learning_rate"] for run in found.done}


def _listed(values: Sequence[float | str]) -> str:
    *first, last = (value if isinstance(value, str) else f"{value:.2f}" for value in values)
    return f"{', '.join(first)} and {last}"


def every_cell(cells: dict[str, Found]) -> str:
    """The accuracies of UDP-FedAvg and FedCEO in every cell, the paper's and ours."""
    said = (
        "## Every cell\n\n"
        "UDP-FedAvg and FedCEO (vartheta > 1), the paper's and ours at tuned rates, last accuracy; the difference as\n"
        "mean and half of its 95 % interval over seeds. FedCEO's last model has just been smoothed; *unsmoothed* is\n"
        "the last that was measured between smoothings.\n\n"
    )
    rows = []
    for cell in ACCURACY:
        udp = cell.replace("/fedceo", "/udp-fedavg")
        if {cell, udp} <= cells.keys() and _is(cell, "fedceo"):
            rows.append(
                (
                    cell.removeprefix("paper/").removesuffix("/fedceo"),
                    f"{ACCURACY[udp]:.2f}", f"{ACCURACY[cell]:.2f}",
                    spread(cells[udp].percent("last")), spread(cells[cell].percent("last")),
                    spread(cells[cell].unsmoothed()), lead_of(cells, cell, udp),
                )
            )  # fmt: skip
    head = ("cell", "paper: UDP-FedAvg", "FedCEO", "ours: UDP-FedAvg", "FedCEO", "FedCEO, unsmoothed", "difference")
    return said + markdown(head, rows)


def differences(cells: dict[str, Found]) -> str:
    """The differences between our accuracies and the paper's, cell by cell."""
    said = "## Ours less the paper's\n\nIn points, tuned rate, last accuracy, mean over seeds.\n\n"
    methods = [method for method in NAMES if any(_is(cell, method) for cell in ACCURACY if cell in cells)]
    rows = []
    for setting in dict.fromkeys(cell.rpartition("/")[0] for cell in ACCURACY if cell in cells):
        found = [f"{setting}/{method}" for method in methods]
        off = [
            f"{statistics.fmean(cells[cell].percent('last')) - ACCURACY[cell]:+.1f}" if cell in cells else "-"
            for cell in found
        ]
        rows += [(setting.removeprefix("paper/"), *off)] if set(off) != {"-"} else []
    return said + markdown(("", *(NAMES[method] for method in methods)), rows)


def _is(cell: str, method: str) -> bool:
    return cell.rpartition("/")[2] == method


def at_the_papers_rate(cells: dict[str, Found]) -> str:
    """UDP-FedAvg and FedCEO at 0.1, from the trials of the tuning and the benchmark of the diverging runs."""
    diverging = [row["best"] for row in timed_runs() if row["run"].startswith("UDP-FedAvg, lr 0.1,")]
    lenet5 = "paper/table1/cifar10-lenet5/sigma"
    lines = [
        "## At the paper's learning rate, 0.1",
        "",
        f"LeNet-5 on CIFAR-10, sigma_g = 2, UDP-FedAvg: best of 120 rounds {spread(diverging)} (two seeds, both at",
        f"guessing in the end; `benchmarks/gpu_cifar10.py`); the paper: {ACCURACY[f'{lenet5}-2.0/udp-fedavg']}.",
        "",
        "LeNet-5, sigma_g = 1, where 0.1 is also the rate that trials chose, 300 rounds, last (best):",
        *(
            f"{NAMES[method]} {last_and_best(cells[near])}, the paper {ACCURACY[near]}{end}"
            for method, end in (("udp-fedavg", ";"), ("fedceo", "."))
            for near in [f"{lenet5}-1.0/{method}"]
        ),
        "",
        "Validation accuracy after the 60 rounds of the trial at 0.1, `own`, beside the paper's test accuracy:",
        "",
    ]
    rows = []
    for setting in ("paper/heterogeneity/iid/sigma", "paper/heterogeneity/non-iid/sigma", lenet5):
        for sigma in SIGMAS:
            columns = []
            for method in ("udp-fedavg", "fedceo"):
                cell = f"{setting}-{sigma}/{method}"
                (trial,) = (each for each in trials_of(cell) if each["train.learning_rate"] == 0.1)
                columns += [f"{100 * trial['validation_accuracy']:.1f}", f"{ACCURACY[cell]:.1f}"]
            rows.append((f"{setting}-{sigma}".removeprefix("paper/"), *columns))
    after = [
        "There the two methods are the same to within two points, with the MLP to within half a point: at that rate",
        "smoothing changes little in the first 60 rounds. With two label shards both are lower than in the paper.",
    ]
    head = ("setting", "UDP-FedAvg, ours", "paper", "FedCEO, ours", "paper")
    return "\n".join([*lines, markdown(head, rows), *after]) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "what-reproduces.md").write_text(page())
