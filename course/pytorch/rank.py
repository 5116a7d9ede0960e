"""What runs on a rank, in a process of its own: a case with the student's class. It sends facts, and no verdicts."""
import ctypes
import faulthandler
import gc
import importlib.util
import inspect
import json
import os
import re
import signal
import sys
import time
import traceback
import tracemalloc
from array import array
from contextlib import nullcontext
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401 (optimizers import it, which takes seconds: here it is done once for all ranks)
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import group
import toys

RATE, MOMENTUM = 0.1, 0.9


class Usage(Exception):
    """The class has not the interface that the judge needs."""


def load(path, name):
    sys.path.insert(0, str(Path(path).resolve().parent))
    for file in Path(__file__).parent.glob("*.py"):  # the class may import files of the same names, of its own
        sys.modules.pop(file.stem, None)
    spec = importlib.util.spec_from_file_location("submission", path)
    module = sys.modules["submission"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise Usage(f"{Path(path).name} has no {name}")
    return getattr(module, name)


def wrap(cls, module, cap):
    """The class around a module. A parameter with "bucket" or "cap" in its name gets the cap, in MiB or bytes."""
    names = [name for name in list(inspect.signature(cls).parameters)[1:] if re.search("bucket|cap", name)]
    model = cls(module, **{name: cap if "bytes" in name else cap / 2**20 for name in names[:1]})
    group.end_of_step("the constructor")
    return model


def finish(model):
    if not hasattr(model, "finish_gradient_synchronization"):
        raise Usage("the class has no finish_gradient_synchronization(), which is called after backward")
    group.log.append(["finish"])
    model.finish_gradient_synchronization()
    group.log.append(["finished", len(group.queue)])


def packed(tensor):
    return array("f", tensor.detach().reshape(-1).tolist())  # one object, which kept() soon counts


def named(model, known, what=lambda p: p):
    """Every parameter, or what belongs to it, as lists, by the name that it had before it was wrapped."""
    values = {toys.plain(name, known): what(parameter) for name, parameter in model.named_parameters()}
    return {name: None if value is None else packed(value) for name, value in values.items()}


def backward(model, rank, case, step, micro):
    shares = case["shares"]
    x, target = toys.batch(rank, 10 * step + micro, shares[rank])
    loss = toys.loss_of(model(x), target, sum(shares) * case["micro"]) * len(shares)
    group.log.append(["backward"])
    loss.backward()


def gradients(cls, rank, case):
    """Steps whose weights the judge sets, so that each gradient is compared alone."""
    kind, facts = case["kind"], []
    models = [wrap(cls, toys.Toy(kind, rank), case["cap"]) for _ in range(case.get("models", 1))]
    for step in range(case["steps"]):
        known = toys.values(kind, step)
        group.log.append(["step"])
        for model in models:
            toys.put(model, known)
            torch.nn.Module.zero_grad(model)
        for micro in range(case["micro"]):
            last = micro == case["micro"] - 1
            if case.get("no_sync") and not hasattr(models[0], "no_sync"):
                raise Usage("the class has no no_sync(), a context manager for micro-batches before the last one")
            for index, model in enumerate(models):
                with model.no_sync() if case.get("no_sync") and not last else nullcontext():
                    backward(model, rank, case, step + 5 * index, micro)
            for model in models if last or not case.get("no_sync") else []:
                finish(model)
        group.end_of_step(f"step {step + 1}")
        facts.append([named(model, known, lambda p: p.grad) for model in models])
    return {"grads": facts}


def start(cls, rank, case):
    module = toys.Toy(case["kind"], rank)
    known = toys.values(case["kind"], 50 + rank)
    toys.put(module, known)
    model = wrap(cls, module, case["cap"])
    return {"weights": named(model, known), "missing": sorted(set(known) - set(named(model, known)))}


def train(cls, rank, case):
    """Steps with an optimizer, from the right start."""
    model = wrap(cls, toys.Toy(case["kind"], rank), case["cap"])
    known, facts = toys.values(case["kind"], 7), []
    toys.put(model, known)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE, momentum=MOMENTUM)
    for step in range(case["steps"]):
        group.log.append(["step"])
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        backward(model, rank, case, step, 0)
        finish(model)
        group.end_of_step(f"step {step + 1}")
        optimizer.step()
        facts.append(named(model, known))
    return {"weights": facts}


def kept(known):
    """Bytes of tensors made since gc.freeze(), but the known ones, and of what else the student's lines have made."""
    gc.collect()
    storages = [t if isinstance(t, torch.UntypedStorage) else t.untyped_storage() for t in gc.get_objects()
                if issubclass(type(t), (torch.Tensor, torch.UntypedStorage)) and not hasattr(t, "to_local")]
    total = sum({s.data_ptr(): s.nbytes() for s in storages}.values()) - 4 * elements(known)
    for trace in tracemalloc.take_snapshot().traces:
        files = {frame.filename for frame in trace.traceback}
        own = sys.modules["submission"].__file__ in files and not files & {group.__file__, toys.__file__}
        total += trace.size if own and trace.size > 500 else 0  # less is Python's own use: objects, small dictionaries
    return total


class CountedAdamW(torch.optim.AdamW):
    """The optimizer that a sharded one is made of. The judge counts what all of them keep."""

    made = []

    def __init__(self, params, **keywords):
        super().__init__(params, **keywords)
        self.made.append(self)


