"""Forwards, and those of updates with their gradients, as CUDA graphs: one launch for thousands.

A small base waits for the host, which launches its kernels one by one. A forward of a shape that
comes again is recorded, and then replayed with other tokens. A recording reads the weights where
they were, so it stands for one set of addresses: optimizer steps write there, and the weights of a
teacher are elsewhere.

A recorded pass of an update keeps its activations. So there is one, for a shape that comes often in
a row, and it takes one forward until the gradients of that forward are there. Its gradients stand
in the recording's memory too, and are copied from there. Passes of other shapes, such as the rest
of an update, are launched.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakSet

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from dopsd.core.errors import Code
from dopsd.core.progress import log

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from dopsd.models.denoiser import Denoiser

Compute = Callable[[Tensor, Tensor | None], Tensor]
KEPT = 8  # recordings
BEFORE = 3  # forwards of a shape before it is recorded; they also warm its kernels
MOVED = 0.01  # largest relative difference of gradients, whose sums may come in another order


class Recorder(Protocol):
    """Records a computation on inputs whose addresses stay."""

    def record(self, compute: Compute, ids: Tensor, mask: Tensor | None) -> Callable[[], Tensor]:
        """Return what computes again from what stands in `ids` and `mask`."""
        ...

    def record_pass(self, trunk: nn.Module, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """Return what computes as `trunk`, and replays the backward pass too."""
        ...


class CudaRecorder:
    """Records CUDA graphs, which share their memory: each is used up before the next one runs."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pool = device, torch.cuda.graph_pool_handle()

    def record(self, compute: Compute, ids: Tensor, mask: Tensor | None) -> Callable[[], Tensor]:
        """Return what replays the graph of a computation."""
        graph = torch.cuda.CUDAGraph()
        with _recording(self.device), torch.cuda.graph(graph, pool=self.pool):
            out = compute(ids, mask)
        out.fill_(torch.nan)  # what a graph of nothing would leave

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    def record_pass(self, trunk: nn.Module, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """Return the trunk with its forward and backward pass as graphs in memory of their own."""
        with _recording(self.device):
            graphed = torch.cuda.make_graphed_callables(trunk, given, allow_unused_input=True)
        return cast("Callable[..., Tensor]", graphed)


@contextmanager
def _recording(device: torch.device) -> Iterator[None]:
    """Raise a lack of memory, of which the end of a recording may make another error, as such."""
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream()
        try:
            yield
        except RuntimeError as error:
            torch.cuda.set_stream(stream)
            raise _refused(error) from error


def _refused(error: RuntimeError) -> Exception:
    """Return what to raise: after all but a lack of memory CUDA may still be recording."""
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, torch.OutOfMemoryError):
            return torch.OutOfMemoryError(str(cause))
        cause = cause.__context__
    reason = str(error).partition("\n")[0]
    return Code.UNSUPPORTED_MODEL.error(
        f"model.cuda_graphs: a forward of this base cannot be recorded ({reason}); set it to false",
        1,
    )


class Trunk(nn.Module):
    """The trunk of a model as a module, whose parameters get gradients."""

    def __init__(self, core: Denoiser) -> None:
        super().__init__()
        self.core = core
        self.training = core.training  # of this module alone

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states [B, T, D] of ids [B, T]."""
        return self.core.trunk(ids, mask)


@dataclass
class Recording:
    """A recorded forward and its inputs."""

    ids: Tensor  # [B, T]
    mask: Tensor | None  # [B, T]
    replay: Callable[[], Tensor]

    def of(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the hidden states of ids [B, T]."""
        self.ids.copy_(ids)
        if self.mask is not None and mask is not None:
            self.mask.copy_(mask)
        return self.replay().clone()


class Pass:
    """A pass of an update whose gradients are to come; it is gone with them, or with its states."""

    def __init__(self, passes: WeakSet[Pass]) -> None:
        self.passes = passes
        passes.add(self)

    def __call__(self, _: Tensor) -> None:
        """Hear that the gradients are there."""
        self.passes.discard(self)


