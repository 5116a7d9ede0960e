"""A process group over Gloo that records every collective, and carries each one out as late as it can.

A collective is held until somebody waits for it. So what a class does too early (reading a result, changing a buffer,
going on without waiting) has the same effect in every run, at any speed. A wait in the middle of backward is seen as
such. Results are computed in rank order, from what Gloo gathers. Before each one, the ranks compare what they call.
"""
import sys
import threading
import time
import zlib
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

GENEROUS = timedelta(seconds=300)
POLLS = 20  # this many questions "is it done?", and nothing else between them, are a wait; classes sleep between them
TEXT = 96  # bytes that describe a call to the other ranks
COMBINE = {"SUM": torch.add, "AVG": torch.add, "MAX": torch.maximum, "MIN": torch.minimum, "PRODUCT": torch.mul}

log = []  # what happened on this rank, in order; each entry begins with a word
groups = []
queue = []  # what is under way, of all groups, in the order of the launches
lock = threading.RLock()
goes_on = None  # a rank sets it: it tells the judge that there is no hang
differ = []  # what the ranks called, where they called different collectives


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else torch.zeros(0)


def checksum(tensors):
    return [zlib.crc32(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy()) for t in tensors if t.numel()]


def name_of(op):
    for name in COMBINE:
        if op == getattr(dist.ReduceOp, name):
            return name
    raise RuntimeError(f"the judge knows no such ReduceOp: take one of {', '.join(COMBINE)}")


def reduced(parts, op):
    """What an all-reduce gives, added in rank order."""
    name = name_of(op)
    result = parts[0].clone()
    for part in parts[1:]:
        result = COMBINE[name](result, part)
    return result / len(parts) if name == "AVG" else result


def spread(values, tensors):
    """Copies a flat tensor back into the tensors of which it has the elements."""
    for tensor, part in zip(tensors, values.split([t.numel() for t in tensors])):
        tensor.detach().copy_(part.view(tensor.shape))


def blocked(thread):
    """Does a thread wait for another one? It sleeps, and has not run between three looks, whatever it waits with."""
    looks = set()
    for _ in range(3):
        time.sleep(0.01)
        frame = sys._current_frames().get(thread.ident)  # the innermost one; none: the thread has ended
        while frame and frame.f_code not in BUSY:
            frame = frame.f_back
        if frame:
            return False
        with suppress(OSError), open(f"/proc/self/task/{thread.native_id}/status") as status:
            looks.add("".join(line for line in status if line.startswith("State:") or "ctxt_switches" in line))
    return len(looks) < 2 and all("S (sleeping)" in look for look in looks)


def let_threads_run(patience=[15]):  # noqa: B006 (seconds, until a thread has been seen that never has nothing to do)
    """Threads of the class do what they have to do, so that the order of events does not depend on a race."""
    others, limit = set(threading.enumerate()) - {threading.current_thread()}, time.monotonic() + patience[0]
    while not all(blocked(thread) for thread in others):
        if time.monotonic() > limit:
            patience[0] = 0.05
            break


class HeldFuture(torch.futures.Future):
    """A future whose wait() is seen; for C++, see JudgeWork.get_future."""

    def __init__(self, work):
        super().__init__()
        self.work = work

    def done(self):
        return self.work.is_completed()

    def wait(self):
        self.work.wait()
        return super().wait()

    value = wait

    def then(self, callback):
        after = HeldFuture(self.work)

        def run(_):
            try:
                after.set_result(callback(self))
            except Exception as error:  # noqa: BLE001 (whatever the callback raises belongs to who waits)
                after.set_exception(error)

        self.add_done_callback(run)
        return after


class JudgeWork(dist.Work):
    def __init__(self, group, number, inputs, outputs, text, finish):
        super().__init__()
        self.group, self.number, self.inputs, self.outputs = group, number, inputs, outputs
        self.text, self.finish, self.sums = text, finish, checksum(inputs)
        self.done = self.for_cpp = False
        self.polls, self.futures = (0, 0), []

    def wait(self, timeout=None):
        if not self.done:
            main = threading.main_thread()  # does it wait, too? A thread beside it may wait while backward goes on
            log.append(["wait" if threading.current_thread() is main or blocked(main) else "beside", self.number])
            run_until(self)
        return True

    synchronize = wait

    def is_completed(self):
        events, count = self.polls
        self.polls = (len(log), count + 1 if events == len(log) else 1)
        if self.polls[1] > POLLS:
            self.wait()
        return self.done

    is_success = is_completed

    def result(self):
        self.wait()
        return self.outputs

    def get_future(self):
        future = HeldFuture(self)
        # A wait in C++ is not seen. DistributedDataParallel takes futures inside the engine and waits at the end of
        # backward: its collectives are carried out when backward has come to its end.
        self.for_cpp = sys._getframe(1).f_code.co_name == "_engine_run_backward"
        if self.for_cpp and JudgeGroup.backward_is_over:
            run_until(self)
        if self.done:
            future.set_result(self.outputs)
        else:
            self.futures.append(future)
        return future

    def run(self):
        if checksum(self.inputs) != self.sums:
            log.append(["touched", self.number])
        self.finish(self.group.from_all(flat(self.inputs), self.text))
        self.done, self.inputs, self.finish = True, [], None
        for future in self.futures:
            future.set_result(self.outputs)


def run_until(work):
    """Carries out a collective, and before it all that were launched earlier."""
    with lock:
        while not work.done:
            queue.pop(0).run()


