"""One process of a peer: a line on its input asks for a step, and a line of JSON on its output answers.

    python -m benchmarks.peers.torch_step '{"library": "plain", "folder": ..., "cores": [0], "num_threads": 1}'

The first answer is a dictionary with the number of parameters and the first step's loss (null where another rank has
it); each further answer is the seconds of a step. The process needs PyTorch, not TensorFlow.
"""

import datetime
import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils import checkpoint

from benchmarks.peers import torch_decoder

_TIMEOUT = datetime.timedelta(minutes=5)


class Recomputed(nn.Module):
    """A stage that keeps its input alone and computes its activations again on the way back."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, inputs):
        return checkpoint.checkpoint(self.stage, inputs, use_reentrant=False)


def plain_step(problem, request):
    """Return a function that does a step of the layers without a pipeline and returns its loss.

    Args:
        problem: `torch_decoder.Problem`.
        request: dictionary with `num_micro_batches`.
    """
    model = nn.Sequential(*problem.layers)
    optimizer = _optimizer(problem, model)
    count = request['num_micro_batches']

    def step():
        optimizer.zero_grad()
        losses = []
        for x, y_true in zip(problem.x.chunk(count), problem.y_true.chunk(count)):
            loss = torch_decoder.loss_fn(model(x), y_true) / count
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return sum(losses).item()

    return step


def torchgpipe_step(problem, request):
    """Return the same as `plain_step` for torchgpipe.

    Args:
        problem: `torch_decoder.Problem`.
        request: dictionary with `ends` of the partitions and `checkpoint`, torchgpipe's argument.
    """
    import torchgpipe

    ends = request['ends']
    model = torchgpipe.GPipe(
        nn.Sequential(*problem.layers), balance=[end - start for start, end in zip([0, *ends], ends)],
        devices=['cpu'] * len(ends), chunks=problem.sizes['num_micro_batches'], checkpoint=request['checkpoint'])
    optimizer = _optimizer(problem, model)

    def step():
        optimizer.zero_grad()
        loss = torch_decoder.loss_fn(model(problem.x), problem.y_true)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def pipelining_step(problem, request):
    """Return the same as `plain_step` for one rank of torch.distributed.pipelining; the loss is None but on one rank.

    Args:
        problem: `torch_decoder.Problem`.
        request: dictionary with `schedule`, a class's name; `ends` of all stages; `own`, indices of this rank's stages;
            `recomputed`, indices of stages; `rank`, `num_ranks` and `rendezvous`, a path that no file has.
    """
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    torch.distributed.init_process_group(
        'gloo', f'file://{request["rendezvous"]}', rank=request['rank'], world_size=request['num_ranks'],
        timeout=_TIMEOUT)
    modules = [Recomputed(module) if index in request['recomputed'] else module
               for index, module in enumerate(problem.stages(request['ends']))]
    own = nn.ModuleList(modules[index] for index in request['own'])
    optimizer, schedule = _optimizer(problem, own), _schedule(problem, request, modules)
    x = [problem.x] if 0 in request['own'] else []
    y_true = problem.y_true if len(modules) - 1 in request['own'] else None

    def step():
        optimizer.zero_grad()
        losses = []
        schedule.step(*x, target=y_true, losses=losses, return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


def _schedule(problem, request, modules):
    from torch.distributed import pipelining
    from torch.distributed.pipelining import schedules

    stages = [
        pipelining.PipelineStage(modules[index], index, len(modules), torch.device('cpu')) for index in request['own']]
    schedule_class = getattr(schedules, request['schedule'])
    is_single = issubclass(schedule_class, schedules.PipelineScheduleSingle)
    return schedule_class(
        stages[0] if is_single else stages, problem.sizes['num_micro_batches'], loss_fn=torch_decoder.loss_fn)


def _optimizer(problem, model):
    return torch.optim.SGD(model.parameters(), lr=problem.sizes['learning_rate'])


LIBRARIES = {'plain': plain_step, 'torchgpipe': torchgpipe_step, 'pipelining': pipelining_step}


def answers(request):
    """Yield what the module's docstring says. All ranks begin a step together."""
    problem = torch_decoder.Problem(request['folder'])
    step = LIBRARIES[request['library']](problem, request)
    loss = step()
    step()
    yield {'num_parameters': problem.num_parameters(), 'loss': loss}
    while True:
        step()  # not counted, as in benchmarks.support.models.step_seconds
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        start = time.perf_counter()
        step()
        yield time.perf_counter() - start


def main():
    request = json.loads(sys.argv[1])
    # What libraries print must not come between the answers.
    output, sys.stdout = sys.stdout, sys.stderr
    os.sched_setaffinity(0, request['cores'])
    torch.set_num_threads(request['num_threads'])
    values = answers(request)
    for _ in sys.stdin:
        print(json.dumps(next(values)), file=output, flush=True)


if __name__ == '__main__':
    main()
