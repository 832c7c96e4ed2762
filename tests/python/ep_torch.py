"""How long the exchange of tokens between ranks takes with torch's index operations on one GPU: what
`mooncrate-ep-check` is compared with. `./dev gpu` runs it after that, on the same GPU.

    python3 ep_torch.py [--tokens 32] [--rounds 20]

Eight ranks, all in this process; the routing is drawn once and stays, so that the indices are made before the
clock starts: a real step would have to make them, too. A round is what a short round does: rows go to the
ranks of their experts (index_select and index_copy), and come back and are added up (index_add, in f32). The rounds
are recorded into one CUDA graph; the figure is the median of 25 replays. It ends with 0, with 1 if sums are wrong, and
with 77 if this machine cannot run it.

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

ROW = "torch index operations, short round"
RANKS, TOP_K, HIDDEN, EXPERTS = 8, 8, 7168, 256

parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
parser.add_argument("--tokens", type=int, default=32, help="tokens of each rank")
parser.add_argument("--rounds", type=int, default=20, help="rounds of one graph")
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


class Exchange:
    """Ranks with their tokens, what they receive, and the indices of both ways."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens, slots = options.tokens, RANKS * options.tokens
        self.x, self.out, self.received = [], [], []
        self.ways = []
        for rank in range(RANKS):
            x = torch.randn(tokens, HIDDEN, generator=generator).to("cuda", torch.bfloat16)
            self.x.append(x)
            self.out.append(torch.zeros(tokens, HIDDEN, device="cuda", dtype=torch.float32))
            self.received.append(torch.zeros(slots, HIDDEN, device="cuda", dtype=torch.bfloat16))
            scores = torch.rand(tokens, EXPERTS, generator=generator)
            owners = scores.topk(TOP_K, dim=1).indices // (EXPERTS // RANKS)
            for target in range(RANKS):
                chosen = (owners == target).any(dim=1).nonzero().flatten()
                if len(chosen):
                    here, there = chosen.cuda(), (chosen + rank * tokens).cuda()
                    self.ways.append((rank, target, here, there))

    def round(self):
        for source, target, here, there in self.ways:
            self.received[target].index_copy_(0, there, self.x[source].index_select(0, here))
        for out in self.out:
            out.zero_()
        for source, target, here, there in self.ways:
            rows = self.received[target].index_select(0, there)
            self.out[source].index_add_(0, here, rows.float())

    def right(self):
        """What came back is each token as often as it has ranks."""
        for rank in range(RANKS):
            times = torch.zeros(options.tokens, device="cuda")
            for source, _, here, _ in self.ways:
                if source == rank:
                    times[here] += 1
            if not torch.equal(self.out[rank], self.x[rank].float() * times[:, None]):
                return False
        return True


def measure(sets):
    exchanges = [Exchange(seed) for seed in range(sets)]
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
for mode, sets in (("hot", 1), ("rotating", 6)):
    micros, right = measure(sets)
    FAILED |= not right
    print(f"{ROW}, {mode}, {options.tokens} tokens | {'' if right else 'WRONG, '}{micros:.1f} µs")
sys.exit(1 if FAILED else 0)
