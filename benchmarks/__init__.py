"""Benchmarks in folders by question; `python -m benchmarks.speed.step_time` starts one from the root.

    speed/       how long does a step take, where does its time go, what does a choice cost?
    memory/      how large a model fits, and does the planner know?
    scaling/     what do more devices, hosts and workers bring?
    faults/      does training resume after a fault?
    accuracy/    what does a training run learn?
    equality/    does a pipeline compute what plain Keras does, and would the tests see it if not?
    peers/       how fast are other libraries on the same model?
    tpu/         what does a step need according to the TPU compiler? No TPU is needed.
    support/     what several of these share: models, processes and tables
    results/     what they measured, written by --csv; `results_page` writes the tables of docs/results.md from it

`gpu_checklist` runs what needs a GPU, `planned_gpu` plans steps that others measured on GPUs, and `weight` counts the
lines of this project.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # before anything imports TensorFlow
