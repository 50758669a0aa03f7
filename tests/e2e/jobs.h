// The jobs of the end-to-end tests.
#pragma once

#include <string>

namespace surefoot::e2e {

// Milliseconds a step, dropout on, twelve micro-batches, ten epochs in forty steps: for what needs
// many restarts.
inline const std::string kQuick = R"(
name: quick
model: {kind: mlp, hidden: [64, 32], dropout: 0.1}
data: {kind: synthetic, samples: 100, shape: [16], classes: 4}
train:
  max_steps: 40
  global_batch_size: 24
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 1e-3, weight_decay: 0.1}
  grad_clip: 1.0
  seed: 3
  eval_every: 10
resources: {workers_per_node: 2}
checkpoint: {interval: 500ms, keep: 2}
recovery: {backoff: 10ms}
)";

// The examples as they are, but for the number of steps; their data lies in the examples' own
// folders.
inline const std::string kDictionaryGpt = R"(
name: dictionary-gpt
model: {kind: gpt, n_layer: 4, n_head: 4, n_embd: 128, block_size: 128, dropout: 0.1}
data: {kind: text, path: "{source}/examples/dictionary-gpt/data/dictionary.txt"}
train:
  max_steps: 24
  global_batch_size: 16
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 2e-3, betas: [0.9, 0.95], weight_decay: 0.1}
  schedule: {kind: cosine, warmup_steps: 20, min_lr: 1e-4}
  grad_clip: 1.0
  seed: 1
  eval_every: 12
  eval_batches: 4
resources: {workers_per_node: 2}
checkpoint: {interval: 2s, keep: 3}
recovery: {backoff: 10ms}
)";

inline const std::string kFashionMnist = R"(
name: fashion-mnist
model: {kind: resnet, width: 16, blocks: 1, dropout: 0.1}
data:
  kind: idx
  images: "{source}/examples/fashion-mnist/data/train-images-idx3-ubyte.gz"
  labels: "{source}/examples/fashion-mnist/data/train-labels-idx1-ubyte.gz"
  eval_images: "{source}/examples/fashion-mnist/data/t10k-images-idx3-ubyte.gz"
  eval_labels: "{source}/examples/fashion-mnist/data/t10k-labels-idx1-ubyte.gz"
train:
  max_steps: 24
  global_batch_size: 64
  micro_batch_size: 8
  optimizer: {kind: sgd, lr: 0.1, momentum: 0.9, weight_decay: 5e-4}
  schedule: {kind: cosine, warmup_steps: 10}
  seed: 1
  eval_every: 12
  eval_batches: 4
resources: {workers_per_node: 2}
checkpoint: {interval: 2s}
recovery: {backoff: 10ms}
)";

// module.pt is written into the sandbox by surefoot-make-module.
inline const std::string kYourOwnModel = R"(
name: your-own-model
model: {kind: torchscript, path: module.pt}
data:
  kind: idx
  images: "{source}/examples/fashion-mnist/data/train-images-idx3-ubyte.gz"
  labels: "{source}/examples/fashion-mnist/data/train-labels-idx1-ubyte.gz"
  eval_images: "{source}/examples/fashion-mnist/data/t10k-images-idx3-ubyte.gz"
  eval_labels: "{source}/examples/fashion-mnist/data/t10k-labels-idx1-ubyte.gz"
train:
  max_steps: 24
  global_batch_size: 64
  micro_batch_size: 8
  optimizer: {kind: adamw, lr: 1e-3}
  seed: 1
  eval_every: 12
  eval_batches: 4
resources: {workers_per_node: 2}
checkpoint: {interval: 2s}
recovery: {backoff: 10ms}
)";

}  // namespace surefoot::e2e
