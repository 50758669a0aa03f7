"""The peer of the GPU benchmark: GPT-2's architecture in plain PyTorch, as Surefoot's `model.kind: gpt` has it (fp32
master weights, bf16 autocast, scaled_dot_product_attention, AdamW), on one GPU. Prints one JSON object:
{"mode", "tokens_per_second", "step_seconds": {"median", "min", "max"}, "loss"}.

    pytorch_gpt.py --tokens FILE --mode eager|compiled [--deterministic] [--steps N] ...
"""
import argparse
import json
import math
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", required=True)
parser.add_argument("--mode", choices=["eager", "compiled"], required=True)
parser.add_argument("--deterministic", action="store_true")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--warm-up", type=int, default=5)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--block", type=int, default=1024)
parser.add_argument("--vocabulary", type=int, default=50304)
parser.add_argument("--micro-batch", type=int, default=16)
parser.add_argument("--micro-batches", type=int, default=4)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the script out")
arguments = parser.parse_args()
if arguments.deterministic:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read once, when CUDA starts

import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.manual_seed(1)
torch.use_deterministic_algorithms(arguments.deterministic)
torch.utils.deterministic.fill_uninitialized_memory = False
# As the worker sets it with `precision: bf16`: what is left in fp32 may use TF32.
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte = nn.Embedding(a.vocabulary, a.width)
        self.wpe = nn.Embedding(a.block, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = 0.02 / math.sqrt(2 * a.layers) if "proj" in name else 0.02
                nn.init.normal_(parameter, std=scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, inputs, targets):
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.wte(inputs) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


device = torch.device(arguments.device, 0)
is_cuda = arguments.device == "cuda"
model = Gpt(arguments).to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                              lr=6e-4, betas=(0.9, 0.95), fused=True)
run = torch.compile(model) if arguments.mode == "compiled" else model

tokens = torch.from_numpy(numpy.fromfile(arguments.tokens, dtype=numpy.uint16).astype(numpy.int64))
generator = torch.Generator().manual_seed(2)


def batch():
    starts = torch.randint(len(tokens) - arguments.block - 1, (arguments.micro_batch,), generator=generator)
    rows = torch.stack([tokens[s : s + arguments.block + 1] for s in starts.tolist()])
    rows = (rows.pin_memory() if is_cuda else rows).to(device, non_blocking=True)
    return rows[:, :-1], rows[:, 1:]


seconds = []
for step in range(arguments.warm_up + arguments.steps):
    if is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    total = torch.zeros((), device=device)
    for _ in range(arguments.micro_batches):
        inputs, targets = batch()
        with torch.autocast(arguments.device, dtype=torch.bfloat16):
            loss = run(inputs, targets) / arguments.micro_batches
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss_value = total.item()  # a step's loss is read, as a log line needs it
    if step >= arguments.warm_up:
        seconds.append(time.perf_counter() - begin)

tokens_per_step = arguments.micro_batch * arguments.micro_batches * arguments.block
print(json.dumps({
    "mode": arguments.mode + (" deterministic" if arguments.deterministic else ""),
    "tokens_per_second": tokens_per_step / statistics.median(seconds),
    "step_seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
    "loss": loss_value,
}))
