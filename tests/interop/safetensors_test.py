"""Parts and exports open with the safetensors package, and hold what they say.

safetensors_test.py FOLDER-WITH-BINARIES      exit 77: the package is not installed
"""
import json
import pathlib
import sys
import tempfile

try:
    import numpy
    from safetensors import safe_open
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import job


def read(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}


def state_of(part, tensors):
    """The bytes of the whole state from the flat tensors of the only part."""
    layout = json.loads(part["layout"])
    state = numpy.zeros(layout["bytes"], numpy.uint8)
    offsets = {section["name"]: section["offset"] for section in layout["sections"]}
    for name, values in tensors.items():
        section, begin = name[:-1].split("[")
        first = int(begin.split(":")[0])
        at = first if section == "gap" else offsets[section] + first * values.itemsize
        raw = values.view(numpy.uint8)
        state[at:at + raw.size] = raw
    return layout, state


def main(binaries):
    with tempfile.TemporaryDirectory() as folder:
        job.run(binaries, folder)
        run = pathlib.Path(folder) / "run"
        parts = sorted(run.glob("checkpoints/interop/step-*12/*.safetensors"))
        assert len(parts) == 1, parts
        part, tensors = read(parts[0])
        layout, state = state_of(part, tensors)
        metadata, weights = read(run / "final/model.safetensors")
        assert metadata == {"format": "pt"}, metadata
        parameters = next(s for s in layout["sections"] if s["name"] == "parameters")
        assert set(weights) == {tensor["name"] for tensor in parameters["tensors"]}
        for tensor in parameters["tensors"]:
            values = weights[tensor["name"]]
            assert list(values.shape) == tensor["shape"], tensor["name"]
            at = parameters["offset"] + tensor["offset"]
            assert numpy.array_equal(values.reshape(-1).view(numpy.uint8),
                                     state[at:at + values.nbytes]), tensor["name"]
            assert numpy.isfinite(values).all(), tensor["name"]
        print(f"{len(weights)} tensors of the export are those in the part, byte by byte")


main(sys.argv[1])
