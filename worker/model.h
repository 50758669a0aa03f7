// A model on flat memory: the only way the training loop sees libtorch. This header is free of it,
// so that including it is cheap.
//
// On a device (device.h) the state, the gradients and the buffers' changes are its memory, and
// micro_batch() and take_buffer_changes() only enqueue; take_losses() waits. The callback of
// on_gradient_ready() then comes on a thread of libtorch's, while the caller waits in
// micro_batch().
//
// Parameters are views of the training state that bind_state() names (on CPU a slot of the arena),
// which the model only ever reads; gradients are views of the flat vector that bind_gradients()
// names. Views are made once per distinct pointer and kept. The vector has the element offsets of
// the state's section "parameters" (tensors at multiples of 64 bytes). Tied weights are one entry.
// Parameters that need no gradient count as buffers. A parameter that took no part in the loss has
// gradient 0.
//
// Buffers: every micro-batch starts from those of the bound state. F32 buffers are in section
// "buffers.F32"; their change by a micro-batch is what is reduced (optimizer.h). All others
// ("buffers.I64", ...) must come out the same of every micro-batch.
//
// One thread. Calls block for their computation only. Errors: kInvalid is the user's model or data
// (say it and stop); exceptions of libtorch end here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "collectives/element_range.h"
#include "common/clock.h"
#include "common/status.h"
#include "configs/job.pb.h"
#include "worker/data.h"

namespace surefoot {

class Device;

struct EvaluationSums {
  double loss_sum = 0;  // over the samples that count
  std::int64_t samples = 0;
  std::int64_t right = 0;    // right answers
  std::int64_t answers = 0;  // given; 0: the model tells only its loss
};

class Model {
 public:
  virtual ~Model() = default;

  // The whole training state: "parameters", the optimizer's moments, "buffers.<type>".
  [[nodiscard]] virtual const StateLayout& layout() const = 0;
  // Elements of the vector's two parts: the section "parameters", and the section "buffers.F32" (0:
  // there is none), gaps included.
  [[nodiscard]] virtual std::int64_t gradient_elements() const = 0;
  [[nodiscard]] virtual std::int64_t buffer_elements() const = 0;
  // Elements that weight decay applies to: tensors of two or more dimensions.
  [[nodiscard]] virtual const std::vector<ElementRange>& decayed() const = 0;
  [[nodiscard]] virtual std::int64_t parameter_count() const = 0;
  // Floating-point operations of forward and backward of one sample, a multiply-add as two; 0: not
  // known.
  [[nodiscard]] virtual double flops_per_sample() const = 0;

  // Writes step 0: initial weights and buffers (a function of job seed and model only, or what
  // `model.from` holds), moments and gaps zero. `state` has layout().bytes.
  virtual Status write_initial_state(std::span<std::byte> state) const = 0;

  // The state that the next micro-batches and evaluations use; it must stay readable and unchanged
  // until the next bind_state.
  virtual void bind_state(std::span<const std::byte> state) = 0;
  // Where the next micro-batch's gradient goes: gradient_elements() zeros. Must stay valid until
  // the next one is bound.
  virtual void bind_gradients(std::span<float> gradients) = 0;
  // Called during backward, on the calling thread, when a parameter's gradient is final: its
  // elements and the gap after them. Elements of parameters without gradient are never reported.
  virtual void on_gradient_ready(std::function<void(ElementRange)> callback) = 0;

  // Forward and backward of one micro-batch; its gradient is *added* to the bound vector. Starts
  // from the buffers of the bound state, with the generator seeded by `seed`. A loss that is not
  // finite is not judged; backward is done all the same. The batch may be filled anew afterwards.
  // kNoSpace: the device's memory does not hold it, with the numbers.
  virtual Status micro_batch(const BatchBuffer& batch, std::uint64_t seed) = 0;
  // The mean losses of the micro-batches since the last call, in order.
  virtual Result<std::vector<double>> take_losses() = 0;

  // Change of the F32 buffers by the last micro-batch, into buffer_elements() zeros; notes the
  // other buffers as it left them.
  virtual Status take_buffer_changes(std::span<float> change) = 0;
  // The other buffers as the micro-batches since bind_state left them. Digest to compare between
  // ranks; waits. kInvalid names one that did not come out the same of all of them.
  [[nodiscard]] virtual Result<Digest> other_buffers_digest() = 0;
  // "name=digest" lines of that digest, to tell which differs; and their bytes into the sections of
  // the next state.
  [[nodiscard]] virtual std::vector<std::string> other_buffers() const = 0;
  virtual void store_other_buffers(std::span<std::byte> state) const = 0;

  // Loss and answers over the samples in `batch`, in evaluation mode. Leaves generator, buffers,
  // gradients and training mode as they were.
  virtual Result<EvaluationSums> evaluate(const BatchBuffer& batch) = 0;
};

// Builds the model of `job` for the samples of `dataset`, on `device` where there is one (it
// outlives the model). kInvalid: model and data do not fit together, or a user's module is not as
// it must be; names what and where. set_up_numerics() comes first.
[[nodiscard]] Result<std::unique_ptr<Model>> make_model(const config::Job& job,
                                                        const Dataset& dataset,
                                                        Device* device = nullptr);

// Runs one micro-batch twice and compares the gradients, losses and buffer changes by their bits.
// kInvalid: they differ, names the first parameter. A state must be bound. Leaves no gradient
// binding that is of use; keeps the device's memory for one result.
Status check_repeatable(Model& model, const BatchBuffer& batch, Device* device, Time deadline);

}  // namespace surefoot
