"""What must be true, and how it is seen in what the ranks have sent. Nothing of the student's runs here."""
import torch

import toys
from rank import MOMENTUM, RATE

CLOSE = 1e-6
WHOLE = ("all_gather", "broadcast")  # what brings whole weights
SPENT = {"all_reduce": 2, "reduce_scatter": 1, "broadcast": 1, "reduce": 1, "scatter": 1}  # and all_gather: ranks


def steps_of(log):
    """The log of each step, from "step" on."""
    begins = [index for index, entry in enumerate(log) if entry[0] == "step"]
    return [log[a:b] for a, b in zip(begins, begins[1:] + [len(log)])]


def launches(log):
    return [entry for entry in log if entry[0] == "launch" and entry[4].startswith(("float", "bfloat"))]


def off(got, expected):
    """By how much two tensors differ, relative to what is larger than 1."""
    return ((got - expected).abs() / expected.abs().clamp(min=1)).max().item() if expected.numel() else 0.0


def factor(got, expected):
    """The factor that most elements have been multiplied by."""
    a, b = (torch.cat([t[n].flatten() for n in expected if got.get(n) is not None]) for t in (got, expected))
    large = b.abs() > 1e-3
    return (a[large] / b[large]).median().item() if large.any() else 1.0


def tensors(facts, expected):
    return {n: None if facts.get(n) is None else torch.tensor(facts[n], dtype=torch.float64).view(v.shape)
            for n, v in expected.items()}


def wrong_gradient(case, rank, step, got, expected, own):
    """A message, if one gradient is not the expected one, up to the factor that all have in common."""
    common = factor(got, expected)
    for name, value in expected.items():
        place = f"rank {rank} of {case['ranks']}: the gradient of {name} in step {step + 1}"
        if got[name] is None:
            if value.abs().max() > 0:
                return f"{place} is None: a rank that does not use a parameter must send zeros for it"
            continue
        if not torch.isfinite(got[name]).all():
            return f"{place} is not finite: was it read before its collective had been waited for?"
        if common and off(got[name] / common, value) <= 3 * CLOSE:
            continue
        for scale in (1, case["ranks"], 1 / case["ranks"]):
            if case["ranks"] > 1 and off(got[name], own[name] * scale) <= 3 * CLOSE:
                return f"{place} is this rank's own: no collective has added the others'"
        worst = (got[name] / (common or 1) - value).abs().max()
        return (f"{place} differs by {worst:.2g} from the sum over the ranks: a rank's part is missing, is of an "
                "earlier step, was sent before it was complete, or was summed again")
    return None


def gradients(case, results):
    kind, check, common = case["kind"], case["checks"][0], []
    for step in range(case["steps"]):
        for index in range(case.get("models", 1)):
            def summed(ranks=None):
                parts = [toys.gradients(kind, toys.values(kind, step), 10 * (step + 5 * index) + micro, case["shares"],
                                        ranks) for micro in range(case["micro"])]
                return {name: sum(part[name] for part in parts) / case["micro"] for name in parts[0]}

            expected = summed()
            for rank, result in enumerate(results):
                facts = result["facts"]["grads"][step][index]
                got, own = tensors(facts, expected), summed([rank])
                own = {n: v * case["ranks"] for n, v in own.items()}
                message = wrong_gradient(case, rank, step, got, expected, own)
                if message:
                    yield check, message
                common.append(factor(got, expected))
                for name in facts:
                    if name not in expected and facts[name] is not None:
                        yield check, f"{name} is not trained, but it has a gradient after backward"
    if max(common) - min(common) > 1e-4 * max(abs(c) for c in common):
        yield check, (f"the gradients have been multiplied by {min(common):.4g} on one rank or in one step, and by "
                      f"{max(common):.4g} on another")
    yield from mean(case, common[0], "mean")
    yield from events(case, results)


def mean(case, found, check):
    usual = {case["ranks"]: "a sum over the ranks that was not divided by their number",
             1 / case["ranks"]: "it was divided by the number of ranks twice"}
    if check in case["checks"] and abs(found - 1) > 1e-4:
        why = [text for value, text in usual.items() if abs(found / value - 1) < 1e-3]
        yield check, (f"gradients are {found:.4g} times the mean over the global batch: "
                      f"{why[0] if why else 'divide by the number of ranks, whatever share each one has'}")