class GraphedTrunk:
    """The trunk of a model, which records forwards and replays them."""

    def __init__(self, core: Denoiser, recorder: Recorder) -> None:
        self.core, self.recorder = core, recorder
        self.parameters = list(core.parameters())
        self.adapters = [m for m in core.modules() if isinstance(m, BaseTunerLayer)]
        self.recordings: dict[tuple[Any, ...], Recording] = {}  # the last used one at the end
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.is_off = False
        self.update: Callable[..., Tensor] | None = None  # the recorded pass, of shape `update_key`
        self.update_key: tuple[Any, ...] = ()
        self.hooks: list[RemovableHandle] = []  # of the weights that it trains
        self.others: Counter[tuple[Any, ...]] = Counter()  # passes since one of that shape
        self.before = BEFORE  # passes of another shape before it is recorded; doubles each time
        self.launched: WeakSet[Pass] = WeakSet()  # those that are not over
        self.replayed: WeakSet[Pass] = WeakSet()
        self.has_plain_updates = False  # with gradient checkpointing, or after a failure

    def applies(self, ids: Tensor, mask: Tensor | None) -> bool:
        """Return whether a forward could be a recorded one."""
        is_flash = str(self.core.config._attn_implementation).startswith("flash")
        return not (
            self.is_off
            or self.core.training  # dropout asks for the state of random numbers
            or (torch.is_grad_enabled() and (self.has_plain_updates or _is_checkpointed()))
            or torch.is_autocast_enabled(ids.device.type)
            or (is_flash and mask is not None)  # it counts the padding, and waits for that
        )

    def __call__(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the hidden states [B, T, D] of ids [B, T], as `Denoiser.trunk` does."""
        key = self._key(ids, mask)
        if torch.is_grad_enabled():
            return self._with_gradients(ids, mask, key)
        if key not in self.recordings:
            self.seen[key] += 1
            if self.seen[key] <= BEFORE or not self._record(ids, mask, key):
                return self.core.trunk(ids, mask)
        self.recordings[key] = self.recordings.pop(key)
        return self.recordings[key].of(ids, mask)

    def _key(self, ids: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
        """Return all that a recording stands for."""
        return (
            *ids.shape,
            mask is None,
            self.core.config.block_size,
            bool(self.adapters) and self.adapters[0].disable_adapters,
            hash(tuple(p.data_ptr() for p in self.parameters)),
        )

    def _record(self, ids: Tensor, mask: Tensor | None, key: tuple[Any, ...]) -> bool:
        """Record a forward; return whether its first replay gives what the trunk computes."""
        del self.seen[key]
        while len(self.recordings) >= KEPT:
            del self.recordings[next(iter(self.recordings))]
        ids, mask = ids.clone(), None if mask is None else mask.clone()
        expected = self.core.trunk(ids, mask)
        try:
            recording = Recording(ids, mask, self.recorder.record(self.core.trunk, ids, mask))
        except torch.OutOfMemoryError:
            problem = "no memory is left for a recording"
        else:
            problem = "" if torch.equal(recording.replay(), expected) else "a replay differs"
        if problem:
            log(f"model.cuda_graphs: forwards are launched one by one from here on: {problem}")
            self.clear()
            self.is_off = True
            return False
        self.recordings[key] = recording
        return True

    def _with_gradients(self, ids: Tensor, mask: Tensor | None, key: tuple[Any, ...]) -> Tensor:
        """Return hidden states whose gradients are replayed, if they are those of an update."""
        given = (ids,) if mask is None else (ids, mask)
        if self.others[key] >= self.before and not (self.launched or self.replayed):
            self._record_update(key, given)
        if key == self.update_key:
            self.others.clear()
        replays = self.update if key == self.update_key and not self.replayed else None
        hidden = replays(*given) if replays else self.core.trunk(ids, mask)
        if hidden.requires_grad:
            self.others[key] += 1
            hidden.register_hook(Pass(self.replayed if replays else self.launched))
        return hidden

    def _record_update(self, key: tuple[Any, ...], given: tuple[Tensor, ...]) -> None:
        """Record a pass with gradients, if it gives what the trunk does."""
        self._drop_update()
        self.update_key, self.before = key, 2 * self.before
        problem = self._try_update(given)
        if problem:
            log(f"model.cuda_graphs: updates are launched one by one from here on: {problem}")
            self.clear()
            self.has_plain_updates = True

    def _try_update(self, given: tuple[Tensor, ...]) -> str:
        """Record a pass with gradients; return why it cannot stay, if it cannot."""
        trunk = Trunk(self.core)
        trained = [p for p in self.parameters if p.requires_grad]

        def computed(way: Callable[..., Tensor]) -> tuple[Tensor, ...]:
            hidden = way(*given)
            ones = torch.ones_like(hidden)
            found = torch.autograd.grad(hidden, trained, ones, allow_unused=True)
            return hidden.detach().clone(), *(x for x in found if x is not None)

        try:
            expected = computed(trunk.forward)
            recorded = self.recorder.record_pass(trunk, tuple(x.clone() for x in given))
            pairs = list(zip(expected, computed(recorded), strict=True))
        except torch.OutOfMemoryError:
            return "no memory is left for a recording"
        if not all((a - b).norm() <= MOVED * a.norm() for a, b in pairs):
            return "a replay differs"
        # `grad` would be the memory of the recording, which the next replay writes over
        self.hooks = [p.register_hook(_copied) for p in trained]
        self.update = recorded
        return ""

    def _drop_update(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.update, self.update_key, self.hooks = None, (), []
        gc.collect()  # it refers to itself

    def clear(self) -> None:
        """Give the memory of all recordings back."""
        self.recordings.clear()
        self._drop_update()
        self.others.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _copied(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.clone()


def _is_checkpointed() -> bool:
    """Return whether tensors for the backward pass are not simply kept: forwards run again."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