class JudgeGroup(dist.ProcessGroup):
    """What torch.distributed calls. Each method describes a collective: what it sends, and what it makes of all."""

    backward_is_over = False

    def __init__(self, store, rank, size, _timeout):
        super().__init__(rank, size)
        self.number, self.peers = rank, size
        self.gloo = ProcessGroupGloo(store, rank, size, GENEROUS)
        groups.append(self)

    def getBackendName(self):
        return "judge"

    @property
    def group_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    def from_all(self, mine, text):
        """What every rank sends, in rank order, after all ranks have said that they are at the same call."""
        words = torch.tensor(list(text.encode()[:TEXT].ljust(TEXT, b"\0")), dtype=torch.uint8)
        texts = [torch.empty_like(words) for _ in range(self.peers)]
        goes_on()
        self.gloo.allgather([texts], [words]).wait()
        said = [bytes(t.tolist()).rstrip(b"\0").decode() for t in texts]
        if len(set(said)) > 1:
            differ.append("; ".join(f"rank {rank}: {what}" for rank, what in enumerate(said)))
            raise RuntimeError(f"the ranks call different collectives: {differ[0]}")
        parts = [torch.empty_like(mine) for _ in range(self.peers)]
        if mine.numel():
            self.gloo.allgather([parts], [mine.contiguous()]).wait()
        return parts

    def launch(self, name, inputs, outputs, finish, detail="", aliased=False):
        with lock:
            sent = sum(t.numel() for t in inputs)
            dtype = str(inputs[0].dtype)[6:] if inputs else "nothing"
            text = f"{name} of {sent} {dtype}{detail}"
            number = sum(1 for entry in log if entry[0] == "launch")
            log.append(["launch", number, name, sent, dtype, inputs[0].element_size() if inputs else 0])
            storages = {t.untyped_storage().data_ptr() for t in inputs}
            for tensor in outputs if not aliased else []:  # what is read too early is not a number
                if tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in storages:
                    tensor.detach().fill_(float("nan"))
            queue.append(JudgeWork(self, number, inputs, outputs, text, finish))
            return queue[-1]

    def allreduce(self, tensors, opts=None):
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        return self.launch("all_reduce", tensors, tensors, lambda p: spread(reduced(p, op), tensors),
                           f", {name_of(op)}", True)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors, opts):
        return self.launch("broadcast", tensors, tensors, lambda p: spread(p[opts.rootRank], tensors),
                           f" from rank {opts.rootRank}", True)

    def reduce(self, tensors, opts):
        return self.launch("reduce", tensors, tensors, lambda p: self.number == opts.rootRank and spread(
            reduced(p, opts.reduceOp), tensors), f" to rank {opts.rootRank}", True)

    def allgather(self, outputs, inputs, opts=None):
        return self.launch("all_gather", inputs, outputs[0], lambda p: spread(torch.cat(p), outputs[0]))

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        def finish(parts):
            rows = [part.split([t.numel() for t in inputs]) for part in parts]
            spread(torch.cat([part for of_one_output in zip(*rows) for part in of_one_output]), outputs)

        return self.launch("all_gather", inputs, outputs, finish)

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor])

    def reduce_scatter(self, outputs, inputs, opts):
        return self.launch("reduce_scatter", list(inputs[0]), outputs, lambda p: spread(
            reduced(p, opts.reduceOp).split([t.numel() for t in inputs[0]])[self.number], outputs))

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        def finish(parts):
            sums = reduced(parts, opts.reduceOp).split([t.numel() for t in inputs])
            spread(torch.cat([value.chunk(self.peers)[self.number] for value in sums]), outputs)

        return self.launch("reduce_scatter", inputs, outputs, finish)

    def reduce_scatter_single(self, output, tensor, opts):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def scatter(self, outputs, inputs, opts):
        root, size = opts.rootRank, outputs[0].numel()
        sent = list(inputs[0]) if self.number == root else [outputs[0].new_zeros(size * self.peers)]
        return self.launch("scatter", sent, outputs, lambda p: spread(p[root].split(size)[self.number], outputs))

    def barrier(self, opts=None):
        return self.launch("barrier", [], [], lambda parts: None)


def refused(*_args, **_keywords):
    raise RuntimeError("the judge cannot judge a class that calls this: it knows all_reduce, reduce, broadcast, "
                       "all_gather, reduce_scatter, scatter, barrier, those of whole tensors and of objects, wait_all")


time.sleep = lambda seconds, sleep=time.sleep: sleep(seconds)  # a frame of its own: a thread that polls sleeps, too
BUSY = {f.__code__ for f in (time.sleep, threading.Thread.start, JudgeGroup.launch, run_until)}  # no wait for a thread
torch.futures.collect_all = refused  # it waits in C++
torch.futures.wait_all = lambda futures: [future.wait() for future in futures]
for other in ("send", "recv", "recv_anysource", "alltoall", "all_to_all_single", "alltoall_base", "gather",
              "gather_single", "gather_into_tensor", "_start_coalescing"):
    setattr(JudgeGroup, other, refused)


def backward_ends():
    """Backward has left the last layer: what C++ waits for from now on is carried out."""
    JudgeGroup.backward_is_over = True
    for work in [w for w in queue if w.for_cpp]:
        run_until(work)


def end_of_step(name):
    """Carries out what is left, and compares the ranks' numbers of calls."""
    if queue:
        run_until(queue[-1])
    for group in groups:
        group.from_all(torch.zeros(0), f"no more collectives ({name})")
    JudgeGroup.backward_is_over = False


dist.Backend.register_backend("judge", JudgeGroup, devices=["cpu"])