def events(case, results):
    """What the logs say, in all cases: traffic, what is under way, what was touched, overlap, buckets, no_sync."""
    # PyTorch's own class makes its buckets in the first step: buckets and overlap are judged from the second.
    micro = case["micro"] if case.get("no_sync") is None else 1
    for rank, result in enumerate(results):
        for number, log in enumerate(steps_of(result["log"])):
            where = f"rank {rank} of {case['ranks']}, step {number + 1}"
            ends = [entry for entry in log if entry[0] == "finished"]
            for entry in log:
                if entry[0] == "finished" and entry[1] and (entry is ends[-1] or not case.get("models")):
                    yield "under_way", (f"{where}: {entry[1]} of {len(launches(log))} collectives were still under way "
                                        f"when {case.get('until', 'finish_gradient_synchronization()')} returned")
                if entry[0] == "touched":
                    yield "touched", (f"{where}: the buffer of collective {entry[1]} was changed while it was under "
                                      "way: leave it alone from the launch to the end of wait()")
            yield from traffic(case, log[: len(log) - log[::-1].index(ends[-1])], where, micro)
            if "buckets" in case["checks"] and number:
                yield from buckets(case, log, where)
            if "no_sync_cost" in case["checks"]:
                early = len(launches(log[: max(i for i, entry in enumerate(log) if entry[0] == "backward")]))
                if early:
                    yield "no_sync_cost", (f"{where}: {early} collectives were called before the last of "
                                           f"{case['micro']} micro-batches: in no_sync() gradients add up on each rank")
            if {"starts", "at_once"} & set(case["checks"]) and number:
                yield from overlap(case, log, where)


def traffic(case, log, where, micro):
    def elements(entries, names=None):
        return sum(SPENT.get(e[2], case["ranks"]) * e[3] * e[5] for e in entries if not names or e[2] in names) / 4

    count, passes, floats = case["elements"], case["passes"], launches(log)
    every = [entry for entry in log if entry[0] == "launch"]  # bytes, too: weights may travel as pickles
    allowed = passes * count * micro * 1.02 + 32 * len(every)
    what = "gradient travels once" if passes == 2 else "weight is gathered twice, every gradient reduce-scattered once"
    if "traffic" in case["checks"] and elements(every) > allowed:
        yield "traffic", (f"{where}: the collectives move {elements(every):.0f} elements, and {allowed:.0f} would do "
                          f"for {count}: every {what}, and nothing else")
    if "traffic" in case["checks"] and case["ranks"] > 1 and elements(floats) < passes / 2 * count:
        yield "traffic", f"{where}: the collectives move {elements(floats):.0f} elements of {count}: not all is sent"
    gathered = elements(floats, WHOLE)
    sizes = [(a + 1) * b for a, b in zip(toys.WIDE, toys.WIDE[1:])]
    needed = 2 * count - 3 * max(sizes)
    if "whole" in case["checks"] and gathered < needed:
        yield "whole", (f"{where}: {gathered:.0f} elements of weights are gathered, and without whole copies at least "
                        f"{needed} are needed: gather each layer's for forward, and again for backward")
    for index, entry in enumerate(log if "whole" in case["checks"] and micro == 1 else []):
        if entry[0] == "forward" and elements(launches(log[:index]), WHOLE) > 1.02 * sum(sizes[: entry[1] + 4]) + 500:
            yield "whole", (f"{where}: more than three layers are gathered ahead, when forward has come through "
                            f"{entry[1] + 1} of {toys.LAYERS}: gather one ahead at most")


def buckets(case, log, where):
    sizes = [entry[3] * entry[5] for entry in launches(log)]
    total, largest, cap = 4 * case["elements"], 4 * 13 * 9, case["cap"]
    most = max(1, int(2 * total / cap) + 1) if cap < total else 1
    if len(sizes) > most:
        yield "buckets", (f"{where}: {len(sizes)} collectives for {total} bytes of gradients and a cap of {cap}: "
                          f"at most {most} are needed. A bucket closes once it holds its cap")
    if sizes and max(sizes) > 1.05 * (cap + largest):
        yield "buckets", f"{where}: a bucket of {max(sizes)} bytes, the cap is {cap}, the largest gradient {largest}"