def state_of(optimizers):
    return [t for o in optimizers for s in o.state.values() for t in s.values() if torch.is_tensor(t) and t.numel() > 1]


def sharded(cls, rank, case):
    """The sharded optimizer: all ranks get the same gradients."""
    model = toys.Toy("frozen", rank)
    known, facts, most, zeroed = toys.values("frozen", 7), [], 0, True
    toys.put(model, known)
    parameters, groups = toys.grouped(case, model)
    gc.freeze()
    optimizer = cls(groups if case.get("groups") else iter(groups), CountedAdamW, lr=0.01, weight_decay=0.1)
    group.end_of_step("the constructor")
    tracemalloc.start(3)
    for step in range(case["steps"]):
        group.log.append(["step"])
        optimizer.zero_grad()
        zeroed = zeroed and not any(p.grad is not None and p.grad.any() for p in parameters)
        most = max(most, kept(p.grad for p in parameters))
        toys.prepare_update(case, step, parameters, optimizer)
        optimizer.step()
        group.log.append(["finished", len(group.queue)])
        facts.append(named(model, known))
        group.end_of_step(f"step {step + 1}")
    return {"weights": facts, "kept": elements(state_of(CountedAdamW.made)), "bytes": most, "zeroed": zeroed}


class Whole(TorchDispatchMode):
    """Sees which whole weights products read, and how many of them exist when forward or backward reaches a layer."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes, self.seen, self.most, self.marks = sizes, {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if len(group.log) > self.marks and group.log[-1][0] in ("forward", "enters"):
            self.marks, self.most = len(group.log), max(self.most, self.alive())
        result = function(*args, **(kwargs or {}))
        for tensor in args if "mm" in str(function) else []:
            if torch.is_tensor(tensor) and tensor.numel() in self.sizes:
                self.seen.setdefault(tensor.numel(), []).append(StorageWeakRef(tensor.untyped_storage()))
        return result

    def alive(self):
        """The number of layers whose weight still has its memory somewhere: in a parameter, or saved for backward."""
        def has_memory(reference, size):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            return storage is not None and storage.nbytes() >= 4 * size

        return sum(any(has_memory(r, size) for r in references) for size, references in self.seen.items())


def elements(tensors):
    return sum((t.to_local() if hasattr(t, "to_local") else t).numel() for t in tensors if t is not None)


def fsdp(cls, rank, case):
    known = toys.values(case["kind"], 50 + rank)
    gc.freeze()
    module = toys.Toy(case["kind"], rank)
    toys.put(module, known)
    sizes = {p.numel() for p in module.parameters() if p.dim() == 2}
    model = cls(module)
    del module
    group.end_of_step("the constructor")
    tracemalloc.start(3)
    if not hasattr(model, "gather_full_params"):
        raise Usage("the class has no gather_full_params(), which returns every whole parameter by its name")

    def gathered():
        whole = {toys.plain(name, known): packed(value) for name, value in model.gather_full_params().items()}
        group.end_of_step("gather_full_params()")
        return whole

    held = [elements(model.parameters())]
    facts = {"start": gathered(), "weights": [], "grads_held": 0, "bytes": 0}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE, momentum=MOMENTUM)
    for step in range(case["steps"]):
        group.log.append(["step"])
        optimizer.zero_grad()
        facts["bytes"] = max(facts["bytes"], kept(state_of([optimizer])))
        with Whole(sizes) as mode:
            for micro in range(case["micro"]):
                backward(model, rank, case, step, micro)
                finish(model)
        group.end_of_step(f"step {step + 1}")
        facts |= {"most": max(facts.get("most", 0), mode.most), "read": len(mode.seen)}
        facts["grads_held"] = max(facts["grads_held"], elements(p.grad for p in model.parameters()))
        held.append(elements(model.parameters()))
        optimizer.step()
        facts["weights"].append(gathered())
    return facts | {"held": max(held)}


def main(path, name, case, rank, directory, connection):
    """Sends one JSON text: what happened, and the error that ended it, if one did."""
    os.setsid()  # so that the judge can end what the class starts, too
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank lives longer than the judge
    torch.set_num_threads(1)
    judge, hangs = os.getppid(), open(f"{directory}/hangs{rank}", "w")  # noqa: SIM115
    world, facts, error, kind = case["ranks"], {}, "", ""

    def goes_on():
        faulthandler.dump_traceback_later(case["silent"] - 1, file=hangs)
        connection.send_bytes(b"")

    group.goes_on = goes_on
    goes_on()
    try:
        dist.init_process_group("judge", store=dist.FileStore(f"{directory}/store", world), rank=rank, world_size=world)
        facts = globals()[case["run"]](load(path, name), rank, case)
    except Usage as problem:
        error, kind = str(problem), "usage"
    except BaseException as problem:  # noqa: BLE001 (SystemExit, too: a rank that ends early has not passed)
        where = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename == path]
        line = f" (line {where[-1].lineno} of {Path(path).name})" if where else ""
        error, kind = f"{type(problem).__name__}: {problem}{line}", "raised"
    if group.differ:
        error, kind = group.differ[0], "differ"
    group.goes_on = lambda: None
    sent = {"facts": facts, "log": group.log, "error": error, "kind": kind}
    connection.send_bytes(json.dumps(sent, default=list).encode())
    while os.getppid() == judge:  # the judge ends all ranks when it has heard them: Gloo needs its peers alive
        time.sleep(1)
    os._exit(1)
