"""What every number in a report means."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "Test accuracy": (
        "The share of test images that a node's model classifies rightly (top-1), as the mean over the nodes, in"
        " percent. The test set has all classes, while a node's own data may hold only a few."
    ),
    "± or band": "The standard deviation of the nodes' test accuracies, in percentage points: how much nodes disagree.",
    "Accuracy of the average model": (
        "The test accuracy of the average of all nodes' models, in percent. No node has this model unless all of them"
        " average with everyone (all-reduce)."
    ),
    "Validation accuracy": (
        "As test accuracy, on the other half of the original test set, which no other figure uses. Γ_train and Γ_sync"
        " are chosen by it."
    ),
    "Training energy": (
        "Wh spent by all nodes together in training so far: the trace's energy of a training round, added for each node"
        " and round in which it trained. It is computed from phone benchmarks, not measured on this computer."
    ),
    "Communication energy": (
        "Wh for sending models, by the paper's figure of 7 Wh for 256 nodes with 6 neighbours over 1000 rounds, in"
        " proportion to the bytes sent. It is not part of the training energy."
    ),
    "Round": (
        "One step of the whole network. In a training round nodes train, share and average; in a synchronization round"
        " they only share and average. Rounds are counted from 1 when completed."
    ),
    "Γ_train, Γ_sync": "How many training rounds, and then synchronization rounds, follow one another in a cycle.",
    "τ": "A node's budget: the training rounds that its share of the battery pays for, scaled to the run's length.",
    "Read at round": (
        "The evaluation a table takes its accuracy from: after the last whole cycle of Γ_train + Γ_sync rounds, as the"
        " paper evaluates; for algorithms without cycles, the last one."
    ),
    "Equal energy": (
        "With budgets, D-PSGD and Greedy are read at their last evaluation whose training energy does not exceed what"
        " SkipTrain-constrained has spent in the end."
    ),
    "Consensus": "sqrt of the mean over nodes of ‖x_i − x̄‖²: how far models are from their average; 0 is agreement.",
    "Loss": "Mean cross-entropy of the nodes' models on the evaluated samples.",
    "n-regular": "Every node has exactly n neighbours, drawn at random from the seed.",
    "D-PSGD": "Every node trains in every round and averages with its neighbours.",
    "D-PSGD with all-reduce": "D-PSGD whose nodes take the average of all models in every round.",
    "SkipTrain": "Γ_train training rounds alternate with Γ_sync synchronization rounds, the same for all nodes.",
    "SkipTrain-constrained": (
        "SkipTrain where node i trains in a training round with probability min(τ_i / T_train, 1), at most τ_i times;"
        " T_train = Γ_train / (Γ_train + Γ_sync) · T."
    ),
    "Greedy": "Every node trains until its budget τ is spent, and only synchronizes from then on.",
    "Time": "Wall-clock time of the run on the computer named with it, data loading and evaluation included.",
}