def overlap(case, log, where):
    begin = max(i for i, entry in enumerate(log) if entry[0] == "backward")
    end = next(i for i, entry in enumerate(log) if i > begin and entry[0] == "enters" and entry[1] == 0)
    early = log[begin:end]
    if not launches(early):
        yield "starts", (f"{where}: no collective was started before backward had come to the first layer: start each "
                         "bucket in the hook of its last gradient")
        yield "goes_on", f"{where}: nothing travels during backward, so nothing is hidden behind it"
    waits = [entry for entry in early if entry[0] == "wait"]
    if waits:
        before = sum(1 for entry in early[: early.index(waits[0])] if entry[0] == "enters")
        yield "goes_on", (f"{where}: backward waits for collective {waits[0][1]} when it has entered {before} of "
                          f"{toys.LAYERS} layers, before it goes on: nothing is hidden. Wait after backward")
    sizes = [(a + 1) * b for a, b in zip(toys.WIDTHS, toys.WIDTHS[1:])]
    filled = torch.tensor([0] + [e[3] for e in launches(log[begin:])]).cumsum(0).tolist()
    for index, entry in enumerate(early):
        if entry[0] == "enters" and "at_once" in case["checks"]:
            sent = sum(e[3] for e in launches(early[:index]))
            complete = sum(sizes[entry[1] + 2:])  # the layer before may show only now that a bucket is full
            complete = complete if case["cap"] == 1 else max(n for n in filled if n <= complete)
            if sent < complete:
                yield "at_once", (f"{where}: when backward enters layer {entry[1]}, {complete} elements of full "
                                  f"buckets could travel, but {sent} do: a bucket starts when it is full")
                return


def start(case, results):
    every = [toys.values(case["kind"], 50 + rank) for rank in range(case["ranks"])]
    for rank, result in enumerate(results):
        if result["facts"]["missing"]:
            yield "start", f"these parameters are not among the class's own: {', '.join(result['facts']['missing'])}"
        got = tensors(result["facts"]["weights"], every[0])
        yield from begins(rank, got, every)


def begins(rank, got, every):
    same = [[n for n, v in values.items() if got[n] is not None and off(got[n], v.double()) < 1e-7] for values in every]
    if len(same[0]) == len(every[0]):
        return
    whole = [r for r, names in enumerate(same) if len(names) == len(every[0])]
    if whole == [rank]:
        yield "start", (f"before the first step rank {rank} still has its own random weights: the constructor must "
                        "broadcast rank 0's")
    elif whole:
        yield "start", f"before the first step rank {rank} has rank {whole[0]}'s weights: the root must be 0"
    else:
        name = next(n for n in every[0] if n not in same[0])
        yield "start", (f"before the first step rank {rank} has some weights of rank 0 and some others ({name}): was "
                        "EVERY parameter broadcast, frozen ones, too?")


def sgd(case, begin, kind, micro=1):
    """The weights of one process after each step, in float64."""
    weights, momentum, result = {n: v.double() for n, v in begin.items()}, {}, []
    for step in range(case["steps"]):
        parts = [toys.gradients(kind, weights, 10 * step + m, case["shares"]) for m in range(micro)]
        for name in parts[0]:
            momentum[name] = MOMENTUM * momentum.get(name, 0) + sum(part[name] for part in parts) / micro
            weights[name] = weights[name] - RATE * momentum[name]
        result.append(dict(weights))
    return result


def compare(check, expected, results, what="train"):
    for rank, result in enumerate(results):
        for step, whole in enumerate(expected):
            got = tensors(result["facts"]["weights"][step], whole)
            for name, value in whole.items():
                if got[name] is None or not off(got[name], value) <= CLOSE:
                    worst = "is missing" if got[name] is None else f"differs by {(got[name] - value).abs().max():.2g}"
                    yield check, (f"rank {rank} of {len(results)}: {name} {worst} after step {step + 1} from what one "
                                  f"process {what}s (allowed: {CLOSE:g})")
                    return


