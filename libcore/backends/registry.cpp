// The back ends of this build, a row each.

#include <charconv>

#include "libcore/backends/backend.h"
#include "libcore/backends/cpu/backend.h"
#include "libcore/backends/cpu/rewrite/target_operators.h"
#include "libcore/backends/cuda/backend.h"
#include "libcore/backends/cuda/kernel_records.h"
#include "libcore/backends/kernel_records.h"
#include "libcore/backends/ref/backend.h"
#include "libcore/backends/sim/backend.h"

namespace galley {
namespace {

constexpr BackendRow kRows[] = {
#ifdef GALLEY_WITH_CPU  // not in builds of some rooms only (the sanitizers')
    {"cpu", "the processor, with oneDNN and own kernels", false, open_cpu, cpu_requirements},
#endif
#ifdef GALLEY_WITH_CUDA
    {"cuda", "an NVIDIA GPU; cuda:1 is the second one", true, open_cuda, cuda_requirements},
#endif
    {"ref", "the processor, every operator computed plainly in double precision: slow, for comparisons", false, open_ref},
    {"sim", "a test device: the kernels of ref on separate memory, asynchronous to the host", false, open_sim},
};

[[noreturn]] void refuse(std::string_view device) {
  std::vector<std::string> names;
  std::string list;
  for (const BackendRow& row : kRows) {
    names.emplace_back(row.name);
    list += cat(list.empty() ? "" : ", ", row.name);
  }
  const std::string near = nearest(device, names);
  throw Error(ErrorCode::kResource, cat("device ", device, " is not available: this build of Galley has ", list))
      .key("device")
      .suggest(near.empty() ? "device=cpu computes on the processor" : cat("did you mean device=", near, "?"));
}

}  // namespace

std::span<const BackendRow> backend_rows() { return kRows; }

std::shared_ptr<const Backend> open_backend(std::string_view device, BackendOptions options) {
#ifdef GALLEY_WITH_CPU
  ensure_cpu_operators();  // before any table of kernels is built
#endif
  const size_t colon = device.find(':');
  const std::string_view name = device.substr(0, colon);
  if (colon != std::string_view::npos) {
    const std::string_view number = device.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), options.index);
    if (error != std::errc() || end != number.data() + number.size()) refuse(device);
  }
  for (const BackendRow& row : kRows) {
    if (row.name == name && (options.index == 0 || row.indexed)) return row.open(options);
  }
  refuse(device);
}

std::unique_ptr<KernelRecords> record_kernels(Device& device, std::string& why) {
  why.clear();
#ifdef GALLEY_WITH_CUDA
  if (device.name() == "cuda") return record_cuda_kernels(why);
#endif
  static_cast<void>(device);
  return nullptr;
}

}  // namespace galley
