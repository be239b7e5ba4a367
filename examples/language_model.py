"""A character-level language model with DP-SGD and Adam, on texts that come with scikit-learn.

python examples/language_model.py
"""

from importlib.resources import files

import fedceo

pages = [page for page in files("sklearn.datasets.descr").iterdir() if page.name.endswith(".rst")]
texts = fedceo.from_texts([page.read_text(encoding="utf-8") for page in pages], length=40, name="descriptions")

run = fedceo.run(
    {
        "data": {"name": "descriptions", "clients": 4},
        "task": {"name": "next-token"},
        "model": {"name": "char-lstm"},
        "cohort": {"size": 4},
        "train": {"rounds": 8, "local_epochs": 1, "batch_size": 50, "learning_rate": 0.03, "optimizer": "adam"},
        "privacy": {"mechanism": "record", "noise_multiplier": 1.0},
        "method": {"name": "fedavg"},
        "evaluation": {"every": 2},
    },
    data=texts,
)

for record in run.history:
    if "test_perplexity" in record:
        print(f"round {record['round']:>3}  perplexity {record['test_perplexity']:.1f} of {texts.classes} characters")
row = run.result["privacy"][0]
print(f"{row['observer']}: epsilon {row['epsilon']:.2f} at delta {row['delta']:.1e} of one {row['unit']},")
print("which is 40 characters, not a text and not a person:", row["assumption"])