def train(case, results):
    yield from compare(case["checks"][0], sgd(case, toys.values(case["kind"], 7), case["kind"]), results)
    yield from events(case, results)


def sharded(case, results):
    check, model, expected = case["checks"][0], toys.Toy("frozen", 0), []
    toys.put(model, toys.values("frozen", 7))
    parameters, groups = toys.grouped(case, model)
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    for step in range(case["steps"]):
        toys.prepare_update(case, step, parameters, optimizer)
        optimizer.step()
        expected.append({n: p.detach().double().clone() for n, p in model.named_parameters()})
    yield from compare(check, expected, results, "update")
    yield from events(case, results)
    kept, weights = [r["facts"]["kept"] for r in results], sum(p.numel() for p in parameters if p.requires_grad)
    largest = max(p.numel() for p in parameters)
    if not all(result["facts"]["zeroed"] for result in results):
        yield check, "after zero_grad() some gradients are still there: it must reset those of ALL parameters"
    if "memory" in case["checks"] and sum(kept) != 2 * weights:
        yield "memory", (f"all ranks together keep {sum(kept)} elements of optimizer state, where the weights need "
                         f"{2 * weights}: each weight has one owner, who alone keeps its state")
    if "memory" in case["checks"] and max(kept) > 2 * (weights / case["ranks"] + largest):
        yield "memory", f"one rank keeps {max(kept)} of {2 * weights} elements of optimizer state: divide them evenly"
    yield from hidden("memory", case, results, 2 * (weights / case["ranks"] + largest) + weights)


def hidden(check, case, results, allowed):
    """Is more kept between steps than what is counted by name? ALLOWED are elements of 4 bytes."""
    most = max(result["facts"]["bytes"] for result in results) if check in case["checks"] else 0
    if most > 4 * allowed:
        yield check, (f"between steps, a rank keeps {most} bytes, and {4 * allowed:.0f} would do for its shards and "
                      "some buffers: are there whole copies in other tensors, arrays or lists?")


def fsdp(case, results):
    check, kind, ranks = case["checks"][0], case["kind"], case["ranks"]
    every = [toys.values(kind, 50 + rank) for rank in range(ranks)]
    begin = tensors(results[0]["facts"]["start"], every[0])
    for rank, result in enumerate(results):
        got = tensors(result["facts"]["start"], every[0])
        if None in got.values():
            yield "start", "gather_full_params() does not return every parameter by its name"
            return
        if "start" in case["checks"]:
            yield from begins(rank, got, every)
        facts, total = result["facts"], sum(v.numel() for v in begin.values())
        share = sum(-(-len(v) // ranks) * v[0].numel() + ranks for v in begin.values())  # whole rows, or padded
        for name, held in (("held", "weights"), ("grads_held", "gradients")):
            if name in case["checks"] and facts[name] > share:
                yield name, (f"rank {rank} holds {facts[name]} of {total} elements of {held} between steps, and may "
                             f"hold {share:.0f}: its own shard")
        if "whole" in case["checks"] and (facts["most"] > 3 or facts["read"] < toys.LAYERS):
            yield "whole", (f"rank {rank}: whole weights of {facts['most']} of {toys.LAYERS} layers were in memory at "
                            "once: drop them after the layer's forward (autograd keeps what it has saved)")
    yield from hidden("held", case, results, 2 * share + max(v.numel() for v in begin.values()))
    expected = sgd(case, begin, kind, case["micro"])
    first = tensors(results[0]["facts"]["weights"][0], begin)
    delta, right = ({n: (begin[n] - w[n]) / RATE for n in begin} for w in (first, expected[0]))
    common = factor(delta, right)
    for name in right:
        if off(delta[name] / (common or 1), right[name]) > 50 * CLOSE:
            yield check, (f"{name} has not moved by the sum over the ranks' gradients in step 1: a rank's part is "
                          "missing, or stands at another place, or was summed again")
            break
    yield from mean(case, common, "mean")
    if "mean" in case["checks"]:
        yield from compare("mean", expected, results)
    yield from events(case, results)
