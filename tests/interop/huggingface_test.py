"""A trained gpt is Hugging Face's GPT2LMHeadModel, and a job can start from one of theirs.

huggingface_test.py FOLDER-WITH-BINARIES      exit 77: torch or transformers is not installed
"""
import pathlib
import sys
import tempfile

try:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import job


def their_loss(model):
    model.eval()
    inputs, targets = job.held_out_windows()
    total = 0.0
    with torch.no_grad():
        for one, expected in zip(inputs, targets):
            logits = model(torch.tensor([one])).logits[0]
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(expected)).item()
    return total / len(inputs)


def compare(what, theirs, ours):
    print(f"{what}: held-out loss {theirs:.9f} there, {ours:.9f} here, differ by {abs(theirs - ours):.2g}")
    assert abs(theirs - ours) <= 1e-5, what


def main(binaries):
    with tempfile.TemporaryDirectory() as folder:
        job.run(binaries, folder)
        trained, loading = GPT2LMHeadModel.from_pretrained(f"{folder}/run/final",
                                                           output_loading_info=True)
        missing = [name for name in loading["missing_keys"] if "attn.bias" not in name
                   and "masked_bias" not in name and name != "lm_head.weight"]
        assert not missing and not loading["unexpected_keys"], loading
        compare("trained here", their_loss(trained), job.held_out_loss(folder))
    for half in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(3)
            fresh = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=job.BLOCK, n_embd=32,
                                               n_layer=2, n_head=2))
            if half:
                fresh = fresh.bfloat16()
            start = pathlib.Path(folder) / "start"
            fresh.save_pretrained(start, safe_serialization=True)
            # A rate too small to change any weight: what is evaluated is what was loaded.
            job.run(binaries, folder, "--set", f"model.from={start}", "--set", "train.max_steps=1",
                    "--set", "train.optimizer.lr=1e-30")
            compare("started here from bfloat16" if half else "started here", their_loss(fresh.float()),
                    job.held_out_loss(folder))


main(sys.argv[1])
