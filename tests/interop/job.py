"""A small job of the real programs for the tests in this folder."""
import json
import pathlib
import subprocess

GPT = """
name: interop
model: {kind: gpt, n_layer: 2, n_head: 2, n_embd: 32, block_size: 32, dropout: 0.1}
data: {kind: text, path: text.txt, holdout: 0.2}
train:
  max_steps: 12
  global_batch_size: 8
  micro_batch_size: 4
  optimizer: {kind: adamw, lr: 1e-3, weight_decay: 0.1}
  eval_batches: 0
resources: {workers_per_node: 2}
"""
BLOCK = 32
HOLDOUT = 0.2


def text():
    """About 20,000 bytes, the same everywhere."""
    state = 1
    words = []
    for _ in range(4000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        words.append(f"{'abcdefgh'[state >> 61]}{(state >> 33) % 97} ")
    return "".join(words).encode()


def run(binaries, folder, *arguments):
    """Trains in `folder`/run; gives the object that --json prints."""
    folder = pathlib.Path(folder)
    (folder / "job.yaml").write_text(GPT)
    (folder / "text.txt").write_bytes(text())
    command = [f"{binaries}/surefoot", "run", str(folder / "job.yaml"), "--dir",
               str(folder / "run"), "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def held_out_loss(folder):
    """As our evaluation of the newest step says."""
    lines = (pathlib.Path(folder) / "run/metrics/metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "eval"][-1]["loss"]


def held_out_windows():
    """Inputs and targets of every held-out sample: docs say windows of BLOCK + 1 bytes that overlap by one."""
    data = text()
    held = data[len(data) - int(len(data) * HOLDOUT):]
    count = (len(held) - 1) // BLOCK
    inputs = [list(held[i * BLOCK:(i + 1) * BLOCK]) for i in range(count)]
    targets = [list(held[i * BLOCK + 1:(i + 1) * BLOCK + 1]) for i in range(count)]
    return inputs, targets
