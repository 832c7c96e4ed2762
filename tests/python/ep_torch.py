"""How long the exchange of tokens between ranks takes with torch on one GPU: what `mooncrate-ep-check` is compared with.
`./dev gpu` runs it after that, on the same GPU.

    python3 ep_torch.py [--tokens 32] [--rounds 60]

Eight ranks, all in this process, in the two forms that a user of torch would write: the rows of all ranks together, by
index operations; and dense, where every token goes to every rank. The routing is drawn once and stays, so that the indices
are made before the clock starts: a real step would have to make them, too. A round is what a short round does: rows go to
the ranks of their experts, come back and are added up. The rounds are recorded into one CUDA graph; the figure is the
median of 25 replays. It ends with 0, with 1 if sums are wrong, and with 77 if this machine cannot run it.

    python3 ep_torch.py --exchange      with the package `mooncrate` beside it

compares `mooncrate.ep` with the same sums by torch, bit for bit: two processes on this GPU (`ep_torch_ranks.py`), plain
calls in several streams, and layers captured by torch.cuda.graph and replayed with other tokens. `./dev gpu` runs it; the
row says whether there was MPS.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROW = "torch beside the short round"
RANKS, TOP_K, HIDDEN, EXPERTS = 8, 8, 7168, 256

parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
parser.add_argument("--tokens", type=int, default=32, help="tokens of each rank")
parser.add_argument("--rounds", type=int, default=60, help="rounds of one graph")
parser.add_argument("--exchange", action="store_true", help="check mooncrate.ep instead")
parser.add_argument("--patience", type=int, default=240, help="seconds that --exchange may take")
options = parser.parse_args()
if options.exchange:
    ROW = "expert exchange from torch, two processes"

try:
    import torch
except ImportError as error:
    print(f"{ROW} | SKIPPED: {error}")
    sys.exit(77)
if not torch.cuda.is_available():
    print(f"{ROW} | SKIPPED: torch finds no GPU")
    sys.exit(77)


class Grouped:
    """All ranks at once by index operations: one select and one copy there, one select and one sum back."""

    NAME = "torch index operations, grouped, short round"

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = options.tokens
        every = RANKS * tokens
        self.x = torch.randn(every, HIDDEN, generator=generator).to("cuda", torch.bfloat16)
        owners = torch.rand(every, EXPERTS, generator=generator).topk(TOP_K, dim=1).indices // (EXPERTS // RANKS)
        goes = torch.zeros(every, RANKS, dtype=torch.bool).scatter_(1, owners, True)
        target, source = goes.T.nonzero(as_tuple=True)
        self.source, self.slot = source.cuda(), (target * every + source).cuda()
        self.times = goes.sum(1).cuda()
        self.received = torch.zeros(RANKS * every, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.out = torch.zeros(every, HIDDEN, device="cuda", dtype=torch.float32)

    def round(self):
        self.received.index_copy_(0, self.slot, self.x.index_select(0, self.source))
        self.out.zero_()
        self.out.index_add_(0, self.source, self.received.index_select(0, self.slot).float())

    def right(self):
        """What came back is each token as often as it has ranks."""
        return torch.equal(self.out, self.x.float() * self.times[:, None])


class Dense:
    """Without a route: every token goes to every rank by one broadcast, and one sum over ranks comes back. It moves more
    bytes than an exchange, in two kernels."""

    NAME = "torch dense broadcast and sum, short round"

    def __init__(self, seed):
        every = RANKS * options.tokens
        # Few bits, so that the sum is exact in bf16.
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randint(-8, 8, (every, HIDDEN), generator=generator).to("cuda", torch.bfloat16)
        self.received = torch.zeros(RANKS, every, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.out = torch.zeros(every, HIDDEN, device="cuda", dtype=torch.bfloat16)

    def round(self):
        self.received.copy_(self.x.expand(RANKS, -1, -1))
        torch.sum(self.received, 0, out=self.out)

    def right(self):
        return torch.equal(self.out, self.x * RANKS)


def measure(form, sets):
    exchanges = [form(seed) for seed in range(sets)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for exchange in exchanges:
            exchange.round()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(options.rounds):
            exchanges[at % sets].round()
    times = []
    for replay in range(28):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if replay >= 3:
            times.append(begin.elapsed_time(end) * 1000 / options.rounds)
    return statistics.median(times), all(exchange.right() for exchange in exchanges)


def has_mps():
    """Whether a daemon of MPS listens where the driver of this process looks for one."""
    folder = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if not (folder / "control").exists():
        return False
    try:
        number = int((folder / "nvidia-cuda-mps-control.pid").read_text())
    except (OSError, ValueError):
        return True
    # A daemon that was killed leaves its files behind.
    return pathlib.Path(f"/proc/{number}").exists()


def exchange():
    """Starts the two ranks; what they say is the row. It ends before `./dev gpu` loses its patience, so that no rank
    is left behind."""
    program = pathlib.Path(__file__).with_name("ep_torch_ranks.py")
    with tempfile.TemporaryDirectory(prefix="mooncrate-ep-") as folder:
        meet = os.path.join(folder, "meet")
        command = [sys.executable, str(program), meet]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        until = time.monotonic() + options.patience
        said, late = [], False
        try:
            for rank in ranks:
                try:
                    said.append(rank.communicate(timeout=max(0, until - time.monotonic()))[0])
                except subprocess.TimeoutExpired:
                    late = True
                    rank.kill()
                    said.append(rank.communicate()[0])
        finally:
            for rank in ranks:
                rank.kill()
    print("".join(said), end="")
    good = all(rank.returncode == 0 for rank in ranks)
    failed = f"FAILED: no end after {options.patience} s" if late else "FAILED"
    mps = "under MPS" if has_mps() else "without MPS: the ranks take turns on the GPU"
    print(f"{ROW} | {said[0].splitlines()[-1] if good else failed}, {mps}")
    return 0 if good else 1


if options.exchange:
    sys.exit(exchange())

FAILED = False
for form in (Grouped, Dense):
    for mode, sets in (("hot", 1), ("rotating", 6)):
        micros, right = measure(form, sets)
        FAILED |= not right
        print(f"{form.NAME}, {mode}, {options.tokens} tokens | {'' if right else 'WRONG, '}{micros:.1f} µs")
sys.exit(1 if FAILED else 0)
