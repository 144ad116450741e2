"""What depends on the number of processes and GPUs: device, process group, gradients, sums.

torchrun starts the processes and tells each its rank by RANK, LOCAL_RANK and WORLD_SIZE.
The loaders are given that rank: a global batch is `batch_size * world_size` consecutive samples of
the epoch's order, and rank r has the r-th part of it. So two processes with batches of B see at
every step the samples that one process with batches of 2 B sees.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

import fastio
from fastio.train.options import Options, Parallel


@dataclass(frozen=True)
class Process:
    """The position of this process among the processes of a training run.

    Attributes:
        device: The device that it trains on.
        parallel: How the processes share the work; None for one process on one device.
        rank, world_size: Its number, and the number of processes.
    """

    device: torch.device
    parallel: Parallel | None = None
    rank: int = 0
    world_size: int = 1

    @property
    def main(self) -> bool:
        """Whether this process prints and saves."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def lowest(self, values: Tensor) -> Tensor:
        """Takes the minimum of a tensor over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return values

    def highest(self, number: int) -> int:
        """Returns the largest number of all processes, without waiting for a GPU."""
        if self.world_size == 1:
            return number
        value = torch.tensor(number)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return int(value)

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, of types that checkpoints may hold."""
        if self.world_size == 1:
            return [value]
        buffer = io.BytesIO()
        torch.save(value, buffer)
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, buffer.getvalue())
        return [torch.load(io.BytesIO(each), weights_only=True) for each in found]


def on_main(process: Process, action: Callable[[], None]) -> None:
    """Runs a function on the main process, while the others wait.

    Raises:
        TrainError: The function raised it; all processes then raise it.
    """
    error: fastio.TrainError | None = None
    if process.main:
        try:
            action()
        except fastio.TrainError as found:
            error = found
    said = process.gather(None if error is None else str(error))[0]
    if error is not None:
        raise error
    if said is not None:
        raise fastio.TrainError(said)


_left: list[Any] = []  # groups that this process has left


