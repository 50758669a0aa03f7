#include "launcher/metrics/peak_flops.h"

#include <set>
#include <string>

namespace surefoot {
namespace {

struct Peak {
  const char* name;         // NVML's, without "NVIDIA " before it
  double fp32, tf32, bf16;  // TFLOP/s, dense; 0: has none
};

// A sheet that tells of sparsity only ("with sparsity") is halved. Compared in December 2026 with
// what NVIDIA or others publish, but for A30, GH200, RTX A6000, RTX 6000 Ada, the tensor cores of
// RTX 3090 and bf16 of A10G, for which nothing was at hand.
constexpr Peak kPeaks[] = {
    // "NVIDIA V100 Tensor Core GPU" data sheet (January 2020). Volta has neither tf32 nor bf16.
    {"Tesla V100-SXM2-16GB", 15.7, 0, 0},
    {"Tesla V100-SXM2-32GB", 15.7, 0, 0},
    {"Tesla V100-PCIE-16GB", 14.0, 0, 0},
    {"Tesla V100-PCIE-32GB", 14.0, 0, 0},
    {"Tesla V100S-PCIE-32GB", 16.4, 0, 0},
    // "NVIDIA T4" data sheet (March 2019). Nor has Turing.
    {"Tesla T4", 8.1, 0, 0},
    // "NVIDIA A10 Tensor Core GPU" data sheet (March 2021).
    {"A10", 31.2, 62.5, 125},
    // "NVIDIA A10G" data sheet, as AWS hands it out for its G5 instances (February 2022).
    {"A10G", 35, 35, 70},
    // "NVIDIA A30 Tensor Core GPU" data sheet (March 2022).
    {"A30", 10.3, 82, 165},
    // "NVIDIA A40" data sheet (March 2022).
    {"A40", 37.4, 74.8, 149.7},
    // "NVIDIA A100 Tensor Core GPU" data sheet (June 2021); drivers before 470 leave NVIDIA out.
    {"A100-SXM4-40GB", 19.5, 156, 312},
    {"A100-SXM4-80GB", 19.5, 156, 312},
    {"A100-SXM-80GB", 19.5, 156, 312},
    {"A100-PCIE-40GB", 19.5, 156, 312},
    {"A100-PCIE-80GB", 19.5, 156, 312},
    {"A100 80GB PCIe", 19.5, 156, 312},
    // "NVIDIA L4 Tensor Core GPU" data sheet (March 2023): tf32 120, bf16 242 with sparsity.
    {"L4", 30.3, 60, 121},
    // "NVIDIA L40" data sheet (January 2023).
    {"L40", 90.5, 90.5, 181.05},
    // "NVIDIA L40S" data sheet (August 2023).
    {"L40S", 91.6, 183, 362.05},
    // "NVIDIA Ampere GA102 GPU Architecture" white paper, appendix A; bf16 with fp32 sums.
    {"GeForce RTX 3090", 35.6, 35.6, 71},
    {"RTX A6000", 38.7, 77.4, 154.8},
    // "NVIDIA Ada GPU Architecture" white paper, appendix A, and the professional one.
    {"GeForce RTX 4090", 82.6, 82.6, 165.2},
    {"RTX 6000 Ada Generation", 91.1, 182.1, 364.2},
    // "NVIDIA RTX Blackwell GPU Architecture" white paper, appendix A.
    {"GeForce RTX 5090", 104.8, 104.8, 209.5},
    // "NVIDIA H100 Tensor Core GPU" data sheets (2023, 2024): SXM 67, 989, 1979; PCIe 51, 756,
    // 1513; NVL 60, 835, 1671; the latter two with sparsity.
    {"H100 80GB HBM3", 67, 494.5, 989.5},
    {"H100 PCIe", 51, 378, 756.5},
    {"H100 NVL", 60, 417.5, 835.5},
    // "NVIDIA H200 Tensor Core GPU" data sheet (November 2024): SXM and NVL as H100.
    {"H200", 67, 494.5, 989.5},
    {"H200 NVL", 60, 417.5, 835.5},
    // "NVIDIA H20" data sheet.
    {"H20", 44, 74, 148},
    // "NVIDIA GH200 Grace Hopper Superchip" data sheet (2024): its GPU is H100's.
    {"GH200 480GB", 67, 494.5, 989.5},
    {"GH200 120GB", 67, 494.5, 989.5},
    {"GH200 144G HBM3e", 67, 494.5, 989.5},
    // "NVIDIA Blackwell" data sheet, a GPU of HGX B200: 75, 2200, 4500; the latter two with
    // sparsity.
    {"B200", 75, 1100, 2250},
};

}  // namespace

std::optional<double> peak_flops(std::string_view name, config::Train::Precision precision) {
  constexpr std::string_view kMaker = "NVIDIA ";
  if (name.starts_with(kMaker)) name.remove_prefix(kMaker.size());
  for (const Peak& peak : kPeaks) {
    if (name != peak.name) continue;
    const double tera = precision == config::Train::bf16   ? peak.bf16
                        : precision == config::Train::tf32 ? peak.tf32
                                                           : peak.fp32;
    if (tera > 0) return tera * 1e12;
  }
  return std::nullopt;
}

std::optional<double> peak_flops(const std::vector<service::GpuStatus>& devices,
                                 config::Train::Precision precision) {
  double sum = 0;
  std::set<std::string> counted;
  for (const service::GpuStatus& device : devices) {
    const auto peak = device.mig() ? std::nullopt : peak_flops(device.name(), precision);
    if (!peak) return std::nullopt;
    if (device.uuid().empty() || counted.insert(device.uuid()).second) sum += *peak;
  }
  if (sum <= 0) return std::nullopt;
  return sum;
}

}  // namespace surefoot
