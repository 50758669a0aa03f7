#include "worker/device_choice.h"

#include "configs/devices.h"

namespace surefoot {

Result<DeviceChoice> choose_device(const config::Resources& resources,
                                   const std::optional<std::string>& visible, int local_rank,
                                   int local_size) {
  DeviceChoice choice;
  const std::vector<std::string> listed(resources.devices().begin(), resources.devices().end());
  SUREFOOT_ASSIGN(const DeviceName mine, device_of(listed, visible, local_rank));
  SUREFOOT_ASSIGN(const auto all, devices_of(resources, visible, local_size));
  choice.device = mine.text();
  choice.devices_of_node = static_cast<int>(all.size());
  choice.environment["CUDA_VISIBLE_DEVICES"] = choice.device;
  // As nvidia-smi counts. What is there already was counted by whoever has set it.
  if (!visible) choice.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  // cuBLAS adds up in one order only with a workspace of fixed size for each stream.
  choice.environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8";
  // libtorch would choose the kernel of a product by timing, in each process anew.
  choice.environment["PYTORCH_TUNABLEOP_ENABLED"] = "0";
  return choice;
}

std::string bits_by_environment(const std::function<const char*(const char*)>& value_of) {
  std::string text;
  for (const char* const name :
       {// of cuBLAS and cuDNN: another precision, other kernels
        "NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
        "CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT", "CUBLASLT_HEURISTICS_LUT_FILE",
        "CUDNN_ERRATA_JSON_FILE",
        // of libtorch 2.11: another library for an operator, another choice within it
        "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "DISABLE_ADDMM_CUDA_LT",
        "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_LINALG_PREFER_CUSOLVER", "TORCH_LINEAR_FLATTEN_3D",
        "TORCH_CUDNN_USE_HEURISTIC_MODE_B", "TORCH_CUDNN_V8_API_DISABLED"}) {
    if (const char* const value = value_of(name); value != nullptr)
      text += "; " + std::string(name) + "=" + value;
  }
  return text;
}

}  // namespace surefoot