@contextmanager
def processes(options: Options) -> Iterator[Process]:
    """Joins the process group if torchrun started this process, and leaves it at the end.

    A group that this process has joined before is used, and not left.

    Raises:
        OptionError: The options do not fit how this process was started.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    launched = "LOCAL_RANK" in os.environ
    device = _device(options, launched)
    if not launched and options.parallel in ("ddp", "fsdp"):
        raise fastio.OptionError(
            f"parallel={options.parallel} needs several processes: start it with `torchrun "
            "--nproc-per-node N -m fastio train ...`"
        )
    if options.parallel == "dp" and world_size > 1:
        raise fastio.OptionError(
            "parallel=dp uses one process with several GPUs, but torchrun started "
            f"{world_size} processes: leave --parallel out to use ddp"
        )
    if not launched or options.parallel == "dp":
        yield Process(device, options.parallel)
        return
    joins = not dist.is_initialized()
    if joins:
        # Flags and random states go through gloo, which needs no GPU.
        gpu = device.type == "cuda"
        backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
        dist.init_process_group(backend, device_id=device if gpu else None)
    try:
        kind = options.parallel or "ddp"
        yield Process(device, kind, dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if not _lost(error):
            raise
        raise fastio.TrainError(
            f"rank {dist.get_rank()} stops because another process stopped: see the output of "
            "that process"
        ) from error
    finally:
        if joins:
            # Kept, as DDP's C++ half may be the last to refer to the group. It lets go of it with
            # the interpreter's lock held, and the group waits for a thread that wants this lock.
            _left.append(dist.group.WORLD)
            dist.destroy_process_group()


def _lost(error: RuntimeError) -> bool:
    """Returns whether a collective failed because another process has ended."""
    foreign = not isinstance(error, fastio.FastioError)
    return isinstance(error, dist.DistError) or (foreign and "gloo" in str(error))


def _device(options: Options, launched: bool) -> torch.device:
    """Returns the device of this process.

    Raises:
        OptionError: It is not the name of a device that can be trained on.
        TrainError: There is no such device here.
    """
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise fastio.OptionError(
            f"device={name} is not a device: use cpu, cuda or cuda:1"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise fastio.OptionError(f"device={name} cannot be used for training: use cpu or cuda")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise fastio.TrainError(f"device={name}: torch finds no GPU here")
    count = torch.cuda.device_count()
    if launched:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    elif device == torch.device("cuda"):  # which is not equal to any with an index
        device = torch.device("cuda", torch.cuda.current_device())
    if device.index >= count:
        started = "torchrun started more processes here, and each needs one" if launched else ""
        raise fastio.TrainError(f"device={device}: there are {count} GPUs. {started}".strip())
    torch.cuda.set_device(device)
    return device


def prepare(model: nn.Module, process: Process, options: Options, trained: bool = True) -> None:
    """Shards and compiles a model in place, as the options say.

    Args:
        model: The model.
        process: This process.
        options: The options of the run.
        trained: Whether the model is trained. FSDP then keeps the gathered weights of the root
            module for the backward pass; for a model that is only evaluated it keeps none.
    """
    if process.parallel == "fsdp":
        _shard(model, process, options, None if trained else True)
    if options.compile:
        model.compile()


def wrap(model: nn.Module, process: Process, options: Options) -> nn.Module:
    """Returns the model for training, which shares its weights with `model`."""
    wrapped = model
    prepare(model, process, options)
    if process.parallel == "ddp":
        devices = [process.device] if process.device.type == "cuda" else None
        # With views, gradients lie in the buckets that are sent. Otherwise all of them are copied
        # in each step.
        wrapped = DistributedDataParallel(model, devices, gradient_as_bucket_view=True)
    elif process.parallel == "dp":
        wrapped = _Autocast(model, process.device, options)
        if process.device.type == "cuda":
            wrapped = DataParallel(wrapped, _gpus(process.device))
    return wrapped


def _gpus(device: torch.device) -> list[int]:
    """Returns the numbers of all GPUs, the one with the weights first, for DataParallel."""
    return sorted(range(torch.cuda.device_count()), key=lambda number: number != device.index)


def autocast(device: torch.device, options: Options) -> torch.autocast:
    """Returns the autocast context of the options."""
    dtype = torch.float16 if options.amp == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=options.amp is not None)


def accumulating(model: nn.Module, process: Process, last: bool) -> AbstractContextManager[Any]:
    """Returns a context in which gradients are only exchanged for the last batch of a step."""
    if process.parallel == "fsdp":
        cast(Any, model).set_requires_gradient_sync(last)
    if isinstance(model, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[Any], model.no_sync())
    return nullcontext()


def sync_buffers(model: nn.Module, process: Process) -> None:
    """Copies rank 0's buffers, such as running means, to all processes."""
    if process.world_size > 1:
        # DDP copies buffers at the beginning of a forward pass. The last forward pass has changed
        # them since, and the model is evaluated without DDP.
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def local(value: Any) -> Tensor:
    """Returns this process's part of a weight that FSDP shards; other tensors as they are."""
    return cast(Tensor, value.to_local() if hasattr(value, "to_local") else value)


def _shard(model: nn.Module, process: Process, options: Options, reshards: bool | None) -> None:
    """Shards a model with FSDP2, block by block; `reshards` is its `reshard_after_forward`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = torch.bfloat16 if options.amp == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    mesh = init_device_mesh(process.device.type, (process.world_size,))
    # Inner modules first, as `fully_shard` asks for: the root takes the weights that are left.
    for part in [*_blocks(model), model]:
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Returns the outermost members of lists and sequences of modules that have weights."""
    listed = isinstance(module, (nn.ModuleList, nn.Sequential))
    for child in module.children():
        if listed and not isinstance(child, nn.ModuleList):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


class _Autocast(nn.Module):
    """A model under autocast. Autocast is per thread, and DataParallel has one thread per GPU."""

    def __init__(self, model: nn.Module, device: torch.device, options: Options) -> None:
        super().__init__()
        self._model = model
        self._autocast = autocast(device, options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._autocast:
            return self._model(*args, **kwargs)
